//! The number of replicas that follows the load: the leader's look at every model that asks for
//! it, the wake-up of models that were scaled to nothing, and the signal for the number of
//! workers.

pub mod controller;
pub mod signal;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use volley_types::registry::{Deployment, RegistryCommand, RegistryState, ReplicaState};
use volley_types::{ModelName, ModelRef, PredictError, Revision};

use self::controller::{Controller, ModelLoad};
use crate::live::LiveWorkers;
use crate::{Coordinator, refusal};

/// Between two looks.
const LOOK: Duration = Duration::from_secs(1);

impl Coordinator {
    /// Runs for as long as the coordinator does; acts only while this node leads.
    pub(crate) async fn run_scaler(self) {
        let mut controllers: HashMap<(ModelName, Revision), Controller> = HashMap::new();
        let mut tick = tokio::time::interval(LOOK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            if !self.0.cluster.is_leader() {
                controllers.clear();
                continue;
            }
            let state = self.0.cluster.registry().borrow().clone();
            let commands = look(
                &state,
                &self.0.live.read(),
                &mut controllers,
                Instant::now(),
            );
            for command in commands {
                // What is lost is decided anew at the next look.
                if let Err(error) = self.0.cluster.write(command).await {
                    tracing::warn!(error = error.chain(), "scaling not committed");
                }
            }
        }
    }

    /// Waits until a model that was scaled to nothing is back, for a bounded time and among a
    /// bounded number of requests. Returns at once for every other model.
    ///
    /// # Errors
    /// `Overloaded` when too many requests wait already, `Unavailable` when the model does not
    /// come in time.
    pub(crate) async fn wake(&self, model: &ModelRef) -> Result<(), PredictError> {
        if !self.sleeps(model) {
            return Ok(());
        }
        let waiting = self.0.wakers.clone().try_acquire_owned();
        let _waiting = waiting.map_err(|_| refusal::too_many_wait(&model.name))?;
        let mut news = self.0.news.subscribe();
        let timeout = self.0.config.wake_timeout;
        let woken = tokio::time::timeout(timeout, async {
            while self.sleeps(model) {
                self.ask_for_one(&model.name).await?;
                // A lost write is asked for again, and a bell may ring for another model.
                let _ = tokio::time::timeout(LOOK, news.changed()).await;
            }
            Ok(())
        });
        woken
            .await
            .unwrap_or_else(|_| Err(refusal::not_woken(&model.name)))
    }

    fn sleeps(&self, model: &ModelRef) -> bool {
        let registry = self.0.cluster.registry().borrow().clone();
        let deployment = registry.models.get(&model.name);
        let deployment = deployment.and_then(|entry| entry.deployment.as_ref());
        deployment.is_some_and(may_sleep)
            && self.0.live.read().ready_versions(&model.name).is_empty()
    }

    async fn ask_for_one(&self, model: &ModelName) -> Result<(), PredictError> {
        let registry = self.0.cluster.registry().borrow().clone();
        let deployment = registry.models.get(model);
        let Some(deployment) = deployment.and_then(|entry| entry.deployment.as_ref()) else {
            return Err(refusal::not_deployed(model));
        };
        if deployment.replicas != 0 {
            return Ok(());
        }
        // All that wait here ask once; the registry does the same for other coordinators.
        let _asking = self.0.waking.lock().await;
        let now = self.0.cluster.registry().borrow().clone();
        let still = now.models.get(model);
        let still = still.and_then(|entry| entry.deployment.as_ref());
        if still.is_none_or(|deployment| deployment.replicas != 0) {
            return Ok(());
        }
        tracing::info!(%model, "waking a model that was scaled to nothing");
        let command = RegistryCommand::Scale {
            model: model.clone(),
            deployment: deployment.revision,
            replicas: 1,
        };
        self.0.cluster.write(command).await.map(drop)
    }
}

fn may_sleep(deployment: &Deployment) -> bool {
    let scaling = deployment.options.scaling;
    scaling.is_some_and(|scaling| scaling.min_replicas == 0)
}

/// One look at all models whose replicas follow the load.
fn look(
    state: &RegistryState,
    live: &LiveWorkers,
    controllers: &mut HashMap<(ModelName, Revision), Controller>,
    now: Instant,
) -> Vec<RegistryCommand> {
    controllers.retain(|(model, revision), _| {
        let deployment = state.models.get(model);
        let deployment = deployment.and_then(|entry| entry.deployment.as_ref());
        deployment.is_some_and(|deployment| deployment.revision == *revision)
    });
    let mut commands = Vec::new();
    for entry in state.models.values() {
        let Some(deployment) = &entry.deployment else {
            continue;
        };
        // A roll counts with a fixed number.
        let (Some(scaling), None) = (&deployment.options.scaling, &deployment.rollout) else {
            continue;
        };
        let key = (entry.name.clone(), deployment.revision);
        let controller = controllers.entry(key).or_default();
        let load = load(live, &entry.name, deployment);
        let replicas = controller.look(scaling, deployment.replicas, &load, now);
        if let Some(replicas) = replicas {
            tracing::info!(model = %entry.name, from = deployment.replicas, to = replicas, "scaling");
            commands.push(RegistryCommand::Scale {
                model: entry.name.clone(),
                deployment: deployment.revision,
                replicas,
            });
        }
    }
    commands
}

/// What the ready replicas of the deployed version report together.
fn load(live: &LiveWorkers, model: &ModelName, deployment: &Deployment) -> ModelLoad {
    let mut load = ModelLoad {
        idle_ms: u64::MAX,
        ..ModelLoad::default()
    };
    for (worker, replica) in live.replicas(model) {
        if replica.state != ReplicaState::Ready || replica.version != deployment.version {
            continue;
        }
        load.ready += 1;
        load.demand += u64::from(replica.active) + u64::from(replica.queued);
        load.capacity += u64::from(replica.capacity);
        load.queue_wait_ms = load.queue_wait_ms.max(replica.queue_wait_ms);
        let uptime_ms = live.get(worker).map_or(0, |worker| worker.report.uptime_ms);
        load.idle_ms = load
            .idle_ms
            .min(uptime_ms.saturating_sub(replica.idle_since_ms));
    }
    load
}
