//! Replicas of workers, indexed by model, so that a request does not scan all of them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use volley_types::registry::ReplicaState;
use volley_types::worker::{ReplicaReport, WorkerReport};
use volley_types::{ModelName, ModelVersion, Predict, WorkerId};

use crate::route::View;
use crate::route::score::{Score, is_outlier};

/// State of a replica on this coordinator, besides its worker's report.
#[derive(Debug)]
pub struct ReplicaLoad {
    /// Streams of this coordinator that run on it.
    in_flight: AtomicU32,
    score: Mutex<Score>,
}

impl ReplicaLoad {
    fn new(now: Instant) -> Self {
        Self {
            in_flight: AtomicU32::new(0),
            score: Mutex::new(Score::new(now)),
        }
    }
}

#[derive(Debug)]
struct Slot {
    version: ModelVersion,
    /// Index in the report.
    index: usize,
    known: Arc<ReplicaLoad>,
    /// Time of the worker's refusal since the last report.
    refused: Option<Instant>,
}

impl Slot {
    /// Its report, if it can be called.
    fn ready<'a>(&self, report: &'a WorkerReport) -> Option<&'a ReplicaReport> {
        let replica = report.replicas.get(self.index)?;
        let ready = replica.state == ReplicaState::Ready && self.refused.is_none();
        ready.then_some(replica)
    }
}

/// The replicas of one worker, by model.
#[derive(Debug, Default)]
pub(super) struct Slots(HashMap<ModelName, Vec<Slot>>);

impl Slots {
    /// Applies a report whose replicas or states differ from `before`. The score of a replica that
    /// has become ready is reset.
    pub(super) fn update(
        &mut self,
        before: Option<&WorkerReport>,
        report: &WorkerReport,
        now: Instant,
    ) {
        let mut old = std::mem::take(&mut self.0);
        for (index, replica) in report.replicas.iter().enumerate() {
            let same = |slot: &Slot| slot.version == replica.version;
            let kept = old.get_mut(&replica.model).and_then(|slots| {
                let at = slots.iter().position(same)?;
                Some(slots.swap_remove(at))
            });
            let was_ready = kept.as_ref().is_some_and(|slot| {
                let before = before.and_then(|report| report.replicas.get(slot.index));
                before.is_some_and(|replica| replica.state == ReplicaState::Ready)
            });
            let (known, refused) = match kept {
                Some(slot) => (slot.known, slot.refused),
                None => (Arc::new(ReplicaLoad::new(now)), None),
            };
            if !was_ready {
                *known.score.lock() = Score::new(now);
            }
            // The refusal was for an earlier load of the replica.
            let refused = refused.filter(|_| was_ready);
            let slot = Slot {
                version: replica.version,
                index,
                known,
                refused,
            };
            self.0.entry(replica.model.clone()).or_default().push(slot);
        }
    }

    pub(super) fn models(&self) -> impl Iterator<Item = &ModelName> {
        self.0.keys()
    }

    pub(super) fn ready<'a>(
        &self,
        report: &'a WorkerReport,
        model: &ModelName,
        version: ModelVersion,
    ) -> Option<(&'a ReplicaReport, &Arc<ReplicaLoad>)> {
        // A draining replica may exist beside the one that was loaded after it.
        let slots = self.0.get(model)?.iter();
        let mut ready = slots
            .filter(|slot| slot.version == version)
            .filter_map(|slot| Some((slot.ready(report)?, &slot.known)));
        ready.next()
    }

    /// The versions of a model that can be called, one for each replica.
    pub(super) fn ready_versions<'a>(
        &'a self,
        report: &'a WorkerReport,
        model: &ModelName,
    ) -> impl Iterator<Item = ModelVersion> + 'a {
        let slots = self.0.get(model).map_or(&[][..], Vec::as_slice);
        slots
            .iter()
            .filter_map(|slot| slot.ready(report))
            .map(|replica| replica.version)
    }

    /// Records that the worker refuses requests for the replica of `known`. Returns whether this is
    /// new.
    pub(super) fn refuse(
        &mut self,
        model: &ModelName,
        known: &Arc<ReplicaLoad>,
        now: Instant,
    ) -> bool {
        let mut slots = self.0.get_mut(model).into_iter().flatten();
        let slot = slots.find(|slot| Arc::ptr_eq(&slot.known, known));
        slot.is_some_and(|slot| slot.refused.replace(now).is_none())
    }

    /// Removes refusals older than `stands`. Returns whether it removed any, and whether any
    /// remain.
    pub(super) fn forget_refusals(&mut self, now: Instant, stands: Duration) -> (bool, bool) {
        let is_old = |at: &mut Instant| stands <= now.saturating_duration_since(*at);
        let (mut forgot, mut stand) = (false, false);
        for slot in self.0.values_mut().flatten() {
            forgot |= slot.refused.take_if(is_old).is_some();
            stand |= slot.refused.is_some();
        }
        (forgot, stand)
    }

    pub(super) fn of<'a>(
        &self,
        report: &'a WorkerReport,
        model: &ModelName,
    ) -> impl Iterator<Item = &'a ReplicaReport> {
        let slots = self.0.get(model).map_or(&[][..], Vec::as_slice);
        slots
            .iter()
            .filter_map(|slot| report.replicas.get(slot.index))
    }
}

