//! The number of replicas that follows the load: the leader's look at every model that asks for
//! it, the wake-up of models that were scaled to nothing, and the signal for the number of
//! workers.

pub mod controller;
pub mod signal;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use volley_types::registry::{Deployment, RegistryCommand, RegistryState, ReplicaState};
use volley_types::{Deadline, ModelName, PredictError, Revision};

use self::controller::{Controller, ModelLoad};
use crate::live::LiveWorkers;
use crate::{Coordinator, errors};

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
            let commands = scale(
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
    /// Where its last replica is on its way out and answers still, one is asked for and nothing
    /// is waited for: without a quorum what is there goes on serving.
    ///
    /// # Errors
    /// `Overloaded` when too many requests wait already, `Unavailable` when the model does not
    /// come in time, `DeadlineExceeded` when that is the request's.
    pub(crate) async fn activate(
        &self,
        model: &ModelName,
        deadline: Option<Deadline>,
    ) -> Result<(), PredictError> {
        match self.activation(model) {
            Activation::Warm => return Ok(()),
            Activation::Idle => {
                self.ask_behind(model);
                return Ok(());
            }
            Activation::ScaledToZero => {}
        }
        let waiting = self.0.wakers.clone().try_acquire_owned();
        let _waiting = waiting.map_err(|_| errors::too_many_wait(model))?;
        let (mut news, mut registry) = (self.0.news.subscribe(), self.0.cluster.registry());
        registry.mark_unchanged();
        let left = deadline.map(|deadline| deadline.remaining(Instant::now()));
        let timeout = self.0.config.wake_timeout;
        let woken = tokio::time::timeout(left.map_or(timeout, |left| left.min(timeout)), async {
            while self.activation(model) == Activation::ScaledToZero {
                self.ask_for_one(model).await?;
                // A lost write is asked for again, and a bell may ring for another model. A
                // registry that lags has this one awake still.
                tokio::select! {
                    _ = news.changed() => {}
                    _ = registry.changed() => {}
                    () = tokio::time::sleep(LOOK) => {}
                }
            }
            Ok(())
        });
        woken.await.unwrap_or_else(|_| {
            let late = left.is_some_and(|left| left < timeout);
            Err(if late {
                errors::too_late()
            } else {
                errors::not_woken(model)
            })
        })
    }

    /// Whether a model's replicas may go down to none.
    pub(crate) fn may_scale_to_zero(&self, model: &ModelName) -> bool {
        let registry = self.0.cluster.registry().borrow().clone();
        registry.models.get(model).is_some_and(|entry| {
            let deployment = entry.deployment.as_ref();
            deployment.is_some_and(may_scale_to_zero)
        })
    }

    fn activation(&self, model: &ModelName) -> Activation {
        let registry = self.0.cluster.registry().borrow().clone();
        let deployment = registry.models.get(model);
        let deployment = deployment.and_then(|entry| entry.deployment.as_ref());
        let Some(deployment) = deployment.filter(|deployment| may_scale_to_zero(deployment)) else {
            return Activation::Warm;
        };
        let ready = self.0.live.read().ready_versions(model);
        match (ready.is_empty(), deployment.replicas) {
            (true, _) => Activation::ScaledToZero,
            (false, 0) => Activation::Idle,
            (false, _) => Activation::Warm,
        }
    }

    /// Asks for one replica without waiting for it; whoever finds none asks again.
    fn ask_behind(&self, model: &ModelName) {
        if self.0.waking.try_lock().is_err() {
            return;
        }
        let (coordinator, model) = (self.clone(), model.clone());
        self.spawn(async move {
            let Ok(_asking) = coordinator.0.waking.try_lock() else {
                return;
            };
            if let Err(error) = coordinator.ask_now(&model).await {
                tracing::debug!(%model, error = error.chain(), "activation request failed");
            }
        });
    }

    async fn ask_for_one(&self, model: &ModelName) -> Result<(), PredictError> {
        let registry = self.0.cluster.registry().borrow().clone();
        let deployment = registry.models.get(model);
        let Some(deployment) = deployment.and_then(|entry| entry.deployment.as_ref()) else {
            return Err(errors::not_deployed(model));
        };
        if deployment.replicas != 0 {
            return Ok(());
        }
        // All that wait here ask once; the registry does the same for other coordinators.
        let _asking = self.0.waking.lock().await;
        self.ask_now(model).await
    }

    async fn ask_now(&self, model: &ModelName) -> Result<(), PredictError> {
        let now = self.0.cluster.registry().borrow().clone();
        let still = now.models.get(model);
        let still = still.and_then(|entry| entry.deployment.as_ref());
        let Some(deployment) = still.filter(|deployment| deployment.replicas == 0) else {
            return Ok(());
        };
        tracing::info!(%model, "activating a model from zero replicas");
        let command = RegistryCommand::Scale {
            model: model.clone(),
            deployment: deployment.revision,
            replicas: 1,
        };
        self.0.cluster.write(command).await.map(drop)
    }
}

/// Whether a model that may scale to zero has to be activated for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Activation {
    /// It has a replica, or may not scale to zero.
    Warm,
    /// It shall have no replica, and one answers still as far as is known here.
    Idle,
    /// No replica can be called.
    ScaledToZero,
}

pub(crate) fn may_scale_to_zero(deployment: &Deployment) -> bool {
    let scaling = deployment.options.scaling;
    scaling.is_some_and(|scaling| scaling.min_replicas == 0)
}

/// One look at all models whose replicas follow the load.
fn scale(
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
        let replicas = controller.decide(scaling, deployment.replicas, &load, now);
        if let Some(replicas) = replicas {
            tracing::info!(
                model = %entry.name, from = deployment.replicas, to = replicas,
                "replica count changed"
            );
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

#[cfg(test)]
mod tests;
