//! The retry budget: retries may add only a fraction to the load, so that retries do not overload a
//! failing cluster.

use std::sync::atomic::{AtomicI64, Ordering};

/// A retry costs this many units; a request earns `ratio` of it.
const UNIT: i64 = 1_000;
/// Maximum burst of retries.
const RETRIES: i64 = 10;
/// Maximum burst for requests and streams of lost workers. They are all lost at the same time, and
/// each causes the same load on the new worker as on the old one.
const LOSSES: i64 = 1_024;

/// A token bucket without a clock: requests fill it, retries empty it.
#[derive(Debug)]
pub(crate) struct RetryBudget {
    earned_per_request: i64,
    burst: i64,
    balance: AtomicI64,
}

impl RetryBudget {
    /// Allows `ratio` retries per request (0.2 is one in five) after an initial burst of 10.
    pub(crate) fn new(ratio: f64) -> Self {
        Self::with_burst(ratio, RETRIES)
    }

    /// The budget for requests of lost workers, with an initial burst of 1,024.
    pub(crate) fn of_losses(ratio: f64) -> Self {
        Self::with_burst(ratio, LOSSES)
    }

    fn with_burst(ratio: f64, burst: i64) -> Self {
        Self {
            earned_per_request: (ratio.clamp(0.0, 1.0) * UNIT as f64) as i64,
            burst: burst * UNIT,
            balance: AtomicI64::new(burst * UNIT),
        }
    }

    /// Records a first attempt.
    pub(crate) fn earn(&self) {
        let add = |balance: i64| Some((balance + self.earned_per_request).min(self.burst));
        let _ = self
            .balance
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// Whether one more retry is allowed; if so, subtracts it from the budget.
    pub(crate) fn spend(&self) -> bool {
        let take = |balance: i64| (UNIT <= balance).then_some(balance - UNIT);
        self.balance
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_request_in_five_may_be_retried_once_the_burst_is_spent() {
        let budget = RetryBudget::new(0.2);
        let burst = std::iter::repeat_with(|| budget.spend())
            .take_while(|ok| *ok)
            .count();
        assert_eq!(burst, 10);
        let mut retries = 0;
        for _ in 0..1_000 {
            budget.earn();
            retries += usize::from(budget.spend());
        }
        assert_eq!(retries, 200);
    }
}
