//! What should run, and how it gets there: deployments, their limits on placement, their scaling
//! and the roll from one version to the next.

use std::collections::BTreeMap;

use crate::ids::{ModelName, ModelVersion, Revision, WorkerId};
use crate::registry::{RegistryCommand, RegistryState};

/// What should run: a version, on this many workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deployment {
    /// The version to run.
    pub version: ModelVersion,
    /// How many workers should hold a loaded copy. The cluster's own choice where
    /// [`DeployOptions::scaling`] is set; 0 while it is scaled to nothing.
    pub replicas: u32,
    /// The revision at which this deployment was asked for; tells its task's id.
    pub revision: Revision,
    /// Whether workers may unload it while it is idle, to make room for others; the next request
    /// then waits until it is loaded again.
    pub overcommit: bool,
    /// The only workers that may hold a copy; any when empty.
    pub workers: Vec<WorkerId>,
    /// Where replicas may go, how their number follows the load, how a version replaces another.
    pub options: DeployOptions,
    /// The version before this one, while its replicas are being replaced, or stay beside it.
    pub rollout: Option<Rollout>,
    /// The version that this one has replaced: where a rollback goes once a roll is over.
    pub replaced: Option<ModelVersion>,
    /// How many replicas that version had; `None` where that is not known or the number followed
    /// the load.
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
}

impl RegistryState {
    /// The command that deploys `version` of a model (the newest where none is named) as the model
    /// is deployed now: on as many replicas, with the same options. A model that is not deployed
    /// gets one replica and the default options. Replicas of another version
    /// ([`DeployOptions::beside`]) end: whoever wants them names them again.
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
            // A deployment that was scaled to nothing has none.
            replicas: current.replicas.max(least).max(1),
            overcommit: current.overcommit,
            workers: current.workers,
            options,
        }
    }
}

/// What a deployment asks for besides a version and a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeployOptions {
    /// A replica goes only to workers that have all of these labels.
    pub labels: BTreeMap<String, String>,
    /// Replicas are spread evenly over the values of this label of their workers.
    pub spread: Option<String>,
    /// Bytes that a replica takes of its worker's memory budget; 0 where nobody said, and then
    /// what the first loaded replica reports counts.
    pub memory_bytes: u64,
    /// How the number of replicas follows the load; `None` keeps it as asked.
    pub scaling: Option<Scaling>,
    /// While a version replaces another: replicas that there may be beyond the number asked for.
    pub max_surge: u32,
    /// While a version replaces another: replicas that may be missing.
    pub max_unavailable: u32,
    /// Replicas of the version deployed before that stay beside this one, which then does not
    /// replace it: requests that name no version go to the older one. 0 for none.
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

/// How the number of replicas follows the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scaling {
    /// The fewest; 0 lets an idle model go, and a request brings it back.
    pub min_replicas: u32,
    /// The most; at least 1.
    pub max_replicas: u32,
    /// Streams that run and wait over the places of all replicas, in percent, that is aimed at.
    pub target_percent: u32,
    /// A queue wait above this asks for one more replica whatever the utilization; 0 means never.
    pub queue_wait_ms: u32,
    /// How long a model is idle before it is scaled to nothing.
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

/// One version on its way to be replaced by another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rollout {
    /// The version that goes.
    pub from: ModelVersion,
    /// The workers that still hold it.
    pub previous: Vec<WorkerId>,
    /// Nothing moves on until it is resumed.
    pub paused: bool,
    /// Why it stopped by itself: the new version could not be loaded. Public text.
    pub stopped: Option<String>,
}

impl Rollout {
    /// Whether replicas may be moved from the one version to the other now.
    #[must_use]
    pub fn moves(&self) -> bool {
        !self.paused && self.stopped.is_none()
    }
}

/// What is done to a roll that goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RolloutAction {
    /// Halts it; both versions go on serving.
    Pause,
    /// Goes on after a pause; `Conflict` where it has stopped by itself.
    Resume,
    /// Goes back to the version before, in the same careful way, on this many replicas; on as
    /// many as now where none are named.
    Rollback {
        /// [`Deployment::replaced_replicas`] of the deployment that is rolled back.
        replicas: Option<u32>,
    },
    /// The leader stops it: the new version cannot be loaded. The public reason.
    Stop(String),
}

/// Where a deployment's replicas go, as the leader decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementDecision {
    /// The model.
    pub model: ModelName,
    /// [`Deployment::revision`] of the deployment that this places; ignored when that has been
    /// replaced.
    pub deployment: Revision,
    /// The workers that hold the deployed version.
    pub workers: Vec<WorkerId>,
    /// The workers that still hold the version before, while one replaces the other.
    pub previous: Vec<WorkerId>,
    /// One replica goes from a worker to another although both are there: it is on both, and
    /// there is one more than is wanted, until it serves where it goes.
    pub moving: bool,
}
