//! State of the registry (models, versions, connectors, deployments, placements) and the commands
//! that change it. The cluster replicates the state; routing and the edges read it.

mod alias;
mod backend;
mod connector;
mod deployment;
mod drain;
mod group;
mod level;
mod members;
mod names;
mod pipeline;
mod secret;
mod setting;
mod short_name;
pub mod size;
mod source;
mod task;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use self::alias::{
    AliasEntry, AliasMirror, AliasSpec, AliasTarget, MAX_ALIAS_TARGETS, MAX_ALIAS_WEIGHT,
    MAX_NAME_DEPTH, MAX_STICKY_HEADER, hash as choice_hash,
};
pub use self::connector::{
    ConnectorEndpoint, ConnectorPolicy, ConnectorSpec, CredentialRef, ProviderName,
};
pub use self::deployment::{
    DeployOptions, Deployment, MAX_REPLICAS, PlacementDecision, Rollout, RolloutAction, Scaling,
};
use crate::access::{ApiKey, KeyHash, NodeIdentity, Quota};
use crate::ids::{
    ConnectorId, KeyId, ModelGroupId, ModelName, ModelVersion, Revision, SecretName, WorkerId,
};
use crate::params::Parameters;

pub use self::backend::{BackendInfo, BackendList, BackendName, SourceKind};
pub use self::drain::Drain;
pub use self::group::ModelGroup;
pub use self::level::{ENSEMBLE_LEVEL, LEVEL, MEMBER_LEVEL, MOVING_LEVEL, PARTS_LEVEL};
pub use self::members::{CoordinatorMember, RaftStatus};
pub use self::names::no_versions;
pub use self::pipeline::{
    Branch, ColumnRef, ColumnType, Domain, DomainKind, Ensemble, Inputs, MAX_EXPRESSION,
    MAX_STEP_INPUTS, MAX_STEP_TEMPLATE, MAX_STEPS, MAX_TOP_K, PARAMETERS, PipelineEntry,
    PipelineSpec, PipelineStep, REQUEST, ROOT, Shape, StepKind,
};
pub use self::secret::{OpenSecret, SealedSecret};
pub use self::setting::{MAX_MODEL_ON_NODE, PLACEMENT_STRATEGY, PlacementStrategy, REBALANCE};
pub use self::source::{MAX_MODEL_URL_BYTES, ModelUrl, ModelUrlKind, ModelUrlScheme, Sha256};
pub use self::task::{TaskRecord, TaskState};

/// Source of a model's files or server.
#[derive(Clone, Debug, PartialEq)]
pub enum ModelSource {
    /// No source (`text`, `fake`).
    None,
    /// A directory on every worker that may hold a replica.
    Path(String),
    /// A directory, archive or graph that each worker fetches.
    Url {
        /// URL of the directory, archive or graph.
        url: ModelUrl,
        /// SHA-256 of the archive or graph, or of a directory's manifest.
        sha256: Option<Sha256>,
    },
    /// The connector of a remote model.
    Connector(ConnectorId),
}

/// One immutable version of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelVersionSpec {
    /// The version, from 1.
    pub version: ModelVersion,
    /// The backend that runs the version.
    pub backend: BackendName,
    /// Source that the version is loaded from.
    pub source: ModelSource,
    /// Default request parameters; a request overrides them.
    pub parameters: Parameters,
    /// Description for users, one sentence.
    pub description: String,
    /// Registration time in milliseconds since 1970, by the clock of the coordinator that accepted
    /// the request.
    pub created_ms: u64,
}

/// A model and all its versions.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelEntry {
    /// The unique name.
    pub name: ModelName,
    /// Its versions, oldest first; never empty.
    pub versions: BTreeMap<ModelVersion, ModelVersionSpec>,
    /// The deployment; `None` if not deployed.
    pub deployment: Option<Deployment>,
    /// Workers that must hold a replica of the deployed version. The leader decides.
    pub placement: Vec<WorkerId>,
    /// Whether any version was ever deployed; distinguishes `UNDEPLOYED` from `REGISTERED`.
    pub ever_deployed: bool,
    /// The model group.
    pub group: Option<ModelGroupId>,
    /// Ids of its tasks that users have deleted.
    pub deleted_tasks: BTreeSet<String>,
}

