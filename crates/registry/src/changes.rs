//! Changes of existing objects: connectors, models, tasks, cluster settings.

use std::collections::BTreeMap;
use std::sync::Arc;

use volley_types::registry::size::{deleted_task_bytes, setting_bytes};
use volley_types::registry::{ConnectorSpec, ModelEntry, RegistryReply, RegistryState};
use volley_types::{ErrorCode, ModelGroupId, ModelName, PredictError};

use super::limits::{
    MAX_DELETED_TASKS, MAX_DESCRIPTION, MAX_SETTINGS, MAX_TEMPLATE, MAX_TEXT, connector_fits,
    registry_fits, within,
};
use super::{changed, not_found, secrets, unchanged, uses_connector};

pub(super) fn update_connector(
    state: &mut RegistryState,
    spec: &ConnectorSpec,
) -> Result<RegistryReply, PredictError> {
    let Some(current) = state.connectors.get(&spec.id) else {
        return Err(not_found("connector", &spec.id));
    };
    if current == spec {
        return unchanged(state);
    }
    secrets::check_named(state, spec)?;
    let runs =
        |model: &&Arc<ModelEntry>| model.deployment.is_some() && uses_connector(model, &spec.id);
    let users = state.models.values().filter(runs);
    let users: Vec<_> = users.map(|model| model.name.as_str()).collect();
    if !users.is_empty() {
        return Err(PredictError::new(
            ErrorCode::InvalidInput,
            format!(
                "{} models are still using this connector, please undeploy the models first: [{}]",
                users.len(),
                users.join(", ")
            ),
        ));
    }
    connector_fits(spec)?;
    let before = state
        .connectors
        .get(&spec.id)
        .map_or(0, ConnectorSpec::bytes);
    registry_fits(state, before, spec.bytes())?;
    state.connectors.insert(spec.id.clone(), spec.clone());
    state.resized(before, spec.bytes());
    changed(state, None)
}

pub(super) fn update_model(
    state: &mut RegistryState,
    model: &ModelName,
    description: Option<&str>,
    group: Option<&Option<ModelGroupId>>,
) -> Result<RegistryReply, PredictError> {
    if let Some(Some(group)) = group
        && !state.groups.contains_key(group)
    {
        return Err(not_found("model group", group));
    }
    let entry = state.models.get(model);
    let entry = entry.ok_or_else(|| not_found("model", model))?;
    let length = description.map_or(0, str::len);
    within("the model's description", length, MAX_DESCRIPTION)?;
    let newest = entry.versions.values().next_back();
    if let (Some(newest), Some(description)) = (newest, description) {
        // The whole version, because a description may be empty.
        let (before, size) = (newest.bytes(), newest.description.len());
        registry_fits(state, before, before - size + description.len())?;
    }
    let entry = state.models.get_mut(model).map(Arc::make_mut);
    let entry = entry.ok_or_else(|| not_found("model", model))?;
    if let Some(group) = group {
        entry.group.clone_from(group);
    }
    let newest = entry.versions.values_mut().next_back();
    if let (Some(newest), Some(description)) = (newest, description) {
        let before = newest.description.len();
        description.clone_into(&mut newest.description);
        state.resized(before, description.len());
    }
    changed(state, None)
}

pub(super) fn delete_task(
    state: &mut RegistryState,
    model: &ModelName,
    task: &str,
) -> Result<RegistryReply, PredictError> {
    let entry = state.models.get(model);
    let entry = entry.ok_or_else(|| not_found("model", model))?;
    within("the task's id", task.len(), MAX_TEXT)?;
    if entry.deleted_tasks.contains(task) {
        return unchanged(state);
    }
    let deleted = entry.deleted_tasks.len() + 1;
    within(
        "the number of the model's deleted tasks",
        deleted,
        MAX_DELETED_TASKS,
    )?;
    registry_fits(state, 0, deleted_task_bytes(task))?;
    let entry = state.models.get_mut(model).map(Arc::make_mut);
    let entry = entry.ok_or_else(|| not_found("model", model))?;
    entry.deleted_tasks.insert(task.to_owned());
    state.resized(0, deleted_task_bytes(task));
    changed(state, None)
}

pub(super) fn settings(
    state: &mut RegistryState,
    settings: &BTreeMap<String, Option<String>>,
) -> Result<RegistryReply, PredictError> {
    let mut next = state.settings.clone();
    for (name, value) in settings {
        within("the name of a setting", name.len(), MAX_TEXT)?;
        match value {
            Some(value) => {
                within("the value of a setting", value.len(), MAX_TEMPLATE)?;
                next.insert(name.clone(), value.clone());
            }
            None => {
                next.remove(name);
            }
        }
    }
    within("the number of settings", next.len(), MAX_SETTINGS)?;
    if next == state.settings {
        return unchanged(state);
    }
    let (before, after) = (setting_bytes(&state.settings), setting_bytes(&next));
    registry_fits(state, before, after)?;
    state.settings = next;
    state.resized(before, after);
    changed(state, None)
}
