//! Application of commands to the registry. Pure and deterministic: every coordinator applies the
//! same commands in the same order and must reach the same state, so this crate must not use a
//! clock, random numbers or the machine. A rejected command changes nothing.
//!
//! - Input: a [`RegistryState`] and a [`RegistryCommand`].
//! - Output: the state after the command, with a [`RegistryReply`] or an error.

mod changes;
mod deployments;
mod drains;
mod groups;
mod keys;
mod limits;
mod names;
mod secrets;
mod tasks;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use volley_types::registry::{
    ConnectorSpec, ModelEntry, ModelSource, ModelVersionSpec, RegistryCommand, RegistryReply,
    RegistryState,
};
use volley_types::{ConnectorId, ErrorCode, ModelName, ModelVersion, PredictError, Revision};

use deployments::DeployRequest;
pub use limits::{
    MAX_ALIASES, MAX_CONNECTORS, MAX_DELETED_TASKS, MAX_DESCRIPTION, MAX_DRAINS, MAX_GROUPS,
    MAX_HEADERS, MAX_KEY_MODELS, MAX_KEYS, MAX_LABELS, MAX_MODELS, MAX_PARAMETERS,
    MAX_PIPELINE_BYTES, MAX_PIPELINES, MAX_REGISTRY_BYTES, MAX_REPLICAS, MAX_SECRETS, MAX_SETTINGS,
    MAX_TASKS, MAX_TEMPLATE, MAX_TEXT, MAX_VERSIONS,
};
use limits::{connector_fits, registry_fits, version_fits, within};
use names::{delete_pipeline, put_pipeline};

/// Applies `command` to `state` and returns the reply. A rejected command leaves `state` unchanged.
/// An accepted command that changes the state raises its revision by one; one that finds nothing to
/// change does not.
///
/// # Errors
/// `NotFound`, `Conflict` and `InvalidInput` as documented in [`RegistryCommand`]; `TooLarge` for
/// an object above one of this crate's limits.
pub fn apply(
    state: &mut RegistryState,
    command: &RegistryCommand,
) -> Result<RegistryReply, PredictError> {
    let reply = decide(state, command);
    // Rejected commands do not raise the feature level.
    if reply.is_ok() && 1 < command.level() {
        state.level = state.level.max(command.level());
    }
    reply
}

fn decide(
    state: &mut RegistryState,
    command: &RegistryCommand,
) -> Result<RegistryReply, PredictError> {
    use RegistryCommand as Command;

    match command {
        Command::CreateConnector(spec) => create_connector(state, spec),
        Command::DeleteConnector(id) => delete_connector(state, id),
        Command::RegisterModel(model, spec) => register(state, model, spec),
        Command::Deploy {
            model,
            version,
            replicas,
            overcommit,
            workers,
            options,
        } => {
            let asked = DeployRequest::new(*version, *replicas, *overcommit, workers, options);
            deployments::deploy(state, model, &asked)
        }
        Command::Undeploy(model) => deployments::undeploy(state, model),
        Command::Rollout { model, action } => deployments::roll(state, model, action),
        Command::Scale {
            model,
            deployment,
            replicas,
        } => deployments::scale(state, model, *deployment, *replicas),
        Command::DeleteModel(model) => delete_model(state, model),
        Command::Place(placings) => deployments::place(state, placings),
        Command::CreateKey(key) => keys::create(state, key),
        Command::RotateKey {
            id,
            hash,
            previous_until_ms,
        } => keys::rotate(state, id, *hash, *previous_until_ms),
        Command::LimitKey { id, quota } => keys::limit(state, id, *quota),
        Command::RevokeKey(id) => keys::revoke(state, id),
        Command::UpdateConnector(spec) => changes::update_connector(state, spec),
        Command::UpdateModel {
            model,
            description,
            group,
        } => changes::update_model(state, model, description.as_deref(), group.as_ref()),
        Command::DeleteTask { model, task } => changes::delete_task(state, model, task),
        Command::ChangeSettings(settings) => changes::settings(state, settings),
        Command::CreateGroup(group) => groups::create(state, group),
        Command::UpdateGroup(group) => groups::update(state, group),
        Command::DeleteGroup(id) => groups::delete(state, id),
        Command::PutAlias { alias, expected } => names::put_alias(state, alias, *expected),
        Command::DeleteAlias { name, expected } => names::delete_alias(state, name, *expected),
        Command::PutPipeline { pipeline, expected } => put_pipeline(state, pipeline, *expected),
        Command::DeletePipeline { name, expected } => delete_pipeline(state, name, *expected),
        Command::PutSecret { name, sealed } => secrets::put(state, name, sealed),
        Command::RewrapSecret {
            name,
            before,
            after,
        } => secrets::rewrap(state, name, before, after),
        Command::DeleteSecret(name) => secrets::delete(state, name),
        Command::Drain(node, drain) => drains::drain(state, node, *drain),
        Command::Undrain(node) => drains::undrain(state, node),
        Command::PutTask { id, record } => tasks::put(state, id, record),
        Command::BeginTask { id, record } => tasks::begin(state, id, record),
        Command::ForgetTask(id) => tasks::forget(state, id),
    }
}

