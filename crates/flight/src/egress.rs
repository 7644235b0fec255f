//! Encoding of rows as messages: one batch is one message, split if it is too large, and merged
//! with other ready batches. Clients get each event of columns as a message of its own.

use std::pin::Pin;
use std::sync::LazyLock;
use std::task::{Context, Poll};

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_flight::{FlightData, SchemaAsIpc};
use arrow_ipc::MetadataVersion;
use arrow_ipc::writer::{DictionaryTracker, IpcDataGenerator, IpcWriteContext, IpcWriteOptions};
use arrow_schema::{ArrowError, SchemaRef};
use futures::Stream;
use volley_types::signature::events::EVENT_END;
use volley_types::{ChunkStream, ErrorCode, PredictError};

use crate::columns::{self, Columns};
use crate::schema_cache;
use crate::{MAX_MESSAGE_BYTES, MAX_ROWS};

/// Message size in bytes at which a larger batch is split, and up to which batches are merged.
pub const RESPONSE_MESSAGE_BYTES: usize = 1 << 20;

/// The same for requests: a request of one message can be retried.
pub const REQUEST_MESSAGE_BYTES: usize = 8 << 20;

/// Rows that are merged into one message.
const MAX_MERGED_ROWS: usize = 4096;

/// Space for the header in the largest message, in bytes.
const HEADER_ROOM: usize = 512 << 10;

/// Padding of buffers in bytes, the minimum that Arrow allows. The default is 64, but the buffers
/// of a chunk have only a few bytes each.
#[expect(
    clippy::expect_used,
    reason = "the options are constants, and every test encodes with them"
)]
static OPTIONS: LazyLock<IpcWriteOptions> = LazyLock::new(|| {
    IpcWriteOptions::try_new(8, false, MetadataVersion::V5)
        .expect("Arrow's format has eight for the least alignment")
});

/// Encodes batches of one schema.
pub struct Encoder {
    options: IpcWriteOptions,
    generator: IpcDataGenerator,
    dictionaries: DictionaryTracker,
    context: IpcWriteContext,
    split_bytes: usize,
    leaves_out: bool,
}

impl Encoder {
    /// An encoder that splits batches at `split_bytes`.
    #[must_use]
    pub fn new(split_bytes: usize) -> Self {
        Self {
            options: OPTIONS.clone(),
            generator: IpcDataGenerator::default(),
            dictionaries: DictionaryTracker::new(false),
            context: IpcWriteContext::default(),
            split_bytes: split_bytes.max(1),
            leaves_out: false,
        }
    }

    /// Sets whether blank columns are omitted, for readers that support it.
    #[must_use]
    pub fn leaving_out(self, leaves_out: bool) -> Self {
        Self { leaves_out, ..self }
    }

    /// The message that announces `schema`.
    #[must_use]
    pub fn schema(&self, schema: &SchemaRef) -> FlightData {
        let encode = || FlightData::from(SchemaAsIpc::new(schema, &self.options)).data_header;
        FlightData {
            data_header: schema_cache::encoded(schema, encode),
            ..FlightData::default()
        }
    }

    /// Appends the messages of `batch`, or no message if it has no rows.
    ///
    /// # Errors
    /// `TooLarge` when one row does not fit into a message, `Internal` when Arrow cannot write
    /// the batch.
    pub fn batch(
        &mut self,
        batch: &RecordBatch,
        messages: &mut Vec<FlightData>,
    ) -> Result<(), PredictError> {
        let rows = batch.num_rows();
        if rows == 0 {
            return Ok(());
        }
        if rows > MAX_ROWS {
            return self.halves(batch, messages);
        }
        let data = self.message(batch)?;
        let bytes = data.data_body.len();
        if bytes > self.split_bytes && rows > 1 {
            return self.halves(batch, messages);
        }
        if bytes > MAX_MESSAGE_BYTES - HEADER_ROOM {
            return Err(PredictError::new(
                ErrorCode::TooLarge,
                "one row is over the limit of 15 MiB for a message",
            ));
        }
        messages.push(data);
        Ok(())
    }

    /// The single message of `batch`, even if it has no rows.
    ///
    /// # Errors
    /// `TooLarge` when it does not fit into a message, `Internal` when Arrow cannot write it.
    pub fn whole(&mut self, batch: &RecordBatch) -> Result<FlightData, PredictError> {
        let data = self.message(batch)?;
        if data.data_body.len() > MAX_MESSAGE_BYTES - HEADER_ROOM || batch.num_rows() > MAX_ROWS {
            return Err(PredictError::new(
                ErrorCode::TooLarge,
                "the response to one batch is over the limit of 15 MiB for a message; send fewer \
                 rows in one batch",
            ));
        }
        Ok(data)
    }

    fn message(&mut self, batch: &RecordBatch) -> Result<FlightData, PredictError> {
        let said = Columns::said(batch).filter(|_| self.leaves_out);
        let Some(said) = said else {
            return self.encoded(batch);
        };
        let data = self.encoded(&said.of(batch).map_err(unwritten)?)?;
        Ok(data.with_app_metadata(said.name()))
    }

