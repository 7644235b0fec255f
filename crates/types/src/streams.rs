//! Resumable streams of events: their ids and the interface to the coordinators that buffer them.

use std::fmt;
use std::pin::Pin;
use std::str::FromStr;

use async_trait::async_trait;
use bytes::Bytes;
use futures::Stream;

use crate::error::PredictError;
use crate::ids::{NodeId, TenantId};

/// Length of the random part of an id: 16 bytes in URL-safe base64 without padding.
pub const TOKEN_LEN: usize = 22;

/// Id of a resumable stream: its coordinator and an unguessable random token. Written `node.token`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId {
    /// The coordinator of the stream.
    pub node: NodeId,
    token: String,
}

impl StreamId {
    /// An id on `node` with this random part.
    ///
    /// # Errors
    /// `InvalidInput` when the token is not [`TOKEN_LEN`] characters of `[A-Za-z0-9_-]`.
    pub fn new(node: NodeId, token: impl Into<String>) -> Result<Self, PredictError> {
        let token = token.into();
        let well_formed = token.len() == TOKEN_LEN
            && token
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
        if well_formed {
            Ok(Self { node, token })
        } else {
            Err(malformed())
        }
    }

    /// The id of the event at `sequence` of this stream.
    #[must_use]
    pub fn event(&self, sequence: u64) -> EventId {
        EventId {
            stream: self.clone(),
            sequence,
        }
    }
}

fn malformed() -> PredictError {
    PredictError::invalid(
        "this is not an id of a resumable stream; use the id in the response's \
         'x-volley-stream-id' header, and the unchanged 'id' of the last event",
    )
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.node, self.token)
    }
}

impl FromStr for StreamId {
    type Err = PredictError;

    fn from_str(text: &str) -> Result<Self, PredictError> {
        let (node, token) = text.split_once('.').ok_or_else(malformed)?;
        Self::new(NodeId(number(node)?), token)
    }
}

/// Parses a number in canonical form: no sign, no leading zero.
fn number(text: &str) -> Result<u64, PredictError> {
    let number: u64 = text.parse().map_err(|_| malformed())?;
    if number.to_string() == text {
        Ok(number)
    } else {
        Err(malformed())
    }
}

/// Id of an event of a resumable stream. Events count from 1. Written `node.token.sequence`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventId {
    /// The stream.
    pub stream: StreamId,
    /// The event's sequence number.
    pub sequence: u64,
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.stream, self.sequence)
    }
}

impl FromStr for EventId {
    type Err = PredictError;

    fn from_str(text: &str) -> Result<Self, PredictError> {
        let (stream, sequence) = text.rsplit_once('.').ok_or_else(malformed)?;
        Ok(Self {
            stream: stream.parse()?,
            sequence: number(sequence)?,
        })
    }
}

/// Chunks of complete events, unchanged. The normal end is the end of the stream. After an error,
/// the stream has more events and may be resumed.
pub type EventPieces = Pin<Box<dyn Stream<Item = Result<Bytes, PredictError>> + Send>>;

/// The rest of a resumable stream.
pub enum ResumedStream {
    /// The remaining events, including future ones.
    Events(EventPieces),
    /// Empty: the caller already has the last event.
    Finished,
}

impl fmt::Debug for ResumedStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Events(_) => "ResumedStream::Events",
            Self::Finished => "ResumedStream::Finished",
        })
    }
}

/// Owner of a stream. Only the same caller may read and cancel it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamOwner {
    /// The caller's name; never a secret.
    pub caller: String,
    /// Tenant that is charged for the memory.
    pub tenant: TenantId,
}

/// Access to resumable streams: this coordinator's own, or those of another coordinator.
#[async_trait]
pub trait StreamSource: Send + Sync + 'static {
    /// Returns the events after `after` (0: all) to the owner. The previous reader's connection is
    /// aborted.
    ///
    /// # Cancel safety
    /// Dropping the future or the events keeps the stream, which can be resumed until it expires.
    ///
    /// # Errors
    /// `NotFound` if the caller has no such stream, or if the events are no longer buffered;
    /// `InvalidInput` if the event does not exist yet; `Unavailable` if the coordinator does not
    /// respond.
    async fn resume(
        &self,
        stream: &StreamId,
        after: u64,
        caller: &str,
    ) -> Result<ResumedStream, PredictError>;

    /// Cancels a stream and its work.
    ///
    /// # Cancel safety
    /// Not cancel safe: after the future is dropped, the stream may be cancelled or not.
    ///
    /// # Errors
    /// `NotFound` if the caller has no such stream; `Unavailable` if its coordinator does not
    /// respond.
    async fn cancel(&self, stream: &StreamId, caller: &str) -> Result<(), PredictError>;
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ids_read_as_they_are_written(
            node in any::<u64>(),
            token in "[A-Za-z0-9_-]{22}",
            sequence in any::<u64>(),
        ) {
            let id = StreamId::new(NodeId(node), token).unwrap();
            prop_assert_eq!(&id.to_string().parse::<StreamId>().unwrap(), &id);
            let event = id.event(sequence);
            prop_assert_eq!(event.to_string().parse::<EventId>().unwrap(), event);
        }

        #[test]
        fn any_text_is_an_id_in_its_one_form_or_refused(text in ".{0,60}") {
            if let Ok(id) = text.parse::<EventId>() {
                prop_assert_eq!(id.to_string(), text);
            }
        }
    }

    #[test]
    fn what_is_no_id_is_refused() {
        let token = "abcdefghijklmnopqrstuv";
        for bad in [
            String::new(),
            "1".to_owned(),
            token.to_owned(),
            format!("x.{token}"),
            format!("+1.{token}"),
            format!("01.{token}"),
            format!("1.{token}w"),
            format!("1.{}/", &token[1..]),
        ] {
            assert!(bad.parse::<StreamId>().is_err(), "{bad}");
            assert!(format!("{bad}.1").parse::<EventId>().is_err(), "{bad}");
        }
        for sequence in ["", "x", "-1", "01", "18446744073709551616"] {
            assert!(format!("1.{token}.{sequence}").parse::<EventId>().is_err());
        }
    }
}
