//! Which workers there are and what they hold: fed by heartbeats, aged by the clock. Pure: the
//! time is an argument.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use volley_types::control::Liveness;
use volley_types::registry::ReplicaState;
use volley_types::worker::{ReplicaReport, WorkerReport};
use volley_types::{ModelName, ModelVersion, Predict, WorkerId};

use crate::config::LivenessConfig;

/// One worker as this coordinator sees it.
pub struct LiveWorker {
    /// The last report.
    pub report: WorkerReport,
    /// Whether it can be sent requests.
    pub liveness: Liveness,
    /// When it was last heard.
    pub last_heard: Instant,
    /// The way to it.
    pub client: Arc<dyn Predict>,
    /// Which heartbeat stream speaks for it.
    stream: u64,
    /// Streams from this coordinator to each replica.
    in_flight: HashMap<(ModelName, ModelVersion), Arc<AtomicU32>>,
}

impl LiveWorker {
    fn ready(&self, model: &ModelName, version: ModelVersion) -> Option<&ReplicaReport> {
        self.report.replicas.iter().find(|replica| {
            replica.model == *model
                && replica.version == version
                && replica.state == ReplicaState::Ready
        })
    }
}

/// A replica that can be called now.
#[derive(Clone)]
pub struct Candidate {
    /// Its worker.
    pub worker: WorkerId,
    /// Whether the worker is suspect: called only when no other is left.
    pub suspect: bool,
    /// Streams from here that run on it; counts up while a [`InFlight`] lives.
    pub in_flight: Arc<AtomicU32>,
    /// Streams and waiting requests that it reported, of all coordinators.
    pub reported_load: u32,
    /// How many streams it runs at once; at least 1.
    pub capacity: u32,
    /// The way to it.
    pub client: Arc<dyn Predict>,
}

/// Counts one stream on a replica for as long as it lives.
#[derive(Debug)]
pub struct InFlight(Arc<AtomicU32>);

impl Candidate {
    /// Counts a stream on this replica until the guard is dropped.
    #[must_use]
    pub fn begin(&self) -> InFlight {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        InFlight(self.in_flight.clone())
    }

    /// Load over capacity, in thousandths. The larger of what this coordinator sends and what
    /// the worker reported: the report is late, and other coordinators send too.
    #[must_use]
    pub fn load_permille(&self) -> u64 {
        let load = self
            .in_flight
            .load(Ordering::Relaxed)
            .max(self.reported_load);
        u64::from(load) * 1_000 / u64::from(self.capacity.max(1))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// All workers heard from.
pub struct LiveWorkers {
    config: LivenessConfig,
    workers: BTreeMap<WorkerId, LiveWorker>,
}

impl LiveWorkers {
    /// Nobody yet.
    #[must_use]
    pub fn new(config: LivenessConfig) -> Self {
        Self {
            config,
            workers: BTreeMap::new(),
        }
    }

    /// A report came in over heartbeat stream `stream`. A new life of the worker, or a new
    /// address, gets a new client from `connect`. Returns whether a replica, the liveness or
    /// the worker itself is new: something that placement looks at.
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
            let worker = LiveWorker {
                liveness,
                last_heard: now,
                client,
                stream,
                in_flight: HashMap::new(),
                report,
            };
            self.workers
                .insert(worker.report.id.clone(), with_counters(worker));
            return true;
        };
        let same_life = known.report.incarnation == report.incarnation;
        // The newest stream speaks for a worker: an older one may be of an earlier life, or of
        // a second process with the same id.
        if stream < known.stream && known.liveness != Liveness::Dead {
            return false;
        }
        if !same_life || known.report.address != report.address {
            known.client = connect(&report.address);
            known.in_flight.clear();
        }
        let changed = !same_life
            || known.liveness != liveness
            || replica_states(&known.report).ne(replica_states(&report));
        known.report = report;
        known.liveness = liveness;
        known.last_heard = now;
        known.stream = stream;
        add_counters(known);
        changed
    }

    /// Heartbeat stream `stream` of `worker` ended: a reset or a leave, dead at once. Gives what
    /// the worker was before, if that stream still spoke for it.
    pub fn lost(&mut self, worker: &WorkerId, stream: u64) -> Option<Liveness> {
        let known = self.workers.get_mut(worker)?;
        let speaks = known.stream == stream && known.liveness != Liveness::Dead;
        speaks.then(|| std::mem::replace(&mut known.liveness, Liveness::Dead))
    }

