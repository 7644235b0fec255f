//! Interface to the reader of Arrow messages from untrusted callers.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use bytes::Bytes;

use crate::error::PredictError;

/// The content of one message.
#[derive(Clone, Debug)]
pub enum ArrowMessage {
    /// The schema of the batches that follow.
    Schema(SchemaRef),
    /// Rows.
    Batch(RecordBatch),
    /// Any other message; readers skip it.
    Other,
}

/// Reads the messages of one Arrow stream, in order.
pub trait ReadArrow: Send {
    /// Checks and reads the next message. Never panics, whatever the bytes.
    ///
    /// # Errors
    /// `InvalidInput` for a malformed message, `TooLarge` for one over the size limits.
    fn read(&mut self, header: Bytes, body: Bytes) -> Result<ArrowMessage, PredictError>;
}

/// Opens a reader for a new stream.
pub type OpenArrow = Arc<dyn Fn() -> Box<dyn ReadArrow> + Send + Sync>;
