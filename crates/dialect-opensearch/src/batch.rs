//! `_batch_predict`: asynchronous predictions. The task runs on the coordinator that accepted it.
//! That coordinator keeps the response for a while, and others request it there. The registry
//! records that the task exists and how it ended, for the time when its coordinator is gone.

pub(crate) mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use futures::future::join_all;
use serde_json::{Value, json};
use volley_http_edge::axum::Json;
use volley_types::registry::{RegistryCommand, RegistryState, TaskRecord, TaskState};
use volley_types::{Deadline, ErrorCode, ModelRef, NodeId, PredictError, StoredTask};

pub use self::table::ClusterBatches;
pub use self::table::{Batches, PeerTasks};
use self::table::{HELD, millis, missing};
use crate::prediction::Prediction;
use crate::state::OpenSearchCaller;
use crate::upstream_dialect::UpstreamDialect;
use crate::{predict, settings};
use volley_dialect_kit::clock::now_ms;
use volley_http_edge::context::RequestContext;
use volley_http_edge::error::ApiError;
use volley_http_edge::extract::Path;

const PREFIX: &str = "batch-";

fn ended() -> PredictError {
    PredictError::new(ErrorCode::Conflict, "the batch is not running")
}

/// The error for the deletion of a running task, in OpenSearch's wording.
pub(super) fn still_running() -> PredictError {
    let message = "Task cannot be deleted in running state. Try after sometime";
    PredictError::new(ErrorCode::Conflict, message)
}

/// Whether the task id is that of a batch.
pub(crate) fn is_batch(id: &str) -> bool {
    id.starts_with(PREFIX)
}

/// The coordinator that accepted the batch.
fn node_of(id: &str) -> Result<NodeId, PredictError> {
    let node = id.strip_prefix(PREFIX).and_then(|id| id.split_once('-'));
    let node = node.and_then(|(node, _)| node.parse().ok());
    node.map(NodeId).ok_or_else(missing)
}

/// Whether the caller may see a batch: it belongs to the caller's tenant, and its model is in the
/// caller's scope.
fn is_visible(caller: &OpenSearchCaller, registry: &RegistryState, record: &TaskRecord) -> bool {
    let name = &record.model;
    let called = registry.models.contains_key(name)
        || registry.aliases.contains_key(name)
        || registry.pipelines.contains_key(name);
    let tenant = caller.principal.tenant();
    called && (tenant.is_none() || tenant == record.tenant.as_ref())
}

/// The registry's record of a batch, if the caller may see it.
fn noted(caller: &OpenSearchCaller, id: &str) -> Option<TaskRecord> {
    let registry = caller.cluster.registry.state();
    let record = registry.tasks.get(id)?;
    let known = now_ms() < record.forget_ms && is_visible(caller, &registry, record);
    known.then(|| record.clone())
}

/// The record of a batch that its coordinator no longer has. A running or completed batch becomes a
/// failed one, because its response is lost.
fn lost(mut record: TaskRecord) -> TaskRecord {
    if matches!(record.state, TaskState::Running | TaskState::Completed) {
        let node = record.node;
        record.state = TaskState::Failed(format!(
            "coordinator {node}, which ran this batch, was stopped or lost before the response \
             was fetched; send the batch again"
        ));
    }
    record
}

fn bare(id: &str, record: TaskRecord) -> StoredTask {
    StoredTask {
        id: id.to_owned(),
        record,
        response: None,
    }
}

/// Finds a batch that the caller may see, on any coordinator.
async fn find(caller: &OpenSearchCaller, id: &str) -> Result<StoredTask, PredictError> {
    let holder = caller
        .state
        .batches
        .holder(caller.cluster.view.status().raft.id, node_of(id)?);
    let asked = match holder {
        Ok(holder) => holder.get(id).await,
        Err(error) => Err(error),
    };
    let ended =
        |record: &TaskRecord| matches!(record.state, TaskState::Failed(_) | TaskState::Cancelled);
    match asked {
        Ok(task) if is_visible(caller, &caller.cluster.registry.state(), &task.record) => Ok(task),
        Ok(_) => Err(missing()),
        Err(error) if error.code == ErrorCode::NotFound => {
            let record = noted(caller, id).ok_or_else(missing)?;
            Ok(bare(id, lost(record)))
        }
        Err(error) => {
            let record = noted(caller, id).filter(ended);
            record.map(|record| bare(id, record)).ok_or(error)
        }
    }
}

/// Formats a task.
fn show(task: &StoredTask) -> Value {
    let record = &task.record;
    let mut shown = json!({
        "task_id": task.id,
        "task_type": "BATCH_PREDICTION",
        "model_id": record.model.as_str(),
        "state": record.state.as_str().to_ascii_uppercase(),
        "worker_node": [format!("coordinator-{}", record.node)],
        "create_time": record.created_ms,
        "last_update_time": record.updated_ms,
        "is_async": true,
    });
    if let TaskState::Failed(why) = &record.state {
        shown["error"] = why.as_str().into();
    }
    let response = task.response.as_ref();
    if let Some(response) = response.and_then(|json| serde_json::from_slice(json).ok()) {
        shown["response"] = response;
    }
    shown
}

/// One batch with its response.
pub(crate) async fn get(caller: &OpenSearchCaller, id: &str) -> Result<Value, PredictError> {
    find(caller, id).await.map(|task| show(&task))
}

