//! Conversions of registry records and commands: wire ⇄ [`volley_types::registry`].

use std::sync::Arc;

use volley_types::registry::size::DefinitionBytes;
use volley_types::registry::{
    Assignment, BackendName, ConnectorEndpoint, ConnectorPolicy, ConnectorSpec, Drain, ModelEntry,
    ModelSource, ModelUrl, ModelVersionSpec, ProviderName, RegistryCommand, RegistryState, Sha256,
};
use volley_types::{
    ConnectorId, KeyId, ModelGroupId, ModelName, ModelVersion, PredictError, Revision, SecretName,
};

use crate::deployment_records::{
    deploy_from_wire, deployment_from_wire, deployment_to_wire, options_to_wire,
    placement_from_wire, placements_from_wire, placements_to_wire, rollout_step,
    rollout_step_from_wire, scale_from_wire, scale_to_wire, worker_ids,
};
use crate::drain_records::{drain_from_wire, drain_to_wire, drains_from_wire, drains_to_wire};
use crate::group_records::{
    group_from_wire, group_of, group_to_wire, settings_from_wire, settings_to_wire,
    update_from_wire, update_to_wire,
};
use crate::key_records::{
    key_from_wire, key_to_wire, limit_from_wire, limit_to_wire, rotate_from_wire, rotate_to_wire,
};
use crate::name_records::{
    aliases_from_wire, aliases_to_wire, delete_alias, delete_alias_from_wire, delete_pipeline,
    delete_pipeline_from_wire, pipelines_from_wire, pipelines_to_wire, put_alias,
    put_alias_from_wire, put_pipeline, put_pipeline_from_wire,
};
use crate::params;
use crate::registry::v1 as wire;
use crate::registry::v1::command::Command;
use crate::registry::v1::model_version::Source;
pub use crate::reply_records::{reply_from_wire, reply_to_wire};
use crate::secret_records::{
    credential_from_text, credential_to_text, put_secret_from_wire, rewrap_from_wire,
    rewrap_to_wire, secret_to_wire, secrets_from_wire, secrets_to_wire,
};
use crate::task_records::{
    delete_task_from_wire, delete_task_to_wire, task_from_wire, task_to_wire, tasks_from_wire,
    tasks_to_wire,
};

fn missing(what: &str) -> PredictError {
    PredictError::invalid(format!("a registry record has no {what}"))
}

/// Converts a connector to the wire.
#[must_use]
pub fn connector_to_wire(spec: &ConnectorSpec) -> wire::Connector {
    wire::Connector {
        id: spec.id.to_string(),
        name: spec.name.clone(),
        provider: spec.provider.as_str().to_owned(),
        url: spec.url.clone(),
        model: spec.model.clone(),
        credential: credential_to_text(spec.credential.as_ref()),
        headers: spec.headers.clone().into_iter().collect(),
        parameters: params::to_wire(&spec.parameters),
        request_body: spec.request_body.clone().unwrap_or_default(),
        policy: Some(policy_to_wire(&spec.policy)),
    }
}

fn policy_to_wire(policy: &ConnectorPolicy) -> wire::ConnectorPolicy {
    let endpoint = |endpoint: &ConnectorEndpoint| wire::ConnectorEndpoint {
        provider: endpoint.provider.as_str().to_owned(),
        url: endpoint.url.clone(),
        model: endpoint.model.clone(),
        credential: credential_to_text(endpoint.credential.as_ref()),
        headers: endpoint.headers.clone().into_iter().collect(),
        weight: endpoint.weight,
        fallback: endpoint.fallback,
    };
    wire::ConnectorPolicy {
        max_concurrent: policy.max_concurrent.unwrap_or_default(),
        max_per_minute: policy.max_per_minute.unwrap_or_default(),
        max_retries: policy.max_retries,
        retry_backoff_ms: policy.retry_backoff_ms,
        breaker_window: policy.breaker_window,
        breaker_open_ms: policy.breaker_open_ms,
        weight: policy.weight,
        endpoints: policy.endpoints.iter().map(endpoint).collect(),
    }
}

