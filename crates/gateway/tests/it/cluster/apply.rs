//! The rules of the registry that the tests of the edge need.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use volley_types::registry::{
    AliasEntry, Deployment, ModelEntry, PipelineEntry, RegistryCommand, RegistryState,
    ReplicaState, Rollout,
};
use volley_types::{ErrorCode, ModelName, ModelRef, ModelVersion, PredictError, WorkerId};

use super::{Cluster, missing};

impl Cluster {
    /// Deploys a second version of a model, which cannot be loaded.
    pub(crate) fn fail_rollout(&self, model: &str) {
        let mut registry = RegistryState::clone(&self.registry.lock());
        let entry = registry.models.get_mut(&ModelName::new(model).unwrap());
        let entry = Arc::make_mut(entry.unwrap());
        let (from, to) = (ModelVersion(1), ModelVersion(2));
        let mut spec = entry.versions[&from].clone();
        spec.version = to;
        entry.versions.insert(to, spec);
        let deployment = entry.deployment.as_mut().unwrap();
        deployment.version = to;
        deployment.rollout = Some(Rollout {
            from,
            previous: vec![WorkerId::new("w1").unwrap()],
            paused: false,
            stopped: Some("no graph".to_owned()),
        });
        *self.registry.lock() = Arc::new(registry);
        *self.replica_state.lock() = Some(ReplicaState::Failed("no graph".to_owned()));
    }
}

/// Refuses a version that a model does not have.
pub(super) fn registered(registry: &RegistryState, model: &ModelRef) -> Result<(), PredictError> {
    let entry = registry.models.get(&model.name);
    let versions = entry.map(|entry| &entry.versions);
    match (versions, model.version) {
        (Some(versions), Some(version)) if !versions.contains_key(&version) => {
            let message = format!("'{model}' is not deployed; version 1 of the model is");
            Err(PredictError::new(ErrorCode::NotDeployed, message))
        }
        _ => Ok(()),
    }
}

/// Whether a pipeline is at the revision that the command names.
fn check_revision(registry: &RegistryState, command: &RegistryCommand) -> Result<(), PredictError> {
    let RegistryCommand::PutPipeline {
        pipeline,
        expected: Some(expected),
    } = command
    else {
        return Ok(());
    };
    let current = registry.pipelines.get(&pipeline.name);
    match current.map_or(0, |entry| entry.revision.0) == expected.0 {
        true => Ok(()),
        false => {
            let message = "the pipeline is at another revision";
            Err(PredictError::new(ErrorCode::Conflict, message))
        }
    }
}

