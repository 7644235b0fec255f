//! Streams of events that outlive a client's connection: their ids, and the seam to whoever holds
//! them.

use std::fmt;
use std::pin::Pin;
use std::str::FromStr;

use async_trait::async_trait;
use bytes::Bytes;
use futures::Stream;

use crate::error::PredictError;
use crate::ids::{NodeId, TenantId};

/// Characters of the random part of an id: 16 bytes in the alphabet for URLs, without padding.
pub const TOKEN_LEN: usize = 22;

/// A held stream: the coordinator that holds it, and a random part that cannot be guessed.
/// Written `node.token`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId {
    /// The coordinator that holds the stream.
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

    /// The id of this stream's event at `sequence`.
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

/// A number in its one form: no sign, no leading zero.
fn number(text: &str) -> Result<u64, PredictError> {
    let number: u64 = text.parse().map_err(|_| malformed())?;
    if number.to_string() == text {
        Ok(number)
    } else {
        Err(malformed())
    }
}

/// One event of a held stream; events count from 1. Written `node.token.sequence`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventId {
    /// The stream.
    pub stream: StreamId,
    /// The event's place in it.
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

/// Pieces of whole events, as they were written. Its clean end is the stream's; an error means
/// that there is more, and that it may be taken up again.
pub type EventPieces = Pin<Box<dyn Stream<Item = Result<Bytes, PredictError>> + Send>>;

/// What is left of a held stream.
pub enum ResumedStream {
    /// These events, and those to come.
    Events(EventPieces),
    /// Nothing: the last event was had already.
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

/// On whose behalf a stream is held. Only the same caller may read and cancel it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamOwner {
    /// The caller's name; never a secret.
    pub caller: String,
    /// Whose share of memory it takes.
    pub tenant: TenantId,
}

/// Whoever holds streams: a coordinator's own edge, or the way to another coordinator's.
#[async_trait]
pub trait StreamSource: Send + Sync + 'static {
    /// The events behind `after` (0: all of them), for their owner. Whoever read the stream
    /// before is sent away.
    ///
    /// # Cancel safety
    /// Dropping the pieces leaves the stream to the next who takes it up, for as long as it is
    /// held.
    ///
    /// # Errors
    /// `NotFound` when the caller has no such stream, or that part of it is not held (any more); `InvalidInput`
    /// when it has no such event; `Unavailable` when its coordinator does not answer.
    async fn resume(
        &self,
        stream: &StreamId,
        after: u64,
        caller: &str,
    ) -> Result<ResumedStream, PredictError>;

    /// Ends a stream, and the work behind it.
    ///
    /// # Errors
    /// `NotFound` when the caller has no such stream; `Unavailable` when its coordinator does not
    /// answer.
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