fn changed(
    state: &mut RegistryState,
    version: Option<ModelVersion>,
) -> Result<RegistryReply, PredictError> {
    state.revision = next(state);
    Ok(RegistryReply {
        revision: state.revision,
        version,
    })
}

fn unchanged(state: &RegistryState) -> Result<RegistryReply, PredictError> {
    Ok(RegistryReply {
        revision: state.revision,
        version: None,
    })
}

fn next(state: &RegistryState) -> Revision {
    Revision(state.revision.0 + 1)
}

fn not_found(what: &str, name: &impl std::fmt::Display) -> PredictError {
    PredictError::new(ErrorCode::NotFound, format!("no {what} '{name}' exists"))
}

fn conflict(message: String) -> PredictError {
    PredictError::new(ErrorCode::Conflict, message)
}

fn create_connector(
    state: &mut RegistryState,
    spec: &ConnectorSpec,
) -> Result<RegistryReply, PredictError> {
    if let Some(existing) = state.connectors.get(&spec.id) {
        if existing == spec {
            return unchanged(state);
        }
        return Err(conflict(format!(
            "a different connector '{}' already exists",
            spec.id
        )));
    }
    within(
        "the number of connectors",
        state.connectors.len() + 1,
        MAX_CONNECTORS,
    )?;
    connector_fits(spec)?;
    secrets::check_named(state, spec)?;
    registry_fits(state, 0, spec.bytes())?;
    state.connectors.insert(spec.id.clone(), spec.clone());
    state.resized(0, spec.bytes());
    changed(state, None)
}

fn delete_connector(
    state: &mut RegistryState,
    id: &ConnectorId,
) -> Result<RegistryReply, PredictError> {
    if !state.connectors.contains_key(id) {
        return Err(not_found("connector", id));
    }
    let user = state
        .models
        .values()
        .find(|model| uses_connector(model, id));
    if let Some(model) = user {
        let name = &model.name;
        return Err(conflict(format!(
            "connector '{id}' is used by model '{name}'; delete the model first"
        )));
    }
    let gone = state.connectors.remove(id);
    state.resized(gone.map_or(0, |spec| spec.bytes()), 0);
    changed(state, None)
}

fn uses_connector(model: &ModelEntry, id: &ConnectorId) -> bool {
    let mut sources = model.versions.values().map(|version| &version.source);
    sources.any(|source| matches!(source, ModelSource::Connector(used) if used == id))
}

fn register(
    state: &mut RegistryState,
    model: &ModelName,
    spec: &ModelVersionSpec,
) -> Result<RegistryReply, PredictError> {
    // Edges check the other requirements of a backend. Here all versions must decide in the same
    // way, independent of their compiled backends.
    if let ModelSource::Connector(id) = &spec.source
        && !state.connectors.contains_key(id)
    {
        return Err(not_found("connector", id));
    }
    names::free_for_model(state, model)?;
    version_fits(spec)?;
    registry_fits(state, 0, spec.bytes())?;
    if !state.models.contains_key(model) {
        within("the number of models", state.models.len() + 1, MAX_MODELS)?;
    }
    let entry = state.models.entry(model.clone()).or_insert_with(|| {
        Arc::new(ModelEntry {
            name: model.clone(),
            versions: BTreeMap::new(),
            deployment: None,
            placement: Vec::new(),
            ever_deployed: false,
            group: None,
            deleted_tasks: BTreeSet::new(),
        })
    });
    let entry = Arc::make_mut(entry);
    within(
        "the number of the model's versions",
        entry.versions.len() + 1,
        MAX_VERSIONS,
    )?;
    let newest = entry
        .versions
        .keys()
        .next_back()
        .map_or(0, |version| version.0);
    let version = ModelVersion(newest + 1);
    entry.versions.insert(
        version,
        ModelVersionSpec {
            version,
            ..spec.clone()
        },
    );
    state.resized(0, spec.bytes());
    changed(state, Some(version))
}

fn delete_model(
    state: &mut RegistryState,
    model: &ModelName,
) -> Result<RegistryReply, PredictError> {
    let entry = state
        .models
        .get(model)
        .ok_or_else(|| not_found("model", model))?;
    if entry.deployment.is_some() {
        return Err(conflict(format!(
            "model '{model}' is deployed; undeploy it first"
        )));
    }
    names::unused(state, model)?;
    let gone = state.models.remove(model);
    state.resized(gone.map_or(0, |entry| entry.bytes()), 0);
    changed(state, None)
}

#[cfg(test)]
mod tests;