impl ModelEntry {
    /// The versions assigned to `worker`: the deployed one, and during a rollout the previous one.
    pub fn placed<'a>(
        &'a self,
        worker: &'a WorkerId,
    ) -> impl Iterator<Item = ModelVersion> + use<'a> {
        let deployment = self.deployment.as_ref();
        let current = deployment.map(|deployment| (deployment.version, &self.placement));
        let rollout = deployment.and_then(|deployment| deployment.rollout.as_ref());
        let before = rollout.map(|rollout| (rollout.from, &rollout.previous));
        let held = current.into_iter().chain(before);
        held.filter_map(move |(version, workers)| workers.contains(worker).then_some(version))
    }

    /// The workers with an assigned version, deployed or previous. A worker with both occurs twice.
    pub fn holders(&self) -> impl Iterator<Item = &WorkerId> {
        let deployment = self.deployment.as_ref();
        let rollout = deployment.and_then(|deployment| deployment.rollout.as_ref());
        let current = deployment.map(|_| &self.placement);
        let before = rollout.map(|rollout| &rollout.previous);
        current.into_iter().chain(before).flatten()
    }
}

/// The whole replicated state.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct RegistryState {
    /// Revision of the state, which increases by one with each applied write that changes
    /// something.
    pub revision: Revision,
    /// Models by name. Entries are shared, so a new revision only copies the changed ones.
    pub models: BTreeMap<ModelName, Arc<ModelEntry>>,
    /// Connectors by id.
    pub connectors: BTreeMap<ConnectorId, ConnectorSpec>,
    /// API keys by id, with hashes instead of keys.
    pub keys: BTreeMap<KeyId, ApiKey>,
    /// Model groups by id.
    pub groups: BTreeMap<ModelGroupId, ModelGroup>,
    /// Cluster settings with a value: full name to JSON.
    pub settings: BTreeMap<String, String>,
    /// Aliases by name. An alias never has the name of a model.
    pub aliases: BTreeMap<ModelName, AliasEntry>,
    /// Pipelines by name. A pipeline never has the name of a model or an alias.
    pub pipelines: BTreeMap<ModelName, PipelineEntry>,
    /// Secrets by name, sealed.
    pub secrets: Arc<BTreeMap<SecretName, SealedSecret>>,
    /// Nodes that operators have drained or are draining.
    pub drains: BTreeMap<NodeIdentity, Drain>,
    /// Tasks of single coordinators, by id.
    pub tasks: Arc<BTreeMap<String, TaskRecord>>,
    /// The highest level of any command that was applied; see [`LEVEL`].
    pub level: u32,
    /// Cached result of [`RegistryState::size`].
    pub counted: size::DefinitionBytes,
}

/// An assigned replica, with everything that the worker needs to load it.
#[derive(Clone, Debug, PartialEq)]
pub struct Assignment {
    /// The model.
    pub model: ModelName,
    /// The version and its source.
    pub spec: ModelVersionSpec,
    /// The connector, for remote models.
    pub connector: Option<ConnectorSpec>,
}

impl RegistryState {
    /// The assignment of one version of a model.
    #[must_use]
    pub fn assignment(&self, model: &ModelEntry, version: ModelVersion) -> Option<Assignment> {
        let spec = model.versions.get(&version)?.clone();
        let connector = match &spec.source {
            ModelSource::Connector(id) => Some(self.with_secrets(self.connectors.get(id)?)),
            ModelSource::None | ModelSource::Path(_) | ModelSource::Url { .. } => None,
        };
        Some(Assignment {
            model: model.name.clone(),
            spec,
            connector,
        })
    }

    /// Whether a version of `model` has a connector that references a secret for which `is_meant`
    /// returns true.
    #[must_use]
    pub fn names_secret(&self, model: &ModelEntry, is_meant: impl Fn(&SecretName) -> bool) -> bool {
        let connectors = model
            .versions
            .values()
            .filter_map(|spec| match &spec.source {
                ModelSource::Connector(id) => self.connectors.get(id),
                _ => None,
            });
        connectors
            .flat_map(ConnectorSpec::credentials)
            .any(|credential| matches!(credential, CredentialRef::Secret(name) if is_meant(name)))
    }

