//! Conversions of model groups, changes of models and cluster settings: wire ⇄
//! [`volley_types::registry`].

use std::collections::BTreeMap;

use volley_types::registry::{ModelGroup, RegistryCommand};
use volley_types::{ModelGroupId, ModelName, PredictError};

use crate::registry::v1 as wire;
use crate::registry::v1::command::Command;

/// Converts a model group to the wire.
#[must_use]
pub fn group_to_wire(group: &ModelGroup) -> wire::ModelGroup {
    wire::ModelGroup {
        id: group.id.to_string(),
        name: group.name.clone(),
        description: group.description.clone(),
        created_ms: group.created_ms,
        updated_ms: group.updated_ms,
    }
}

/// Converts a model group from the wire.
///
/// # Errors
/// `InvalidInput` when the id is malformed.
pub fn group_from_wire(group: wire::ModelGroup) -> Result<ModelGroup, PredictError> {
    Ok(ModelGroup {
        id: ModelGroupId::new(group.id)?,
        name: group.name,
        description: group.description,
        created_ms: group.created_ms,
        updated_ms: group.updated_ms,
    })
}

/// The group of a model; an empty id means none.
pub(crate) fn group_of(id: String) -> Result<Option<ModelGroupId>, PredictError> {
    if id.is_empty() {
        return Ok(None);
    }
    ModelGroupId::new(id).map(Some)
}

pub(crate) fn update_to_wire(
    model: &ModelName,
    description: Option<&str>,
    group: Option<&Option<ModelGroupId>>,
) -> Command {
    let name =
        |group: &Option<ModelGroupId>| group.as_ref().map(ToString::to_string).unwrap_or_default();
    Command::UpdateModel(wire::UpdateModel {
        model: model.to_string(),
        description: description.map(str::to_owned),
        group: group.map(name),
    })
}

/// The command of a peer that changes a model.
pub(crate) fn update_from_wire(update: wire::UpdateModel) -> Result<RegistryCommand, PredictError> {
    Ok(RegistryCommand::UpdateModel {
        model: ModelName::new(update.model)?,
        description: update.description,
        group: update.group.map(group_of).transpose()?,
    })
}

pub(crate) fn settings_to_wire(settings: &BTreeMap<String, Option<String>>) -> Command {
    let settings = settings.iter().map(|(name, value)| wire::Setting {
        name: name.clone(),
        value: value.clone(),
    });
    Command::ChangeSettings(wire::ChangeSettings {
        settings: settings.collect(),
    })
}

pub(crate) fn settings_from_wire(change: wire::ChangeSettings) -> RegistryCommand {
    let settings = change.settings.into_iter();
    RegistryCommand::ChangeSettings(settings.map(|it| (it.name, it.value)).collect())
}
