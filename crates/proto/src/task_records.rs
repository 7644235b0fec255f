//! Conversions of tasks that a single coordinator runs: wire ⇄ [`volley_types::registry`].

use std::collections::BTreeMap;

use volley_types::registry::{RegistryCommand, TaskRecord, TaskState};
use volley_types::{ModelName, NodeId, PredictError, TenantId};

use crate::registry::v1 as wire;
use crate::registry::v1::command::Command;

pub(crate) fn tasks_to_wire(all: &BTreeMap<String, TaskRecord>) -> Vec<wire::Task> {
    let all = all.iter();
    all.map(|(id, record)| task_to_wire(id, record)).collect()
}

pub(crate) fn tasks_from_wire(
    all: Vec<wire::Task>,
) -> Result<BTreeMap<String, TaskRecord>, PredictError> {
    all.into_iter().map(task_from_wire).collect()
}

/// The command that deletes a task of a model, as it travels.
pub(crate) fn delete_task_to_wire(model: &ModelName, task: &str) -> Command {
    Command::DeleteTask(wire::DeleteTask {
        model: model.to_string(),
        task: task.to_owned(),
    })
}

/// The command of a peer that deletes a task of a model.
pub(crate) fn delete_task_from_wire(
    task: wire::DeleteTask,
) -> Result<RegistryCommand, PredictError> {
    Ok(RegistryCommand::DeleteTask {
        model: ModelName::new(task.model)?,
        task: task.task,
    })
}

/// Converts a task for the Raft log and for other coordinators.
#[must_use]
pub fn task_to_wire(id: &str, record: &TaskRecord) -> wire::Task {
    let error = match &record.state {
        TaskState::Failed(why) => why.clone(),
        TaskState::Running | TaskState::Completed | TaskState::Cancelled => String::new(),
    };
    wire::Task {
        id: id.to_owned(),
        node: record.node.0,
        model: record.model.to_string(),
        tenant: record
            .tenant
            .as_ref()
            .map_or_else(String::new, ToString::to_string),
        created_ms: record.created_ms,
        updated_ms: record.updated_ms,
        state: record.state.as_str().to_owned(),
        error,
        forget_ms: record.forget_ms,
    }
}

/// Converts a task, with its id, from the Raft log or from another coordinator.
///
/// # Errors
/// `InvalidInput` when a field is malformed.
pub fn task_from_wire(task: wire::Task) -> Result<(String, TaskRecord), PredictError> {
    let state = TaskState::from_name(&task.state, task.error).ok_or_else(|| {
        PredictError::invalid("a task has a state that this version does not know")
    })?;
    let tenant = Some(task.tenant).filter(|tenant| !tenant.is_empty());
    let record = TaskRecord {
        node: NodeId(task.node),
        model: ModelName::new(task.model)?,
        tenant: tenant.map(TenantId::new).transpose()?,
        created_ms: task.created_ms,
        updated_ms: task.updated_ms,
        state,
        forget_ms: task.forget_ms,
    };
    Ok((task.id, record))
}