    /// `connector` as it is sent to workers, with its sealed secrets.
    #[must_use]
    pub fn with_secrets(&self, connector: &ConnectorSpec) -> ConnectorSpec {
        let mut connector = connector.clone();
        for credential in connector.credentials_mut() {
            if let CredentialRef::Secret(name) = credential
                && let Some(sealed) = self.secrets.get(name)
            {
                *credential = CredentialRef::Sealed(name.clone(), Box::new(sealed.clone()));
            }
        }
        connector
    }

    /// All assignments of `worker`.
    #[must_use]
    pub fn assignments(&self, worker: &WorkerId) -> Vec<Assignment> {
        let placed = self.models.values().flat_map(|model| {
            let versions = model.placed(worker);
            versions.filter_map(|version| self.assignment(model, version))
        });
        placed.collect()
    }
}

/// A write to the registry. Preconditions are checked when it is applied.
#[derive(Clone, Debug, PartialEq)]
pub enum RegistryCommand {
    /// Creates a connector; `Conflict` if a different connector has the id.
    CreateConnector(ConnectorSpec),
    /// Deletes a connector; `Conflict` while a model version uses it.
    DeleteConnector(ConnectorId),
    /// Replaces a connector; `NotFound` if it does not exist, `InvalidInput` while a deployed model
    /// uses it.
    UpdateConnector(ConnectorSpec),
    /// Registers the next version of a model, or version 1 of a new model. `version` in the
    /// specification is ignored. `NotFound` for an unknown connector.
    RegisterModel(ModelName, ModelVersionSpec),
    /// Deploys a version (the newest when `None`) on `replicas` workers.
    Deploy {
        /// The model.
        model: ModelName,
        /// The version; `None` means the newest.
        version: Option<ModelVersion>,
        /// Number of workers, at least 1.
        replicas: u32,
        /// As [`Deployment::overcommit`].
        overcommit: bool,
        /// As [`Deployment::workers`]; at least as many as `replicas`, or none.
        workers: Vec<WorkerId>,
        /// As [`Deployment::options`].
        options: DeployOptions,
    },
    /// Pauses, resumes, undoes or stops a rollout; `Conflict` when no rollout is running.
    Rollout {
        /// The model.
        model: ModelName,
        /// The action.
        action: RolloutAction,
    },
    /// Number of replicas chosen by the leader, within the limits of the deployment. The command
    /// only applies to the deployment made at `deployment`.
    Scale {
        /// The model.
        model: ModelName,
        /// [`Deployment::revision`] of the deployment that this scales.
        deployment: Revision,
        /// Desired number of replicas.
        replicas: u32,
    },
    /// Changes the mutable fields of a model; `None` keeps a field. `NotFound` for an unknown model
    /// or group.
    UpdateModel {
        /// The model.
        model: ModelName,
        /// The description of its newest version.
        description: Option<String>,
        /// The new group; the inner `None` removes the model from its group.
        group: Option<Option<ModelGroupId>>,
    },
    /// Marks a task of a model as deleted. Idempotent.
    DeleteTask {
        /// The model.
        model: ModelName,
        /// The task's complete id.
        task: String,
    },
    /// Creates a model group; `Conflict` if its id or name exists.
    CreateGroup(ModelGroup),
    /// Replaces a model group; `NotFound` if it does not exist, `Conflict` if another group has its
    /// name.
    UpdateGroup(ModelGroup),
    /// Deletes a model group; `Conflict` while models are in it.
    DeleteGroup(ModelGroupId),
    /// Sets cluster settings; `None` resets a setting to its default.
    ChangeSettings(BTreeMap<String, Option<String>>),
    /// Removes the deployment. Succeeds if there is none.
    Undeploy(ModelName),
    /// Deletes a model and its versions; `Conflict` while deployed.
    DeleteModel(ModelName),
    /// Placement decisions of the leader. A decision is ignored if its deployment has been
    /// replaced.
    Place(Vec<PlacementDecision>),
    /// Adds an API key; `Conflict` if the id exists.
    CreateKey(ApiKey),
    /// Replaces the secret of a key; `NotFound` if the key does not exist.
    RotateKey {
        /// The key.
        id: KeyId,
        /// The hash of the new key.
        hash: KeyHash,
        /// Time until which the old key is accepted, in milliseconds since 1970; 0 revokes it
        /// immediately.
        previous_until_ms: u64,
    },
    /// Sets the quota of a key; `NotFound` if the key does not exist.
    LimitKey {
        /// The key.
        id: KeyId,
        /// The new quota.
        quota: Quota,
    },
    /// Removes an API key; `NotFound` if it does not exist.
    RevokeKey(KeyId),
    /// Creates or replaces an alias. `Conflict` if a model has the name, if names would form a
    /// cycle, or if the alias is not at the expected revision; `NotFound` if a target does not
    /// exist.
    PutAlias {
        /// The alias.
        alias: AliasSpec,
        /// The expected current revision; 0 means that the name must be unused.
        expected: Option<Revision>,
    },
    /// Creates or replaces a pipeline. The errors are those of [`RegistryCommand::PutAlias`], and
    /// `InvalidInput` if the steps do not fit together.
    PutPipeline {
        /// The pipeline.
        pipeline: Arc<PipelineSpec>,
        /// The expected current revision; 0 means that the name must be unused.
        expected: Option<Revision>,
    },
    /// Deletes a pipeline, with the errors of [`RegistryCommand::DeleteAlias`].
    DeletePipeline {
        /// Its name.
        name: ModelName,
        /// The expected current revision.
        expected: Option<Revision>,
    },
    /// Deletes an alias; `Conflict` while another name refers to it, or if it is not at the
    /// expected revision.
    DeleteAlias {
        /// Its name.
        name: ModelName,
        /// The expected current revision.
        expected: Option<Revision>,
    },
    /// Stores a sealed secret and replaces an earlier one with the same name.
    PutSecret {
        /// Its name.
        name: SecretName,
        /// The sealed secret.
        sealed: SealedSecret,
    },
    /// Stores the same secret under another master key; `Conflict` if the secret has changed since.
    RewrapSecret {
        /// Its name.
        name: SecretName,
        /// The expected current value.
        before: SealedSecret,
        /// The new value.
        after: SealedSecret,
    },
    /// Removes a secret; `NotFound` if it does not exist, `Conflict` while a connector references
    /// it.
    DeleteSecret(SecretName),
    /// Drains a node. Idempotent.
    Drain(NodeIdentity, Drain),
    /// Returns a drained node to service. Idempotent.
    Undrain(NodeIdentity),
    /// Records a task or its progress, and deletes expired tasks; `Conflict` if another task has
    /// the id.
    PutTask {
        /// Its id.
        id: String,
        /// The new record.
        record: TaskRecord,
    },
    /// Records a task that runs, as [`Self::PutTask`] does, unless a record says that it has ended:
    /// a write that arrives late changes nothing.
    BeginTask {
        /// Its id.
        id: String,
        /// The record, in the state [`TaskState::Running`].
        record: TaskRecord,
    },
    /// Deletes a task. Idempotent.
    ForgetTask(String),
}

