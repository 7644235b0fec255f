//! Memory budget of a worker's models. Every loaded or loading model has a reservation; an
//! abandoned load keeps its reservation until its thread ends.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytesize::ByteSize;
use parking_lot::Mutex;
use tokio::sync::watch;
use volley_types::{ErrorCode, PredictError};

/// The memory budget of one worker. Clones share their state.
#[derive(Clone, Debug)]
pub(crate) struct MemoryBudget(Arc<BudgetInner>);

#[derive(Debug)]
struct BudgetInner {
    budget: u64,
    state: Mutex<State>,
    /// Notifies when memory may have become free.
    freed: watch::Sender<()>,
    /// Notifies when an overcommitted model becomes idle.
    idle: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct State {
    next_key: u64,
    held: BTreeMap<u64, BudgetEntry>,
}

#[derive(Clone, Copy, Debug)]
struct BudgetEntry {
    bytes: u64,
    pinned: bool,
}

/// A reservation of memory; released when dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    books: Arc<BudgetInner>,
    key: u64,
}

/// The reason for a failed reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shortage {
    needed: u64,
    budget: u64,
    held: u64,
    pinned: u64,
}

impl Shortage {
    /// Whether evicting all overcommitted models would not free enough memory.
    pub(crate) fn is_final(self) -> bool {
        self.budget < self.pinned.saturating_add(self.needed)
    }

    /// Bytes that must be freed first.
    pub(crate) fn missing(self) -> u64 {
        let wanted = self.held.saturating_add(self.needed);
        wanted.saturating_sub(self.budget)
    }

    /// The error for users.
    pub(crate) fn error(self) -> PredictError {
        let free = self.budget.saturating_sub(self.held);
        let advice = if self.is_final() {
            "undeploy another model, deploy some with 'overcommit', or raise 'models.memory_budget'"
        } else {
            "the overcommitted models are in use"
        };
        let message = format!(
            "the model needs {} of memory, and this worker has {} free of its budget of {}; {advice}",
            ByteSize(self.needed),
            ByteSize(free),
            ByteSize(self.budget),
        );
        PredictError::new(ErrorCode::Overloaded, message)
    }
}

impl MemoryBudget {
    pub(crate) fn new(budget: u64) -> Self {
        Self(Arc::new(BudgetInner {
            budget,
            state: Mutex::default(),
            freed: watch::Sender::new(()),
            idle: watch::Sender::new(()),
        }))
    }

    pub(crate) fn budget(&self) -> u64 {
        self.0.budget
    }

    /// Bytes that are reserved.
    pub(crate) fn held(&self) -> u64 {
        self.0.state.lock().held()
    }

    /// Reserves `bytes`; `pinned` for models that are never evicted. A reservation of 0 bytes
    /// always succeeds.
    pub(crate) fn reserve(&self, bytes: u64, pinned: bool) -> Result<Reservation, Shortage> {
        let mut state = self.0.state.lock();
        let held = state.held();
        if bytes != 0 && self.0.budget < held.saturating_add(bytes) {
            let fixed = state.held.values().filter(|entry| entry.pinned);
            return Err(Shortage {
                needed: bytes,
                budget: self.0.budget,
                held,
                pinned: fixed.fold(0, |sum, entry| sum.saturating_add(entry.bytes)),
            });
        }
        let key = state.next_key;
        state.next_key += 1;
        state.held.insert(key, BudgetEntry { bytes, pinned });
        Ok(Reservation {
            books: self.0.clone(),
            key,
        })
    }

    /// Notifies after every change that may have freed memory.
    pub(crate) fn freed(&self) -> watch::Receiver<()> {
        self.0.freed.subscribe()
    }

    /// Notifies when an overcommitted model becomes idle.
    pub(crate) fn idle(&self) -> watch::Receiver<()> {
        self.0.idle.subscribe()
    }

    /// Notifies that an overcommitted model has become idle.
    pub(crate) fn notify_idle(&self) {
        self.0.idle.send_replace(());
    }
}

impl State {
    fn held(&self) -> u64 {
        let entries = self.held.values();
        entries.fold(0, |sum, entry| sum.saturating_add(entry.bytes))
    }
}

impl Reservation {
    /// Reserved bytes.
    pub(crate) fn bytes(&self) -> u64 {
        let state = self.books.state.lock();
        state.held.get(&self.key).map_or(0, |entry| entry.bytes)
    }

    /// Sets the reservation to the model's actual memory, even above the budget, because the memory
    /// is already in use.
    pub(crate) fn resize(&self, bytes: u64) {
        self.change(|entry| entry.bytes = bytes);
    }

    /// Sets whether the model is never evicted.
    pub(crate) fn set_pinned(&self, pinned: bool) {
        self.change(|entry| entry.pinned = pinned);
    }

    fn change(&self, change: impl FnOnce(&mut BudgetEntry)) {
        if let Some(entry) = self.books.state.lock().held.get_mut(&self.key) {
            change(entry);
        }
        self.books.freed.send_replace(());
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.books.state.lock().held.remove(&self.key);
        self.books.freed.send_replace(());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused_with_what_is_needed_and_free() {
        let ledger = MemoryBudget::new(10 << 20);
        let first = ledger.reserve(6 << 20, true).unwrap();
        let second = ledger.reserve(2 << 20, false).unwrap();
        let short = ledger.reserve(4 << 20, true).unwrap_err();
        assert_eq!((short.missing(), short.is_final()), (2 << 20, false));
        let text = short.error().message;
        for part in ["needs 4.0 MiB", "2.0 MiB free", "budget of 10.0 MiB"] {
            assert!(text.contains(part), "{text}");
        }
        assert!(ledger.reserve(5 << 20, true).unwrap_err().is_final());
        assert!(ledger.reserve(u64::MAX, true).unwrap_err().is_final());

        let mut freed = ledger.freed();
        freed.mark_unchanged();
        drop(second);
        assert!(freed.has_changed().unwrap());
        drop(ledger.reserve(4 << 20, true).unwrap());
        first.resize(20 << 20);
        assert_eq!((ledger.held(), first.bytes()), (20 << 20, 20 << 20));
        assert!(ledger.reserve(1, true).is_err());
        assert!(ledger.reserve(0, true).is_ok(), "nothing always fits");
    }

    proptest::proptest! {
        #[test]
        fn never_more_than_the_budget_and_all_of_it_comes_back(
            steps in proptest::collection::vec((0_u64..40, 0_usize..6, proptest::bool::ANY), 1..100)
        ) {
            let ledger = MemoryBudget::new(100);
            let mut held = Vec::new();
            for (bytes, index, pinned) in steps {
                if index < held.len() {
                    drop(held.remove(index));
                }
                let free = 100 - ledger.held();
                let reserved = ledger.reserve(bytes, pinned);
                proptest::prop_assert_eq!(reserved.is_ok(), bytes <= free);
                if let Err(short) = &reserved {
                    proptest::prop_assert_eq!(short.missing(), bytes - free);
                }
                held.extend(reserved);
                proptest::prop_assert!(ledger.held() <= 100);
            }
            drop(held);
            proptest::prop_assert_eq!(ledger.held(), 0);
        }
    }
}
