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
pub type Permit = Option<OwnedSemaphorePermit>;

/// The limits of one connector.
#[derive(Debug)]
pub struct ConnectorLimits {
    concurrent: Option<Arc<Semaphore>>,
    rate: Option<DefaultDirectRateLimiter>,
}

impl ConnectorLimits {
    /// Those of a connector's policy.
    pub fn new(policy: &ConnectorPolicy) -> Self {
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
    pub async fn permit(&self, limit: Duration) -> Result<Permit, PredictError> {
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
    pub async fn turn(&self, limit: Duration) -> Result<(), PredictError> {
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
mod tests;
