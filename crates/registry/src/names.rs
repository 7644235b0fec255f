//! Aliases and pipelines: creation, replacement, deletion, and protection of their targets.

use std::sync::Arc;

use volley_types::registry::{
    AliasEntry, AliasSpec, PipelineEntry, PipelineSpec, RegistryReply, RegistryState,
};
use volley_types::{ModelName, PredictError, Revision};

use super::limits::{MAX_ALIASES, MAX_PIPELINES, alias_fits, pipeline_fits, registry_fits, within};
use super::{changed, conflict, next, not_found, unchanged};

pub(super) fn put_alias(
    state: &mut RegistryState,
    alias: &AliasSpec,
    expected: Option<Revision>,
) -> Result<RegistryReply, PredictError> {
    let name = &alias.name;
    free(state, name, "alias")?;
    let current = state.aliases.get(name);
    at_revision("alias", name, current.map(|entry| entry.revision), expected)?;
    if current.is_some_and(|entry| entry.spec == *alias) {
        return unchanged(state);
    }
    alias.check()?;
    alias_fits(alias)?;
    state.check_names(name, alias.names())?;
    let aliases = state.aliases.len() + usize::from(current.is_none());
    within("the number of aliases", aliases, MAX_ALIASES)?;
    let before = current.map_or(0, |entry| entry.spec.bytes());
    registry_fits(state, before, alias.bytes())?;
    let entry = AliasEntry {
        spec: alias.clone(),
        revision: next(state),
    };
    state.aliases.insert(name.clone(), entry);
    state.resized(before, alias.bytes());
    changed(state, None)
}

pub(super) fn delete_alias(
    state: &mut RegistryState,
    name: &ModelName,
    expected: Option<Revision>,
) -> Result<RegistryReply, PredictError> {
    let entry = state.aliases.get(name);
    let entry = entry.ok_or_else(|| not_found("alias", name))?;
    at_revision("alias", name, Some(entry.revision), expected)?;
    unused(state, name)?;
    let gone = state.aliases.remove(name);
    state.resized(gone.map_or(0, |entry| entry.spec.bytes()), 0);
    changed(state, None)
}

pub(super) fn put_pipeline(
    state: &mut RegistryState,
    pipeline: &Arc<PipelineSpec>,
    expected: Option<Revision>,
) -> Result<RegistryReply, PredictError> {
    let name = &pipeline.name;
    free(state, name, "pipeline")?;
    let current = state.pipelines.get(name);
    let revision = current.map(|entry| entry.revision);
    at_revision("pipeline", name, revision, expected)?;
    if current.is_some_and(|entry| entry.spec == *pipeline) {
        return unchanged(state);
    }
    pipeline.check()?;
    pipeline_fits(pipeline)?;
    state.check_names(name, pipeline.names())?;
    let pipelines = state.pipelines.len() + usize::from(current.is_none());
    within("the number of pipelines", pipelines, MAX_PIPELINES)?;
    let before = current.map_or(0, |entry| entry.spec.bytes());
    registry_fits(state, before, pipeline.bytes())?;
    let entry = PipelineEntry {
        spec: pipeline.clone(),
        revision: next(state),
    };
    state.pipelines.insert(name.clone(), entry);
    state.resized(before, pipeline.bytes());
    changed(state, None)
}

pub(super) fn delete_pipeline(
    state: &mut RegistryState,
    name: &ModelName,
    expected: Option<Revision>,
) -> Result<RegistryReply, PredictError> {
    let entry = state.pipelines.get(name);
    let entry = entry.ok_or_else(|| not_found("pipeline", name))?;
    at_revision("pipeline", name, Some(entry.revision), expected)?;
    unused(state, name)?;
    let gone = state.pipelines.remove(name);
    state.resized(gone.map_or(0, |entry| entry.spec.bytes()), 0);
    changed(state, None)
}

/// Rejects a conditional write with an outdated revision.
fn at_revision(
    what: &str,
    name: &ModelName,
    current: Option<Revision>,
    expected: Option<Revision>,
) -> Result<(), PredictError> {
    let Some(expected) = expected else {
        return Ok(());
    };
    match current {
        None if expected.0 == 0 => Ok(()),
        None => Err(conflict(format!(
            "{what} '{name}' was deleted; it was expected at revision {expected}"
        ))),
        Some(current) if current == expected => Ok(()),
        Some(_) if expected.0 == 0 => Err(conflict(format!("{what} '{name}' already exists"))),
        Some(current) => Err(conflict(format!(
            "{what} '{name}' is at revision {current}, not {expected}: read it and try again"
        ))),
    }
}

/// Rejects the deletion of an object with references.
pub(super) fn unused(state: &RegistryState, name: &ModelName) -> Result<(), PredictError> {
    match state.user_of(name) {
        None => Ok(()),
        Some(user) => Err(conflict(format!(
            "'{name}' is used by {user}; change or delete {user} first"
        ))),
    }
}

/// Rejects a model whose name is an alias or a pipeline.
pub(super) fn free_for_model(state: &RegistryState, name: &ModelName) -> Result<(), PredictError> {
    free(state, name, "model")
}

/// Rejects a name of an object of another kind.
fn free(state: &RegistryState, name: &ModelName, kind: &str) -> Result<(), PredictError> {
    let taken = [
        ("model", state.models.contains_key(name)),
        ("alias", state.aliases.contains_key(name)),
        ("pipeline", state.pipelines.contains_key(name)),
    ];
    let other = taken
        .into_iter()
        .find(|(other, there)| *there && *other != kind);
    match other {
        None => Ok(()),
        Some((other, _)) => Err(conflict(format!(
            "the name '{name}' is already used by an object of the kind '{other}'"
        ))),
    }
}

#[cfg(test)]
mod tests;
