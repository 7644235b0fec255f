//! The seam to whoever reads Arrow's messages of callers that are not trusted.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use bytes::Bytes;

use crate::error::PredictError;

/// What one message holds.
#[derive(Clone, Debug)]
pub enum ArrowMessage {
    /// The schema of the batches that follow.
    Schema(SchemaRef),
    /// Rows.
    Batch(RecordBatch),
    /// Nothing that matters.
    Other,
}

/// Reads the messages of one Arrow stream, in order.
pub trait ReadArrow: Send {
    /// Checks and reads the next message. Never panics, whatever the bytes.
    ///
    /// # Errors
    /// `InvalidInput` or `TooLarge`: what is wrong with it.
    fn read(&mut self, header: Bytes, body: Bytes) -> Result<ArrowMessage, PredictError>;
}

/// Begins to read a stream.
pub type OpenArrow = Arc<dyn Fn() -> Box<dyn ReadArrow> + Send + Sync>;