/// Index of the workers of each model.
#[derive(Debug, Default)]
pub(super) struct Holders(BTreeMap<ModelName, BTreeSet<WorkerId>>);

impl Holders {
    pub(super) fn add(&mut self, worker: &WorkerId, slots: &Slots) {
        for model in slots.models() {
            let holders = self.0.entry(model.clone()).or_default();
            holders.insert(worker.clone());
        }
    }

    pub(super) fn remove(&mut self, worker: &WorkerId, slots: &Slots) {
        for model in slots.models() {
            if let Some(holders) = self.0.get_mut(model) {
                holders.remove(worker);
                if holders.is_empty() {
                    self.0.remove(model);
                }
            }
        }
    }

    pub(super) fn of(&self, model: &ModelName) -> impl Iterator<Item = &WorkerId> {
        self.0.get(model).into_iter().flatten()
    }
}

/// A replica that can be called now.
#[derive(Clone)]
pub struct Candidate {
    /// Its worker.
    pub worker: WorkerId,
    /// Whether the worker is suspect or drained: called only if no other is available.
    pub suspect: bool,
    /// Whether its worker is in this coordinator's zone.
    pub local: bool,
    /// Whether the model is in its worker's memory.
    pub resident: bool,
    /// Streams and waiting requests that it reported, of all coordinators.
    pub reported_load: u32,
    /// Maximum number of concurrent streams, at least 1.
    pub capacity: u32,
    /// Score and load on this coordinator.
    pub known: Arc<ReplicaLoad>,
    /// Client of the worker.
    pub client: Arc<dyn Predict>,
}

impl Candidate {
    /// Input of the choice. The load is the maximum of this coordinator's streams and the reported
    /// load, because reports are delayed and other coordinators also send requests.
    #[must_use]
    pub fn view(&self, now: Instant, slow_start: Duration) -> View<'_> {
        let in_flight = self.known.in_flight.load(Ordering::Relaxed);
        let score = self.known.score.lock();
        View {
            worker: &self.worker,
            suspect: self.suspect,
            ejected: score.is_ejected(now),
            resident: self.resident,
            local: self.local,
            load: in_flight.max(self.reported_load),
            capacity: self.capacity.max(1),
            latency_ms: score.latency_ms(now),
            failing: score.failing(),
            warmth: score.warmth(now, slow_start),
        }
    }

    /// Starts a call at `now`, which counts as load of this replica until the guard is dropped.
    #[must_use]
    pub fn begin(&self, now: Instant) -> ReplicaCall {
        self.known.in_flight.fetch_add(1, Ordering::Relaxed);
        ReplicaCall {
            known: self.known.clone(),
            begun: now,
            answered: false,
        }
    }
}

/// A running call on a replica. If it is dropped without a response, the elapsed time is a lower
/// bound of the latency.
#[derive(Debug)]
pub struct ReplicaCall {
    known: Arc<ReplicaLoad>,
    begun: Instant,
    answered: bool,
}

impl ReplicaCall {
    /// Records the first chunk.
    pub fn succeeded(&mut self, now: Instant) {
        if !std::mem::replace(&mut self.answered, true) {
            let latency = now.saturating_duration_since(self.begun);
            self.known.score.lock().succeeded(now, latency);
        }
    }

    /// Records a failure. Returns whether it ejects the replica as an outlier among `all` replicas
    /// of the model.
    pub fn failed(&mut self, now: Instant, all: &[Candidate]) -> bool {
        self.answered = true;
        let is_other = |other: &&Candidate| !Arc::ptr_eq(&other.known, &self.known);
        let mut ejected = 0;
        let mut others = Vec::with_capacity(all.len());
        for other in all.iter().filter(is_other) {
            let score = other.known.score.lock();
            if score.is_ejected(now) {
                ejected += 1;
            } else {
                others.push(score.failing());
            }
        }
        let mut score = self.known.score.lock();
        score.failed();
        let eject =
            !score.is_ejected(now) && is_outlier(score.failing(), &others, ejected, all.len());
        if eject {
            score.eject(now);
        }
        eject
    }

    /// Records an error that is not the replica's fault.
    pub fn refused(&mut self) {
        self.answered = true;
    }
}

impl Drop for ReplicaCall {
    fn drop(&mut self) {
        self.known.in_flight.fetch_sub(1, Ordering::Relaxed);
        if !self.answered {
            let now = Instant::now();
            let waited = now.saturating_duration_since(self.begun);
            self.known.score.lock().abandoned(now, waited);
        }
    }
}
