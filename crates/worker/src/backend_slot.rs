//! Slot of a replica's backend. The backend may be evicted under memory pressure and is reloaded on
//! the next request. Leases count its users, so that it is never evicted while a request uses it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::watch;
use volley_backend::Backend;
use volley_types::PredictError;

use crate::memory_budget::{MemoryBudget, Reservation};

/// Minimum time in memory after a load. A model also stays at least as long as its load took, so
/// that a thrashing worker spends at most about half of its time loading.
const MIN_STAY: Duration = Duration::from_millis(250);

/// A loaded backend. The backend is dropped before its reservation.
pub(crate) struct LoadedBackend {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) memory: Reservation,
    /// It is not evicted before this time.
    pub(crate) stays_until: Instant,
}

impl LoadedBackend {
    /// A backend that has just been loaded; the load took `took`.
    pub(crate) fn new(backend: Arc<dyn Backend>, memory: Reservation, took: Duration) -> Self {
        memory.resize(backend.memory_bytes());
        Self {
            backend,
            memory,
            stays_until: Instant::now() + took.max(MIN_STAY),
        }
    }
}

/// The slot of one replica's backend.
pub(crate) struct BackendSlot {
    budget: MemoryBudget,
    state: Mutex<State>,
}

struct State {
    slot: SlotState,
    /// Whether it may be evicted.
    overcommit: bool,
    /// Number of leases.
    users: usize,
    last_used: Instant,
    /// Its memory in bytes when it was last loaded.
    bytes: u64,
}

enum SlotState {
    Loaded(LoadedBackend),
    Evicted,
    Loading(LoadSender),
}

/// Result of a load for which several requests may wait; `None` while it runs.
type Outcome = Option<Result<(), PredictError>>;
type LoadSender = Arc<watch::Sender<Outcome>>;

/// Result of a lookup.
pub(crate) enum Lookup {
    /// The backend.
    Ready(BackendLease),
    /// It is loading: wait for the result and look up again.
    Loading(watch::Receiver<Outcome>),
    /// As `Loading`, but the caller must start the load.
    MustLoad(watch::Receiver<Outcome>),
}

/// Lease of the backend, which is not evicted while the lease lives.
pub(crate) struct BackendLease {
    // Dropped before the slot is notified.
    pub(crate) backend: Arc<dyn Backend>,
    _user: LeaseCount,
}

struct LeaseCount(Arc<BackendSlot>);

impl Drop for LeaseCount {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.users -= 1;
        state.last_used = Instant::now();
        let idle = state.users == 0 && state.overcommit;
        drop(state);
        if idle {
            self.0.budget.notify_idle();
        }
    }
}

/// An idle slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Idle {
    pub(crate) since: Instant,
    pub(crate) stays_until: Instant,
    pub(crate) bytes: u64,
}

impl BackendSlot {
    pub(crate) fn new(budget: &MemoryBudget, held: LoadedBackend, overcommit: bool) -> Self {
        held.memory.set_pinned(!overcommit);
        Self {
            budget: budget.clone(),
            state: Mutex::new(State {
                overcommit,
                users: 0,
                last_used: Instant::now(),
                bytes: held.memory.bytes(),
                slot: SlotState::Loaded(held),
            }),
        }
    }

    /// Looks up the backend.
    pub(crate) fn lookup(self: &Arc<Self>) -> Lookup {
        let mut state = self.state.lock();
        match &state.slot {
            SlotState::Loaded(held) => {
                let backend = held.backend.clone();
                state.users += 1;
                Lookup::Ready(BackendLease {
                    backend,
                    _user: LeaseCount(self.clone()),
                })
            }
            SlotState::Loading(coming) => Lookup::Loading(coming.subscribe()),
            SlotState::Evicted => {
                let (coming, outcome) = watch::channel(None);
                state.slot = SlotState::Loading(Arc::new(coming));
                Lookup::MustLoad(outcome)
            }
        }
    }

    /// The idle slot, if the backend is loaded, unused and may be evicted.
    pub(crate) fn idle(&self) -> Option<Idle> {
        let state = self.state.lock();
        match &state.slot {
            SlotState::Loaded(held) if state.users == 0 && state.overcommit => Some(Idle {
                since: state.last_used,
                stays_until: held.stays_until,
                bytes: held.memory.bytes(),
            }),
            _ => None,
        }
    }

