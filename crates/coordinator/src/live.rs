//! Live workers and their replicas, updated by heartbeats and by the clock. Pure: the time is an
//! argument.

mod replicas;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use volley_placement::planner::{ObservedWorker, ObservedWorkers};
use volley_types::control::Liveness;
use volley_types::registry::ReplicaState;
use volley_types::worker::{ReplicaReport, WorkerReport};
use volley_types::{ModelName, ModelVersion, Predict, WorkerId};

pub use self::replicas::{Candidate, ReplicaCall, ReplicaLoad};
use self::replicas::{Holders, Slots};
use crate::config::LivenessConfig;

/// The label of a worker that names its zone.
pub const ZONE_LABEL: &str = "zone";

/// One worker as this coordinator sees it.
pub struct LiveWorker {
    /// The last report.
    pub report: WorkerReport,
    /// Whether it can be sent requests.
    pub liveness: Liveness,
    /// Time of its last heartbeat.
    pub last_heard: Instant,
    /// Client of the worker.
    pub client: Arc<dyn Predict>,
    /// Id of its current heartbeat stream.
    stream: u64,
    slots: Slots,
}

impl LiveWorker {
    fn is_callable(&self) -> bool {
        matches!(self.liveness, Liveness::Alive | Liveness::Suspect)
    }
}

/// All workers with a heartbeat since the start.
pub struct LiveWorkers {
    config: LivenessConfig,
    zone: Option<String>,
    workers: BTreeMap<WorkerId, LiveWorker>,
    holders: Holders,
    /// Time of the first tick, plus all pauses of this coordinator since then. After a long pause,
    /// the end of the pause.
    began: Option<Instant>,
    /// Time of the last tick.
    ticked: Option<Instant>,
    /// Workers that operators drain.
    leaving: BTreeSet<WorkerId>,
    /// Whether some replicas count as refused.
    refusals: bool,
}

/// A tick that is late by this many intervals means that this coordinator was paused.
const LATE_TICKS: u32 = 4;

/// Time for which a refusal of a replica counts without a newer report; the delay of reports is
/// shorter.
const REFUSAL_STANDS: Duration = Duration::from_secs(1);

impl LiveWorkers {
    /// No workers.
    #[must_use]
    pub fn new(config: LivenessConfig) -> Self {
        Self {
            config,
            zone: None,
            workers: BTreeMap::new(),
            holders: Holders::default(),
            began: None,
            ticked: None,
            leaving: BTreeSet::new(),
            refusals: false,
        }
    }

    /// Sets the zone of this coordinator, whose workers are local.
    #[must_use]
    pub fn in_zone(mut self, zone: Option<String>) -> Self {
        self.zone = zone;
        self
    }

    /// Sets the drained workers, which are called only if no other worker can be. Returns whether
    /// the set changed.
    pub fn set_leaving(&mut self, workers: BTreeSet<WorkerId>) -> bool {
        let changed = self.leaving != workers;
        self.leaving = workers;
        changed
    }

    /// Records a report of heartbeat stream `stream`. A restarted worker or a new address gets a
    /// new client from `connect`. Returns whether a replica, the liveness or the worker changed,
    /// which is relevant to placement.
    pub fn heard(
        &mut self,
        report: WorkerReport,
        stream: u64,
        now: Instant,
        connect: impl FnOnce(&str) -> Arc<dyn Predict>,
    ) -> bool {
        let liveness = if report.draining {
            Liveness::Draining
        } else {
            Liveness::Alive
        };
        let Some(known) = self.workers.get_mut(&report.id) else {
            let client = connect(&report.address);
            let mut slots = Slots::default();
            slots.update(None, &report, now);
            self.holders.add(&report.id, &slots);
            let worker = LiveWorker {
                liveness,
                last_heard: now,
                client,
                stream,
                slots,
                report,
            };
            self.workers.insert(worker.report.id.clone(), worker);
            return true;
        };
        let same_life = known.report.incarnation == report.incarnation;
        // The newest stream is valid: an older one may belong to an earlier process, or to a second
        // process with the same id.
        if stream < known.stream && known.liveness != Liveness::Dead {
            return false;
        }
        if !same_life || known.report.address != report.address {
            known.client = connect(&report.address);
        }
        let moved = !same_life || replica_states(&known.report).ne(replica_states(&report));
        let changed = moved || known.liveness != liveness;
        if moved {
            self.holders.remove(&report.id, &known.slots);
            if !same_life {
                known.slots = Slots::default();
            }
            known.slots.update(Some(&known.report), &report, now);
            self.holders.add(&report.id, &known.slots);
        }
        known.report = report;
        known.liveness = liveness;
        known.last_heard = now;
        known.stream = stream;
        changed
    }

