//! The retry budget: calls made again may add only a fraction to the load of servers in trouble.

use std::sync::atomic::{AtomicI64, Ordering};

/// A call made again costs this many units.
const UNIT: i64 = 1_000;
/// What each first call earns: one in five may be made again.
const EARNED: i64 = UNIT / 5;
/// What can be saved up: a burst of this many.
const BURST: i64 = 10 * UNIT;

/// A token bucket without a clock: calls fill it, those made again empty it.
#[derive(Debug)]
pub struct Budget(AtomicI64);

impl Default for Budget {
    fn default() -> Self {
        Self(AtomicI64::new(BURST))
    }
}

impl Budget {
    /// A first call is made.
    pub fn earn(&self) {
        let add = |balance: i64| Some((balance + EARNED).min(BURST));
        let _ = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// Whether one more may be made again; takes it from the budget.
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
