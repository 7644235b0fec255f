//! A tenant's share of the registry. The registry has a global limit; the share keeps one tenant
//! from using all of it. Pure.

use volley_types::registry::{RegistryCommand, RegistryState};
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
        let Some((kind, count, bytes)) = own.grown(command) else {
            return Ok(());
        };
        let most = self.things;
        if count.is_some_and(|count| most < count) {
            return Err(over(&format!("the number of {kind}"), most));
        }
        if self.bytes < own.bytes() + bytes {
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

impl ScopedRegistry<'_> {
    /// For a command that creates or replaces an object: its kind, the number of objects of that
    /// kind if the object is new, and its size in bytes. `None` for other commands.
    fn grown(&self, command: &RegistryCommand) -> Option<(&'static str, Option<usize>, usize)> {
        let it = self.registry;
        let found = match command {
            RegistryCommand::RegisterModel(name, spec) => {
                let names = it.models.keys().map(ModelName::as_str);
                let new = !it.models.contains_key(name);
                ("models", self.with_one(new, names), spec.bytes())
            }
            RegistryCommand::CreateConnector(spec) | RegistryCommand::UpdateConnector(spec) => {
                let names = it.connectors.keys().map(ConnectorId::as_str);
                let new = !it.connectors.contains_key(&spec.id);
                ("connectors", self.with_one(new, names), spec.bytes())
            }
            RegistryCommand::PutSecret { name, sealed } => {
                let names = it.secrets.keys().map(SecretName::as_str);
                let new = !it.secrets.contains_key(name);
                ("secrets", self.with_one(new, names), sealed.text.len())
            }
            RegistryCommand::CreateGroup(group) => {
                let names = it.groups.values().map(|group| group.name.as_str());
                let bytes = group.description.len();
                ("model groups", self.with_one(true, names), bytes)
            }
            RegistryCommand::PutAlias { alias, .. } => {
                let names = it.aliases.keys().map(ModelName::as_str);
                let new = !it.aliases.contains_key(&alias.name);
                ("aliases", self.with_one(new, names), alias.bytes())
            }
            RegistryCommand::PutPipeline { pipeline, .. } => {
                let names = it.pipelines.keys().map(ModelName::as_str);
                let new = !it.pipelines.contains_key(&pipeline.name);
                ("pipelines", self.with_one(new, names), pipeline.bytes())
            }
            _ => return None,
        };
        Some(found)
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
            + secrets.map(|(_, it)| it.text.len()).sum::<usize>()
            + groups.map(|it| it.description.len()).sum::<usize>()
    }
}

#[cfg(test)]
mod tests;
