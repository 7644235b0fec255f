//! Input messages of an exchange on the server.

use std::time::Duration;

use arrow_array::{Array, RecordBatch};
use arrow_flight::{FlightData, FlightDescriptor};
use arrow_schema::SchemaRef;
use futures::{Stream, StreamExt, stream};
use prost::Message;
use tokio::time::timeout;
use tonic::Streaming;
use volley_types::{ErrorCode, Input, PredictError};

use super::counted::MessageShare;
use crate::ingress::{Decoder, Ingress};
use crate::status::from_status;

/// One exchange's input.
pub(super) struct ExchangeInput {
    messages: Streaming<FlightData>,
    decoder: Decoder,
    /// The message with the descriptor, if it has more content.
    first: Option<FlightData>,
    input: SchemaRef,
    must_mark_end: bool,
    ended: bool,
    taken: MessageShare,
    /// Size in bytes of messages whose rows may still be in use.
    held: usize,
}

/// Reads messages up to the one with the descriptor, and returns both.
pub(super) async fn read_descriptor(
    messages: &mut Streaming<FlightData>,
) -> Result<(FlightDescriptor, FlightData), PredictError> {
    let mut first = messages
        .message()
        .await
        .map_err(broken_off)?
        .ok_or_else(|| PredictError::invalid("the call ended before its descriptor"))?;
    let descriptor = first.flight_descriptor.take().ok_or_else(|| {
        PredictError::invalid("the first message of an exchange must carry a descriptor")
    })?;
    Ok((descriptor, first))
}

impl ExchangeInput {
    pub(super) fn new(
        messages: Streaming<FlightData>,
        first: FlightData,
        input: SchemaRef,
        must_mark_end: bool,
        taken: MessageShare,
    ) -> Self {
        Self {
            messages,
            decoder: Decoder::default(),
            first: Some(first),
            input,
            must_mark_end,
            ended: false,
            taken,
            held: 0,
        }
    }

    /// Reads the schema; `None` when the input ends before one.
    pub(super) async fn schema(&mut self) -> Result<Option<SchemaRef>, PredictError> {
        while !self.ended {
            match self.message().await? {
                Some(Ingress::Schema { schema, end }) => {
                    self.ended = end;
                    return Ok(Some(schema));
                }
                Some(Ingress::Empty) => {}
                Some(Ingress::Batch { .. }) => {
                    return Err(PredictError::invalid("rows arrived before their schema"));
                }
                Some(Ingress::End) | None => self.ended = true,
            }
        }
        Ok(None)
    }

    /// The rows after [`Self::schema`]: a batch if it is the only one and its end arrives within
    /// `grace`, otherwise a stream. `None` when there are no rows.
    ///
    /// The second value must be kept until the response is complete.
    pub(super) async fn rows(
        mut self,
        schema: SchemaRef,
        grace: Duration,
    ) -> Result<Option<(Input, Option<Self>)>, PredictError> {
        let Some(first) = self.next().await? else {
            return Ok(None);
        };
        let mut here = vec![Ok(first.clone())];
        if !self.ended {
            match timeout(grace, self.next()).await {
                Ok(second) => here.extend(second?.map(Ok)),
                Err(_elapsed) => {}
            }
        }
        if self.ended && here.len() == 1 {
            return Ok(Some((Input::Batch(first), Some(self))));
        }
        let batches = Box::pin(stream::iter(here).chain(self.rest()));
        Ok(Some((Input::Stream { schema, batches }, None)))
    }

    fn rest(self) -> impl Stream<Item = Result<RecordBatch, PredictError>> + Send {
        stream::unfold(Some(self), |incoming| async move {
            let mut incoming = incoming?;
            incoming.release();
            match incoming.next().await {
                Ok(Some(batch)) => Some((Ok(batch), Some(incoming))),
                Ok(None) => None,
                Err(error) => Some((Err(error), None)),
            }
        })
    }

    /// The next batch with rows. Cancel safe.
    async fn next(&mut self) -> Result<Option<RecordBatch>, PredictError> {
        while let Some(batch) = self.batch().await? {
            if batch.num_rows() > 0 {
                check_nulls(&batch, &self.input)?;
                return Ok(Some(batch));
            }
        }
        Ok(None)
    }

    /// Every batch after [`Self::schema`] unchanged, including nulls and empty batches.
    pub(super) fn batches(self) -> impl Stream<Item = Result<RecordBatch, PredictError>> + Send {
        stream::try_unfold(self, |mut incoming| async move {
            incoming.release();
            let batch = incoming.batch().await?;
            Ok(batch.map(|batch| (batch, incoming)))
        })
    }

    /// The next batch. Cancel-safe.
    async fn batch(&mut self) -> Result<Option<RecordBatch>, PredictError> {
        while !self.ended {
            match self.message().await? {
                Some(Ingress::Batch { batch, end }) => {
                    self.ended = end;
                    return Ok(Some(batch));
                }
                Some(Ingress::Empty) => {}
                Some(Ingress::End) | None => self.ended = true,
                Some(Ingress::Schema { .. }) => {
                    return Err(PredictError::invalid("a second schema among the rows"));
                }
            }
        }
        Ok(None)
    }

    /// Releases the memory of messages whose rows were read: a caller that polls again has
    /// processed them.
    fn release(&mut self) {
        self.taken.release(std::mem::take(&mut self.held));
    }

    /// The next message; `None` is the end of a client without end marker. Cancel safe.
    async fn message(&mut self) -> Result<Option<Ingress>, PredictError> {
        let data = match self.first.take() {
            Some(first) => Some(first),
            None => self.messages.message().await.map_err(broken_off)?,
        };
        self.held += data.as_ref().map_or(0, Message::encoded_len);
        match data {
            Some(data) => self.decoder.decode(&data).map(Some),
            None if self.must_mark_end => Err(PredictError::new(
                ErrorCode::Cancelled,
                "the input ended without the end marker that the command promises",
            )),
            None => Ok(None),
        }
    }
}

/// Checks nulls by value, because clients in other languages declare every column as nullable.
fn check_nulls(batch: &RecordBatch, declared: &SchemaRef) -> Result<(), PredictError> {
    for (field, column) in batch.schema_ref().fields().iter().zip(batch.columns()) {
        let required = declared
            .field_with_name(field.name())
            .is_ok_and(|declared| !declared.is_nullable());
        if required && column.null_count() > 0 {
            return Err(PredictError::invalid(format!(
                "input column '{}' must not hold nulls",
                field.name()
            )));
        }
    }
    Ok(())
}

/// Maps the end of the request stream to an error: a message over the limit is the client's error,
/// a rejection of this node has its own error, and everything else is a disconnect of the client.
fn broken_off(status: tonic::Status) -> PredictError {
    if !status.details().is_empty() {
        return from_status(status);
    }
    if status.code() == tonic::Code::OutOfRange {
        return PredictError::new(
            ErrorCode::TooLarge,
            "a message is over 16 MiB; send fewer rows in one batch",
        );
    }
    PredictError::new(ErrorCode::Cancelled, "the client aborted its input").with_source(status)
}
