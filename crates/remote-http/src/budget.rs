//! The retry budget, which limits retries to a fraction of the load, so that they cannot overload
//! failing servers.

use std::sync::atomic::{AtomicI64, Ordering};

/// Cost of a retry.
const UNIT: i64 = 1_000;
/// Earned by each first call: one retry for five calls.
const EARNED: i64 = UNIT / 5;
/// Maximum balance: a burst of ten retries.
const BURST: i64 = 10 * UNIT;

/// A token bucket without a clock: first calls fill it, retries empty it.
#[derive(Debug)]
pub struct Budget(AtomicI64);

impl Default for Budget {
    fn default() -> Self {
        Self(AtomicI64::new(BURST))
    }
}

impl Budget {
    /// Records a first call.
    pub fn earn(&self) {
        let add = |balance: i64| Some((balance + EARNED).min(BURST));
        let _ = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// Takes one retry from the budget; false if it is exhausted.
    pub fn spend(&self) -> bool {
        let take = |balance: i64| (UNIT <= balance).then_some(balance - UNIT);
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_call_in_five_may_be_made_again_once_the_burst_is_spent() {
        let budget = Budget::default();
        assert_eq!((0..20).filter(|_| budget.spend()).count(), 10);
        let again = |_: &i32| {
            budget.earn();
            budget.spend()
        };
        assert_eq!((0..1_000).filter(again).count(), 200);
    }
}
