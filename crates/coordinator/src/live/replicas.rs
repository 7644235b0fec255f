//! The replicas that workers hold, indexed by model: a request must not look at them all.

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

/// What this coordinator knows of a replica besides what its worker reports.
#[derive(Debug)]
pub struct ReplicaLoad {
    /// Streams from here that run on it.
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
    /// Its place in the report.
    index: usize,
    known: Arc<ReplicaLoad>,
    /// When its worker said, before the next report, that it takes no requests for it.
    refused: Option<Instant>,
}

impl Slot {
    /// What the worker reports of it, where it can be called.
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
    /// After a report whose list of replicas, or a state of one, differs from the one `before`.
    /// A replica that has become ready begins anew.
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
            // It was said of a replica that was loaded before.
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
        // One that is on its way out may stand beside the one that was loaded after it.
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

    /// The worker takes no requests for the replica that `known` is of. Whether that is new.
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

    /// Forgets refusals that are older than `stands`. Whether it forgot any, and whether any stand.
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

/// Which workers hold any version of which model.
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
    /// Whether the worker is suspect or drained: called only when no other is left.
    pub suspect: bool,
    /// Whether its worker is in this coordinator's zone.
    pub local: bool,
    /// Whether the model is in its worker's memory.
    pub resident: bool,
    /// Streams and waiting requests that it reported, of all coordinators.
    pub reported_load: u32,
    /// How many streams it runs at once; at least 1.
    pub capacity: u32,
    /// What was learnt of it.
    pub known: Arc<ReplicaLoad>,
    /// The way to it.
    pub client: Arc<dyn Predict>,
}

impl Candidate {
    /// What the choice looks at. The load is the larger of what this coordinator sends and what
    /// the worker reported: the report is late, and other coordinators send too.
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

    /// Begins a call at `now`: it counts as load of this replica until the guard is dropped.
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

/// A call that runs on a replica. Dropped before it has an answer, it tells only that an answer
/// would have taken longer.
#[derive(Debug)]
pub struct ReplicaCall {
    known: Arc<ReplicaLoad>,
    begun: Instant,
    answered: bool,
}

impl ReplicaCall {
    /// The first chunk is there.
    pub fn succeeded(&mut self, now: Instant) {
        if !std::mem::replace(&mut self.answered, true) {
            let latency = now.saturating_duration_since(self.begun);
            self.known.score.lock().succeeded(now, latency);
        }
    }

    /// It failed. Whether this makes the replica an outlier among `all` that hold the model,
    /// which ejects it.
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

    /// It ended with an error that is not the replica's fault.
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
