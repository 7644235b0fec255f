//! Where a replica's backend is: in memory, or given up to make room and loaded again for the
//! next request. Who uses it is counted, so that it is never taken from under a request.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::watch;
use volley_backend::Backend;
use volley_types::PredictError;

use crate::memory_budget::{MemoryBudget, Reservation};

/// The least time that a model stays once it is loaded. It also stays for as long as its load
/// took, so that a worker whose models push each other out spends at most about half of its time
/// on loading.
const MIN_STAY: Duration = Duration::from_millis(250);

/// What is loaded. The backend goes before its reservation does.
pub(crate) struct LoadedBackend {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) memory: Reservation,
    /// Before this it is not taken away.
    pub(crate) stays_until: Instant,
}

impl LoadedBackend {
    /// What has just been loaded, in `took`.
    pub(crate) fn new(backend: Arc<dyn Backend>, memory: Reservation, took: Duration) -> Self {
        memory.resize(backend.memory_bytes());
        Self {
            backend,
            memory,
            stays_until: Instant::now() + took.max(MIN_STAY),
        }
    }
}

/// The place of one replica's backend.
pub(crate) struct BackendSlot {
    budget: MemoryBudget,
    state: Mutex<State>,
}

struct State {
    slot: SlotState,
    /// Whether it may be taken away.
    overcommit: bool,
    /// Requests that use it.
    users: usize,
    last_used: Instant,
    /// What it took when it was there last.
    bytes: u64,
}

enum SlotState {
    Loaded(LoadedBackend),
    Evicted,
    Loading(LoadSender),
}

/// The end of a load that several requests may wait for; `None` until it is known.
type Outcome = Option<Result<(), PredictError>>;
type LoadSender = Arc<watch::Sender<Outcome>>;

/// What a request finds.
pub(crate) enum Lookup {
    /// The backend.
    Ready(BackendLease),
    /// It is being loaded: wait for this, and look again.
    Loading(watch::Receiver<Outcome>),
    /// As `Loading`, and the one who found it has to see to the load.
    MustLoad(watch::Receiver<Outcome>),
}

/// The right to use the backend; it is not taken away while this lives.
pub(crate) struct BackendLease {
    // Dropped before the slot hears of it.
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

/// A slot that nobody uses.
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

    /// Looks for the backend.
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

    /// What it is when nobody uses it, it is there, and it may be taken away.
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

    /// Takes the backend away, unless somebody has come to use it.
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

    /// Waits until nobody waits for the load any more; it is then as if it had not been asked
    /// for.
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

    /// Tells everybody who waits how the load ended.
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

    /// Whether it may be taken away from now on. True when it is away and must not be any more.
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

    /// Whether it may be taken away.
    pub(crate) fn overcommit(&self) -> bool {
        self.state.lock().overcommit
    }

    /// Whether it was taken away, and is not being loaded.
    pub(crate) fn is_evicted(&self) -> bool {
        matches!(self.state.lock().slot, SlotState::Evicted)
    }

    /// Bytes that it takes of the budget now.
    pub(crate) fn held_bytes(&self) -> u64 {
        match &self.state.lock().slot {
            SlotState::Loaded(held) => held.memory.bytes(),
            SlotState::Evicted | SlotState::Loading(_) => 0,
        }
    }

    /// Bytes that it takes when it is there.
    pub(crate) fn bytes(&self) -> u64 {
        self.state.lock().bytes
    }
}

/// Which of the idle ones, by their place in the list, go so that `missing` bytes become free:
/// those longest unused first, and no more than it takes. `Err` when they are not enough: then
/// none goes, and a look is worth it again at that instant, or when something changes.
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