    /// Evicts the backend; `None` if it is in use again.
    pub(crate) fn take(&self) -> Option<LoadedBackend> {
        let mut state = self.state.lock();
        if state.users != 0 || !state.overcommit || !matches!(state.slot, SlotState::Loaded(_)) {
            return None;
        }
        match std::mem::replace(&mut state.slot, SlotState::Evicted) {
            SlotState::Loaded(held) => {
                state.bytes = held.memory.bytes();
                Some(held)
            }
            SlotState::Evicted | SlotState::Loading(_) => None,
        }
    }

    /// Completes when no request waits for the load any more, and resets the slot to evicted.
    pub(crate) async fn no_waiters(&self) {
        let coming = match &self.state.lock().slot {
            SlotState::Loading(coming) => coming.clone(),
            SlotState::Loaded(_) | SlotState::Evicted => return,
        };
        loop {
            coming.closed().await;
            let mut state = self.state.lock();
            if coming.receiver_count() == 0 {
                state.slot = SlotState::Evicted;
                return;
            }
        }
    }

    /// Sets the result of the load and notifies all waiting requests.
    pub(crate) fn complete_load(&self, loaded: Result<LoadedBackend, PredictError>) {
        let mut state = self.state.lock();
        let (next, outcome) = match loaded {
            Ok(held) => {
                held.memory.set_pinned(!state.overcommit);
                state.bytes = held.memory.bytes();
                state.last_used = Instant::now();
                (SlotState::Loaded(held), Ok(()))
            }
            Err(error) => (SlotState::Evicted, Err(error)),
        };
        if let SlotState::Loading(coming) = std::mem::replace(&mut state.slot, next) {
            coming.send_replace(Some(outcome));
        }
    }

    /// Sets whether it may be evicted. Returns true if it is evicted but must now stay loaded.
    pub(crate) fn set_overcommit(&self, overcommit: bool) -> bool {
        let mut state = self.state.lock();
        if state.overcommit == overcommit {
            return false;
        }
        state.overcommit = overcommit;
        if let SlotState::Loaded(held) = &state.slot {
            held.memory.set_pinned(!overcommit);
        }
        matches!(state.slot, SlotState::Evicted) && !overcommit
    }

    /// Whether it may be evicted.
    pub(crate) fn overcommit(&self) -> bool {
        self.state.lock().overcommit
    }

    /// Whether it is evicted and not loading.
    pub(crate) fn is_evicted(&self) -> bool {
        matches!(self.state.lock().slot, SlotState::Evicted)
    }

    /// Bytes of the budget that it uses now.
    pub(crate) fn held_bytes(&self) -> u64 {
        match &self.state.lock().slot {
            SlotState::Loaded(held) => held.memory.bytes(),
            SlotState::Evicted | SlotState::Loading(_) => 0,
        }
    }

    /// Bytes that it uses when loaded.
    pub(crate) fn bytes(&self) -> u64 {
        self.state.lock().bytes
    }
}

/// Indices of the idle slots to evict so that `missing` bytes become free: least recently used
/// first, and not more than needed. `Err` if they are not enough; then none is evicted, and the
/// caller tries again at the returned time or after a change.
pub(crate) fn choose(
    idle: &[Idle],
    missing: u64,
    now: Instant,
) -> Result<Vec<usize>, Option<Instant>> {
    let mut order: Vec<usize> = (0..idle.len())
        .filter(|index| idle[*index].bytes != 0 && idle[*index].stays_until <= now)
        .collect();
    order.sort_by_key(|index| idle[*index].since);
    let (mut chosen, mut freed) = (Vec::new(), 0_u64);
    for index in order {
        if missing <= freed {
            break;
        }
        freed = freed.saturating_add(idle[index].bytes);
        chosen.push(index);
    }
    if missing <= freed {
        return Ok(chosen);
    }
    let staying = idle.iter().map(|idle| idle.stays_until);
    Err(staying.filter(|until| now < *until).min())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_unused_go_first_and_none_goes_in_vain() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let idle = |since, stays_until, bytes| Idle {
            since: at(since),
            stays_until: at(stays_until),
            bytes,
        };
        let slots = [
            idle(5, 6, 10),
            idle(3, 4, 10),
            idle(4, 90, 10),
            idle(1, 2, 0),
        ];
        let now = at(50);
        assert_eq!(choose(&slots, 5, now), Ok(vec![1]));
        assert_eq!(choose(&slots, 10, now), Ok(vec![1]));
        assert_eq!(choose(&slots, 11, now), Ok(vec![1, 0]));
        assert_eq!(choose(&slots, 21, now), Err(Some(at(90))));
        assert_eq!(choose(&slots[..2], 21, now), Err(None));
        assert_eq!(choose(&[], 0, now), Ok(vec![]));
    }
}
