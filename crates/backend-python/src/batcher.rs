//! Several requests in one call of the model, as the model declares with `max_batch_rows`.
//!
//! A request waits for others with the same parameters, until their rows fill a call or the window
//! of the first one ends. When a call of several requests fails, each request is called alone, so
//! that a bad row fails its own request only.

use std::sync::Arc;
use std::time::Duration;

use arrow_array::{RecordBatch, UInt32Array};
use arrow_schema::ArrowError;
use arrow_select::concat::concat_batches;
use arrow_select::take::take_record_batch;
use async_stream::try_stream;
use async_trait::async_trait;
use futures::{StreamExt, TryStreamExt};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use volley_types::{
    ChunkStream, Deadline, Dialect, ErrorCode, Input, ModelName, ModelRef, Parameters, Predict,
    PredictError, PredictRequest, Signature,
};

use crate::frame::{Interface, PythonTask};

/// How long the first request of a call waits for others, where the model sets no window.
const DEFAULT_WINDOW: Duration = Duration::from_millis(5);
/// Most requests at once, however many rows a call may have.
const MAX_CAPACITY: usize = 1_024;

/// How requests become calls.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct BatchRules {
    /// Most rows of a call.
    rows: usize,
    /// How long a request waits for others.
    window: Duration,
}

impl BatchRules {
    /// The rules that a model declares; `None` when each request is a call of its own.
    pub(crate) fn of(interface: &Interface) -> Option<Self> {
        if interface.task == PythonTask::Generate {
            return None;
        }
        let window = interface.batch_window_seconds.map(|seconds| {
            let window = Duration::try_from_secs_f64(seconds).unwrap_or_default();
            window.min(Duration::from_secs(60))
        });
        Some(Self {
            rows: interface.max_rows.filter(|rows| 0 < *rows)?,
            window: window.unwrap_or(DEFAULT_WINDOW),
        })
    }

    /// Requests that a process with so many concurrent calls takes.
    pub(crate) fn capacity(self, calls: usize) -> usize {
        match self.window.is_zero() {
            true => calls,
            false => calls.saturating_mul(self.rows).min(MAX_CAPACITY).max(calls),
        }
    }
}

/// A model whose requests share calls.
pub(crate) struct Batcher(Arc<Shared>);

struct Shared {
    model: Arc<dyn Predict>,
    rules: BatchRules,
    open: Mutex<NextCall>,
}

/// The requests of the next call.
#[derive(Default)]
struct NextCall {
    waiting: Vec<QueuedRequest>,
    rows: usize,
    /// Number of the call, for its timer.
    turn: u64,
}

/// A request that waits for its answer.
struct QueuedRequest {
    request: Shell,
    rows: RecordBatch,
    answer: oneshot::Sender<Result<RecordBatch, PredictError>>,
}

/// A request without its rows.
#[derive(Clone)]
struct Shell {
    model: ModelRef,
    deadline: Option<Deadline>,
    parameters: Parameters,
    dialect: Dialect,
    request_id: volley_types::RequestId,
    trace: volley_types::TraceContext,
}

impl Shell {
    fn of(request: &PredictRequest) -> Self {
        Self {
            model: request.model.clone(),
            deadline: request.deadline,
            parameters: request.parameters.clone(),
            dialect: request.dialect,
            request_id: request.request_id.clone(),
            trace: request.trace,
        }
    }

    fn with(&self, rows: RecordBatch) -> PredictRequest {
        let mut request = PredictRequest::new(self.model.clone(), Input::Batch(rows));
        request.deadline = self.deadline;
        request.parameters = self.parameters.clone();
        request.dialect = self.dialect;
        request.request_id = self.request_id.clone();
        request.trace = self.trace;
        request
    }

    fn shares_calls_with(&self, other: &Self) -> bool {
        self.parameters == other.parameters && self.dialect == other.dialect
    }
}

impl Batcher {
    /// The model with these rules.
    pub(crate) fn around(model: Arc<dyn Predict>, rules: BatchRules) -> Arc<dyn Predict> {
        Arc::new(Self(Arc::new(Shared {
            model,
            rules,
            open: Mutex::default(),
        })))
    }
}

#[async_trait]
impl Predict for Batcher {
    async fn predict(&self, request: PredictRequest) -> Result<ChunkStream, PredictError> {
        let output = self.signature(&request.model).await?.output;
        let (shared, shell) = (self.0.clone(), Shell::of(&request));
        let mut batches = request.input.into_inner().into_stream();
        Ok(ChunkStream::new(
            output,
            try_stream! {
                while let Some(batch) = batches.try_next().await? {
                    let most = shared.rules.rows;
                    let mut start = 0;
                    // A batch without rows is answered too.
                    while start < batch.num_rows().max(1) {
                        let rows = batch.slice(start, most.min(batch.num_rows() - start));
                        start += most;
                        yield answer(&shared, &shell, rows).await?;
                    }
                }
            },
        ))
    }

    async fn signature(&self, model: &ModelRef) -> Result<Signature, PredictError> {
        self.0.model.signature(model).await
    }

    async fn models(&self) -> Vec<ModelName> {
        self.0.model.models().await
    }
}