/// Result of an applied command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistryReply {
    /// The registry's revision after the command.
    pub revision: Revision,
    /// The version that was registered or deployed.
    pub version: Option<ModelVersion>,
}

/// The state of a replica on its worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplicaState {
    /// Being loaded.
    Loading,
    /// Accepts requests.
    Ready,
    /// Accepts no new requests; running ones finish.
    Draining,
    /// Loading failed, with the public reason.
    Failed(String),
}

/// The state of a model, as users see it. The names are OpenSearch's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ModelState {
    /// Registered, never deployed.
    Registered,
    /// Deployed, not all replicas loaded yet, none failed.
    Deploying,
    /// All desired replicas are ready.
    Deployed,
    /// Some replicas are ready, fewer than desired.
    PartiallyDeployed,
    /// Was deployed before, but is not deployed now.
    Undeployed,
    /// No replica ready and at least one failed.
    DeployFailed,
}

impl ModelState {
    /// The name in OpenSearch's API.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Registered => "REGISTERED",
            Self::Deploying => "DEPLOYING",
            Self::Deployed => "DEPLOYED",
            Self::PartiallyDeployed => "PARTIALLY_DEPLOYED",
            Self::Undeployed => "UNDEPLOYED",
            Self::DeployFailed => "DEPLOY_FAILED",
        }
    }
}
