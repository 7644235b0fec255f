//! How many calls of one worker a connector's servers get.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use governor::clock::{Clock, DefaultClock};
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout};
use volley_types::registry::ConnectorPolicy;
use volley_types::{ErrorCode, PredictError};

/// Over a call's whole stream; none where there is no limit.
pub(crate) type Permit = Option<OwnedSemaphorePermit>;

/// The limits of one connector.
#[derive(Debug)]
pub(crate) struct Limits {
    concurrent: Option<Arc<Semaphore>>,
    rate: Option<DefaultDirectRateLimiter>,
}

impl Limits {
    pub(crate) fn new(policy: &ConnectorPolicy) -> Self {
        let concurrent = policy.max_concurrent.map(|most| most as usize);
        let rate = policy.max_per_minute.and_then(NonZeroU32::new);
        Self {
            concurrent: concurrent
                .map(|most| Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS)))),
            rate: rate.map(|most| RateLimiter::direct(Quota::per_minute(most))),
        }
    }

    /// The right to make a call, which lasts as long as its stream.
    ///
    /// # Errors
    /// `Overloaded` when there is none within `limit`.
    pub(crate) async fn permit(&self, limit: Duration) -> Result<Permit, PredictError> {
        let Some(concurrent) = &self.concurrent else {
            return Ok(None);
        };
        match timeout(limit, concurrent.clone().acquire_owned()).await {
            Ok(permit) => Ok(permit.ok()),
            Err(_) => Err(over("calls at a time", Duration::from_secs(1))),
        }
    }

    /// Waits for the turn to begin a call.
    ///
    /// # Errors
    /// `Overloaded` when that would take longer than `limit`, with how long.
    pub(crate) async fn turn(&self, limit: Duration) -> Result<(), PredictError> {
        let Some(rate) = &self.rate else {
            return Ok(());
        };
        let until = Instant::now() + limit;
        while let Err(refused) = rate.check() {
            let wait = refused.wait_time_from(DefaultClock::default().now());
            if until < Instant::now() + wait {
                return Err(over("calls in a minute", wait));
            }
            sleep(wait).await;
        }
        Ok(())
    }
}

fn over(what: &str, after: Duration) -> PredictError {
    let message = format!("the connector's limit of {what} is reached on this worker");
    PredictError::new(ErrorCode::Overloaded, message).with_retry_after(after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn calls_over_a_limit_wait_and_are_refused_when_that_takes_too_long() {
        let limits = Limits::new(&ConnectorPolicy {
            max_concurrent: Some(1),
            max_per_minute: Some(600),
            ..ConnectorPolicy::default()
        });
        let short = Duration::from_millis(20);
        let permit = limits.permit(short).await.unwrap();
        let refused = limits.permit(short).await.unwrap_err();
        assert_eq!(refused.code, ErrorCode::Overloaded);
        assert!(refused.retry_after.is_some());
        drop(permit);
        assert!(limits.permit(short).await.unwrap().is_some());

        for _ in 0..600 {
            limits.turn(Duration::ZERO).await.unwrap();
        }
        let refused = limits.turn(Duration::ZERO).await.unwrap_err();
        let after = refused.retry_after.unwrap();
        assert!(after <= Duration::from_millis(100), "{after:?}");
        limits.turn(Duration::from_secs(5)).await.unwrap();
    }

    #[tokio::test]
    async fn without_limits_there_is_nothing_to_wait_for() {
        let limits = Limits::new(&ConnectorPolicy::default());
        assert!(limits.permit(Duration::ZERO).await.unwrap().is_none());
        limits.turn(Duration::ZERO).await.unwrap();
    }
}
