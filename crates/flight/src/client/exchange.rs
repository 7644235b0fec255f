//! Client side of one `DoExchange`.

use std::pin::Pin;
use std::time::Instant;

use arrow_array::RecordBatch;
use arrow_flight::{FlightData, FlightDescriptor};
use arrow_schema::SchemaRef;
use futures::{Stream, stream};
use tokio::time::{Sleep, sleep_until, timeout_at};
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::transport::Channel;
use tonic::{CancellationHandle, Request, Streaming};
use volley_proto::predict_command;
use volley_types::{ChunkStream, Deadline, ErrorCode, Input, PredictError, PredictRequest};

use super::input::{self, InputError, Messages};
use crate::TOGETHER;
use crate::ingress::{Decoder, Ingress};
use crate::small_buffer_codec;
use crate::status::from_status;

/// One call, before it is sent.
pub(super) struct ExchangeRequest {
    pub(super) descriptor: FlightDescriptor,
    pub(super) input: Input,
    pub(super) deadline: Option<Deadline>,
    /// The caller drops the stream at the deadline.
    pub(super) caller_keeps_deadline: bool,
    pub(super) headers: MetadataMap,
}

impl ExchangeRequest {
    /// The call for a request that is sent at `now`.
    pub(super) fn of(request: PredictRequest, now: Instant, mut headers: MetadataMap) -> Self {
        if matches!(*request.input, Input::Batch(_)) {
            headers.insert(TOGETHER, MetadataValue::from_static("1"));
        }
        let command = predict_command::encode(&predict_command::to_wire(&request, now));
        Self {
            descriptor: FlightDescriptor::new_cmd(command),
            input: request.input.into_inner(),
            deadline: request.deadline,
            caller_keeps_deadline: request.caller_keeps_deadline,
            headers,
        }
    }
}

/// Sends the call and waits for the response's schema.
pub(super) async fn open(
    channel: Channel,
    opening: ExchangeRequest,
    now: Instant,
    accept_by: Instant,
) -> Result<ChunkStream, PredictError> {
    let deadline = opening.deadline;
    let timer = deadline.filter(|_| !opening.caller_keeps_deadline);
    if deadline.is_some_and(|deadline| deadline.remaining(now).is_zero()) {
        return Err(deadline_passed());
    }
    let (messages, input_error) = input::messages(opening.descriptor, opening.input)?;
    let mut call = Request::new(messages);
    *call.metadata_mut() = opening.headers;
    let cancel = CancelOnDrop(Some(call.cancellation_handle()));

    let by = deadline.map_or(accept_by, |deadline| deadline.instant().min(accept_by));
    let opened = timeout_at(by.into(), begin(channel, call)).await;
    let (schema, replies, decoder) = match opened {
        Ok(Ok(opened)) => opened,
        Ok(Err(error)) => return Err(input_error.get().cloned().unwrap_or(error)),
        Err(_) if deadline.is_some_and(|deadline| deadline.instant() <= accept_by) => {
            return Err(deadline_passed());
        }
        Err(_) => {
            return Err(PredictError::new(
                ErrorCode::Unavailable,
                "the node that runs this model did not answer in time; try again",
            ));
        }
    };
    let exchange = Exchange {
        replies,
        decoder,
        deadline: timer.map(|deadline| Box::pin(sleep_until(deadline.instant().into()))),
        input_error,
    };
    Ok(ChunkStream::new(schema, exchange.batches()).holding(cancel))
}

async fn begin(
    channel: Channel,
    call: Request<Messages>,
) -> Result<(SchemaRef, Streaming<FlightData>, Decoder), PredictError> {
    let mut replies = small_buffer_codec::exchange(channel, call)
        .await
        .map_err(from_status)?;
    let mut decoder = Decoder::default().with_columns_left_out();
    let schema = read_schema(&mut replies, &mut decoder).await?;
    Ok((schema, replies, decoder))
}

async fn read_schema(
    replies: &mut Streaming<FlightData>,
    decoder: &mut Decoder,
) -> Result<SchemaRef, PredictError> {
    while let Some(data) = replies.message().await.map_err(from_status)? {
        match decoder.decode(&data).map_err(broken_reply)? {
            Ingress::Schema { schema, .. } => return Ok(schema),
            Ingress::Empty => {}
            Ingress::Batch { .. } | Ingress::End => break,
        }
    }
    Err(PredictError::new(
        ErrorCode::Internal,
        "the node that runs this model answered without a schema",
    ))
}

/// The response's messages, and the state for their checks.
struct Exchange {
    replies: Streaming<FlightData>,
    decoder: Decoder,
    /// The timer for the complete stream, if the caller has none.
    deadline: Option<Pin<Box<Sleep>>>,
    input_error: InputError,
}

impl Exchange {
    fn batches(self) -> impl Stream<Item = Result<RecordBatch, PredictError>> + Send {
        stream::unfold(Some(self), |exchange| async move {
            let mut exchange = exchange?;
            match exchange.next().await {
                Ok(Some(batch)) => Some((Ok(batch), Some(exchange))),
                Ok(None) => None,
                Err(error) => {
                    let error = exchange.input_error.get().cloned().unwrap_or(error);
                    Some((Err(error), None))
                }
            }
        })
    }

    async fn next(&mut self) -> Result<Option<RecordBatch>, PredictError> {
        loop {
            let message = tokio::select! {
                // Polled first, so that a stream that is always ready also ends in time.
                biased;
                () = passed(&mut self.deadline) => return Err(deadline_passed()),
                message = self.replies.message() => message,
            };
            let Some(data) = message.map_err(from_status)? else {
                return Ok(None);
            };
            match self.decoder.decode(&data).map_err(broken_reply)? {
                Ingress::Batch { batch, .. } => return Ok(Some(batch)),
                Ingress::Empty | Ingress::End | Ingress::Schema { .. } => {}
            }
        }
    }
}

/// Waits for the deadline, or forever without one.
async fn passed(deadline: &mut Option<Pin<Box<Sleep>>>) {
    match deadline {
        Some(timer) => timer.as_mut().await,
        None => std::future::pending().await,
    }
}

/// Resets the HTTP/2 stream. Dropping the response alone does not, as long as the request
/// stream is open; cancelling alone does not once the request stream is done. The response is
/// dropped with the `ChunkStream` that holds this.
struct CancelOnDrop(Option<CancellationHandle>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        if let Some(cancel) = self.0.take() {
            cancel.cancel();
        }
    }
}

fn deadline_passed() -> PredictError {
    PredictError::new(
        ErrorCode::DeadlineExceeded,
        "the deadline passed before the model was done",
    )
}

/// A malformed response is a defect of the node, not of the caller's input.
fn broken_reply(error: PredictError) -> PredictError {
    PredictError::internal(
        "the node that runs this model sent a malformed response",
        error,
    )
}
