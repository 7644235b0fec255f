//! Model groups: creation, changes, deletion.

use volley_types::registry::{ModelGroup, RegistryReply, RegistryState};
use volley_types::{ModelGroupId, PredictError};

use super::limits::{MAX_DESCRIPTION, MAX_GROUPS, MAX_TEXT, registry_fits, within};
use super::{changed, conflict, not_found};

pub(super) fn create(
    state: &mut RegistryState,
    group: &ModelGroup,
) -> Result<RegistryReply, PredictError> {
    if state.groups.contains_key(&group.id) {
        let message = format!("a model group '{}' already exists", group.id);
        return Err(conflict(message));
    }
    within(
        "the number of model groups",
        state.groups.len() + 1,
        MAX_GROUPS,
    )?;
    put(state, group)
}

pub(super) fn update(
    state: &mut RegistryState,
    group: &ModelGroup,
) -> Result<RegistryReply, PredictError> {
    if !state.groups.contains_key(&group.id) {
        return Err(not_found("model group", &group.id));
    }
    put(state, group)
}

fn put(state: &mut RegistryState, group: &ModelGroup) -> Result<RegistryReply, PredictError> {
    within("the model group's name", group.name.len(), MAX_TEXT)?;
    let description = group.description.len();
    within(
        "the model group's description",
        description,
        MAX_DESCRIPTION,
    )?;
    let named = |other: &&ModelGroup| other.id != group.id && other.name == group.name;
    if let Some(other) = state.groups.values().find(named) {
        let id = &other.id;
        return Err(conflict(format!(
            "The name you provided is already being used by a model group with ID: {id}."
        )));
    }
    let before = state.groups.get(&group.id).map_or(0, ModelGroup::bytes);
    registry_fits(state, before, group.bytes())?;
    state.groups.insert(group.id.clone(), group.clone());
    state.resized(before, group.bytes());
    changed(state, None)
}

pub(super) fn delete(
    state: &mut RegistryState,
    id: &ModelGroupId,
) -> Result<RegistryReply, PredictError> {
    if !state.groups.contains_key(id) {
        return Err(not_found("model group", id));
    }
    let mut models = state.models.values();
    if let Some(model) = models.find(|model| model.group.as_ref() == Some(id)) {
        let name = &model.name;
        return Err(conflict(format!(
            "Cannot delete the model group when it has associated model versions; model '{name}' \
             is in it"
        )));
    }
    let gone = state.groups.remove(id);
    state.resized(gone.map_or(0, |group| group.bytes()), 0);
    changed(state, None)
}
