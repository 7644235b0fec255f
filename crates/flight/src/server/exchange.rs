//! One `DoExchange`, seen from the server.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use arrow_flight::FlightData;
use arrow_schema::Schema;
use futures::{FutureExt, Stream, StreamExt};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::{timeout, timeout_at};
use tokio_util::task::AbortOnDropHandle;
use tonic::metadata::MetadataMap;
use tonic::{Request, Status, Streaming};
use tracing::Instrument;
use volley_proto::predict_command::PredictHead;
use volley_types::{
    ChunkStream, Deadline, ErrorCode, Predict, PredictError, RequestId, Signature, Task,
    TraceContext,
};

use super::FlightServerConfig;
use super::incoming::{Incoming, read_descriptor};
use crate::descriptor;
use crate::egress::{Coalesce, Encoder, RESPONSE_MESSAGE_BYTES};
use crate::status::to_status;

/// Messages that wait for the connection to take them.
const READY_MESSAGES: usize = 2;

/// Starts an exchange. It runs on its own, so that it notices a client that does not read, and
/// ends with the stream that is returned.
pub(super) fn start(
    predict: Arc<dyn Predict>,
    config: FlightServerConfig,
    request: Request<Streaming<FlightData>>,
    place: OwnedSemaphorePermit,
) -> Outgoing {
    let (replies, messages) = mpsc::channel(READY_MESSAGES);
    let (metadata, _, requests) = request.into_parts();
    let exchange = Exchange {
        predict,
        config,
        replies,
    };
    let task = tokio::spawn(async move {
        let outcome = exchange.run(&metadata, requests).await;
        drop(place);
        outcome
    });
    Outgoing {
        messages,
        task: Some(AbortOnDropHandle::new(task)),
    }
}

/// The response's messages, then the error where one ended the exchange. Dropping it stops the
/// exchange.
pub struct Outgoing {
    messages: mpsc::Receiver<FlightData>,
    task: Option<AbortOnDropHandle<Result<(), Status>>>,
}

impl Stream for Outgoing {
    type Item = Result<FlightData, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(message) = ready!(self.messages.poll_recv(cx)) {
            return Poll::Ready(Some(Ok(message)));
        }
        let Some(task) = self.task.as_mut() else {
            return Poll::Ready(None);
        };
        let outcome = ready!(task.poll_unpin(cx));
        self.task = None;
        Poll::Ready(match outcome {
            Ok(Ok(())) => None,
            Ok(Err(status)) => Some(Err(status)),
            // What was produced before the panic has been sent; the client hears of the rest.
            Err(panic) => {
                let error = PredictError::internal("the exchange failed", panic);
                tracing::error!(error = %error.chain(), "exchange panicked");
                Some(Err(to_status(&error, None)))
            }
        })
    }
}

impl std::fmt::Debug for Outgoing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outgoing").finish_non_exhaustive()
    }
}

struct Exchange {
    predict: Arc<dyn Predict>,
    config: FlightServerConfig,
    replies: mpsc::Sender<FlightData>,
}

impl Exchange {
    async fn run(
        self,
        metadata: &MetadataMap,
        mut requests: Streaming<FlightData>,
    ) -> Result<(), Status> {
        let opened = timeout(self.config.open_timeout, read_descriptor(&mut requests)).await;
        let (head, first) = opened
            .unwrap_or_else(|_| {
                Err(PredictError::new(
                    ErrorCode::DeadlineExceeded,
                    "the client sent no descriptor in time",
                ))
            })
            .and_then(|(descriptor, first)| {
                let now = Instant::now();
                let mut head = descriptor::head(&descriptor, now)?;
                adopt_headers(&mut head, &descriptor, metadata);
                let longest = Deadline::after(now, self.config.max_exchange_time);
                head.deadline = Some(head.deadline.map_or(longest, |it| it.earlier(longest)));
                Ok((head, first))
            })
            .map_err(|error| refuse(&error, None))?;
        let request_id = head.request_id.clone();
        let span = tracing::info_span!(
            "exchange",
            request_id = %head.request_id,
            model = %head.model,
            traceparent = %head.trace,
        );
        self.bounded(head, requests, first)
            .instrument(span.clone())
            .await
            .map_err(|error| span.in_scope(|| refuse(&error, Some(&request_id))))
    }

