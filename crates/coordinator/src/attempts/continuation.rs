//! Continuation of a generation after the loss of its worker. Another replica prefills the prompt
//! and the sent tokens, and continues sampling. The caller sees one stream.
//!
//! This needs token ids in all rows, as in local generations: the next tokens depend only on the
//! previous tokens and, for sampling, on the request's seed. All other streams end with the error
//! of the lost worker.

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use async_stream::try_stream;
use futures::{Stream, StreamExt};
use volley_types::chunk::BatchResult;
use volley_types::continuation::SentAnswerRecorder;
use volley_types::{
    ErrorCode, ErrorOrigin, GenerationRow, PredictError, PredictRequest, SentAnswers, WorkerId,
};

use super::{AttemptPlan, ReplicaAnswer};
use crate::errors;

/// Number of lost workers after which a stream is still continued. It bounds the number of workers
/// that one request can crash.
const MAX_LOSSES: usize = 2;

/// The same for model processes. The crash of a model process is more likely caused by the request,
/// and it also ends the other streams of the model.
const MAX_CRASHES: usize = 1;

/// Outcome of a loss; label of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// Another replica continues.
    Continued,
    /// The response cannot be continued.
    Impossible,
    /// The stream has lost too many workers, or the loss budget is used up.
    Spent,
    /// No other replica exists.
    NoReplica,
    /// The call to another replica failed.
    Failed,
}

impl Outcome {
    fn as_str(self) -> &'static str {
        match self {
            Self::Continued => "continued",
            Self::Impossible => "impossible",
            Self::Spent => "spent",
            Self::NoReplica => "no_replica",
            Self::Failed => "failed",
        }
    }
}

/// State of one stream over one or more replicas.
struct Course {
    attempts: AttemptPlan,
    /// `None` if it cannot be repeated.
    request: Option<PredictRequest>,
    recorder: SentAnswerRecorder,
    lost: Vec<WorkerId>,
    /// Number of crashed model processes.
    crashes: usize,
}

impl AttemptPlan {
    /// The batches of `answer` to `request`. After the loss of its worker, the batches of the
    /// replica that continues.
    pub(crate) fn follow(
        self,
        answer: ReplicaAnswer,
        request: Option<PredictRequest>,
    ) -> impl Stream<Item = BatchResult> + Send {
        let known = self.tells_tokens && request.is_some();
        let mut course = Course {
            recorder: if known {
                SentAnswerRecorder::default()
            } else {
                SentAnswerRecorder::forgotten()
            },
            attempts: self,
            request,
            lost: Vec::new(),
            crashes: 0,
        };
        try_stream! {
            let mut next = Some(answer);
            while let Some(mut answer) = next.take() {
                let Some(first) = answer.first.take() else {
                    break;
                };
                course.note(&first)?;
                yield first;
                let (worker, schema) = (answer.worker().clone(), answer.schema());
                let mut rest = Box::pin(answer.rest());
                let end = loop {
                    match rest.next().await {
                        Some(Ok(batch)) => {
                            course.note(&batch)?;
                            yield batch;
                        }
                        Some(Err(error)) => break Some(error),
                        None => break None,
                    }
                };
                // The old exchange ends before the next one starts.
                drop(rest);
                if let Some(error) = end {
                    let go_on = Box::pin(course.go_on(error, worker, &schema));
                    next = Some(go_on.await?);
                }
            }
        }
    }
}

impl Course {
    /// Records forwarded rows.
    ///
    /// # Errors
    /// `Internal` when rows after a continuation do not follow the rows before it.
    fn note(&mut self, batch: &RecordBatch) -> Result<(), PredictError> {
        if self.recorder.note(batch) || self.lost.is_empty() {
            Ok(())
        } else {
            Err(errors::torn())
        }
    }

    /// The response of another replica that continues after the sent part.
    ///
    /// # Errors
    /// `error` itself, if it is not the loss of a worker or no replica continues.
    async fn go_on(
        &mut self,
        error: PredictError,
        worker: WorkerId,
        schema: &SchemaRef,
    ) -> Result<ReplicaAnswer, PredictError> {
        if error.code != ErrorCode::Unavailable {
            return Err(error);
        }
        // Remote models return this code too, but their streams are never continued.
        self.crashes += usize::from(error.origin == ErrorOrigin::Model);
        let from = worker.clone();
        let outcome = self.ask_others(worker, schema).await;
        let told = *outcome.as_ref().err().unwrap_or(&Outcome::Continued);
        let metrics = &self.attempts.coordinator.0.metrics;
        metrics.continued(told.as_str());
        let request_id = self.request.as_ref().map(|it| it.request_id.to_string());
        let model = &self.attempts.model;
        let Ok(answer) = outcome else {
            tracing::info!(
                request_id, %model, %from, result = told.as_str(),
                "stream not continued after the loss of its worker"
            );
            return Err(error);
        };
        tracing::info!(
            request_id, %model, %from, to = %answer.worker(), tokens = self.recorder.tokens(),
            error = error.chain(), "stream continued on another replica"
        );
        Ok(answer)
    }

    async fn ask_others(
        &mut self,
        worker: WorkerId,
        schema: &SchemaRef,
    ) -> Result<ReplicaAnswer, Outcome> {
        let sent = self.recorder.sent().ok_or(Outcome::Impossible)?;
        self.lost.push(worker);
        if MAX_LOSSES < self.lost.len() || MAX_CRASHES < self.crashes {
            return Err(Outcome::Spent);
        }
        self.attempts.renew(&self.lost);
        let mut told = Outcome::NoReplica;
        while let Some(replica) = self.attempts.choose() {
            if !self.attempts.coordinator.0.loss_budget.spend() {
                return Err(Outcome::Spent);
            }
            let request = self.behind(&sent).ok_or(Outcome::Impossible)?;
            match self.attempts.call(replica, request).await {
                Ok(answer) if follows(&answer, &sent, schema) => return Ok(answer),
                Ok(_) => {
                    tracing::warn!(
                        model = %self.attempts.model,
                        "replica restarted the response instead of continuing it"
                    );
                    return Err(Outcome::Failed);
                }
                Err(error) => {
                    let model = &self.attempts.model;
                    tracing::info!(%model, error = error.chain(), "continuation attempt failed");
                    told = Outcome::Failed;
                    if !error.code.may_retry_elsewhere() {
                        break;
                    }
                }
            }
        }
        Err(told)
    }

    /// The request as a continuation after the sent part.
    fn behind(&self, sent: &SentAnswers) -> Option<PredictRequest> {
        let mut request = self.request.as_ref()?.try_clone()?;
        request.continuation = request.continuation.behind(sent.clone());
        Some(request)
    }
}

/// Whether a response continues the sent part. Workers of older versions would restart it.
fn follows(answer: &ReplicaAnswer, sent: &SentAnswers, schema: &SchemaRef) -> bool {
    let first = answer.first.as_ref();
    let sequence = first.and_then(|first| {
        let row = GenerationRow::rows(first).ok()?.next()?;
        Some(row.sequence())
    });
    sequence == Some(sent.rows()) && answer.schema() == *schema
}