pub(super) fn apply(
    registry: &mut RegistryState,
    command: RegistryCommand,
) -> Result<Option<ModelVersion>, PredictError> {
    let revision = registry.revision;
    check_revision(registry, &command)?;
    match command {
        RegistryCommand::CreateConnector(spec) => {
            registry.connectors.insert(spec.id.clone(), spec);
        }
        RegistryCommand::DeleteConnector(id) => {
            registry.connectors.remove(&id).ok_or_else(|| {
                PredictError::new(ErrorCode::NotFound, format!("no connector '{id}' exists"))
            })?;
        }
        RegistryCommand::RegisterModel(name, mut spec) => {
            let model = registry.models.entry(name.clone()).or_insert_with(|| {
                Arc::new(ModelEntry {
                    name,
                    versions: BTreeMap::new(),
                    deployment: None,
                    placement: Vec::new(),
                    ever_deployed: false,
                    group: None,
                    deleted_tasks: BTreeSet::new(),
                })
            });
            let model = Arc::make_mut(model);
            let version = ModelVersion(u32::try_from(model.versions.len()).unwrap() + 1);
            spec.version = version;
            model.versions.insert(version, spec);
            return Ok(Some(version));
        }
        RegistryCommand::Deploy {
            model,
            version,
            replicas,
            overcommit,
            workers,
            options,
        } => {
            let entry = registry
                .models
                .get_mut(&model)
                .map(Arc::make_mut)
                .ok_or_else(|| missing(&model))?;
            let newest = *entry.versions.keys().next_back().unwrap();
            let version = version.unwrap_or(newest);
            entry.deployment = Some(Deployment {
                overcommit,
                workers,
                options,
                ..Deployment::new(version, replicas, revision)
            });
            entry.placement = vec![WorkerId::new("w1").unwrap()];
            entry.ever_deployed = true;
            return Ok(Some(version));
        }
        RegistryCommand::Undeploy(model) => {
            let entry = registry
                .models
                .get_mut(&model)
                .map(Arc::make_mut)
                .ok_or_else(|| missing(&model))?;
            entry.deployment = None;
            entry.placement.clear();
        }
        RegistryCommand::DeleteModel(model) => {
            registry
                .models
                .remove(&model)
                .ok_or_else(|| missing(&model))?;
        }
        RegistryCommand::UpdateConnector(spec) => {
            registry.connectors.insert(spec.id.clone(), spec);
        }
        RegistryCommand::UpdateModel { model, group, .. } => {
            let entry = registry.models.get_mut(&model).map(Arc::make_mut);
            let entry = entry.ok_or_else(|| missing(&model))?;
            if let Some(group) = group {
                entry.group = group;
            }
        }
        RegistryCommand::DeleteTask { model, task } => {
            let entry = registry.models.get_mut(&model).map(Arc::make_mut);
            entry
                .ok_or_else(|| missing(&model))?
                .deleted_tasks
                .insert(task);
        }
        RegistryCommand::CreateGroup(group) | RegistryCommand::UpdateGroup(group) => {
            registry.groups.insert(group.id.clone(), group);
        }
        RegistryCommand::DeleteGroup(id) => {
            registry.groups.remove(&id);
        }
        RegistryCommand::ChangeSettings(settings) => {
            for (name, value) in settings {
                match value {
                    Some(value) => registry.settings.insert(name, value),
                    None => registry.settings.remove(&name),
                };
            }
        }
        RegistryCommand::Place(_) | RegistryCommand::Scale { .. } => {
            panic!("the edge does not place")
        }
        RegistryCommand::Rollout { .. } => panic!("no roll goes on here"),
        other => apply_access(registry, other),
    }
    Ok(None)
}

/// Keys and secrets.
fn apply_access(registry: &mut RegistryState, command: RegistryCommand) {
    match command {
        RegistryCommand::CreateKey(key) => {
            registry.keys.insert(key.id.clone(), key);
        }
        RegistryCommand::RotateKey { id, hash, .. } => {
            registry.keys.get_mut(&id).expect("the key is there").hash = hash;
        }
        RegistryCommand::LimitKey { id, quota } => {
            registry.keys.get_mut(&id).expect("the key is there").quota = quota;
        }
        RegistryCommand::RevokeKey(id) => {
            registry.keys.remove(&id);
        }
        RegistryCommand::PutSecret { name, sealed } => {
            Arc::make_mut(&mut registry.secrets).insert(name, sealed);
        }
        RegistryCommand::RewrapSecret { name, after, .. } => {
            Arc::make_mut(&mut registry.secrets).insert(name, after);
        }
        RegistryCommand::DeleteSecret(name) => {
            Arc::make_mut(&mut registry.secrets).remove(&name);
        }
        named => apply_name(registry, named),
    }
}

/// Aliases and pipelines.
fn apply_name(registry: &mut RegistryState, command: RegistryCommand) {
    let revision = registry.revision;
    match command {
        RegistryCommand::PutAlias { alias, .. } => {
            let name = alias.name.clone();
            let spec = alias;
            let entry = AliasEntry { spec, revision };
            registry.aliases.insert(name, entry);
        }
        RegistryCommand::PutPipeline { pipeline, .. } => {
            let name = pipeline.name.clone();
            let spec = pipeline;
            let entry = PipelineEntry { spec, revision };
            registry.pipelines.insert(name, entry);
        }
        RegistryCommand::DeletePipeline { name, .. } => {
            registry.pipelines.remove(&name);
        }
        RegistryCommand::DeleteAlias { name, .. } => {
            registry.aliases.remove(&name);
        }
        RegistryCommand::Drain(node, drain) => {
            registry.drains.insert(node, drain);
        }
        RegistryCommand::Undrain(node) => {
            registry.drains.remove(&node);
        }
        RegistryCommand::PutTask { id, record } | RegistryCommand::BeginTask { id, record } => {
            Arc::make_mut(&mut registry.tasks).insert(id, record);
        }
        RegistryCommand::ForgetTask(id) => {
            Arc::make_mut(&mut registry.tasks).remove(&id);
        }
        _ => {}
    }
}