fn policy_from_wire(policy: wire::ConnectorPolicy) -> Result<ConnectorPolicy, PredictError> {
    let some = |number: u32| Some(number).filter(|number| *number != 0);
    let endpoint = |endpoint: wire::ConnectorEndpoint| {
        Ok(ConnectorEndpoint {
            provider: provider_from_wire(&endpoint.provider)?,
            url: endpoint.url,
            model: endpoint.model,
            credential: credential_from_text(&endpoint.credential)?,
            headers: endpoint.headers.into_iter().collect(),
            weight: endpoint.weight,
            fallback: endpoint.fallback,
        })
    };
    let endpoints = policy.endpoints.into_iter().map(endpoint);
    Ok(ConnectorPolicy {
        max_concurrent: some(policy.max_concurrent),
        max_per_minute: some(policy.max_per_minute),
        max_retries: policy.max_retries,
        retry_backoff_ms: policy.retry_backoff_ms,
        breaker_window: policy.breaker_window,
        breaker_open_ms: policy.breaker_open_ms,
        weight: policy.weight,
        endpoints: endpoints.collect::<Result<_, PredictError>>()?,
    })
}

fn provider_from_wire(name: &str) -> Result<ProviderName, PredictError> {
    ProviderName::new(name)
}

/// Converts a connector from the wire.
///
/// # Errors
/// `InvalidInput` when a field is malformed.
pub fn connector_from_wire(spec: wire::Connector) -> Result<ConnectorSpec, PredictError> {
    Ok(ConnectorSpec {
        id: ConnectorId::new(spec.id)?,
        name: spec.name,
        provider: provider_from_wire(&spec.provider)?,
        url: spec.url,
        model: spec.model,
        credential: credential_from_text(&spec.credential)?,
        headers: spec.headers.into_iter().collect(),
        parameters: params::from_wire(spec.parameters)?,
        request_body: Some(spec.request_body).filter(|body| !body.is_empty()),
        policy: spec
            .policy
            .map_or_else(|| Ok(ConnectorPolicy::default()), policy_from_wire)?,
    })
}

/// Converts a model version to the wire.
#[must_use]
pub fn version_to_wire(spec: &ModelVersionSpec) -> wire::ModelVersion {
    wire::ModelVersion {
        version: spec.version.0,
        backend: spec.backend.as_str().to_owned(),
        source: match &spec.source {
            ModelSource::None => None,
            ModelSource::Path(path) => Some(Source::Path(path.clone())),
            ModelSource::Url { url, sha256 } => Some(Source::Artifact(wire::Artifact {
                url: url.to_string(),
                sha256: sha256.map_or_else(Vec::new, |hash| hash.0.to_vec()),
            })),
            ModelSource::Connector(id) => Some(Source::Connector(id.to_string())),
        },
        parameters: params::to_wire(&spec.parameters),
        description: spec.description.clone(),
        created_ms: spec.created_ms,
    }
}

/// Converts a model version from the wire.
///
/// # Errors
/// `InvalidInput` when a field is malformed.
pub fn version_from_wire(spec: wire::ModelVersion) -> Result<ModelVersionSpec, PredictError> {
    Ok(ModelVersionSpec {
        version: ModelVersion(spec.version),
        backend: BackendName::new(&spec.backend)?,
        source: match spec.source {
            None => ModelSource::None,
            Some(Source::Path(path)) => ModelSource::Path(path),
            Some(Source::Artifact(artifact)) => artifact_from_wire(artifact)?,
            Some(Source::Connector(id)) => ModelSource::Connector(ConnectorId::new(id)?),
        },
        parameters: params::from_wire(spec.parameters)?,
        description: spec.description,
        created_ms: spec.created_ms,
    })
}

fn artifact_from_wire(artifact: wire::Artifact) -> Result<ModelSource, PredictError> {
    let malformed = |_: Vec<u8>| PredictError::invalid("the hash of a model is malformed");
    let hash = Some(artifact.sha256).filter(|hash| !hash.is_empty());
    let sha256 = hash.map(|hash| hash.try_into().map(Sha256).map_err(malformed));
    Ok(ModelSource::Url {
        url: ModelUrl::parse(&artifact.url)?,
        sha256: sha256.transpose()?,
    })
}