    /// Records that the worker of `candidate` refused a request for its replica of `model`, because
    /// it unloads the replica and the report has not arrived yet. The replica is not called until a
    /// report changes its state, for at most one second. Returns whether this is new.
    pub fn refused(&mut self, model: &ModelName, candidate: &Candidate, now: Instant) -> bool {
        let worker = self.workers.get_mut(&candidate.worker);
        let refused = worker.is_some_and(|it| it.slots.refuse(model, &candidate.known, now));
        self.refusals |= refused;
        refused
    }

    /// Heartbeat stream `stream` of `worker` ended: by a reset or a leave. The worker is marked
    /// dead immediately. Returns its previous liveness if the stream was the current one.
    pub fn lost(&mut self, worker: &WorkerId, stream: u64) -> Option<Liveness> {
        let known = self.workers.get_mut(worker)?;
        let speaks = known.stream == stream && known.liveness != Liveness::Dead;
        speaks.then(|| std::mem::replace(&mut known.liveness, Liveness::Dead))
    }

    /// Updates the liveness of all workers at `now`, and forgets workers that are dead for long.
    /// Returns whether anything changed.
    ///
    /// A pause of this coordinator, or a jump of its clock, does not count as silence of workers,
    /// because their heartbeats have not been read yet. During a long pause, a dead worker may have
    /// returned and received replicas, so its silence starts again. The same holds for forgotten
    /// and new workers: the grace period of this coordinator starts again.
    pub fn tick(&mut self, now: Instant) -> bool {
        let config = self.config;
        let patience = config.tick * LATE_TICKS;
        let before = self.ticked.replace(now).unwrap_or(now);
        let stood_still = now.saturating_duration_since(before);
        let began = self.began.get_or_insert(now);
        if patience < stood_still {
            let long = config.dead_after <= stood_still;
            *began = match long {
                true => now,
                false => *began + stood_still,
            };
            for worker in self.workers.values_mut() {
                worker.last_heard = match long && worker.liveness == Liveness::Dead {
                    true => now,
                    false => now.min(worker.last_heard + stood_still),
                };
            }
        }
        let mut changed = false;
        if std::mem::take(&mut self.refusals) {
            for worker in self.workers.values_mut() {
                let (forgot, stand) = worker.slots.forget_refusals(now, REFUSAL_STANDS);
                changed |= forgot;
                self.refusals |= stand;
            }
        }
        for worker in self.workers.values_mut() {
            let silence = now.saturating_duration_since(worker.last_heard);
            let aged = match worker.liveness {
                Liveness::Dead => Liveness::Dead,
                _ if config.dead_after <= silence => Liveness::Dead,
                Liveness::Alive if config.suspect_after <= silence => Liveness::Suspect,
                same => same,
            };
            // Placement must run again when the grace period of a dead worker ends.
            let tick = config.tick;
            let grace_over = worker.liveness == Liveness::Dead
                && config.replace_after <= silence
                && silence < config.replace_after + tick * 4;
            changed |= aged != worker.liveness || grace_over;
            worker.liveness = aged;
        }
        let forget_after = config.replace_after * 10;
        let holders = &mut self.holders;
        self.workers.retain(|id, worker| {
            let stays = worker.liveness != Liveness::Dead
                || now.saturating_duration_since(worker.last_heard) < forget_after;
            if !stays {
                holders.remove(id, &worker.slots);
            }
            stays
        });
        changed
    }

    fn holders(&self, model: &ModelName) -> impl Iterator<Item = &LiveWorker> {
        self.holders.of(model).filter_map(|id| self.workers.get(id))
    }

    /// The replicas of a version that can be called now.
    #[must_use]
    pub fn candidates(&self, model: &ModelName, version: ModelVersion) -> Vec<Candidate> {
        let callable = self.holders(model).filter(|worker| worker.is_callable());
        let candidate = |worker: &LiveWorker| {
            let (replica, known) = worker.slots.ready(&worker.report, model, version)?;
            let zone = worker.report.labels.get(ZONE_LABEL);
            Some(Candidate {
                worker: worker.report.id.clone(),
                suspect: worker.liveness == Liveness::Suspect
                    || self.leaving.contains(&worker.report.id),
                local: self.zone.is_some() && zone == self.zone.as_ref(),
                resident: !replica.evicted,
                reported_load: replica.active.saturating_add(replica.queued),
                capacity: replica.capacity,
                known: known.clone(),
                client: worker.client.clone(),
            })
        };
        callable.filter_map(candidate).collect()
    }

    /// Number of callable replicas of each version of a model.
    #[must_use]
    pub fn ready_versions(&self, model: &ModelName) -> BTreeMap<ModelVersion, usize> {
        let callable = self.holders(model).filter(|worker| worker.is_callable());
        let versions =
            callable.flat_map(|worker| worker.slots.ready_versions(&worker.report, model));
        let mut ready = BTreeMap::new();
        for version in versions {
            *ready.entry(version).or_default() += 1;
        }
        ready
    }

