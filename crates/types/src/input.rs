//! The rows of a request.

use std::pin::Pin;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use futures::Stream;

use crate::error::PredictError;

/// A stream of request batches. An error ends it.
pub type BatchStream = Pin<Box<dyn Stream<Item = Result<RecordBatch, PredictError>> + Send>>;

/// The rows of a request: one row is one item.
pub enum Input {
    /// All rows are in memory; the request can be retried on another replica.
    Batch(RecordBatch),
    /// Rows still arrive; the response may start before the input ends.
    Stream {
        /// The schema of every batch.
        schema: SchemaRef,
        /// The batches, in order.
        batches: BatchStream,
    },
}

impl Input {
    /// The schema of the rows.
    #[must_use]
    pub fn schema(&self) -> SchemaRef {
        match self {
            Self::Batch(batch) => batch.schema(),
            Self::Stream { schema, .. } => schema.clone(),
        }
    }

    /// A copy that shares the buffers; `None` for a stream.
    #[must_use]
    pub fn try_clone(&self) -> Option<Self> {
        match self {
            Self::Batch(batch) => Some(Self::Batch(batch.clone())),
            Self::Stream { .. } => None,
        }
    }

    /// Converts either variant to a stream.
    #[must_use]
    pub fn into_stream(self) -> BatchStream {
        match self {
            Self::Batch(batch) => Box::pin(futures::stream::once(async { Ok(batch) })),
            Self::Stream { batches, .. } => batches,
        }
    }
}

impl std::fmt::Debug for Input {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Batch(batch) => write!(f, "Input::Batch({} rows)", batch.num_rows()),
            Self::Stream { .. } => f.write_str("Input::Stream"),
        }
    }
}