/// Converts a model to the wire.
#[must_use]
pub fn model_to_wire(entry: &ModelEntry) -> wire::Model {
    wire::Model {
        name: entry.name.to_string(),
        versions: entry.versions.values().map(version_to_wire).collect(),
        deployment: entry.deployment.as_ref().map(deployment_to_wire),
        placement: entry.placement.iter().map(ToString::to_string).collect(),
        ever_deployed: entry.ever_deployed,
        group: entry
            .group
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default(),
        deleted_tasks: entry.deleted_tasks.iter().cloned().collect(),
    }
}

/// Converts a model from the wire.
///
/// # Errors
/// `InvalidInput` when a field is malformed.
pub fn model_from_wire(model: wire::Model) -> Result<ModelEntry, PredictError> {
    let versions = model.versions.into_iter().map(|version| {
        let version = version_from_wire(version)?;
        Ok((version.version, version))
    });
    Ok(ModelEntry {
        name: ModelName::new(model.name)?,
        versions: versions.collect::<Result<_, PredictError>>()?,
        deployment: model.deployment.map(deployment_from_wire).transpose()?,
        placement: worker_ids(model.placement)?,
        ever_deployed: model.ever_deployed,
        group: group_of(model.group)?,
        deleted_tasks: model.deleted_tasks.into_iter().collect(),
    })
}

/// Converts the registry to the form of a snapshot.
#[must_use]
pub fn state_to_wire(state: &RegistryState) -> wire::State {
    wire::State {
        revision: state.revision.0,
        models: state
            .models
            .values()
            .map(|model| model_to_wire(model))
            .collect(),
        connectors: state.connectors.values().map(connector_to_wire).collect(),
        keys: state.keys.values().map(key_to_wire).collect(),
        groups: state.groups.values().map(group_to_wire).collect(),
        settings: state.settings.clone().into_iter().collect(),
        aliases: aliases_to_wire(&state.aliases),
        pipelines: pipelines_to_wire(&state.pipelines),
        secrets: secrets_to_wire(&state.secrets),
        drains: drains_to_wire(&state.drains),
        tasks: tasks_to_wire(&state.tasks),
        level: state.level,
    }
}

/// Converts the registry from a snapshot.
///
/// # Errors
/// `InvalidInput` when a record is malformed.
pub fn state_from_wire(state: wire::State) -> Result<RegistryState, PredictError> {
    let models = state.models.into_iter().map(model_from_wire);
    let connectors = state.connectors.into_iter().map(connector_from_wire);
    let keys = state.keys.into_iter().map(key_from_wire);
    let groups = state.groups.into_iter().map(group_from_wire);
    Ok(RegistryState {
        revision: Revision(state.revision),
        models: models
            .map(|model| model.map(|model| (model.name.clone(), Arc::new(model))))
            .collect::<Result<_, _>>()?,
        connectors: connectors
            .map(|connector| connector.map(|connector| (connector.id.clone(), connector)))
            .collect::<Result<_, _>>()?,
        keys: keys
            .map(|key| key.map(|key| (key.id.clone(), key)))
            .collect::<Result<_, _>>()?,
        groups: groups
            .map(|group| group.map(|group| (group.id.clone(), group)))
            .collect::<Result<_, _>>()?,
        settings: state.settings.into_iter().collect(),
        aliases: aliases_from_wire(state.aliases)?,
        pipelines: pipelines_from_wire(state.pipelines)?,
        secrets: Arc::new(secrets_from_wire(state.secrets)?),
        drains: drains_from_wire(state.drains)?,
        tasks: Arc::new(tasks_from_wire(state.tasks)?),
        level: state.level,
        counted: DefinitionBytes::default(),
    })
}

/// Converts an assignment to the wire.
#[must_use]
pub fn assignment_to_wire(assignment: &Assignment) -> wire::Assignment {
    wire::Assignment {
        model: assignment.model.to_string(),
        version: Some(version_to_wire(&assignment.spec)),
        connector: assignment.connector.as_ref().map(connector_to_wire),
    }
}