    /// Reports of a model's replicas on workers that are not dead.
    pub fn replicas<'a>(
        &'a self,
        model: &'a ModelName,
    ) -> impl Iterator<Item = (&'a WorkerId, &'a ReplicaReport)> {
        let heard = self
            .holders(model)
            .filter(|worker| worker.liveness != Liveness::Dead);
        heard.flat_map(|worker| {
            let replicas = worker.slots.of(&worker.report, model);
            replicas.map(|replica| (&worker.report.id, replica))
        })
    }

    /// The reason why a version could not be loaded, if a worker reports one.
    #[must_use]
    pub fn failure(&self, model: &ModelName, version: ModelVersion) -> Option<String> {
        let mut replicas = self.replicas(model).map(|(_, replica)| replica);
        replicas.find_map(|replica| match &replica.state {
            ReplicaState::Failed(reason) if replica.version == version => Some(reason.clone()),
            _ => None,
        })
    }

    /// The signature of a version, from any replica that knows it.
    #[must_use]
    pub fn signature(
        &self,
        model: &ModelName,
        version: ModelVersion,
    ) -> Option<volley_types::Signature> {
        let heard = self
            .holders(model)
            .filter(|worker| worker.liveness != Liveness::Dead);
        let ready = |worker: &LiveWorker| {
            let (replica, _) = worker.slots.ready(&worker.report, model, version)?;
            replica.signature.clone()
        };
        heard.filter_map(ready).next()
    }

    /// The same, including draining replicas.
    #[must_use]
    pub fn last_signature(
        &self,
        model: &ModelName,
        version: ModelVersion,
    ) -> Option<volley_types::Signature> {
        let mut told = self
            .replicas(model)
            .filter(|(_, replica)| replica.version == version);
        told.find_map(|(_, replica)| replica.signature.clone())
    }

    /// Whether `worker` may get replicas at `now`: it is alive, or its replacement timeout has not
    /// passed.
    #[must_use]
    pub fn keeps_replicas(&self, worker: &LiveWorker, now: Instant) -> bool {
        match worker.liveness {
            Liveness::Alive | Liveness::Suspect => true,
            Liveness::Draining => false,
            Liveness::Dead => {
                let silence = self.awake(now).saturating_duration_since(worker.last_heard);
                silence < self.config.replace_after
            }
        }
    }

    /// Whether this coordinator started so recently that workers without a heartbeat do not count
    /// as lost yet.
    #[must_use]
    pub fn is_settling(&self, now: Instant) -> bool {
        self.listened(now) < self.config.replace_after
    }

    /// Time for which this coordinator has received heartbeats.
    #[must_use]
    pub fn listened(&self, now: Instant) -> Duration {
        let listens = |began| self.awake(now).saturating_duration_since(began);
        self.began.map_or(Duration::ZERO, listens)
    }

    /// The latest time without a pause of this coordinator; after a pause, the next tick measures
    /// it.
    fn awake(&self, now: Instant) -> Instant {
        let patience = self.config.tick * LATE_TICKS;
        self.ticked.map_or(now, |ticked| now.min(ticked + patience))
    }

    /// Snapshot of all workers for placement.
    #[must_use]
    pub fn observed(&self, now: Instant) -> ObservedWorkers<'_> {
        let workers = self.workers.iter().map(|(id, worker)| {
            let observed = ObservedWorker {
                report: &worker.report,
                liveness: worker.liveness,
                keep: self.keeps_replicas(worker, now),
            };
            (id, observed)
        });
        ObservedWorkers {
            workers: workers.collect(),
            settling: self.is_settling(now),
        }
    }

    /// One worker.
    #[must_use]
    pub fn get(&self, worker: &WorkerId) -> Option<&LiveWorker> {
        self.workers.get(worker)
    }

    /// All workers, by id.
    pub fn iter(&self) -> impl Iterator<Item = (&WorkerId, &LiveWorker)> {
        self.workers.iter()
    }

    /// Ready replicas on live workers, by model.
    #[must_use]
    pub fn ready_replicas(&self) -> BTreeMap<ModelName, usize> {
        let mut counts = BTreeMap::new();
        let live = self
            .workers
            .values()
            .filter(|worker| worker.liveness != Liveness::Dead);
        for replica in live.flat_map(|worker| &worker.report.replicas) {
            if replica.state == ReplicaState::Ready {
                *counts.entry(replica.model.clone()).or_default() += 1;
            }
        }
        counts
    }

    /// Time since a worker's last heartbeat.
    #[must_use]
    pub fn silence(worker: &LiveWorker, now: Instant) -> Duration {
        now.saturating_duration_since(worker.last_heard)
    }
}

fn replica_states(
    report: &WorkerReport,
) -> impl Iterator<Item = (&ModelName, ModelVersion, &ReplicaState)> {
    report
        .replicas
        .iter()
        .map(|replica| (&replica.model, replica.version, &replica.state))
}

#[cfg(test)]
mod tests;
