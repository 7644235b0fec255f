//! A simulated worker. It sends heartbeats as a real one does, and loads assigned models in a
//! configured time.

use std::collections::{BTreeMap, BTreeSet};

use prost::Message;
use volley_proto::report_changes::changes_to_wire;
use volley_types::registry::ReplicaState;
use volley_types::{
    Incarnation, ModelName, ModelVersion, ReplicaReport, Revision, Signature, WorkerId,
    WorkerReport,
};

/// A worker's connection to one coordinator.
#[derive(Debug, Default)]
pub(crate) struct Link {
    /// Id of the stream; `None` without a connection.
    pub(crate) stream: Option<u64>,
    pub(crate) said: Option<WorkerReport>,
    /// Arrival time of its last heartbeat: heartbeats do not overtake each other.
    pub(crate) busy_until_ms: u64,
}

/// One worker.
pub(crate) struct Worker {
    pub(crate) id: WorkerId,
    labels: BTreeMap<String, String>,
    budget: u64,
    /// Signature of every model.
    signature: Signature,
    pub(crate) up: bool,
    /// Number of times that the process was started.
    pub(crate) life: u64,
    born_ms: u64,
    pub(crate) replicas: BTreeMap<(ModelName, ModelVersion), Replica>,
    pub(crate) followed: Revision,
    pub(crate) links: Vec<Link>,
    /// It does nothing, but its connections stay open.
    pub(crate) frozen: bool,
    /// Its packets are occasionally lost and sent again.
    pub(crate) lossy: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Replica {
    pub(crate) ready: bool,
    pub(crate) active: u32,
    pub(crate) bytes: u64,
}

impl Worker {
    pub(crate) fn new(index: usize, zones: usize, coordinators: usize, budget: u64) -> Self {
        let zone = format!("z{}", index % zones.max(1));
        Self {
            id: WorkerId::new(format!("worker-{index:05}")).expect("a good name"),
            labels: BTreeMap::from([("zone".to_owned(), zone)]),
            budget,
            signature: Signature::generation(),
            up: true,
            life: 1,
            born_ms: 0,
            replicas: BTreeMap::new(),
            followed: Revision::default(),
            links: (0..coordinators).map(|_| Link::default()).collect(),
            frozen: false,
            lossy: false,
        }
    }

    /// Returns the value of one of its labels.
    pub(crate) fn label(&self, name: &str) -> Option<&str> {
        self.labels.get(name).map(String::as_str)
    }

    /// Ends the process: it forgets everything, and its connections are reset.
    pub(crate) fn die(&mut self) {
        self.up = false;
        self.frozen = false;
        self.replicas.clear();
        self.links
            .iter_mut()
            .for_each(|link| *link = Link::default());
    }

    pub(crate) fn start(&mut self, now_ms: u64) {
        self.up = true;
        self.life += 1;
        self.born_ms = now_ms;
        self.followed = Revision::default();
    }

    /// Follows assignments, unless they are older than its current ones. Returns the models that it
    /// starts to load; `None` for older assignments.
    pub(crate) fn follow(
        &mut self,
        revision: Revision,
        wanted: &BTreeSet<(ModelName, ModelVersion)>,
        bytes: u64,
    ) -> Option<Vec<(ModelName, ModelVersion)>> {
        if revision < self.followed {
            return None;
        }
        self.followed = revision;
        self.replicas.retain(|held, _| wanted.contains(held));
        let missing = wanted
            .iter()
            .filter(|held| !self.replicas.contains_key(*held));
        let missing: Vec<_> = missing.cloned().collect();
        for held in &missing {
            let replica = Replica {
                ready: false,
                active: 0,
                bytes,
            };
            self.replicas.insert(held.clone(), replica);
        }
        Some(missing)
    }

    fn report(&self, now_ms: u64) -> WorkerReport {
        let replica =
            |((model, version), held): (&(ModelName, ModelVersion), &Replica)| ReplicaReport {
                model: model.clone(),
                version: *version,
                state: if held.ready {
                    ReplicaState::Ready
                } else {
                    ReplicaState::Loading
                },
                active: held.active,
                queued: 0,
                capacity: if held.ready { 16 } else { 0 },
                queue_wait_ms: 0,
                idle_since_ms: 0,
                fetch: None,
                signature: held.ready.then(|| self.signature.clone()),
                evicted: false,
                memory_bytes: if held.ready { held.bytes } else { 0 },
            };
        let replicas: Vec<_> = self.replicas.iter().map(replica).collect();
        WorkerReport {
            id: self.id.clone(),
            incarnation: Incarnation(self.life),
            address: "192.0.2.1:8422".to_owned(),
            labels: self.labels.clone(),
            draining: false,
            active: replicas.iter().map(|replica| replica.active).sum(),
            queued: 0,
            memory_bytes: self.budget / 2,
            memory_budget_bytes: self.budget,
            gpus: Vec::new(),
            uptime_ms: now_ms.saturating_sub(self.born_ms),
            replicas,
        }
    }

    /// Returns the next heartbeats, one for each coordinator: its index, the stream, and the bytes.
    /// With `whole` every heartbeat is a full report. Only a coordinator that `takes` connections
    /// gets one, and a new connection also requires that the coordinator is `reached`.
    pub(crate) fn beat(
        &mut self,
        now_ms: u64,
        next_stream: &mut u64,
        whole: bool,
        takes: impl Fn(usize) -> bool,
        reached: impl Fn(usize) -> bool,
    ) -> Vec<(usize, u64, Vec<u8>)> {
        let report = self.report(now_ms);
        let mut beats = Vec::new();
        for (index, link) in self.links.iter_mut().enumerate() {
            if !takes(index) || (link.stream.is_none() && !reached(index)) {
                continue;
            }
            let stream = *link.stream.get_or_insert_with(|| {
                *next_stream += 1;
                *next_stream
            });
            let before = link.said.as_ref().filter(|_| !whole);
            beats.push((
                index,
                stream,
                changes_to_wire(before, &report).encode_to_vec(),
            ));
            link.said = Some(report.clone());
        }
        beats
    }
}
