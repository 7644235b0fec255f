//! `_batch_predict`: a prediction that nobody waits for. Its task runs on the coordinator that
//! took it, which holds the answer for a while; any other one asks it. That a task is there, and
//! how it ended, is noted in the registry, for when that coordinator is gone.

mod held;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use futures::future::join_all;
use serde_json::{Value, json};
use volley_types::registry::{RegistryCommand, RegistryState, TaskRecord, TaskState};
use volley_types::{Deadline, ErrorCode, HeldTask, HeldTasks, ModelRef, NodeId, PredictError};

pub use self::held::Batches;
use self::held::{EndGuard, HELD, millis, note};
use crate::app::App;
use crate::context::RequestContext;
use crate::error::ApiError;
use crate::extract::{Path, State};
use crate::opensearch::forms::Form;
use crate::opensearch::models::now_ms;
use crate::opensearch::prediction::Prediction;
use crate::opensearch::{predict, settings};

const PREFIX: &str = "batch-";

/// The way to the tasks that another coordinator holds; `None` when it is no member.
pub type PeerTasks = Arc<dyn Fn(NodeId) -> Option<Arc<dyn HeldTasks>> + Send + Sync>;

/// The batches of all coordinators.
#[derive(Clone)]
pub(crate) struct Everywhere {
    own: Batches,
    peers: PeerTasks,
}

impl Everywhere {
    pub(crate) fn new(own: Batches, peers: PeerTasks) -> Self {
        Self { own, peers }
    }

    /// Ends the batches of this coordinator when it is dropped.
    pub(crate) fn end_guard(&self) -> EndGuard {
        self.own.end_guard()
    }

    fn holder(&self, own: NodeId, node: NodeId) -> Result<Arc<dyn HeldTasks>, PredictError> {
        if own == node {
            return Ok(Arc::new(self.own.clone()));
        }
        (self.peers)(node).ok_or_else(missing)
    }
}

fn missing() -> PredictError {
    let message = "no such batch; it may have ended more than an hour ago, or its model may have \
                   been deleted";
    PredictError::new(ErrorCode::NotFound, message)
}

fn ended() -> PredictError {
    PredictError::new(ErrorCode::Conflict, "the batch does not run any more")
}

/// In OpenSearch's words.
pub(super) fn still_running() -> PredictError {
    let message = "Task cannot be deleted in running state. Try after sometime";
    PredictError::new(ErrorCode::Conflict, message)
}

/// Whether a task's id is a batch's.
pub(crate) fn is_batch(id: &str) -> bool {
    id.starts_with(PREFIX)
}

/// The coordinator that took a batch.
fn node_of(id: &str) -> Result<NodeId, PredictError> {
    let node = id.strip_prefix(PREFIX).and_then(|id| id.split_once('-'));
    let node = node.and_then(|(node, _)| node.parse().ok());
    node.map(NodeId).ok_or_else(missing)
}

/// Whether the caller sees a batch: one of its tenant, of a name that it sees.
fn is_visible(app: &App, registry: &RegistryState, record: &TaskRecord) -> bool {
    let name = &record.model;
    let called = registry.models.contains_key(name)
        || registry.aliases.contains_key(name)
        || registry.pipelines.contains_key(name);
    let tenant = app.principal.tenant();
    called && (tenant.is_none() || tenant == record.tenant.as_ref())
}

/// What is noted of a batch that the caller sees.
fn noted(app: &App, id: &str) -> Option<TaskRecord> {
    let registry = app.control.registry();
    let record = registry.tasks.get(id)?;
    let known = now_ms() < record.forget_ms && is_visible(app, &registry, record);
    known.then(|| record.clone())
}

/// What is said of a batch whose coordinator does not have it any more.
fn lost(mut record: TaskRecord) -> TaskRecord {
    if matches!(record.state, TaskState::Running | TaskState::Completed) {
        let node = record.node;
        record.state = TaskState::Failed(format!(
            "coordinator {node}, which took this batch, was stopped or lost before somebody took \
             the answer; send the batch again"
        ));
    }
    record
}

fn bare(id: &str, record: TaskRecord) -> HeldTask {
    HeldTask {
        id: id.to_owned(),
        record,
        response: None,
    }
}