/// Converts an assignment from the wire.
///
/// # Errors
/// `InvalidInput` when a field is malformed or missing.
pub fn assignment_from_wire(assignment: wire::Assignment) -> Result<Assignment, PredictError> {
    Ok(Assignment {
        model: ModelName::new(assignment.model)?,
        spec: version_from_wire(assignment.version.ok_or_else(|| missing("version"))?)?,
        connector: assignment.connector.map(connector_from_wire).transpose()?,
    })
}

/// A registration as it travels.
fn register_to_wire(model: &ModelName, spec: &ModelVersionSpec) -> Command {
    Command::RegisterModel(wire::RegisterModel {
        model: model.to_string(),
        version: Some(version_to_wire(spec)),
    })
}

/// A registration as a peer sent it.
fn register_from_wire(register: wire::RegisterModel) -> Result<RegistryCommand, PredictError> {
    Ok(RegistryCommand::RegisterModel(
        ModelName::new(register.model)?,
        version_from_wire(register.version.ok_or_else(|| missing("version"))?)?,
    ))
}

/// Converts a command for the Raft log and for forwarded writes.
#[must_use]
pub fn command_to_wire(command: &RegistryCommand) -> wire::Command {
    wire::Command {
        command: Some(to_wire(command)),
    }
}

fn to_wire(command: &RegistryCommand) -> Command {
    match command {
        RegistryCommand::CreateConnector(spec) => Command::CreateConnector(connector_to_wire(spec)),
        RegistryCommand::DeleteConnector(id) => Command::DeleteConnector(id.to_string()),
        RegistryCommand::RegisterModel(model, spec) => register_to_wire(model, spec),
        RegistryCommand::Deploy {
            model,
            version,
            replicas,
            overcommit,
            options,
            workers,
        } => Command::Deploy(wire::Deploy {
            model: model.to_string(),
            version: version.map_or(0, |version| version.0),
            replicas: *replicas,
            overcommit: *overcommit,
            options: Some(options_to_wire(options)),
            workers: workers.iter().map(ToString::to_string).collect(),
        }),
        RegistryCommand::Undeploy(model) => Command::Undeploy(model.to_string()),
        RegistryCommand::DeleteModel(model) => Command::DeleteModel(model.to_string()),
        RegistryCommand::Place(decisions) => placements_to_wire(decisions),
        RegistryCommand::Rollout { model, action } => Command::Rollout(rollout_step(model, action)),
        RegistryCommand::Scale {
            model,
            deployment,
            replicas,
        } => scale_to_wire(model, *deployment, *replicas),
        RegistryCommand::CreateKey(key) => Command::CreateKey(key_to_wire(key)),
        RegistryCommand::RotateKey {
            id,
            hash,
            previous_until_ms,
        } => rotate_to_wire(id, hash, *previous_until_ms),
        RegistryCommand::LimitKey { id, quota } => limit_to_wire(id, *quota),
        RegistryCommand::RevokeKey(id) => Command::RevokeKey(id.to_string()),
        RegistryCommand::UpdateConnector(spec) => Command::UpdateConnector(connector_to_wire(spec)),
        RegistryCommand::UpdateModel {
            model,
            description,
            group,
        } => update_to_wire(model, description.as_deref(), group.as_ref()),
        RegistryCommand::DeleteTask { model, task } => delete_task_to_wire(model, task),
        RegistryCommand::CreateGroup(group) => Command::CreateGroup(group_to_wire(group)),
        RegistryCommand::UpdateGroup(group) => Command::UpdateGroup(group_to_wire(group)),
        RegistryCommand::DeleteGroup(id) => Command::DeleteGroup(id.to_string()),
        RegistryCommand::ChangeSettings(settings) => settings_to_wire(settings),
        RegistryCommand::PutAlias { alias, expected } => put_alias(alias, *expected),
        RegistryCommand::DeleteAlias { name, expected } => delete_alias(name, *expected),
        RegistryCommand::PutPipeline { pipeline, expected } => put_pipeline(pipeline, *expected),
        RegistryCommand::DeletePipeline { name, expected } => delete_pipeline(name, *expected),
        RegistryCommand::PutSecret { name, sealed } => {
            Command::PutSecret(secret_to_wire(name, sealed))
        }
        RegistryCommand::RewrapSecret {
            name,
            before,
            after,
        } => Command::RewrapSecret(rewrap_to_wire(name, before, after)),
        RegistryCommand::DeleteSecret(name) => Command::DeleteSecret(name.to_string()),
        RegistryCommand::Drain(node, drain) => Command::Drain(drain_to_wire(node, *drain)),
        RegistryCommand::Undrain(node) => Command::Undrain(drain_to_wire(node, Drain::default())),
        RegistryCommand::PutTask { id, record } => Command::PutTask(task_to_wire(id, record)),
        RegistryCommand::BeginTask { id, record } => Command::BeginTask(task_to_wire(id, record)),
        RegistryCommand::ForgetTask(id) => Command::ForgetTask(id.clone()),
    }
}