/// All batches that the caller may see, by id, without their responses. For a coordinator that does
/// not respond, the registry's records are used.
pub(crate) async fn all(caller: &OpenSearchCaller) -> BTreeMap<String, Value> {
    let before = caller.cluster.registry.state();
    let raft = caller.cluster.view.status().raft;
    let own = raft.id;
    let others = raft.members.iter().map(|member| member.id);
    let nodes: BTreeSet<_> = std::iter::once(own).chain(others).collect();
    let asked = nodes.into_iter().map(|node| async move {
        let listed = match caller.state.batches.holder(own, node) {
            Ok(holder) => holder.list().await,
            Err(error) => Err(error),
        };
        (node, listed)
    });
    let (mut found, mut silent) = (Vec::new(), BTreeSet::new());
    for (node, listed) in join_all(asked).await {
        match listed {
            Ok(tasks) => found.extend(tasks),
            Err(error) if error.code == ErrorCode::NotFound => {}
            Err(_) => {
                silent.insert(node);
            }
        }
    }
    let registry = caller.cluster.registry.state();
    let mut all: BTreeMap<_, _> = found.into_iter().map(|it| (it.id, it.record)).collect();
    let now = now_ms();
    for (id, record) in registry.tasks.iter() {
        // A batch that started after the coordinators were asked is missing in their replies, but
        // it is not lost.
        if now < record.forget_ms && before.tasks.contains_key(id) && !all.contains_key(id) {
            let record = record.clone();
            let told = if silent.contains(&record.node) {
                record
            } else {
                lost(record)
            };
            all.insert(id.clone(), told);
        }
    }
    all.retain(|_, record| is_visible(caller, &registry, record));
    let shown = all.into_iter().map(|(id, record)| {
        let task = bare(&id, record);
        (id, show(&task))
    });
    shown.collect()
}

/// Deletes a batch that is not running.
pub(crate) async fn delete(caller: &OpenSearchCaller, id: &str) -> Result<(), PredictError> {
    if find(caller, id).await?.record.state == TaskState::Running {
        return Err(still_running());
    }
    if caller.cluster.registry.state().tasks.contains_key(id) {
        let forget = RegistryCommand::ForgetTask(id.to_owned());
        caller.cluster.registry.write(forget).await?;
    }
    let holder = caller
        .state
        .batches
        .holder(caller.cluster.view.status().raft.id, node_of(id)?);
    let forgotten = match holder {
        Ok(holder) => holder.forget(id).await,
        Err(error) => Err(error),
    };
    match forgotten {
        // The coordinator no longer has the batch, so the response is gone too.
        Err(error) if error.code == ErrorCode::NotFound => Ok(()),
        forgotten => forgotten,
    }
}

/// Starts an asynchronous prediction. If the future is dropped after the start, the batch still
/// runs, but the caller does not learn its id.
pub(crate) async fn predict(
    caller: OpenSearchCaller,
    Path(id): Path<String>,
    context: RequestContext,
    body: Prediction,
) -> Result<Json<Value>, ApiError> {
    let model: ModelRef = id.parse()?;
    let registry = caller.cluster.registry.state();
    let most = registry.setting(settings::MAX_BATCHES);
    let most = most.and_then(|most| most.parse().ok());
    let permit = caller.state.batches.own.admit(most.unwrap_or(usize::MAX))?;
    let read = predict::request(&caller, &id, &context, &body);
    let (signature, mut request) = context.in_time(read).await?;
    let limit = caller.config.max_request_timeout;
    let deadline = Deadline::after(Instant::now(), limit);
    request.deadline = Some(deadline);
    let node = caller.cluster.view.status().raft.id;
    let task = format!("{PREFIX}{node}-{}", uuid::Uuid::new_v4().simple());
    let now = now_ms();
    let record = TaskRecord {
        node,
        model: model.name,
        tenant: caller.principal.tenant().cloned(),
        created_ms: now,
        updated_ms: now,
        state: TaskState::Running,
        forget_ms: now
            .saturating_add(millis(limit))
            .saturating_add(millis(HELD)),
    };
    let (inference, own) = (caller.cluster.inference.clone(), task.clone());
    let form = UpstreamDialect::of(
        &body.fields,
        &caller.cluster.registry.state(),
        &request.model,
    );
    let begin = |ending: table::WeakBatches| async move {
        let answer = predict::whole(&*inference, &signature, request, form);
        let until = tokio::time::Instant::from_std(deadline.instant());
        let outcome = match tokio::time::timeout_at(until, answer).await {
            Ok(outcome) => outcome,
            Err(_) => Err(PredictError::new(
                ErrorCode::DeadlineExceeded,
                "the batch did not end in time",
            )),
        };
        ending.finish(&own, outcome).await;
    };
    let held = &caller.state.batches.own;
    let registry = caller.cluster.registry.clone();
    let noted = held.hold(permit, &task, record, registry, begin);
    // It has no value: it ends when the record is written.
    noted.await.ok();
    Ok(Json(json!({ "task_id": task, "status": "CREATED" })))
}

/// Cancels a running batch.
pub(crate) async fn cancel(
    caller: OpenSearchCaller,
    Path(id): Path<String>,
    context: RequestContext,
) -> Result<Json<Value>, ApiError> {
    let cancelled = async {
        if find(&caller, &id).await?.record.state != TaskState::Running {
            return Err(ended());
        }
        let own = caller.cluster.view.status().raft.id;
        let holder = caller.state.batches.holder(own, node_of(&id)?)?;
        holder.cancel(&id).await
    };
    context.in_time(cancelled).await?;
    Ok(Json(json!({ "status": "OK" })))
}