    /// Ages everybody to `now` and forgets who is long dead. Returns whether anything changed.
    pub fn tick(&mut self, now: Instant) -> bool {
        let config = self.config;
        let mut changed = false;
        for worker in self.workers.values_mut() {
            let silence = now.saturating_duration_since(worker.last_heard);
            let aged = match worker.liveness {
                Liveness::Dead => Liveness::Dead,
                _ if config.dead_after <= silence => Liveness::Dead,
                Liveness::Alive if config.suspect_after <= silence => Liveness::Suspect,
                same => same,
            };
            // Placement must be looked at again once a dead worker's grace is over.
            let tick = config.tick;
            let grace_over = worker.liveness == Liveness::Dead
                && config.replace_after <= silence
                && silence < config.replace_after + tick * 4;
            changed |= aged != worker.liveness || grace_over;
            worker.liveness = aged;
        }
        let forget_after = config.replace_after * 10;
        self.workers.retain(|_, worker| {
            worker.liveness != Liveness::Dead
                || now.saturating_duration_since(worker.last_heard) < forget_after
        });
        changed
    }

    /// The replicas of a version that can be called now.
    #[must_use]
    pub fn candidates(&self, model: &ModelName, version: ModelVersion) -> Vec<Candidate> {
        let callable = self
            .workers
            .values()
            .filter(|worker| matches!(worker.liveness, Liveness::Alive | Liveness::Suspect));
        callable
            .filter_map(|worker| {
                let replica = worker.ready(model, version)?;
                let in_flight = worker.in_flight.get(&(model.clone(), version))?.clone();
                Some(Candidate {
                    worker: worker.report.id.clone(),
                    suspect: worker.liveness == Liveness::Suspect,
                    in_flight,
                    reported_load: replica.active + replica.queued,
                    capacity: replica.capacity,
                    client: worker.client.clone(),
                })
            })
            .collect()
    }

    /// The version to call: `deployed` where a replica of it is ready, else the newest of those
    /// that have one; `None` when none has.
    #[must_use]
    pub fn serving(&self, model: &ModelName, deployed: ModelVersion) -> Option<ModelVersion> {
        let callable = self
            .workers
            .values()
            .filter(|worker| matches!(worker.liveness, Liveness::Alive | Liveness::Suspect));
        let replicas = callable.flat_map(|worker| &worker.report.replicas);
        let ready = replicas
            .filter(|replica| replica.model == *model && replica.state == ReplicaState::Ready)
            .map(|replica| replica.version);
        ready.max_by_key(|version| (*version == deployed, *version))
    }

    /// The signature of a version, from any replica that knows it.
    #[must_use]
    pub fn signature(
        &self,
        model: &ModelName,
        version: ModelVersion,
    ) -> Option<volley_types::Signature> {
        self.workers
            .values()
            .filter(|worker| worker.liveness != Liveness::Dead)
            .find_map(|worker| worker.ready(model, version)?.signature.clone())
    }

    /// Whether `worker` may be given replicas at `now`: it is alive, or has not been away for
    /// long enough to be replaced.
    #[must_use]
    pub fn keeps_replicas(&self, worker: &LiveWorker, now: Instant) -> bool {
        match worker.liveness {
            Liveness::Alive | Liveness::Suspect => true,
            Liveness::Draining => false,
            Liveness::Dead => {
                now.saturating_duration_since(worker.last_heard) < self.config.replace_after
            }
        }
    }

    /// Everybody, by id.
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

    /// How long ago a worker was heard.
    #[must_use]
    pub fn silence(worker: &LiveWorker, now: Instant) -> Duration {
        now.saturating_duration_since(worker.last_heard)
    }
}

fn with_counters(mut worker: LiveWorker) -> LiveWorker {
    add_counters(&mut worker);
    worker
}

fn add_counters(worker: &mut LiveWorker) {
    let held: Vec<_> = worker
        .report
        .replicas
        .iter()
        .map(|r| (r.model.clone(), r.version))
        .collect();
    worker.in_flight.retain(|key, _| held.contains(key));
    for key in held {
        worker.in_flight.entry(key).or_default();
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
