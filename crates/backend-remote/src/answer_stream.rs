//! One server's answer to one item, as it comes.

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

/// How long a terminator may take to come once the answer has told why it ends.
const TERMINATOR_WAIT: Duration = Duration::from_secs(5);

/// An answer that is being read. Dropping it closes the connection.
pub(crate) struct AnswerStream {
    /// What was read and not handed on yet.
    ready: Option<Part>,
    /// The rest; none where the answer came whole.
    rest: Option<RemainingAnswer>,
}

struct RemainingAnswer {
    pieces: Pin<Box<dyn Stream<Item = Piece> + Send>>,
    /// The next piece, where it is no bytes.
    held: Option<Option<Piece>>,
    answer: UpstreamAnswer,
    secret: Option<Secret>,
    /// Until the next piece, and those after it.
    limits: (Duration, Duration),
}

impl AnswerStream {
    /// Calls that server, and reads until its answer begins.
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

    /// Calls that server; its answer has a good head then.
    ///
    /// # Errors
    /// Those of [`UpstreamCall::send`].
    pub(crate) async fn open(
        call: &UpstreamCall,
        server: &Server,
        item: &Item,
    ) -> Result<Self, PredictError> {
        let secret = server.secret().await?;
        // No two answers of this process make the same ids for their tool calls.
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

    /// Reads until there is something for the caller.
    ///
    /// # Errors
    /// As [`Self::next`].
    pub(crate) async fn begin(&mut self) -> Result<(), PredictError> {
        while self.ready.as_ref().is_none_or(Part::is_empty) {
            match self.read().await {
                Some(part) => self.ready = Some(part?),
                None => break,
            }
        }
        Ok(())
    }

    /// The next part of the answer; `None` after its end. Loses nothing when dropped.
    ///
    /// # Errors
    /// What went wrong, after all that was read before.
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
