//! Visible and writable objects of the registry for a principal. Pure.
//!
//! A principal that is limited to some models is a tenant. It owns the models, aliases, pipelines,
//! connectors, secrets and model groups that match its patterns. All other objects do not exist for
//! it: a command about one is rejected with the registry's error for a missing object, whether the
//! object exists or not.

use std::collections::BTreeMap;

use volley_types::registry::{
    ConnectorSpec, CredentialRef, ModelEntry, ModelSource, ModelUrlScheme, RegistryCommand,
    RegistryState,
};
use volley_types::{
    ConnectorId, ErrorCode, ModelGroupId, ModelName, ModelRef, ModelScope, PredictError, Role,
    SecretName,
};

use crate::Principal;

/// The part of the registry that a principal with this scope sees: its own objects, and the
/// connectors and groups that its models use, which may be shared.
pub(super) fn seen(registry: &RegistryState, scope: &ModelScope) -> RegistryState {
    let models = scope.select(&registry.models);
    let mut connectors = scope.select_by(&registry.connectors, ConnectorId::as_str);
    for id in models.values().flat_map(|entry| used(entry)) {
        if let Some(spec) = registry.connectors.get(id) {
            connectors.insert(id.clone(), spec.clone());
        }
    }
    let grouped = |id: &ModelGroupId| {
        let mut models = models.values();
        models.any(|entry| entry.group.as_ref() == Some(id))
    };
    let tasks = registry.tasks.iter();
    let tasks = tasks.filter(|(_, record)| scope.contains(&record.model));
    let tasks: BTreeMap<_, _> = tasks
        .map(|(id, record)| (id.clone(), record.clone()))
        .collect();
    let groups = registry.groups.iter();
    let groups = groups.filter(|(id, group)| scope.covers(&group.name) || grouped(id));
    let groups = groups
        .map(|(id, group)| (id.clone(), group.clone()))
        .collect();
    RegistryState {
        revision: registry.revision,
        connectors,
        groups,
        settings: registry.settings.clone(),
        aliases: scope.select(&registry.aliases),
        pipelines: scope.select(&registry.pipelines),
        secrets: scope
            .select_by(&registry.secrets, SecretName::as_str)
            .into(),
        tasks: tasks.into(),
        models,
        ..RegistryState::default()
    }
}

/// The connectors that the versions of a model use.
fn used(entry: &ModelEntry) -> impl Iterator<Item = &ConnectorId> {
    let sources = entry.versions.values().map(|version| &version.source);
    sources.filter_map(|source| match source {
        ModelSource::Connector(id) => Some(id),
        _ => None,
    })
}

/// Checks whether `principal` may run `command` with the current registry.
///
/// # Errors
/// `PermissionDenied` if the role is too weak, or a created name is outside the principal's scope;
/// `NotFound` if a named object is outside of it; `Conflict` if other tenants use the object.
pub(super) fn permit(
    command: &RegistryCommand,
    principal: &Principal,
    registry: &RegistryState,
) -> Result<(), PredictError> {
    principal.allow(role_for(command))?;
    if principal.models().is_all() {
        return Ok(());
    }
    ScopedPrincipal {
        principal,
        scope: principal.models(),
        registry,
    }
    .permit(command)
}

/// Lists every command, so that a new command does not compile without a decision about its role.
fn role_for(command: &RegistryCommand) -> Role {
    match command {
        RegistryCommand::CreateConnector(_)
        | RegistryCommand::UpdateConnector(_)
        | RegistryCommand::DeleteConnector(_)
        | RegistryCommand::CreateGroup(_)
        | RegistryCommand::UpdateGroup(_)
        | RegistryCommand::DeleteGroup(_)
        | RegistryCommand::PutSecret { .. }
        | RegistryCommand::RewrapSecret { .. }
        | RegistryCommand::DeleteSecret(_)
        | RegistryCommand::RegisterModel(..)
        | RegistryCommand::Deploy { .. }
        | RegistryCommand::Rollout { .. }
        | RegistryCommand::Undeploy(_)
        | RegistryCommand::UpdateModel { .. }
        | RegistryCommand::DeleteTask { .. }
        | RegistryCommand::DeleteModel(_)
        | RegistryCommand::PutAlias { .. }
        | RegistryCommand::DeleteAlias { .. }
        | RegistryCommand::PutPipeline { .. }
        | RegistryCommand::DeletePipeline { .. } => Role::ModelAdmin,
        RegistryCommand::Place(_)
        | RegistryCommand::Scale { .. }
        | RegistryCommand::ChangeSettings(_)
        | RegistryCommand::CreateKey(_)
        | RegistryCommand::RotateKey { .. }
        | RegistryCommand::LimitKey { .. }
        | RegistryCommand::RevokeKey(_)
        | RegistryCommand::Drain(..)
        | RegistryCommand::Undrain(_) => Role::ClusterAdmin,
        RegistryCommand::PutTask { .. }
        | RegistryCommand::BeginTask { .. }
        | RegistryCommand::ForgetTask(_) => Role::Predict,
    }
}

