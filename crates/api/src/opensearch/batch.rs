//! `_batch_predict`: a prediction that nobody waits for. Its task runs on the coordinator that
//! took it, and holds the answer for a while.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::task::AbortHandle;
use volley_types::registry::RegistryState;
use volley_types::{Deadline, ErrorCode, ModelRef, PredictError, TenantId};

use crate::app::App;
use crate::body::JsonObject;
use crate::context::RequestContext;
use crate::error::ApiError;
use crate::extract::{Path, State};
use crate::opensearch::models::now_ms;
use crate::opensearch::predict;

/// The most batches that one coordinator holds, running or not.
const MAX_BATCHES: usize = 100;
/// The most bytes of answers that it holds.
const MAX_BYTES: usize = 256 << 20;
/// How long an answer is held.
const HELD: Duration = Duration::from_secs(3_600);
const PREFIX: &str = "batch-";

/// The batches of this coordinator. Dropping them ends those that run.
#[derive(Debug, Default)]
pub(crate) struct Batches(Mutex<BTreeMap<String, Batch>>);

#[derive(Debug)]
struct Batch {
    tenant: Option<TenantId>,
    model: String,
    created_ms: u64,
    updated_ms: u64,
    state: BatchState,
}

#[derive(Debug)]
enum BatchState {
    Running(AbortHandle),
    Cancelled,
    Failed {
        error: PredictError,
        at: Instant,
    },
    Done {
        response: Value,
        bytes: usize,
        at: Instant,
    },
}

impl Drop for Batches {
    fn drop(&mut self) {
        for batch in self.0.get_mut().values() {
            batch.cancel();
        }
    }
}

impl Batch {
    fn cancel(&self) {
        if let BatchState::Running(task) = &self.state {
            task.abort();
        }
    }

    fn runs(&self) -> bool {
        matches!(self.state, BatchState::Running(_))
    }

    fn is_old(&self, now: Instant) -> bool {
        match &self.state {
            BatchState::Running(_) => false,
            BatchState::Cancelled => true,
            BatchState::Failed { at, .. } | BatchState::Done { at, .. } => {
                HELD <= now.saturating_duration_since(*at)
            }
        }
    }

    fn bytes(&self) -> usize {
        match &self.state {
            BatchState::Done { bytes, .. } => *bytes,
            _ => 0,
        }
    }

    fn show(&self, id: &str, node: &str) -> Value {
        let state = match &self.state {
            BatchState::Running(_) => "RUNNING",
            BatchState::Cancelled => "CANCELLED",
            BatchState::Failed { .. } => "FAILED",
            BatchState::Done { .. } => "COMPLETED",
        };
        let mut task = json!({
            "task_id": id,
            "task_type": "BATCH_PREDICTION",
            "model_id": self.model,
            "state": state,
            "worker_node": [node],
            "create_time": self.created_ms,
            "last_update_time": self.updated_ms,
            "is_async": true,
        });
        match &self.state {
            BatchState::Failed { error, .. } => task["error"] = error.message.as_str().into(),
            BatchState::Done { response, .. } => task["response"] = response.clone(),
            BatchState::Running(_) | BatchState::Cancelled => {}
        }
        task
    }
}

impl Batches {
    /// Makes room for one more.
    fn admit(&self) -> Result<(), PredictError> {
        let mut batches = self.0.lock();
        let now = Instant::now();
        if MAX_BATCHES <= batches.len() {
            batches.retain(|_, batch| !batch.is_old(now));
        }
        let bytes: usize = batches.values().map(Batch::bytes).sum();
        if batches.len() < MAX_BATCHES && bytes < MAX_BYTES {
            return Ok(());
        }
        let message = "too many batches are held here; delete the tasks that are done";
        let error = PredictError::new(ErrorCode::Overloaded, message);
        Err(error.with_retry_after(Duration::from_secs(10)))
    }

    fn finish(&self, id: &str, outcome: Result<Value, PredictError>) {
        let at = Instant::now();
        let state = match outcome {
            Ok(response) => BatchState::Done {
                bytes: response.to_string().len(),
                response,
                at,
            },
            Err(error) => BatchState::Failed { error, at },
        };
        if let Some(batch) = self.0.lock().get_mut(id)
            && batch.runs()
        {
            batch.state = state;
            batch.updated_ms = now_ms();
        }
    }

