//! Scaling by load: the leader's control loop, the activation of models that are scaled to zero,
//! and the signal for the number of workers.

pub mod controller;
pub mod signal;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use volley_types::registry::{Deployment, RegistryCommand, RegistryState, ReplicaState};
use volley_types::{Deadline, ModelName, PredictError, Revision};

use self::controller::{Controller, ModelLoad};
use crate::live::LiveWorkers;
use crate::{Coordinator, errors};

/// Interval of the control loop.
const LOOK: Duration = Duration::from_secs(1);

impl Coordinator {
    /// Runs as long as the coordinator; acts only while this node leads.
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
                // The next round decides again after a lost write.
                if let Err(error) = self.0.cluster.write(command).await {
                    tracing::warn!(error = error.chain(), "scaling not committed");
                }
            }
        }
    }

    /// Waits for the activation of a model that is scaled to zero, with limits on time and waiting
    /// requests. Returns immediately for every other model.
    ///
    /// If its last replica is draining but still answers, the activation is requested in the
    /// background: without a quorum, existing replicas continue to serve.
    ///
    /// # Errors
    /// `Overloaded` when too many requests wait, `Unavailable` when the activation times out,
    /// `DeadlineExceeded` at the request's deadline.
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
        let waiting = self.0.pending_activations.clone().try_acquire_owned();
        let _waiting = waiting.map_err(|_| errors::too_many_wait(model))?;
        let (mut news, mut registry) = (self.0.news.subscribe(), self.0.cluster.registry());
        registry.mark_unchanged();
        let left = deadline.map(|deadline| deadline.remaining(Instant::now()));
        let timeout = self.0.config.activation_timeout;
        let activated =
            tokio::time::timeout(left.map_or(timeout, |left| left.min(timeout)), async {
                while self.activation(model) == Activation::ScaledToZero {
                    self.ask_for_one(model).await?;
                    // A lost write is repeated, and a notification may concern another model. A lagging
                    // registry may still show the model as active.
                    tokio::select! {
                        _ = news.changed() => {}
                        _ = registry.changed() => {}
                        () = tokio::time::sleep(LOOK) => {}
                    }
                }
                Ok(())
            });
        activated.await.unwrap_or_else(|_| {
            let late = left.is_some_and(|left| left < timeout);
            Err(if late {
                errors::too_late()
            } else {
                errors::activation_timed_out(model)
            })
        })
    }

    /// Whether a model may be scaled to zero.
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

    /// Requests one replica in the background; requests without a replica ask again.
    fn ask_behind(&self, model: &ModelName) {
        if self.0.activation_request.try_lock().is_err() {
            return;
        }
        let (coordinator, model) = (self.clone(), model.clone());
        self.spawn(async move {
            let Ok(_asking) = coordinator.0.activation_request.try_lock() else {
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
        // All waiting requests send one command; the registry deduplicates those of other
        // coordinators.
        let _asking = self.0.activation_request.lock().await;
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
    /// It is scaled to zero, but a replica still answers as far as known here.
    Idle,
    /// No replica can be called.
    ScaledToZero,
}

pub(crate) fn may_scale_to_zero(deployment: &Deployment) -> bool {
    let scaling = deployment.options.scaling;
    scaling.is_some_and(|scaling| scaling.min_replicas == 0)
}

/// One round over all models that are scaled by load.
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
        // A rollout uses a fixed number of replicas.
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

/// The sum of the reports of the deployed version's ready replicas.
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
