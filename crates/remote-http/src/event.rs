//! An event of a stream, and the errors of reading one.

use bytes::Bytes;

/// Maximum size of a line and of an event's data, in bytes. An event must fit into a message
/// between nodes, which is limited to 16 MiB.
pub const MAX_EVENT_BYTES: usize = 12 << 20;

/// The data of one event: the values of its `data` fields, joined by line feeds. Data in a single
/// line is a slice of the received chunk and is not copied. Event names are ignored, because the
/// data repeats them in all formats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventData(pub Bytes);

impl EventData {
    /// The data as text.
    ///
    /// # Errors
    /// [`SseError::NotText`] if the data is not UTF-8.
    pub fn text(&self) -> Result<&str, SseError> {
        std::str::from_utf8(&self.0).map_err(|_| SseError::NotText)
    }
}

/// An error that makes a stream unreadable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SseError {
    /// A line or an event exceeds [`MAX_EVENT_BYTES`].
    TooLong,
    /// An event is not UTF-8.
    NotText,
    /// A frame has a wrong checksum, length or header.
    Damaged,
}
