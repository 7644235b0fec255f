//! Names of registry changes in the audit log.

use volley_types::ModelRef;
use volley_types::registry::{RegistryCommand, RolloutAction};

use crate::audit::Action;

/// The audit action of `command`.
pub(super) fn of(command: &RegistryCommand) -> Action {
    let (name, target) = match command {
        RegistryCommand::CreateConnector(spec) => ("connector.create", spec.id.to_string()),
        RegistryCommand::DeleteConnector(id) => ("connector.delete", id.to_string()),
        RegistryCommand::RegisterModel(model, _) => ("model.register", model.to_string()),
        RegistryCommand::Deploy {
            model,
            version,
            replicas,
            ..
        } => {
            let reference = ModelRef {
                name: model.clone(),
                version: *version,
            };
            ("model.deploy", format!("{reference} x{replicas}"))
        }
        RegistryCommand::Undeploy(model) => ("model.undeploy", model.to_string()),
        RegistryCommand::DeleteModel(model) => ("model.delete", model.to_string()),
        RegistryCommand::Place(placings) => {
            let models = placings.iter().map(|placing| placing.model.to_string());
            ("model.place", models.collect::<Vec<_>>().join(" "))
        }
        RegistryCommand::Rollout { model, action } => (of_rollout(action), model.to_string()),
        RegistryCommand::Scale {
            model, replicas, ..
        } => ("model.scale", format!("{model} x{replicas}")),
        RegistryCommand::CreateKey(key) => ("key.create", format!("{} role {}", key.id, key.role)),
        RegistryCommand::RotateKey { id, .. } => ("key.rotate", id.to_string()),
        RegistryCommand::LimitKey { id, .. } => ("key.limit", id.to_string()),
        RegistryCommand::RevokeKey(id) => ("key.revoke", id.to_string()),
        RegistryCommand::UpdateConnector(spec) => ("connector.update", spec.id.to_string()),
        RegistryCommand::UpdateModel { model, .. } => ("model.update", model.to_string()),
        RegistryCommand::DeleteTask { task, .. } => ("task.delete", task.clone()),
        RegistryCommand::CreateGroup(group) => ("group.create", group.id.to_string()),
        RegistryCommand::UpdateGroup(group) => ("group.update", group.id.to_string()),
        RegistryCommand::DeleteGroup(id) => ("group.delete", id.to_string()),
        RegistryCommand::ChangeSettings(settings) => {
            let names: Vec<_> = settings.keys().map(String::as_str).collect();
            ("settings.change", names.join(" "))
        }
        RegistryCommand::PutAlias { alias, .. } => ("alias.put", alias.name.to_string()),
        RegistryCommand::DeleteAlias { name, .. } => ("alias.delete", name.to_string()),
        RegistryCommand::PutPipeline { pipeline, .. } => {
            ("pipeline.put", pipeline.name.to_string())
        }
        RegistryCommand::DeletePipeline { name, .. } => ("pipeline.delete", name.to_string()),
        RegistryCommand::PutSecret { name, .. } => ("secret.put", name.to_string()),
        RegistryCommand::RewrapSecret { name, .. } => ("secret.rewrap", name.to_string()),
        RegistryCommand::DeleteSecret(name) => ("secret.delete", name.to_string()),
        RegistryCommand::Drain(node, drain) if drain.force => {
            ("node.drain.force", node.to_string())
        }
        RegistryCommand::Drain(node, _) => ("node.drain", node.to_string()),
        RegistryCommand::Undrain(node) => ("node.undrain", node.to_string()),
        RegistryCommand::PutTask { id, record } => {
            ("task.put", format!("{id} {}", record.state.as_str()))
        }
        RegistryCommand::BeginTask { id, .. } => ("task.begin", id.clone()),
        RegistryCommand::ForgetTask(id) => ("task.delete", id.clone()),
    };
    Action { name, target }
}

fn of_rollout(action: &RolloutAction) -> &'static str {
    match action {
        RolloutAction::Pause => "model.rollout.pause",
        RolloutAction::Resume => "model.rollout.resume",
        RolloutAction::Rollback { .. } => "model.rollout.rollback",
        RolloutAction::Stop(_) => "model.rollout.stop",
    }
}
