//! One replica: an assignment, its state, its backend once loaded, and its queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use parking_lot::RwLock;
use tokio_util::sync::CancellationToken;
use volley_backend::LoadProgress;
use volley_types::registry::{Assignment, ReplicaState};
use volley_types::{ReplicaReport, Signature};

use crate::admission::AdmissionQueue;
use crate::backend_slot::BackendSlot;
use crate::waits::WaitAverage;

/// The callable parts of a loaded replica.
#[derive(Clone)]
pub(crate) struct LoadedReplica {
    /// Slot of the backend.
    pub(crate) slot: Arc<BackendSlot>,
    /// Maximum number of concurrent streams.
    pub(crate) capacity: usize,
    pub(crate) signature: Signature,
    pub(crate) admission: AdmissionQueue,
    /// Recent queue waits.
    pub(crate) waits: Arc<WaitAverage>,
    /// Ends every stream of the replica.
    pub(crate) abort: CancellationToken,
}

/// One replica.
pub(crate) struct Replica {
    pub(crate) assignment: Assignment,
    /// Download progress of its model.
    pub(crate) progress: LoadProgress,
    state: RwLock<(ReplicaState, Option<LoadedReplica>)>,
    /// It is draining and its grace period has ended.
    closed: AtomicBool,
    unwanted: CancellationToken,
}

impl Replica {
    pub(crate) fn new(assignment: Assignment) -> Self {
        Self {
            assignment,
            progress: LoadProgress::default(),
            state: RwLock::new((ReplicaState::Loading, None)),
            closed: AtomicBool::new(false),
            unwanted: CancellationToken::new(),
        }
    }

    /// Marks it as ready, unless it is draining.
    pub(crate) fn loaded(&self, loaded: LoadedReplica) {
        self.become_unless_draining(ReplicaState::Ready, Some(loaded));
    }

    /// Marks it as failed, unless it is draining.
    pub(crate) fn failed(&self, reason: String) {
        self.become_unless_draining(ReplicaState::Failed(reason), None);
    }

    fn become_unless_draining(&self, next: ReplicaState, loaded: Option<LoadedReplica>) {
        let mut state = self.state.write();
        if state.0 != ReplicaState::Draining {
            *state = (next, loaded);
        }
    }

    /// Reports that it accepts no new requests, and cancels its load. Requests that were already
    /// sent are accepted until it is closed.
    pub(crate) fn drain(&self) {
        self.state.write().0 = ReplicaState::Draining;
        self.unwanted.cancel();
    }

    /// Waits until it is draining.
    pub(crate) async fn unwanted(&self) {
        self.unwanted.cancelled().await;
    }

    /// Rejects all new requests from now on.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    pub(crate) fn state(&self) -> ReplicaState {
        self.state.read().0.clone()
    }

    /// Ends every stream.
    pub(crate) fn abort(&self) {
        if let Some(loaded) = &self.state.read().1 {
            loaded.abort.cancel();
        }
    }

    /// The parts for requests that were sent before it started to drain.
    pub(crate) fn draining(&self) -> Option<LoadedReplica> {
        let state = self.state.read();
        let open = state.0 == ReplicaState::Draining && !self.closed.load(Ordering::Acquire);
        state.1.clone().filter(|_| open)
    }

    /// The parts, if it accepts requests.
    pub(crate) fn ready(&self) -> Option<LoadedReplica> {
        let state = self.state.read();
        state.1.clone().filter(|_| state.0 == ReplicaState::Ready)
    }

    /// Running streams and queued requests.
    pub(crate) fn load(&self) -> (usize, usize) {
        let state = self.state.read();
        state.1.as_ref().map_or((0, 0), |loaded| {
            (loaded.admission.running(), loaded.admission.waiting())
        })
    }

    /// Bytes of the budget that it uses.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let state = self.state.read();
        state
            .1
            .as_ref()
            .map_or(0, |loaded| loaded.slot.held_bytes())
    }

    /// Slot of its backend, after the first load.
    pub(crate) fn slot(&self) -> Option<Arc<BackendSlot>> {
        let state = self.state.read();
        state.1.as_ref().map(|loaded| loaded.slot.clone())
    }

    /// Its part of a heartbeat; `uptime_ms` converts an instant to the worker's uptime.
    pub(crate) fn report(&self, uptime_ms: impl FnOnce(Instant) -> u64) -> ReplicaReport {
        let state = self.state.read();
        let loaded = state.1.as_ref();
        let idle_since = loaded.map(|loaded| loaded.admission.idle_since());
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        ReplicaReport {
            model: self.assignment.model.clone(),
            version: self.assignment.spec.version,
            state: state.0.clone(),
            active: loaded.map_or(0, |loaded| count(loaded.admission.running())),
            queued: loaded.map_or(0, |loaded| count(loaded.admission.waiting())),
            capacity: loaded.map_or(0, |loaded| count(loaded.capacity)),
            idle_since_ms: idle_since.map_or(0, uptime_ms),
            queue_wait_ms: loaded.map_or(0, |loaded| loaded.waits.ms(Instant::now())),
            fetch: self.progress.get(),
            signature: loaded.map(|loaded| loaded.signature.clone()),
            evicted: loaded.is_some_and(|loaded| loaded.slot.is_evicted()),
            memory_bytes: loaded.map_or(0, |loaded| loaded.slot.held_bytes()),
        }
    }
}
