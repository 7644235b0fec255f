//! One event of a stream, and why there is none.

use bytes::Bytes;

/// The longest line, and the most data of one event, in bytes.
/// What comes of one still fits into a message between nodes, which holds 16 MiB.
pub const MAX_EVENT_BYTES: usize = 12 << 20;

/// The data of one event: the values of its `data` fields, joined by line feeds. Where it came in
/// one piece it is a part of that piece, and not copied. Names of events say nothing that the data
/// of the formats does not, and are passed over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventData(pub Bytes);

impl EventData {
    /// The data as text.
    ///
    /// # Errors
    /// [`SseError::NotText`].
    pub fn text(&self) -> Result<&str, SseError> {
        std::str::from_utf8(&self.0).map_err(|_| SseError::NotText)
    }
}

/// Why a stream cannot be read on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SseError {
    /// A line or an event is over the limit.
    TooLong,
    /// An event is no UTF-8.
    NotText,
    /// A frame's checksum does not fit, or its headers are none.
    Damaged,
}