/// A batch that the caller sees, wherever it is.
async fn find(app: &App, id: &str) -> Result<HeldTask, PredictError> {
    let holder = app
        .batches
        .holder(app.control.status().raft.id, node_of(id)?);
    let asked = match holder {
        Ok(holder) => holder.get(id).await,
        Err(error) => Err(error),
    };
    let ended =
        |record: &TaskRecord| matches!(record.state, TaskState::Failed(_) | TaskState::Cancelled);
    match asked {
        Ok(task) if is_visible(app, &app.control.registry(), &task.record) => Ok(task),
        Ok(_) => Err(missing()),
        Err(error) if error.code == ErrorCode::NotFound => {
            let record = noted(app, id).ok_or_else(missing)?;
            Ok(bare(id, lost(record)))
        }
        Err(error) => {
            let record = noted(app, id).filter(ended);
            record.map(|record| bare(id, record)).ok_or(error)
        }
    }
}

/// A task as users see it.
fn show(task: &HeldTask) -> Value {
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

/// One batch, with its answer.
pub(crate) async fn get(app: &App, id: &str) -> Result<Value, PredictError> {
    find(app, id).await.map(|task| show(&task))
}

/// All batches that the caller sees, by id, without their answers. Of a coordinator that does not
/// answer, what is noted.
pub(crate) async fn all(app: &App) -> BTreeMap<String, Value> {
    let before = app.control.registry();
    let raft = app.control.status().raft;
    let own = raft.id;
    let others = raft.members.iter().map(|member| member.id);
    let nodes: BTreeSet<_> = std::iter::once(own).chain(others).collect();
    let asked = nodes.into_iter().map(|node| async move {
        let listed = match app.batches.holder(own, node) {
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
    let registry = app.control.registry();
    let mut all: BTreeMap<_, _> = found.into_iter().map(|it| (it.id, it.record)).collect();
    let now = now_ms();
    for (id, record) in registry.tasks.iter() {
        // What came after the others were asked is not lost.
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
    all.retain(|_, record| is_visible(app, &registry, record));
    let shown = all.into_iter().map(|(id, record)| {
        let task = bare(&id, record);
        (id, show(&task))
    });
    shown.collect()
}

/// Forgets a batch that does not run.
pub(crate) async fn delete(app: &App, id: &str) -> Result<(), PredictError> {
    if find(app, id).await?.record.state == TaskState::Running {
        return Err(still_running());
    }
    if app.control.registry().tasks.contains_key(id) {
        let forget = RegistryCommand::ForgetTask(id.to_owned());
        app.control.write(forget).await?;
    }
    let holder = app
        .batches
        .holder(app.control.status().raft.id, node_of(id)?);
    let forgotten = match holder {
        Ok(holder) => holder.forget(id).await,
        Err(error) => Err(error),
    };
    match forgotten {
        // It is gone, and all that it held.
        Err(error) if error.code == ErrorCode::NotFound => Ok(()),
        forgotten => forgotten,
    }
}

/// Begins a prediction that nobody waits for.
pub(crate) async fn predict(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    context: RequestContext,
    body: Prediction,
) -> Result<Json<Value>, ApiError> {
    let model: ModelRef = id.parse()?;
    let registry = app.control.registry();
    let most = registry.setting(settings::MAX_BATCHES);
    let most = most.and_then(|most| most.parse().ok());
    app.batches.own.admit(most.unwrap_or(usize::MAX))?;
    let read = predict::request(&app, &id, &context, &body);
    let (signature, mut request) = context.in_time(read).await?;
    let limit = app.config.max_request_timeout;
    let deadline = Deadline::after(Instant::now(), limit);
    request.deadline = Some(deadline);
    let node = app.control.status().raft.id;
    let task = format!("{PREFIX}{node}-{}", uuid::Uuid::new_v4().simple());
    let now = now_ms();
    let record = TaskRecord {
        node,
        model: model.name,
        tenant: app.principal.tenant().cloned(),
        created_ms: now,
        updated_ms: now,
        state: TaskState::Running,
        forget_ms: now
            .saturating_add(millis(limit))
            .saturating_add(millis(HELD)),
    };
    let (control, own) = (app.control.clone(), task.clone());
    let form = Form::of(&body.fields, &app.control.registry(), &request.model);
    let begin = |ending: held::Ending| async move {
        let answer = predict::whole(&*control, &signature, request, form);
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
    let held = &app.batches.own;
    held.hold(&task, record.clone(), app.control.clone(), begin);
    note(&*app.control, &task, record).await;
    Ok(Json(json!({ "task_id": task, "status": "CREATED" })))
}

/// Ends a batch that runs.
pub(crate) async fn cancel(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    context: RequestContext,
) -> Result<Json<Value>, ApiError> {
    let cancelled = async {
        if find(&app, &id).await?.record.state != TaskState::Running {
            return Err(ended());
        }
        let own = app.control.status().raft.id;
        let holder = app.batches.holder(own, node_of(&id)?)?;
        holder.cancel(&id).await
    };
    context.in_time(cancelled).await?;
    Ok(Json(json!({ "status": "OK" })))
}
