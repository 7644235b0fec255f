//! A generation whose worker is lost goes on at another replica: it is told what was sent, reads
//! it behind the prompt, and draws on. The caller sees one stream.
//!
//! This works where all rows say which tokens they came of, which those of local generations do:
//! the tokens of a model follow from what was said and, where they are drawn, from the request's
//! seed. Anything else ends in the error that lost the worker.

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

/// Workers that one stream may lose and still go on. A request that ends the worker it runs on
/// ends no more of them than this and one.
const MAX_LOSSES: usize = 2;

/// The same for models' own processes: what ends one of them is more likely a request than what
/// ends a worker is, and ends the other streams of its model along with it.
const MAX_CRASHES: usize = 1;

/// What came of a loss; a metric's label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// Another replica goes on.
    Continued,
    /// Nobody can go on with such an answer.
    Impossible,
    /// The stream has lost too many workers, or all streams together have of late.
    Spent,
    /// There is no other replica.
    NoReplica,
    /// Another replica was asked and could not.
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

/// One stream on its way over one replica or more.
struct Course {
    attempts: AttemptPlan,
    /// `None` where it cannot be sent again.
    request: Option<PredictRequest>,
    recorder: SentAnswerRecorder,
    lost: Vec<WorkerId>,
    /// Models' own processes among what was lost.
    crashes: usize,
}

impl AttemptPlan {
    /// The batches of `answer`, to the first one's `request`; where its worker is lost, and
    /// another replica can go on, those of that one.
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
                // What is left of the exchange ends before the next one begins.
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
    /// Notes rows that are sent on.
    ///
    /// # Errors
    /// `Internal` when rows from behind a seam do not follow those in front of it.
    fn note(&mut self, batch: &RecordBatch) -> Result<(), PredictError> {
        if self.recorder.note(batch) || self.lost.is_empty() {
            Ok(())
        } else {
            Err(errors::torn())
        }
    }

    /// The answer of another replica that goes on behind what was sent.
    ///
    /// # Errors
    /// `error` itself, where it is no loss of a worker or nobody goes on.
    async fn go_on(
        &mut self,
        error: PredictError,
        worker: WorkerId,
        schema: &SchemaRef,
    ) -> Result<ReplicaAnswer, PredictError> {
        if error.code != ErrorCode::Unavailable {
            return Err(error);
        }
        // A remote model's server speaks so too; of those nothing goes on.
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

    /// The request again, behind what was sent.
    fn behind(&self, sent: &SentAnswers) -> Option<PredictRequest> {
        let mut request = self.request.as_ref()?.try_clone()?;
        request.continuation = request.continuation.behind(sent.clone());
        Some(request)
    }
}

/// Whether an answer goes on behind what was sent. One of a worker that knows nothing of this
/// would begin anew.
fn follows(answer: &ReplicaAnswer, sent: &SentAnswers, schema: &SchemaRef) -> bool {
    let first = answer.first.as_ref();
    let sequence = first.and_then(|first| {
        let row = GenerationRow::rows(first).ok()?.next()?;
        Some(row.sequence())
    });
    sequence == Some(sent.rows()) && answer.schema() == *schema
}