/// The answer to `rows`, of which there are at most as many as a call may have.
async fn answer(
    shared: &Arc<Shared>,
    shell: &Shell,
    rows: RecordBatch,
) -> Result<RecordBatch, PredictError> {
    if shared.rules.window.is_zero() || rows.num_rows() == 0 {
        return call(&*shared.model, shell, rows).await;
    }
    let (sender, answer) = oneshot::channel();
    shared.add(QueuedRequest {
        request: shell.clone(),
        rows,
        answer: sender,
    });
    let gone = || PredictError::new(ErrorCode::Cancelled, "the call of the model was given up");
    answer.await.map_err(|_| gone())?
}

impl Shared {
    /// Adds a request to the next call, and runs that call when it is full.
    fn add(self: &Arc<Self>, waiting: QueuedRequest) {
        let rows = waiting.rows.num_rows();
        let mut open = self.open.lock();
        let fits = open.rows + rows <= self.rules.rows
            && open
                .waiting
                .first()
                .is_none_or(|first| first.request.shares_calls_with(&waiting.request));
        if !fits {
            self.run(&mut open);
        }
        if open.waiting.is_empty() {
            let (shared, turn) = (self.clone(), open.turn);
            tokio::spawn(async move {
                tokio::time::sleep(shared.rules.window).await;
                let mut open = shared.open.lock();
                if open.turn == turn {
                    shared.run(&mut open);
                }
            });
        }
        open.rows += rows;
        open.waiting.push(waiting);
        if self.rules.rows <= open.rows {
            self.run(&mut open);
        }
    }

    /// Runs the waiting requests as one call.
    fn run(self: &Arc<Self>, open: &mut NextCall) {
        open.turn += 1;
        open.rows = 0;
        let mut waiting = std::mem::take(&mut open.waiting);
        // Callers that have left need no answer.
        waiting.retain(|one| !one.answer.is_closed());
        if !waiting.is_empty() {
            tokio::spawn(run(self.model.clone(), waiting));
        }
    }
}

async fn run(model: Arc<dyn Predict>, mut waiting: Vec<QueuedRequest>) {
    let answers = tokio::select! {
        answers = together(&*model, &waiting) => answers,
        // Dropping the call cancels it.
        () = all_left(&waiting) => return,
    };
    match answers {
        Ok(answers) => {
            for (one, answer) in waiting.drain(..).zip(answers) {
                // A caller that has left since.
                let _ = one.answer.send(Ok(answer));
            }
        }
        Err(error) => {
            let is_alone = waiting.len() == 1;
            // The process has ended, or the model takes no more: others would find the same.
            let is_general = matches!(
                error.code,
                ErrorCode::Unavailable | ErrorCode::Overloaded | ErrorCode::Cancelled
            );
            for mut one in waiting {
                let answer = match is_alone || is_general {
                    true => Err(error.clone()),
                    false => tokio::select! {
                        answer = call(&*model, &one.request, one.rows.clone()) => answer,
                        () = one.answer.closed() => continue,
                    },
                };
                let _ = one.answer.send(answer);
            }
        }
    }
}

/// Completes when no caller waits any more.
async fn all_left(waiting: &[QueuedRequest]) {
    let interval = Duration::from_millis(20);
    while waiting.iter().any(|one| !one.answer.is_closed()) {
        tokio::time::sleep(interval).await;
    }
}

/// The answers to several requests, by one call.
async fn together(
    model: &dyn Predict,
    waiting: &[QueuedRequest],
) -> Result<Vec<RecordBatch>, PredictError> {
    let Some(first) = waiting.first() else {
        return Ok(Vec::new());
    };
    if waiting.len() == 1 {
        return Ok(vec![call(model, &first.request, first.rows.clone()).await?]);
    }
    let rows = waiting.iter().map(|one| &one.rows);
    let rows = concat_batches(&first.rows.schema(), rows).map_err(apart)?;
    let mut request = first.request.clone();
    // Each caller keeps its own deadline.
    request.deadline = waiting
        .iter()
        .map(|one| one.request.deadline)
        .reduce(|one, other| Some(one?.max(other?)))
        .flatten();
    let answer = call(model, &request, rows).await?;
    let mut start = 0;
    let parts = waiting.iter().map(|one| {
        let end = start + one.rows.num_rows() as u32;
        let part = UInt32Array::from_iter_values(start..end);
        start = end;
        // A copy: a slice would keep the whole answer in memory.
        take_record_batch(&answer, &part).map_err(apart)
    });
    parts.collect()
}

/// The whole answer to a call, with as many rows.
async fn call(
    model: &dyn Predict,
    shell: &Shell,
    rows: RecordBatch,
) -> Result<RecordBatch, PredictError> {
    let count = rows.num_rows();
    let mut stream = model.predict(shell.with(rows)).await?;
    let mut parts = Vec::new();
    while let Some(part) = stream.next().await.transpose()? {
        parts.push(part);
    }
    let schema = match parts.first() {
        Some(part) => part.schema(),
        None => model.signature(&shell.model).await?.output,
    };
    let answer = concat_batches(&schema, &parts).map_err(apart)?;
    match answer.num_rows() == count {
        true => Ok(answer),
        false => Err(PredictError::internal(
            "the model returned another number of rows",
            format!("{} for {count}", answer.num_rows()),
        )),
    }
}

fn apart(error: ArrowError) -> PredictError {
    PredictError::internal("rows of several requests do not fit together", error)
}

#[cfg(test)]
mod tests;
