//! Tasks of single coordinators. The time comes from the commands.

use std::sync::Arc;

use volley_types::PredictError;
use volley_types::registry::size::task_bytes;
use volley_types::registry::{RegistryReply, RegistryState, TaskRecord, TaskState};

use super::limits::{MAX_TASKS, MAX_TEXT, within};
use super::{changed, conflict, unchanged};

/// Maximum length of an id in bytes.
const MAX_ID: usize = 128;

pub(super) fn put(
    state: &mut RegistryState,
    id: &str,
    record: &TaskRecord,
) -> Result<RegistryReply, PredictError> {
    within("the task's id", id.len(), MAX_ID)?;
    if let TaskState::Failed(why) = &record.state {
        within("why the task failed", why.len(), MAX_TEXT)?;
    }
    if let Some(held) = state.tasks.get(id) {
        if held == record {
            return unchanged(state);
        }
        if !held.is_same_task(record) {
            return Err(conflict(format!("a different task '{id}' already exists")));
        }
    }
    // Tasks count, but always fit: a full registry must not keep a task from ending.
    let (now, before) = (record.updated_ms, task_bytes(&state.tasks));
    let tasks = Arc::make_mut(&mut state.tasks);
    tasks.retain(|held, it| held == id || now < it.forget_ms);
    if MAX_TASKS <= tasks.len() && !tasks.contains_key(id) {
        let first = tasks.iter().min_by_key(|(id, it)| (it.forget_ms, *id));
        if let Some(first) = first.map(|(id, _)| id.clone()) {
            tasks.remove(&first);
        }
    }
    tasks.insert(id.to_owned(), record.clone());
    state.resized(before, task_bytes(&state.tasks));
    changed(state, None)
}

/// Records a task that runs. A record of its end stays: a write can arrive after one that was sent
/// later, because its coordinator stopped to wait for it.
pub(super) fn begin(
    state: &mut RegistryState,
    id: &str,
    record: &TaskRecord,
) -> Result<RegistryReply, PredictError> {
    match state.tasks.get(id) {
        Some(held) if held.is_same_task(record) && held.state != TaskState::Running => {
            unchanged(state)
        }
        _ => put(state, id, record),
    }
}

pub(super) fn forget(state: &mut RegistryState, id: &str) -> Result<RegistryReply, PredictError> {
    if !state.tasks.contains_key(id) {
        return unchanged(state);
    }
    let before = task_bytes(&state.tasks);
    Arc::make_mut(&mut state.tasks).remove(id);
    state.resized(before, task_bytes(&state.tasks));
    changed(state, None)
}

#[cfg(test)]
mod tests {
    use volley_types::registry::RegistryCommand;
    use volley_types::{ErrorCode, ModelName, NodeId};

    use super::*;
    use crate::apply;

    fn record(state: TaskState, updated_ms: u64) -> TaskRecord {
        TaskRecord {
            node: NodeId(1),
            model: ModelName::new("m").unwrap(),
            tenant: None,
            created_ms: 0,
            updated_ms,
            state,
            forget_ms: updated_ms + 10,
        }
    }

    fn put(state: &mut RegistryState, id: &str, record: TaskRecord) -> Result<u64, ErrorCode> {
        let id = id.to_owned();
        let reply = apply(state, &RegistryCommand::PutTask { id, record });
        reply
            .map(|reply| reply.revision.0)
            .map_err(|error| error.code)
    }

    #[test]
    fn a_task_is_told_ends_and_is_forgotten() {
        let mut state = RegistryState::default();
        assert_eq!(put(&mut state, "a", record(TaskState::Running, 1)), Ok(1));
        assert_eq!(put(&mut state, "a", record(TaskState::Running, 1)), Ok(1));
        assert_eq!(state.level, 3, "an earlier version would not know it");
        let other = TaskRecord {
            node: NodeId(2),
            ..record(TaskState::Running, 1)
        };
        let refused = put(&mut state, "a", other);
        assert_eq!(refused, Err(ErrorCode::Conflict));
        assert_eq!(put(&mut state, "a", record(TaskState::Completed, 5)), Ok(2));
        assert_eq!(put(&mut state, "b", record(TaskState::Running, 14)), Ok(3));
        assert_eq!(state.tasks.len(), 2);
        assert_eq!(put(&mut state, "c", record(TaskState::Running, 15)), Ok(4));
        assert!(!state.tasks.contains_key("a"), "its time is over");
        for revision in [5, 5] {
            let forgotten = apply(&mut state, &RegistryCommand::ForgetTask("b".to_owned()));
            assert_eq!(forgotten.unwrap().revision.0, revision);
        }
        let long = TaskState::Failed("x".repeat(MAX_TEXT + 1));
        let refused = put(&mut state, "d", record(long, 15));
        assert_eq!(refused, Err(ErrorCode::TooLarge));
    }

    #[test]
    fn a_late_beginning_does_not_undo_an_end() {
        let mut state = RegistryState::default();
        let begin = |state: &mut RegistryState, node: u64| {
            let record = TaskRecord {
                node: NodeId(node),
                ..record(TaskState::Running, 1)
            };
            let id = "a".to_owned();
            let reply = apply(state, &RegistryCommand::BeginTask { id, record });
            reply
                .map(|reply| reply.revision.0)
                .map_err(|error| error.code)
        };
        assert_eq!(begin(&mut state, 1), Ok(1));
        assert_eq!(state.level, 8, "an earlier version would not know it");
        let ends = [
            TaskState::Completed,
            TaskState::Cancelled,
            TaskState::Failed("why".to_owned()),
        ];
        for (revision, end) in (2..).zip(ends) {
            let ended = record(end.clone(), 5);
            assert_eq!(put(&mut state, "a", ended), Ok(revision));
            assert_eq!(begin(&mut state, 1), Ok(revision));
            assert_eq!(state.tasks["a"].state, end);
        }
        assert_eq!(begin(&mut state, 2), Err(ErrorCode::Conflict));
    }

    #[test]
    fn there_are_never_more_than_so_many() {
        let mut state = RegistryState::default();
        for index in 0..=MAX_TASKS as u64 {
            let mut record = record(TaskState::Running, 1);
            record.forget_ms = 10_000 - index;
            put(&mut state, &index.to_string(), record).unwrap();
        }
        assert_eq!(state.tasks.len(), MAX_TASKS);
        let gone = (MAX_TASKS - 1).to_string();
        assert!(
            !state.tasks.contains_key(&gone),
            "the one whose time is over first"
        );
    }
}