    /// Everything after the descriptor, within the deadline.
    async fn bounded(
        &self,
        head: PredictHead,
        requests: Streaming<FlightData>,
        first: FlightData,
    ) -> Result<(), PredictError> {
        let Some(deadline) = head.deadline else {
            return self.answer(head, requests, first).await;
        };
        timeout_at(
            deadline.instant().into(),
            self.answer(head, requests, first),
        )
        .await
        .unwrap_or_else(|_| {
            Err(PredictError::new(
                ErrorCode::DeadlineExceeded,
                "the deadline passed before the model was done",
            ))
        })
    }

    /// The schema goes out before the input is read: many clients wait for it.
    async fn answer(
        &self,
        head: PredictHead,
        requests: Streaming<FlightData>,
        first: FlightData,
    ) -> Result<(), PredictError> {
        let signature = self.predict.signature(&head.model).await?;
        let mut encoder = Encoder::new(RESPONSE_MESSAGE_BYTES);
        self.send(encoder.schema(&signature.output)).await?;

        let mut incoming = Incoming::new(requests, first, &signature, head.end_marker);
        let Some(schema) = incoming.schema().await? else {
            return no_rows(signature.task);
        };
        signature.check_input(&schema)?;
        let grace = self.config.whole_request_grace;
        let Some((input, _incoming)) = incoming.rows(schema, grace).await? else {
            return no_rows(signature.task);
        };
        let chunks = self.predict.predict(head.with_input(input)).await?;
        check_output(&chunks, &signature)?;
        self.send_chunks(chunks, &mut encoder).await
    }

    async fn send_chunks(
        &self,
        chunks: ChunkStream,
        encoder: &mut Encoder,
    ) -> Result<(), PredictError> {
        let mut messages = Vec::new();
        let mut chunks = Coalesce::new(chunks.schema(), chunks);
        while let Some(batch) = chunks.next().await {
            encoder.batch(&batch?, &mut messages)?;
            for message in messages.drain(..) {
                self.send(message).await?;
            }
        }
        Ok(())
    }

    /// Hands `message` to the connection; waits for a slow reader up to the stall timeout.
    async fn send(&self, message: FlightData) -> Result<(), PredictError> {
        let message = match self.replies.try_send(message) {
            Ok(()) => return Ok(()),
            Err(TrySendError::Full(message) | TrySendError::Closed(message)) => message,
        };
        match timeout(self.config.stall_timeout, self.replies.send(message)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_closed)) => Err(PredictError::new(
                ErrorCode::Cancelled,
                "the client went away",
            )),
            Err(_elapsed) => Err(PredictError::new(
                ErrorCode::Cancelled,
                "the client did not read its answer for too long",
            )),
        }
    }
}

/// Plain calls may carry trace and request id in headers; a command has its own.
fn adopt_headers(
    head: &mut PredictHead,
    descriptor: &arrow_flight::FlightDescriptor,
    metadata: &MetadataMap,
) {
    if !descriptor.cmd.is_empty() {
        return;
    }
    let text = |name| metadata.get(name).and_then(|value| value.to_str().ok());
    if let Some(trace) = text("traceparent").and_then(TraceContext::parse) {
        head.trace = trace;
    }
    if let Some(id) = text("x-request-id").and_then(|id| RequestId::new(id).ok()) {
        head.request_id = id;
    }
}

/// A table without rows has an answer without rows; a generation without a prompt is a mistake.
fn no_rows(task: Task) -> Result<(), PredictError> {
    match task {
        Task::Generate => Err(PredictError::invalid(
            "the request holds no rows; send at least one with a prompt",
        )),
        _ => Ok(()),
    }
}

/// The schema has been sent already; another version may have been deployed since.
fn check_output(chunks: &ChunkStream, signature: &Signature) -> Result<(), PredictError> {
    let columns = |schema: &Schema| -> Vec<_> {
        schema
            .fields()
            .iter()
            .map(|field| (field.name().clone(), field.data_type().clone()))
            .collect()
    };
    let schema = chunks.schema();
    if Arc::ptr_eq(&schema, &signature.output) || columns(&schema) == columns(&signature.output) {
        return Ok(());
    }
    Err(PredictError::new(
        ErrorCode::Unavailable,
        "the model was replaced while the call began; try again",
    ))
}

fn refuse(error: &PredictError, request_id: Option<&RequestId>) -> Status {
    let request_id_text = request_id.map(ToString::to_string).unwrap_or_default();
    tracing::info!(
        code = %error.code,
        error = %error.chain(),
        request_id = request_id_text,
        "exchange failed"
    );
    to_status(error, request_id)
}