    /// Those of the caller's tenant, of models that it sees.
    pub(crate) fn ids(&self, app: &App, registry: &RegistryState) -> Vec<String> {
        let batches = self.0.lock();
        let visible = batches
            .iter()
            .filter(|(_, batch)| is_visible(app, registry, batch));
        visible.map(|(id, _)| id.clone()).collect()
    }

    /// A task as users see it.
    pub(crate) fn show(&self, app: &App, registry: &RegistryState, id: &str) -> Option<Value> {
        let batches = self.0.lock();
        let batch = batches
            .get(id)
            .filter(|batch| is_visible(app, registry, batch))?;
        let node = format!("coordinator-{}", app.control.status().raft.id);
        Some(batch.show(id, &node))
    }

    /// Forgets a task that does not run.
    pub(crate) fn delete(&self, id: &str) {
        let mut batches = self.0.lock();
        if batches.get(id).is_some_and(|batch| !batch.runs()) {
            batches.remove(id);
        }
    }
}

fn is_visible(app: &App, registry: &RegistryState, batch: &Batch) -> bool {
    let model = registry
        .models
        .keys()
        .any(|name| name.as_str() == batch.model);
    let tenant = app.principal.tenant();
    model && (tenant.is_none() || tenant == batch.tenant.as_ref())
}

/// Whether a task's id is a batch's.
pub(crate) fn is_batch(id: &str) -> bool {
    id.starts_with(PREFIX)
}

/// What is said of a batch that another coordinator runs, which alone knows of it: `None` for one
/// of this coordinator, and for no batch.
pub(crate) fn elsewhere(app: &App, id: &str) -> Option<PredictError> {
    let (node, _) = id.strip_prefix(PREFIX)?.split_once('-')?;
    let node: u64 = node.parse().ok()?;
    (node != app.control.status().raft.id.0).then(|| {
        let message = format!(
            "coordinator {node} runs this batch and alone knows of it; ask that one for the task"
        );
        PredictError::new(ErrorCode::NotFound, message)
    })
}

/// Begins a prediction that nobody waits for.
pub(crate) async fn predict(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    context: RequestContext,
    JsonObject(body): JsonObject,
) -> Result<Json<Value>, ApiError> {
    let model: ModelRef = id.parse()?;
    app.batches.admit()?;
    let read = predict::request(&app, &id, &context, &body);
    let (signature, mut request) = context.in_time(read).await?;
    let limit = app.config.max_request_timeout;
    let deadline = Deadline::after(Instant::now(), limit);
    request.deadline = Some(deadline);
    let node = app.control.status().raft.id;
    let task = format!("{PREFIX}{node}-{}", uuid::Uuid::new_v4().simple());
    let now = now_ms();
    // The task waits for the lock before it can look for itself.
    let mut batches = app.batches.0.lock();
    let (held, control, own) = (
        Arc::downgrade(&app.batches),
        app.control.clone(),
        task.clone(),
    );
    let work = async move {
        let answer = predict::whole(&*control, &signature, request);
        let until = tokio::time::Instant::from_std(deadline.instant());
        let outcome = match tokio::time::timeout_at(until, answer).await {
            Ok(outcome) => outcome,
            Err(_) => Err(PredictError::new(
                ErrorCode::DeadlineExceeded,
                "the batch did not end in time",
            )),
        };
        if let Some(held) = held.upgrade() {
            held.finish(&own, outcome);
        }
    };
    let running = tokio::spawn(work).abort_handle();
    let batch = Batch {
        tenant: app.principal.tenant().cloned(),
        model: model.name.to_string(),
        created_ms: now,
        updated_ms: now,
        state: BatchState::Running(running),
    };
    batches.insert(task.clone(), batch);
    drop(batches);
    Ok(Json(json!({ "task_id": task, "status": "CREATED" })))
}

/// Ends a batch that runs.
pub(crate) async fn cancel(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    if let Some(error) = elsewhere(&app, &id) {
        return Err(error.into());
    }
    let registry = app.control.registry();
    let mut batches = app.batches.0.lock();
    let batch = batches
        .get_mut(&id)
        .filter(|batch| is_visible(&app, &registry, batch));
    let batch = batch.ok_or_else(|| {
        let message = "no such batch; it may have ended more than an hour ago";
        PredictError::new(ErrorCode::NotFound, message)
    })?;
    if !batch.runs() {
        let message = "the batch does not run any more";
        return Err(PredictError::new(ErrorCode::Conflict, message).into());
    }
    batch.cancel();
    batch.state = BatchState::Cancelled;
    batch.updated_ms = now_ms();
    Ok(Json(json!({ "status": "OK" })))
}