/// A principal that is limited to some models, and the registry.
struct ScopedPrincipal<'a> {
    principal: &'a Principal,
    scope: &'a ModelScope,
    registry: &'a RegistryState,
}

impl ScopedPrincipal<'_> {
    /// Like [`permit`]; also lists every command.
    fn permit(&self, command: &RegistryCommand) -> Result<(), PredictError> {
        match command {
            RegistryCommand::CreateConnector(spec) => {
                self.may_make("connector", spec.id.as_str())?;
                self.own_credentials(spec)
            }
            RegistryCommand::UpdateConnector(spec) => {
                self.own_connector(&spec.id)?;
                self.own_credentials(spec)
            }
            RegistryCommand::DeleteConnector(id) => self.own_connector(id),
            RegistryCommand::CreateGroup(group) => self.may_make("model group", &group.name),
            RegistryCommand::UpdateGroup(group) => {
                self.own_group(&group.id)?;
                self.may_make("model group", &group.name)
            }
            RegistryCommand::DeleteGroup(id) => self.own_group(id),
            RegistryCommand::PutSecret { name, .. } => self.may_make("secret", name.as_str()),
            RegistryCommand::RewrapSecret { name, .. } => self.own_secret(name),
            RegistryCommand::DeleteSecret(name) => {
                self.own_secret(name)?;
                let mut others = self.registry.connectors.values();
                let uses = |it: &ConnectorSpec| it.names_secret(name) && !self.covers(&it.id);
                free_of_others("secret", name, others.any(uses))
            }
            RegistryCommand::RegisterModel(model, spec) => {
                self.principal.change(model)?;
                self.own_source(&spec.source)
            }
            RegistryCommand::UpdateModel { model, group, .. } => {
                self.own_model(model)?;
                match group {
                    Some(Some(group)) => self.sees_group(group),
                    _ => Ok(()),
                }
            }
            RegistryCommand::Deploy { model, .. }
            | RegistryCommand::Rollout { model, .. }
            | RegistryCommand::Undeploy(model)
            | RegistryCommand::DeleteTask { model, .. } => self.own_model(model),
            RegistryCommand::DeleteModel(model) => self.may_delete("model", model),
            RegistryCommand::DeleteAlias { name, .. } => self.may_delete("alias", name),
            RegistryCommand::DeletePipeline { name, .. } => self.may_delete("pipeline", name),
            RegistryCommand::PutAlias { alias, .. } => {
                self.principal.change(&alias.name)?;
                self.leads_to_own(alias.names())
            }
            RegistryCommand::PutPipeline { pipeline, .. } => {
                self.principal.change(&pipeline.name)?;
                self.leads_to_own(pipeline.names())
            }
            RegistryCommand::Place(_)
            | RegistryCommand::Scale { .. }
            | RegistryCommand::ChangeSettings(_)
            | RegistryCommand::CreateKey(_)
            | RegistryCommand::RotateKey { .. }
            | RegistryCommand::LimitKey { .. }
            | RegistryCommand::RevokeKey(_)
            | RegistryCommand::Drain(..)
            | RegistryCommand::Undrain(_) => self.principal.reach_all(),
            RegistryCommand::PutTask { record, .. } | RegistryCommand::BeginTask { record, .. } => {
                self.own_model(&record.model)
            }
            RegistryCommand::ForgetTask(id) => match self.registry.tasks.get(id) {
                Some(record) => self.own_model(&record.model),
                None => Ok(()),
            },
        }
    }

    fn covers(&self, id: &ConnectorId) -> bool {
        self.scope.covers(id.as_str())
    }

    fn own_model(&self, model: &ModelName) -> Result<(), PredictError> {
        match self.scope.contains(model) {
            true => Ok(()),
            false => Err(not_found("model", model)),
        }
    }

    /// The error is the same for a free name and for a name that another tenant uses.
    fn may_make(&self, kind: &str, name: &str) -> Result<(), PredictError> {
        if self.scope.covers(name) {
            return Ok(());
        }
        let how = match self.scope.beginning() {
            Some(start) => format!("; its name must begin with '{start}'"),
            None => String::new(),
        };
        Err(PredictError::new(
            ErrorCode::PermissionDenied,
            format!("the key has no access to the {kind} '{name}'{how}"),
        ))
    }

    /// Checks that the principal may change a connector. A connector that is visible only because
    /// the principal's models use it belongs to another tenant.
    fn own_connector(&self, id: &ConnectorId) -> Result<(), PredictError> {
        if !self.covers(id) {
            self.sees_connector(id)?;
            return self.may_make("connector", id.as_str());
        }
        let mut models = self.registry.models.values();
        let uses = |it: &ModelEntry| used(it).any(|used| used == id);
        let others = models.any(|it| uses(it) && !self.scope.contains(&it.name));
        free_of_others("connector", id, others)
    }

    fn sees_connector(&self, id: &ConnectorId) -> Result<(), PredictError> {
        let mut own = self.scope.select(&self.registry.models).into_values();
        if self.covers(id) || own.any(|entry| used(&entry).any(|used| used == id)) {
            return Ok(());
        }
        Err(not_found("connector", id))
    }

    /// A worker's environment and files are shared by all tenants. A tenant could send them to any
    /// server.
    fn own_credentials(&self, spec: &ConnectorSpec) -> Result<(), PredictError> {
        for credential in spec.credentials() {
            match credential {
                CredentialRef::Secret(name) => self.own_secret(name)?,
                CredentialRef::Env(_) | CredentialRef::File(_) | CredentialRef::Sealed(..) => {
                    return Err(PredictError::new(
                        ErrorCode::PermissionDenied,
                        "a key that is limited to some models must use its own secrets \
                         ('secret:NAME') as credentials, not the workers' variables and files",
                    ));
                }
            }
        }
        Ok(())
    }

    fn own_secret(&self, name: &SecretName) -> Result<(), PredictError> {
        match self.scope.covers(name.as_str()) {
            true => Ok(()),
            false => Err(not_found("secret", name)),
        }
    }

    /// Checks that the principal may change a group.
    fn own_group(&self, id: &ModelGroupId) -> Result<(), PredictError> {
        self.sees_group(id)?;
        let Some(group) = self.registry.groups.get(id) else {
            return Ok(());
        };
        self.may_make("model group", &group.name)?;
        let mut models = self.registry.models.values();
        let inside = |it: &ModelEntry| it.group.as_ref() == Some(id);
        let others = models.any(|it| inside(it) && !self.scope.contains(&it.name));
        free_of_others("model group", id, others)
    }

    fn sees_group(&self, id: &ModelGroupId) -> Result<(), PredictError> {
        let group = self.registry.groups.get(id);
        let mut own = self.scope.select(&self.registry.models).into_values();
        let sees = group.is_some_and(|group| self.scope.covers(&group.name))
            || own.any(|entry| group.is_some() && entry.group.as_ref() == Some(id));
        match sees {
            true => Ok(()),
            false => Err(not_found("model group", id)),
        }
    }

    /// A model may use a visible connector or an object store. The disks of workers are shared by
    /// all tenants.
    fn own_source(&self, source: &ModelSource) -> Result<(), PredictError> {
        match source {
            ModelSource::None => Ok(()),
            ModelSource::Connector(id) => self.sees_connector(id),
            ModelSource::Url { url, .. } if url.scheme() != ModelUrlScheme::File => Ok(()),
            ModelSource::Url { .. } | ModelSource::Path(_) => Err(PredictError::new(
                ErrorCode::PermissionDenied,
                "a key that is limited to some models must register models from a URL, not from \
                 the workers' disks",
            )),
        }
    }

    fn may_delete(&self, kind: &str, name: &ModelName) -> Result<(), PredictError> {
        if !self.scope.contains(name) {
            return Err(not_found(kind, name));
        }
        let leads = |mut names: Box<dyn Iterator<Item = &ModelRef> + '_>| {
            names.any(|reference| reference.name == *name)
        };
        let aliases = self.registry.aliases.values();
        let mut aliases = aliases.filter(|it| !self.scope.contains(&it.spec.name));
        let pipelines = self.registry.pipelines.values();
        let mut pipelines = pipelines.filter(|it| !self.scope.contains(&it.spec.name));
        let others = aliases.any(|it| leads(Box::new(it.spec.names())))
            || pipelines.any(|it| leads(Box::new(it.spec.names())));
        free_of_others(kind, name, others)
    }

    /// Checks that all targets of a name are visible, because callers of the name reach them.
    fn leads_to_own<'r>(
        &self,
        mut names: impl Iterator<Item = &'r ModelRef>,
    ) -> Result<(), PredictError> {
        match names.find(|reference| !self.scope.contains(&reference.name)) {
            None => Ok(()),
            Some(reference) => Err(PredictError::new(
                ErrorCode::NotFound,
                format!("'{reference}' is not registered"),
            )),
        }
    }
}

/// The registry's error for a missing object.
fn not_found(kind: &str, name: &impl std::fmt::Display) -> PredictError {
    PredictError::new(ErrorCode::NotFound, format!("no {kind} '{name}' exists"))
}

/// Replaces the registry's error, which would reveal the users of the object.
fn free_of_others(
    kind: &str,
    name: &impl std::fmt::Display,
    others: bool,
) -> Result<(), PredictError> {
    if !others {
        return Ok(());
    }
    Err(PredictError::new(
        ErrorCode::Conflict,
        format!(
            "{kind} '{name}' is used by objects that this key has no access to; ask an \
             administrator"
        ),
    ))
}

#[cfg(test)]
mod tests;
