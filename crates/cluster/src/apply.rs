//! Applying a command to the registry. Pure and deterministic: every coordinator applies the
//! same commands in the same order and must come to the same state, so nothing here may look
//! at a clock, a random number or the machine. A refused command changes nothing.

use std::collections::BTreeMap;

use volley_types::registry::{
    BackendKind, ConnectorSpec, Deployment, ModelEntry, ModelSource, ModelVersionSpec,
    RegistryCommand, RegistryReply, RegistryState,
};
use volley_types::{ConnectorId, ErrorCode, ModelName, ModelVersion, PredictError, Revision};

/// The most models in a registry.
pub const MAX_MODELS: usize = 10_000;
/// The most versions of one model.
pub const MAX_VERSIONS: usize = 1_000;
/// The most connectors in a registry.
pub const MAX_CONNECTORS: usize = 10_000;
/// The most replicas of one deployment.
pub const MAX_REPLICAS: u32 = 1_000;
/// The longest URL, path, model name at an upstream, or header, in bytes.
pub const MAX_TEXT: usize = 2 << 10;
/// The longest description, in bytes.
pub const MAX_DESCRIPTION: usize = 4 << 10;
/// The longest request body template, in bytes.
pub const MAX_TEMPLATE: usize = 64 << 10;
/// The most headers of a connector.
pub const MAX_HEADERS: usize = 64;

/// Applies `command` and answers, or refuses and leaves `state` as it was.
///
/// # Errors
/// `NotFound`, `Conflict`, `InvalidInput` as [`RegistryCommand`] says; `TooLarge` past one of
/// this module's limits.
pub fn apply(
    state: &mut RegistryState,
    command: &RegistryCommand,
) -> Result<RegistryReply, PredictError> {
    match command {
        RegistryCommand::CreateConnector(spec) => create_connector(state, spec),
        RegistryCommand::DeleteConnector(id) => delete_connector(state, id),
        RegistryCommand::RegisterModel(model, spec) => register(state, model, spec),
        RegistryCommand::Deploy {
            model,
            version,
            replicas,
        } => deploy(state, model, *version, *replicas),
        RegistryCommand::Undeploy(model) => undeploy(state, model),
        RegistryCommand::DeleteModel(model) => delete_model(state, model),
        RegistryCommand::Place {
            model,
            deployment,
            workers,
        } => {
            let Some(entry) = state.models.get_mut(model) else {
                return unchanged(state);
            };
            let current = entry.deployment.as_ref().map(|current| current.revision);
            if current != Some(*deployment) || entry.placement == *workers {
                return unchanged(state);
            }
            entry.placement.clone_from(workers);
            changed(state, None)
        }
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

fn too_large(what: &str, limit: usize) -> PredictError {
    PredictError::new(
        ErrorCode::TooLarge,
        format!("{what} is over the limit of {limit}"),
    )
}

fn within(what: &str, size: usize, limit: usize) -> Result<(), PredictError> {
    if size <= limit {
        Ok(())
    } else {
        Err(too_large(what, limit))
    }
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
            "a different connector '{}' exists already",
            spec.id
        )));
    }
    within(
        "the number of connectors",
        state.connectors.len() + 1,
        MAX_CONNECTORS,
    )?;
    within("the connector's URL", spec.url.len(), MAX_TEXT)?;
    within("the connector's name", spec.name.len(), MAX_TEXT)?;
    within("the connector's model name", spec.model.len(), MAX_TEXT)?;
    within(
        "the number of the connector's headers",
        spec.headers.len(),
        MAX_HEADERS,
    )?;
    for (name, value) in &spec.headers {
        within(
            "one of the connector's headers",
            name.len() + value.len(),
            MAX_TEXT,
        )?;
    }
    let template = spec.request_body.as_ref().map_or(0, String::len);
    within("the connector's request body", template, MAX_TEMPLATE)?;
    state.connectors.insert(spec.id.clone(), spec.clone());
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
            "connector '{id}' is used by model '{name}'; delete that first"
        )));
    }
    state.connectors.remove(id);
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
    match (spec.backend, &spec.source) {
        (BackendKind::Remote, ModelSource::Connector(id)) => {
            if !state.connectors.contains_key(id) {
                return Err(not_found("connector", id));
            }
        }
        (BackendKind::Onnx, ModelSource::Path(path)) => {
            within("the model's path", path.len(), MAX_TEXT)?;
        }
        (BackendKind::Text | BackendKind::Fake, ModelSource::None) => {}
        (BackendKind::Remote, _) => {
            return Err(PredictError::invalid("a remote model needs a connector"));
        }
        (BackendKind::Onnx, _) => {
            return Err(PredictError::invalid(
                "an ONNX model needs the path of its directory",
            ));
        }
        (BackendKind::Text | BackendKind::Fake, _) => {
            return Err(PredictError::invalid(
                "this kind of model is loaded from nowhere",
            ));
        }
    }
    within(
        "the model's description",
        spec.description.len(),
        MAX_DESCRIPTION,
    )?;
    if !state.models.contains_key(model) {
        within("the number of models", state.models.len() + 1, MAX_MODELS)?;
    }
    let entry = state
        .models
        .entry(model.clone())
        .or_insert_with(|| ModelEntry {
            name: model.clone(),
            versions: BTreeMap::new(),
            deployment: None,
            placement: Vec::new(),
            ever_deployed: false,
        });
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
    changed(state, Some(version))
}

fn deploy(
    state: &mut RegistryState,
    model: &ModelName,
    version: Option<ModelVersion>,
    replicas: u32,
) -> Result<RegistryReply, PredictError> {
    if replicas == 0 || MAX_REPLICAS < replicas {
        return Err(PredictError::invalid(format!(
            "replicas must be 1 to {MAX_REPLICAS}"
        )));
    }
    let revision = next(state);
    let entry = state
        .models
        .get_mut(model)
        .ok_or_else(|| not_found("model", model))?;
    let newest = entry.versions.keys().next_back().copied();
    let version = version
        .or(newest)
        .ok_or_else(|| not_found("version of model", model))?;
    if !entry.versions.contains_key(&version) {
        return Err(not_found(
            "version of that model",
            &format!("{model}:{version}"),
        ));
    }
    let same = entry
        .deployment
        .as_ref()
        .is_some_and(|current| current.version == version && current.replicas == replicas);
    if same {
        return Ok(RegistryReply {
            revision: state.revision,
            version: Some(version),
        });
    }
    entry.deployment = Some(Deployment {
        version,
        replicas,
        revision,
    });
    entry.ever_deployed = true;
    changed(state, Some(version))
}

fn undeploy(state: &mut RegistryState, model: &ModelName) -> Result<RegistryReply, PredictError> {
    let entry = state
        .models
        .get_mut(model)
        .ok_or_else(|| not_found("model", model))?;
    if entry.deployment.take().is_none() {
        return unchanged(state);
    }
    entry.placement.clear();
    changed(state, None)
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
    state.models.remove(model);
    changed(state, None)
}

#[cfg(test)]
mod tests;
