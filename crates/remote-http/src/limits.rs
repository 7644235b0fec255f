//! A worker's limits on calls through one connector.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use governor::clock::{Clock, DefaultClock};
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout};
use volley_types::registry::ConnectorPolicy;
use volley_types::{ErrorCode, PredictError};

/// Permit for a call and its stream; `None` without a limit.
pub type Permit = Option<OwnedSemaphorePermit>;

/// The limits of one connector on this worker.
#[derive(Debug)]
pub struct ConnectorLimits {
    concurrent: Option<Arc<Semaphore>>,
    rate: Option<DefaultDirectRateLimiter>,
}

impl ConnectorLimits {
    /// Creates the limits of a connector's policy.
    pub fn new(policy: &ConnectorPolicy) -> Self {
        let concurrent = policy.max_concurrent.map(|most| most as usize);
        let rate = policy.max_per_minute.and_then(NonZeroU32::new);
        Self {
            concurrent: concurrent
                .map(|most| Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS)))),
            rate: rate.map(|most| RateLimiter::direct(Quota::per_minute(most))),
        }
    }

    /// Acquires a permit for a call and its stream. Dropping the future gives up the place in the
    /// queue.
    ///
    /// # Errors
    /// `Overloaded` if there is no permit within `limit`.
    pub async fn permit(&self, limit: Duration) -> Result<Permit, PredictError> {
        let Some(concurrent) = &self.concurrent else {
            return Ok(None);
        };
        match timeout(limit, concurrent.clone().acquire_owned()).await {
            Ok(permit) => Ok(permit.ok()),
            Err(_) => Err(over("calls at a time", Duration::from_secs(1))),
        }
    }

    /// Waits until the rate limit allows another call. Cancel safe: a dropped future takes nothing
    /// from the rate.
    ///
    /// # Errors
    /// `Overloaded` with the required wait, if that exceeds `limit`.
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
