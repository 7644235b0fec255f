//! Reads rows in Arrow's streaming format (Arrow IPC). This module parses the framing; a reader for
//! untrusted callers parses the messages.

use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use futures::stream;
use volley_types::arrow_messages::{ArrowMessage, ReadArrow};
use volley_types::{ErrorCode, Input, PredictError};

use super::ndjson::late;
use super::pieces::Pieces;

/// Marker before the length of each message.
const CONTINUATION: u32 = u32::MAX;
/// Maximum length of a message's header in bytes.
const MAX_HEADER_BYTES: usize = 256 << 10;
/// Maximum length of a message's body in bytes.
const MAX_BODY_BYTES: usize = 16 << 20;

/// Reads the schema, and returns the rows after it as a stream. Not cancel safe: dropping the
/// future loses the body.
///
/// # Errors
/// `InvalidInput`; `TooLarge`; `DeadlineExceeded` if no schema arrives within `timeout`;
/// `Unimplemented` without a reader.
pub(super) async fn read(
    body: Pieces,
    reader: Option<Box<dyn ReadArrow>>,
    timeout: Duration,
) -> Result<Input, PredictError> {
    let reader = reader.ok_or_else(|| {
        let message = "Arrow streams are not supported here; send JSON lines";
        PredictError::new(ErrorCode::Unimplemented, message)
    })?;
    let mut messages = Messages {
        body,
        buffer: BytesMut::new(),
        reader,
    };
    let first = tokio::time::timeout(timeout, messages.next()).await;
    let schema = match first.map_err(|_| late())?? {
        Some(ArrowMessage::Schema(schema)) => schema,
        _ => return Err(malformed("it does not start with a schema")),
    };
    let batches = stream::unfold(Some(messages), async |messages| {
        let mut messages = messages?;
        loop {
            match messages.next().await {
                Ok(Some(ArrowMessage::Batch(batch))) => return Some((Ok(batch), Some(messages))),
                Ok(Some(ArrowMessage::Schema(_) | ArrowMessage::Other)) => {}
                Ok(None) => return None,
                Err(error) => return Some((Err(error), None)),
            }
        }
    });
    let batches = Box::pin(batches);
    Ok(Input::Stream { schema, batches })
}

fn malformed(what: &str) -> PredictError {
    PredictError::invalid(format!(
        "the body is not a stream of the type 'application/vnd.apache.arrow.stream': {what}"
    ))
}

struct Messages {
    body: Pieces,
    buffer: BytesMut,
    reader: Box<dyn ReadArrow>,
}

impl Messages {
    /// The next message; `None` at the end mark. A body that ends without the mark is an error,
    /// because it was truncated.
    async fn next(&mut self) -> Result<Option<ArrowMessage>, PredictError> {
        // The caller has consumed the previous message.
        self.body.taken(self.buffer.len());
        self.fill(8).await?;
        if self.buffer.get_u32_le() != CONTINUATION {
            return Err(malformed("a message has a wrong start"));
        }
        let length = usize::try_from(self.buffer.get_u32_le()).unwrap_or(usize::MAX);
        if length == 0 {
            return Ok(None);
        }
        if MAX_HEADER_BYTES < length {
            return Err(too_large());
        }
        let header = self.take(length).await?;
        let body = body_length(&header)?;
        if MAX_BODY_BYTES < body {
            return Err(too_large());
        }
        let body = self.take(body).await?;
        self.reader.read(header, body).map(Some)
    }

    async fn take(&mut self, bytes: usize) -> Result<Bytes, PredictError> {
        self.fill(bytes).await?;
        Ok(self.buffer.split_to(bytes).freeze())
    }

    async fn fill(&mut self, bytes: usize) -> Result<(), PredictError> {
        while self.buffer.len() < bytes {
            if !self.body.append(&mut self.buffer).await? {
                return Err(malformed("it ends without its end mark"));
            }
        }
        Ok(())
    }
}

fn body_length(header: &[u8]) -> Result<usize, PredictError> {
    let message = arrow_ipc::root_as_message(header)
        .map_err(|error| malformed("a header is malformed").with_source(error.to_string()))?;
    usize::try_from(message.bodyLength()).map_err(|_| malformed("a body has a negative length"))
}

fn too_large() -> PredictError {
    PredictError::new(
        ErrorCode::TooLarge,
        "an Arrow message is over 16 MiB, or its header over 256 KiB; send fewer rows in a batch",
    )
}
