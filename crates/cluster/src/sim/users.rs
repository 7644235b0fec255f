//! Users that write and read during the faults.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use volley_types::registry::{BackendName, ModelSource, ModelVersionSpec, RegistryCommand};
use volley_types::{ErrorCode, ModelName, ModelVersion, Parameters, PredictError};

use super::history::{History, RegistryRead, Write, WriteOutcome};
use super::world::{Coordinators, NodeProcess};

const MODELS: usize = 4;
/// Added to the write timeout, for the resolution of the clock.
const GRAIN: Duration = Duration::from_millis(20);

/// State that the users share.
#[derive(Clone)]
pub(super) struct Users {
    pub(super) world: Coordinators,
    pub(super) history: Arc<Mutex<History>>,
    pub(super) stop: CancellationToken,
    /// Coordinators with a write in flight.
    busy: Arc<Mutex<BTreeSet<u64>>>,
}

fn register(model: &ModelName, mark: &str) -> RegistryCommand {
    let spec = ModelVersionSpec {
        version: ModelVersion(0),
        backend: BackendName::TEXT,
        source: ModelSource::None,
        parameters: Parameters::default(),
        description: mark.to_owned(),
        created_ms: 0,
    };
    RegistryCommand::RegisterModel(model.clone(), spec)
}

/// Returns the outcome that an error states for the write.
fn outcome(error: &PredictError) -> WriteOutcome {
    let unsure = error.message.contains("may still take effect");
    match error.code {
        ErrorCode::Overloaded => WriteOutcome::Refused,
        ErrorCode::Unavailable if !unsure => WriteOutcome::Refused,
        _ => WriteOutcome::Unknown,
    }
}

impl Users {
    pub(super) fn new(world: &Coordinators) -> Self {
        Self {
            world: world.clone(),
            history: Arc::default(),
            stop: CancellationToken::new(),
            busy: Arc::default(),
        }
    }

    /// Writes repeatedly, each time through a random running coordinator.
    pub(super) async fn write(self, name: usize, mut random: fastrand::Rng) {
        let mut count = 0;
        while !self.stop.is_cancelled() {
            sleep(Duration::from_millis(random.u64(50..600))).await;
            // One write at a time through each coordinator: tokio wakes the waiters of one change
            // in any order, so a seed would not always give the same run.
            let mut running = self.world.all_running();
            running.retain(|running| !self.busy.lock().contains(&running.life.node()));
            let Some(running) = random.choice(&running) else {
                continue;
            };
            count += 1;
            let (node, model) = (running.life.node(), random.usize(..MODELS));
            self.busy.lock().insert(node);
            let mark = format!("{name}-{count}");
            self.write_through(running, &format!("m{model}"), mark)
                .await;
            self.busy.lock().remove(&node);
        }
    }

    /// Writes once, and returns whether the write was acknowledged.
    pub(super) async fn write_through(
        &self,
        running: &NodeProcess,
        model: &str,
        mark: String,
    ) -> bool {
        let model = ModelName::new(model).expect("a good name");
        let (began, life) = (Instant::now(), &running.life);
        let answer = tokio::select! {
            biased;
            () = life.ended() => None,
            answer = running.cluster.write(register(&model, &mark)) => Some(answer),
        };
        let (ended, limit) = (Instant::now(), running.cluster.0.config.write_timeout);
        let took = ended - began;
        let stood_still = life.was_frozen_since(began);
        let outcome = match &answer {
            Some(Ok(reply)) => {
                let version = reply.version.expect("it is registered");
                let seen = running.cluster.registry().borrow().revision;
                if seen < reply.revision && took < limit && !stood_still {
                    self.breaks(format!("'{mark}' is not seen where it was acknowledged"));
                }
                WriteOutcome::Acknowledged(version, reply.revision)
            }
            Some(Err(error)) => outcome(error),
            None => WriteOutcome::Unknown,
        };
        if limit + GRAIN < took && !stood_still && !life.has_ended() {
            self.breaks(format!("'{mark}' was answered after {took:?}"));
        }
        self.world
            .log(format_args!("'{mark}' at {}: {outcome:?}", life.node()));
        self.history.lock().writes.push(Write {
            model,
            mark,
            began,
            ended,
            outcome,
        });
        matches!(outcome, WriteOutcome::Acknowledged(..))
    }

    /// Reads repeatedly from a coordinator that believes it leads and can prove it.
    pub(super) async fn read(self, mut random: fastrand::Rng) {
        while !self.stop.is_cancelled() {
            sleep(Duration::from_millis(random.u64(50..400))).await;
            let mut leaders = self.world.all_running();
            leaders.retain(|running| running.cluster.is_leader());
            let Some(running) = random.choice(&leaders) else {
                continue;
            };
            let began = Instant::now();
            let look = async {
                let node = running.cluster.raft_node();
                node.ensure_linearizable().await.ok()?;
                Some(running.cluster.registry().borrow().clone())
            };
            let state = tokio::select! {
                biased;
                () = running.life.ended() => None,
                state = running.life.part(look) => state,
                // A leader that is cut off may never find out.
                () = sleep(Duration::from_secs(5)) => None,
            };
            let Some(state) = state else {
                continue;
            };
            let node = running.life.node();
            self.world.invariants(|laws| laws.registry(node, &state));
            // The library lets a leader that restarts within its term lead again, but forgets its
            // committed index until a follower answers.
            if !running.has_caught_up() {
                continue;
            }
            let revision = state.revision.0;
            self.world.log(format_args!("{node} reads {revision}"));
            self.history.lock().reads.push(RegistryRead {
                node,
                began,
                ended: Instant::now(),
                revision: state.revision,
            });
        }
    }

    fn breaks(&self, why: String) {
        self.world.invariants(|laws| laws.breaks(why));
    }
}
