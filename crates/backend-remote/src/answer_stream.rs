//! The answer of one server to one item, as a stream.

use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::time::Duration;

use futures::{Stream, StreamExt};
use volley_backend::items::Item;
use volley_provider_kit::framing::BodyFraming;
use volley_remote_http::credential::Secret;
use volley_remote_http::upstream;
use volley_types::PredictError;

use crate::answer::{self, Part, UpstreamAnswer};
use crate::call::{self, AnswerHead, UpstreamCall};
use crate::server::Server;
use volley_remote_http::body::{self, Piece};

/// Time limit for the final event after the finish reason.
const TERMINATOR_WAIT: Duration = Duration::from_secs(5);

/// An answer that is being read. Dropping it closes the connection.
pub(crate) struct AnswerStream {
    /// A part that was read but not returned yet.
    ready: Option<Part>,
    /// The rest; `None` for a whole answer.
    rest: Option<RemainingAnswer>,
}

struct RemainingAnswer {
    pieces: Pin<Box<dyn Stream<Item = Piece> + Send>>,
    /// The next item of `pieces`, if it is not a chunk of bytes.
    held: Option<Option<Piece>>,
    answer: UpstreamAnswer,
    secret: Option<Secret>,
    /// Time limits for the next chunk and for later ones.
    limits: (Duration, Duration),
}

impl AnswerStream {
    /// Calls the server and reads until its answer has content. Dropping the future closes the
    /// connection.
    ///
    /// # Errors
    /// Those of [`Self::open`] and [`Self::begin`].
    pub(crate) async fn begun(
        call: &UpstreamCall,
        server: &Server,
        item: &Item,
    ) -> Result<Self, PredictError> {
        let mut reading = Self::open(call, server, item).await?;
        reading.begin().await?;
        Ok(reading)
    }

    /// Calls the server and reads the headers of its answer, and all of an answer that is not
    /// streamed. Dropping the future closes the connection.
    ///
    /// # Errors
    /// Those of [`UpstreamCall::send`], `Unavailable` for an unreadable credential, and those of
    /// [`answer::whole`].
    pub(crate) async fn open(
        call: &UpstreamCall,
        server: &Server,
        item: &Item,
    ) -> Result<Self, PredictError> {
        let secret = server.secret().await?;
        // Makes the ids of tool calls unique in this process.
        let seed = RandomState::new().hash_one(0);
        let AnswerHead {
            response,
            shape,
            check,
        } = call.send(server, secret.as_ref(), item).await?;
        let limits = call.silence(server);
        let BodyFraming::Stream(framing) = shape else {
            let body = body::bounded(response, call::MAX_WHOLE_BYTES, limits.1).await?;
            let redact = |text: &str| Secret::redacted(secret.as_ref(), text);
            let format = call.shared_format(server).filter(|_| check.is_plain());
            let mut part = answer::whole(&server.wire, check, seed, &body, redact)?;
            if let Some(format) = format {
                part.keep(format, &body);
            }
            return Ok(Self {
                ready: Some(part),
                rest: None,
            });
        };
        let bounded = body::is_bounded(&response);
        let rest = RemainingAnswer {
            pieces: Box::pin(response.bytes_stream()),
            held: None,
            answer: UpstreamAnswer::new(server.wire.clone(), seed)
                .framed(framing)
                .checked_by(check)
                .bounded(bounded),
            secret,
            limits,
        };
        Ok(Self {
            ready: None,
            rest: Some(rest),
        })
    }

    /// Reads until there is content for the caller. Cancel safe.
    ///
    /// # Errors
    /// Those of [`Self::next`].
    pub(crate) async fn begin(&mut self) -> Result<(), PredictError> {
        while self.ready.as_ref().is_none_or(Part::is_empty) {
            match self.read().await {
                Some(part) => self.ready = Some(part?),
                None => break,
            }
        }
        Ok(())
    }

    /// Returns the next part of the answer; `None` after its end. Cancel safe, but the time limits
    /// restart.
    ///
    /// # Errors
    /// The failure, after all parts that were read before it.
    pub(crate) async fn next(&mut self) -> Option<Result<Part, PredictError>> {
        match self.ready.take() {
            Some(part) => Some(Ok(part)),
            None => self.read().await,
        }
    }

    async fn read(&mut self) -> Option<Result<Part, PredictError>> {
        let rest = self.rest.as_mut()?;
        if let Some(failure) = rest.answer.take_failure() {
            self.rest = None;
            return Some(Err(failure));
        }
        if rest.answer.has_ended() {
            self.rest = None;
            return None;
        }
        let part = rest.part().await;
        if part.is_err() {
            self.rest = None;
        }
        Some(part)
    }
}

impl RemainingAnswer {
    async fn part(&mut self) -> Result<Part, PredictError> {
        let piece = match self.held.take() {
            Some(held) => held,
            None if self.answer.has_reason() => {
                let wait = self.limits.1.min(TERMINATOR_WAIT);
                let next = tokio::time::timeout(wait, self.pieces.next());
                next.await.unwrap_or_default()
            }
            None => body::within(self.limits.0, self.pieces.next()).await?,
        };
        self.limits.0 = self.limits.1;
        let redact = |text: &str| Secret::redacted(self.secret.as_ref(), text);
        Ok(match piece {
            Some(Ok(first)) => {
                let piece = body::gather(first, &mut self.pieces, &mut self.held);
                self.answer.read(Some(piece), redact)
            }
            Some(Err(failure)) => self.answer.break_off(upstream::broken(failure)),
            None => self.answer.read(None, redact),
        })
    }
}