    fn encoded(&mut self, batch: &RecordBatch) -> Result<FlightData, PredictError> {
        let (dictionaries, encoded) = self
            .generator
            .encode(
                batch,
                &mut self.dictionaries,
                &self.options,
                &mut self.context,
            )
            .map_err(unwritten)?;
        if !dictionaries.is_empty() {
            return Err(PredictError::new(
                ErrorCode::Internal,
                "dictionary-encoded columns cannot be sent; use plain values",
            ));
        }
        Ok(FlightData::from(encoded))
    }

    fn halves(
        &mut self,
        batch: &RecordBatch,
        messages: &mut Vec<FlightData>,
    ) -> Result<(), PredictError> {
        let half = batch.num_rows() / 2;
        self.batch(&batch.slice(0, half), messages)?;
        self.batch(&batch.slice(half, batch.num_rows() - half), messages)
    }
}

/// Merges ready batches and never waits for one.
#[derive(Debug)]
pub struct Coalesce<S> {
    batches: S,
    schema: SchemaRef,
    /// Whether each event of columns is returned as a batch of its own.
    splits_events: bool,
    /// A polled item that did not fit, that followed merged rows, or with further events.
    held: Option<Option<Result<RecordBatch, PredictError>>>,
}

impl Coalesce<ChunkStream> {
    /// The batches for the reader of `encoder`. A client uses each event of columns as it arrives;
    /// a node reads the borders of events in their columns.
    pub fn for_reader(chunks: ChunkStream, encoder: &Encoder) -> Self {
        let schema = chunks.schema();
        let splits_events = !encoder.leaves_out && schema.column_with_name(EVENT_END).is_some();
        Self {
            splits_events,
            ..Self::new(schema, chunks)
        }
    }
}

impl<S> Coalesce<S>
where
    S: Stream<Item = Result<RecordBatch, PredictError>> + Unpin,
{
    /// Merges `batches` of `schema`.
    pub fn new(schema: SchemaRef, batches: S) -> Self {
        Self {
            batches,
            schema,
            splits_events: false,
            held: None,
        }
    }

    /// The first event of `rows`; the others are held.
    fn first_event(&mut self, rows: RecordBatch) -> RecordBatch {
        let ends = rows.column_by_name(EVENT_END);
        let ends = ends.and_then(|ends| ends.as_boolean_opt());
        let first = ends.and_then(|ends| ends.values().set_indices().next());
        let count = first.map_or(rows.num_rows(), |end| end + 1);
        if count < rows.num_rows() {
            let rest = rows.slice(count, rows.num_rows() - count);
            self.held = Some(Some(Ok(rest)));
        }
        rows.slice(0, count)
    }

    fn poll_batch(&mut self, cx: &mut Context<'_>) -> Poll<Option<S::Item>> {
        match self.held.take() {
            Some(held) => Poll::Ready(held),
            None => Pin::new(&mut self.batches).poll_next(cx),
        }
    }

    /// Adds all ready batches to `first`.
    fn gather(
        &mut self,
        first: RecordBatch,
        cx: &mut Context<'_>,
    ) -> Result<RecordBatch, PredictError> {
        let mut rows = first.num_rows();
        let mut bytes = None;
        let mut merged = vec![first];
        loop {
            match Pin::new(&mut self.batches).poll_next(cx) {
                Poll::Ready(Some(Ok(next))) => {
                    let next_bytes = slice_bytes(&next);
                    let total = bytes.unwrap_or_else(|| slice_bytes(&merged[0])) + next_bytes;
                    rows += next.num_rows();
                    if rows > MAX_MERGED_ROWS || total > RESPONSE_MESSAGE_BYTES {
                        self.held = Some(Some(Ok(next)));
                        break;
                    }
                    bytes = Some(total);
                    merged.push(next);
                }
                Poll::Ready(other) => {
                    self.held = Some(other);
                    break;
                }
                Poll::Pending => break,
            }
        }
        if merged.len() == 1 {
            return merged
                .pop()
                .ok_or_else(|| PredictError::new(ErrorCode::Internal, "no rows to send"));
        }
        columns::concat(&self.schema, &merged)
            .map_err(|error| PredictError::internal("rows could not be merged", error))
    }
}

impl<S> Stream for Coalesce<S>
where
    S: Stream<Item = Result<RecordBatch, PredictError>> + Unpin,
{
    type Item = Result<RecordBatch, PredictError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        match this.poll_batch(cx) {
            Poll::Ready(Some(Ok(first))) if this.splits_events => {
                Poll::Ready(Some(Ok(this.first_event(first))))
            }
            Poll::Ready(Some(Ok(first))) => Poll::Ready(Some(this.gather(first, cx))),
            other => other,
        }
    }
}

fn unwritten(error: ArrowError) -> PredictError {
    PredictError::internal("rows could not be written as Arrow", error)
}

/// Size of the rows in bytes, without the rest of the parent of a slice.
fn slice_bytes(batch: &RecordBatch) -> usize {
    batch
        .columns()
        .iter()
        .map(|column| {
            let data = column.to_data();
            data.get_slice_memory_size()
                .unwrap_or(data.get_array_memory_size())
        })
        .sum()
}

#[cfg(test)]
mod tests;