/// Converts a command from the Raft log or from a forwarded write.
///
/// # Errors
/// `InvalidInput` when a field is malformed or missing.
pub fn command_from_wire(command: wire::Command) -> Result<RegistryCommand, PredictError> {
    Ok(match command.command.ok_or_else(|| missing("command"))? {
        Command::CreateConnector(spec) => {
            RegistryCommand::CreateConnector(connector_from_wire(spec)?)
        }
        Command::DeleteConnector(id) => RegistryCommand::DeleteConnector(ConnectorId::new(id)?),
        Command::RegisterModel(register) => register_from_wire(register)?,
        Command::Deploy(deploy) => deploy_from_wire(deploy)?,
        Command::Undeploy(model) => RegistryCommand::Undeploy(ModelName::new(model)?),
        Command::DeleteModel(model) => RegistryCommand::DeleteModel(ModelName::new(model)?),
        // Written by coordinators of earlier versions.
        Command::Placement(placement) => {
            RegistryCommand::Place(vec![placement_from_wire(placement)?])
        }
        Command::Placements(placements) => placements_from_wire(placements)?,
        Command::Rollout(step) => rollout_step_from_wire(step)?,
        Command::Scale(scale) => scale_from_wire(scale)?,
        Command::CreateKey(key) => RegistryCommand::CreateKey(key_from_wire(key)?),
        Command::RotateKey(rotate) => rotate_from_wire(rotate)?,
        Command::LimitKey(limit) => limit_from_wire(limit)?,
        Command::RevokeKey(id) => RegistryCommand::RevokeKey(KeyId::new(id)?),
        Command::UpdateConnector(spec) => {
            RegistryCommand::UpdateConnector(connector_from_wire(spec)?)
        }
        Command::UpdateModel(update) => update_from_wire(update)?,
        Command::DeleteTask(task) => delete_task_from_wire(task)?,
        Command::CreateGroup(group) => RegistryCommand::CreateGroup(group_from_wire(group)?),
        Command::UpdateGroup(group) => RegistryCommand::UpdateGroup(group_from_wire(group)?),
        Command::DeleteGroup(id) => RegistryCommand::DeleteGroup(ModelGroupId::new(id)?),
        Command::ChangeSettings(change) => settings_from_wire(change),
        Command::PutAlias(put) => put_alias_from_wire(put)?,
        Command::DeleteAlias(delete) => delete_alias_from_wire(delete)?,
        Command::PutPipeline(put) => put_pipeline_from_wire(put)?,
        Command::DeletePipeline(delete) => delete_pipeline_from_wire(delete)?,
        Command::PutSecret(secret) => put_secret_from_wire(secret)?,
        Command::RewrapSecret(rewrap) => rewrap_from_wire(rewrap)?,
        Command::DeleteSecret(name) => RegistryCommand::DeleteSecret(SecretName::new(name)?),
        Command::Drain(drain) => {
            let (node, drain) = drain_from_wire(drain)?;
            RegistryCommand::Drain(node, drain)
        }
        Command::Undrain(drain) => RegistryCommand::Undrain(drain_from_wire(drain)?.0),
        Command::PutTask(task) => {
            let (id, record) = task_from_wire(task)?;
            RegistryCommand::PutTask { id, record }
        }
        Command::BeginTask(task) => {
            let (id, record) = task_from_wire(task)?;
            RegistryCommand::BeginTask { id, record }
        }
        Command::ForgetTask(id) => RegistryCommand::ForgetTask(id),
    })
}
