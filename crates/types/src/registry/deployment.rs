//! Deployments: placement limits, scaling and rollouts.

use std::collections::BTreeMap;

use crate::error::PredictError;
use crate::ids::{ModelName, ModelVersion, Revision, WorkerId};
use crate::registry::{RegistryCommand, RegistryState};

/// Maximum number of replicas of one deployment.
pub const MAX_REPLICAS: u32 = 1_000;

/// A deployed version and its number of workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deployment {
    /// The version to run.
    pub version: ModelVersion,
    /// Desired number of replicas. The cluster chooses it if [`DeployOptions::scaling`] is set. It
    /// is 0 while the model is scaled to zero.
    pub replicas: u32,
    /// Revision of the deploy command; part of the id of its task.
    pub revision: Revision,
    /// Whether workers may evict the model while it is idle. The next request then waits for a
    /// reload.
    pub overcommit: bool,
    /// The only workers that may hold a replica; any worker if empty.
    pub workers: Vec<WorkerId>,
    /// Placement, scaling and rollout options.
    pub options: DeployOptions,
    /// The rollout from the previous version, while its replicas are replaced or kept beside those
    /// of this version.
    pub rollout: Option<Rollout>,
    /// The replaced version, which a rollback restores after the rollout.
    pub replaced: Option<ModelVersion>,
    /// Number of replicas of the replaced version; `None` if unknown or if it was scaled by load.
    pub replaced_replicas: Option<u32>,
}

impl Deployment {
    /// A deployment with no options, made at `revision`.
    #[must_use]
    pub fn new(version: ModelVersion, replicas: u32, revision: Revision) -> Self {
        Self {
            version,
            replicas,
            revision,
            overcommit: false,
            workers: Vec::new(),
            options: DeployOptions::default(),
            rollout: None,
            replaced: None,
            replaced_replicas: None,
        }
    }

    /// Checks a fixed number of replicas.
    ///
    /// # Errors
    /// `InvalidInput` outside the limits.
    pub fn check_replicas(replicas: u32) -> Result<(), PredictError> {
        match (1..=MAX_REPLICAS).contains(&replicas) {
            true => Ok(()),
            false => Err(PredictError::invalid(format!(
                "replicas must be 1 to {MAX_REPLICAS}"
            ))),
        }
    }
}

impl RegistryState {
    /// The command that deploys `version` of a model (by default the newest) with the current
    /// number of replicas and options. A model that is not deployed gets one replica and the
    /// default options. Replicas of another version ([`DeployOptions::keep_previous`]) are not
    /// kept; set the option again to keep them.
    #[must_use]
    pub fn deploy_again(
        &self,
        model: &ModelName,
        version: Option<ModelVersion>,
    ) -> RegistryCommand {
        let entry = self.models.get(model);
        let current = entry.and_then(|entry| entry.deployment.clone());
        let current = current.unwrap_or_else(|| Deployment::new(ModelVersion(0), 1, Revision(0)));
        let mut options = current.options;
        options.keep_previous = 0;
        let least = options.scaling.map_or(1, |scaling| scaling.min_replicas);
        RegistryCommand::Deploy {
            model: model.clone(),
            version,
            // A deployment that is scaled to zero has no replicas.
            replicas: current.replicas.max(least).max(1),
            overcommit: current.overcommit,
            workers: current.workers,
            options,
        }
    }
}

/// Options of a deployment besides version and number of replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeployOptions {
    /// Labels that a worker must have to hold a replica.
    pub labels: BTreeMap<String, String>,
    /// Replicas are spread evenly over the values of this label of their workers.
    pub spread: Option<String>,
    /// Memory of a replica in bytes; 0 if not set. The value that the first loaded replica reports
    /// then applies.
    pub memory_bytes: u64,
    /// Scaling by load; `None` keeps the number of replicas.
    pub scaling: Option<Scaling>,
    /// During a rollout: maximum number of replicas above the desired number.
    pub max_surge: u32,
    /// During a rollout: maximum number of unavailable replicas.
    pub max_unavailable: u32,
    /// Replicas of the previous version to keep beside this one. The new version then does not
    /// replace the previous one: requests without a version go to the previous one. 0 keeps none.
    pub keep_previous: u32,
}

impl Default for DeployOptions {
    fn default() -> Self {
        Self {
            labels: BTreeMap::new(),
            spread: None,
            memory_bytes: 0,
            scaling: None,
            max_surge: 1,
            max_unavailable: 0,
            keep_previous: 0,
        }
    }
}

/// Limits and targets of scaling by load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scaling {
    /// Minimum; 0 allows scale to zero, and a request activates the model again.
    pub min_replicas: u32,
    /// Maximum; at least 1.
    pub max_replicas: u32,
    /// Target utilization: (running + queued streams) / capacity of all replicas, in percent.
    pub target_percent: u32,
    /// Queue wait in milliseconds above which one replica is added regardless of the utilization; 0
    /// disables it.
    pub queue_wait_ms: u32,
    /// Idle time in milliseconds before a model is scaled to zero.
    pub idle_ms: u32,
}

impl Default for Scaling {
    fn default() -> Self {
        Self {
            min_replicas: 1,
            max_replicas: 1,
            target_percent: 70,
            queue_wait_ms: 500,
            idle_ms: 300_000,
        }
    }
}

/// A running replacement of one version by another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rollout {
    /// The replaced version.
    pub from: ModelVersion,
    /// The workers that still hold the replaced version.
    pub previous: Vec<WorkerId>,
    /// Whether the rollout is paused until it is resumed.
    pub paused: bool,
    /// The reason if it stopped because the new version could not be loaded. Public text.
    pub stopped: Option<String>,
}

impl Rollout {
    /// Whether replicas may be replaced now.
    #[must_use]
    pub fn moves(&self) -> bool {
        !self.paused && self.stopped.is_none()
    }
}

/// An action on a running rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RolloutAction {
    /// Pauses it; both versions continue to serve.
    Pause,
    /// Continues after a pause; `Conflict` if the rollout has stopped because of a failure.
    Resume,
    /// Rolls back to the previous version with the same limits, on this many replicas or by default
    /// the current number.
    Rollback {
        /// [`Deployment::replaced_replicas`] of the deployment that is rolled back.
        replicas: Option<u32>,
    },
    /// Set by the leader if the new version cannot be loaded, with the public reason.
    Stop(String),
}

/// Placement of a deployment's replicas, decided by the leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementDecision {
    /// The model.
    pub model: ModelName,
    /// [`Deployment::revision`] of the placed deployment. The decision is ignored if the deployment
    /// has been replaced.
    pub deployment: Revision,
    /// The workers that hold the deployed version.
    pub workers: Vec<WorkerId>,
    /// The workers that still hold the previous version during a rollout.
    pub previous: Vec<WorkerId>,
    /// Whether a replica migrates between two live workers. Both hold it, one more than desired,
    /// until it serves on the target.
    pub moving: bool,
}
