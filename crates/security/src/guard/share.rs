//! A tenant's share of the registry. The registry has a global limit; the share keeps one tenant
//! from using all of it. Pure.

use volley_types::registry::size::deleted_task_bytes;
use volley_types::registry::{
    ConnectorSpec, ModelGroup, RegistryCommand, RegistryState, SealedSecret,
};
use volley_types::{ConnectorId, ErrorCode, ModelName, ModelScope, PredictError, SecretName};

/// The part of the registry that each tenant may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Maximum number of objects of each kind: models, connectors, secrets, groups, aliases,
    /// pipelines.
    pub things: usize,
    /// Maximum size of all definitions together, in bytes.
    pub bytes: usize,
}

impl Default for Share {
    /// A quarter of the limits of the registry.
    fn default() -> Self {
        Self {
            things: 2_500,
            bytes: 64 << 20,
        }
    }
}

impl Share {
    /// Checks that the objects of `scope` stay within the share after `command`.
    ///
    /// # Errors
    /// `TooLarge` when they exceed it.
    pub(super) fn check(
        &self,
        command: &RegistryCommand,
        scope: &ModelScope,
        registry: &RegistryState,
    ) -> Result<(), PredictError> {
        if scope.is_all() {
            return Ok(());
        }
        let own = ScopedRegistry { scope, registry };
        let Some(Growth {
            kind,
            count,
            before,
            after,
        }) = own.grown(command)
        else {
            return Ok(());
        };
        let most = self.things;
        if count.is_some_and(|count| most < count) {
            return Err(over(&format!("the number of {kind}"), most));
        }
        if before < after && self.bytes < own.bytes() + after - before {
            return Err(over("the size of all definitions", self.bytes));
        }
        Ok(())
    }
}

fn over(what: &str, limit: usize) -> PredictError {
    PredictError::new(
        ErrorCode::TooLarge,
        format!(
            "{what} would exceed this key's share of the registry, {limit}; delete unused \
             objects, or ask an administrator"
        ),
    )
}

/// The objects of one scope in a registry.
struct ScopedRegistry<'a> {
    scope: &'a ModelScope,
    registry: &'a RegistryState,
}

/// What a command adds to the objects of a scope.
struct Growth {
    /// The kind of the object.
    kind: &'static str,
    /// The number of objects of that kind, if the object is new.
    count: Option<usize>,
    /// Bytes of what the command replaces; 0 for nothing.
    before: usize,
    /// Bytes after the command.
    after: usize,
}

impl ScopedRegistry<'_> {
    /// The growth by a command that creates, replaces or changes an object; `None` for other
    /// commands.
    fn grown(&self, command: &RegistryCommand) -> Option<Growth> {
        let it = self.registry;
        let (kind, count, before, after) = match command {
            RegistryCommand::RegisterModel(name, spec) => {
                let names = it.models.keys().map(ModelName::as_str);
                let new = !it.models.contains_key(name);
                ("models", self.with_one(new, names), 0, spec.bytes())
            }
            RegistryCommand::UpdateModel {
                model, description, ..
            } => {
                let entry = it.models.get(model)?;
                let before = entry.versions.values().next_back()?.description.len();
                ("models", None, before, description.as_ref()?.len())
            }
            RegistryCommand::DeleteTask { model, task } => {
                let entry = it.models.get(model);
                entry.filter(|entry| !entry.deleted_tasks.contains(task))?;
                ("models", None, 0, deleted_task_bytes(task))
            }
            RegistryCommand::CreateConnector(spec) | RegistryCommand::UpdateConnector(spec) => {
                let names = it.connectors.keys().map(ConnectorId::as_str);
                let old = it.connectors.get(&spec.id);
                let count = self.with_one(old.is_none(), names);
                let before = old.map_or(0, ConnectorSpec::bytes);
                ("connectors", count, before, spec.bytes())
            }
            RegistryCommand::PutSecret { name, sealed } => {
                let names = it.secrets.keys().map(SecretName::as_str);
                let old = it.secrets.get(name);
                let count = self.with_one(old.is_none(), names);
                let before = old.map_or(0, SealedSecret::bytes);
                ("secrets", count, before, sealed.bytes())
            }
            RegistryCommand::CreateGroup(group) | RegistryCommand::UpdateGroup(group) => {
                let names = it.groups.values().map(|group| group.name.as_str());
                // A group that another name brings into the scope is new to it.
                let old = it.groups.get(&group.id);
                let old = old.filter(|old| self.scope.covers(&old.name));
                let count = self.with_one(old.is_none(), names);
                let before = old.map_or(0, ModelGroup::bytes);
                ("model groups", count, before, group.bytes())
            }
            RegistryCommand::PutAlias { alias, .. } => {
                let names = it.aliases.keys().map(ModelName::as_str);
                let old = it.aliases.get(&alias.name);
                let count = self.with_one(old.is_none(), names);
                let before = old.map_or(0, |old| old.spec.bytes());
                ("aliases", count, before, alias.bytes())
            }
            RegistryCommand::PutPipeline { pipeline, .. } => {
                let names = it.pipelines.keys().map(ModelName::as_str);
                let old = it.pipelines.get(&pipeline.name);
                let count = self.with_one(old.is_none(), names);
                let before = old.map_or(0, |old| old.spec.bytes());
                ("pipelines", count, before, pipeline.bytes())
            }
            _ => return None,
        };
        Some(Growth {
            kind,
            count,
            before,
            after,
        })
    }

    /// The number of objects of this scope plus one; `None` if the object is not new.
    fn with_one<'n>(&self, new: bool, names: impl Iterator<Item = &'n str>) -> Option<usize> {
        new.then(|| names.filter(|name| self.scope.covers(name)).count() + 1)
    }

    /// The size of all definitions of this scope, in bytes.
    fn bytes(&self) -> usize {
        let it = self.registry;
        let covers = |name: &str| self.scope.covers(name);
        let models = it.models.values().filter(|it| covers(it.name.as_str()));
        let connectors = it.connectors.values().filter(|it| covers(it.id.as_str()));
        let aliases = it.aliases.values();
        let aliases = aliases.filter(|it| covers(it.spec.name.as_str()));
        let pipelines = it.pipelines.values();
        let pipelines = pipelines.filter(|it| covers(it.spec.name.as_str()));
        let secrets = it.secrets.iter();
        let secrets = secrets.filter(|(name, _)| covers(name.as_str()));
        let groups = it.groups.values().filter(|it| covers(&it.name));
        models.map(|it| it.bytes()).sum::<usize>()
            + connectors.map(|it| it.bytes()).sum::<usize>()
            + aliases.map(|it| it.spec.bytes()).sum::<usize>()
            + pipelines.map(|it| it.spec.bytes()).sum::<usize>()
            + secrets.map(|(_, it)| it.bytes()).sum::<usize>()
            + groups.map(|it| it.bytes()).sum::<usize>()
    }
}

#[cfg(test)]
mod tests;
