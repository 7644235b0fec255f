//! A simulated coordinator: the real view of the workers and the real planner, fed with encoded
//! heartbeats.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use prost::Message;
use volley_coordinator::LivenessConfig;
use volley_coordinator::live::LiveWorkers;
use volley_placement::Plan;
use volley_placement::assignments::AssignmentIndex;
use volley_placement::planner::{Failures, MoveOutcome, Rebalancer, decide};
use volley_proto::report_changes::changes_from_wire;
use volley_proto::worker::v1 as wire;
use volley_types::registry::RegistryState;
use volley_types::{
    ChunkStream, ErrorCode, ModelName, ModelRef, Predict, PredictError, PredictRequest, Signature,
    WorkerId, WorkerReport,
};

use crate::cost::{Cost, Meter};

/// A client that rejects every call, because the simulation sends no requests.
struct NoClient;

#[async_trait]
impl Predict for NoClient {
    async fn predict(&self, _: PredictRequest) -> Result<ChunkStream, PredictError> {
        Err(PredictError::new(
            ErrorCode::Unavailable,
            "nothing runs here",
        ))
    }

    async fn signature(&self, _: &ModelRef) -> Result<Signature, PredictError> {
        Err(PredictError::new(
            ErrorCode::Unavailable,
            "nothing runs here",
        ))
    }

    async fn models(&self) -> Vec<ModelName> {
        Vec::new()
    }
}

/// One coordinator.
pub(crate) struct SimCoordinator {
    pub(crate) live: LiveWorkers,
    failures: Failures,
    pub(crate) mover: Rebalancer,
    /// Number of migrations that it has completed.
    pub(crate) moved: u64,
    /// Last report on each stream.
    said: HashMap<u64, WorkerReport>,
    pub(crate) book: AssignmentIndex,
    pub(crate) cost: Cost,
}

/// Effect of a heartbeat.
pub(crate) struct HeartbeatEffect {
    pub(crate) worker: WorkerId,
    /// It was the first one on its stream.
    pub(crate) first: bool,
    /// The planner should run again.
    pub(crate) news: bool,
}

impl SimCoordinator {
    /// Creates a coordinator that rebalances after `rebalance_after` without changes.
    pub(crate) fn new(rebalance_after: Duration) -> Self {
        Self {
            live: LiveWorkers::new(LivenessConfig::default()),
            failures: Failures::default(),
            mover: Rebalancer::new(rebalance_after),
            moved: 0,
            said: HashMap::new(),
            book: AssignmentIndex::default(),
            cost: Cost::default(),
        }
    }

    /// Restarts the process, which forgets everything except the counters.
    pub(crate) fn restart(&mut self, rebalance_after: Duration) {
        let (cost, moved) = (self.cost, self.moved);
        *self = Self {
            cost,
            moved,
            ..Self::new(rebalance_after)
        };
    }

    /// Handles a heartbeat.
    ///
    /// # Errors
    /// If it is malformed.
    pub(crate) fn hear(
        &mut self,
        stream: u64,
        bytes: &[u8],
        now: Instant,
    ) -> anyhow::Result<HeartbeatEffect> {
        let meter = Meter::start();
        let report = wire::WorkerReport::decode(bytes)?;
        let before = self.said.remove(&stream);
        let first = before.is_none();
        let report = changes_from_wire(before, report)?;
        let worker = report.id.clone();
        self.said.insert(stream, report.clone());
        let news = self.live.heard(report, stream, now, |_| Arc::new(NoClient));
        let spent = meter.stop();
        self.cost.cpu += spent;
        self.cost.heartbeats += spent;
        self.cost.bytes_in += bytes.len() as u64;
        Ok(HeartbeatEffect {
            worker,
            first,
            news,
        })
    }

    /// Handles the reset of a stream. Returns whether the planner should run again.
    pub(crate) fn hang_up(&mut self, worker: &WorkerId, stream: u64) -> bool {
        self.said.remove(&stream);
        self.live.lost(worker, stream).is_some()
    }

    pub(crate) fn tick(&mut self, now: Instant) -> bool {
        let meter = Meter::start();
        let news = self.live.tick(now);
        self.cost.cpu += meter.stop();
        news
    }

    pub(crate) fn plan(&mut self, state: &Arc<RegistryState>, now: Instant) -> Plan {
        let meter = Meter::start();
        let observed = self.live.observed(now);
        let (failures, mover) = (&mut self.failures, &mut self.mover);
        let (plan, ended) = decide(state, &observed, failures, mover, true, now);
        let done = ended.iter().filter(|(_, end)| *end == MoveOutcome::Done);
        self.moved += done.count() as u64;
        let spent = meter.stop();
        self.cost.cpu += spent;
        self.cost.planning += spent;
        plan
    }

    /// Updates the assignments to the applied registry. Returns the workers whose assignments
    /// changed.
    pub(crate) fn follow(&mut self, state: &Arc<RegistryState>) -> Vec<WorkerId> {
        let meter = Meter::start();
        let changed = self.book.turn_to(state);
        self.cost.cpu += meter.stop();
        changed
    }
}
