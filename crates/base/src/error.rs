//! The closed set of errors. An error is classified once, where it occurs; dialects only render it.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The class of an error. Matches on it have no wildcard arm, so that every dialect must handle a
/// new variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorCode {
    /// The request is malformed: JSON, dtype, shape, parameter.
    InvalidInput,
    /// No valid credential was presented.
    Unauthenticated,
    /// The credential does not allow this.
    PermissionDenied,
    /// The model, connector, task, node or route does not exist.
    NotFound,
    /// The model exists and has no replica deployed.
    NotDeployed,
    /// The precondition of the write no longer holds, or the object already exists.
    Conflict,
    /// The body, message or prompt is over a limit.
    TooLarge,
    /// A queue, permit or quota is exhausted; retry after `retry_after`.
    Overloaded,
    /// The caller went away or cancelled.
    Cancelled,
    /// The deadline passed before the work was done.
    DeadlineExceeded,
    /// No replica, leader or quorum can serve this now.
    Unavailable,
    /// The upstream rejected the request or failed.
    UpstreamFailed,
    /// The upstream sent nothing in time.
    UpstreamTimeout,
    /// The upstream's stream ended without its terminator.
    UpstreamIncomplete,
    /// This server does not support the operation.
    Unimplemented,
    /// A defect in Volley or in the model.
    Internal,
}

impl ErrorCode {
    /// Every code, for tables and tests.
    pub const ALL: [Self; 16] = [
        Self::InvalidInput,
        Self::Unauthenticated,
        Self::PermissionDenied,
        Self::NotFound,
        Self::NotDeployed,
        Self::Conflict,
        Self::TooLarge,
        Self::Overloaded,
        Self::Cancelled,
        Self::DeadlineExceeded,
        Self::Unavailable,
        Self::UpstreamFailed,
        Self::UpstreamTimeout,
        Self::UpstreamIncomplete,
        Self::Unimplemented,
        Self::Internal,
    ];

    /// The stable snake-case name, used on the wire, in metric labels and in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InvalidInput => "invalid_input",
            Self::Unauthenticated => "unauthenticated",
            Self::PermissionDenied => "permission_denied",
            Self::NotFound => "not_found",
            Self::NotDeployed => "not_deployed",
            Self::Conflict => "conflict",
            Self::TooLarge => "too_large",
            Self::Overloaded => "overloaded",
            Self::Cancelled => "cancelled",
            Self::DeadlineExceeded => "deadline_exceeded",
            Self::Unavailable => "unavailable",
            Self::UpstreamFailed => "upstream_failed",
            Self::UpstreamTimeout => "upstream_timeout",
            Self::UpstreamIncomplete => "upstream_incomplete",
            Self::Unimplemented => "unimplemented",
            Self::Internal => "internal",
        }
    }

    /// The code with this name; `None` if this version does not define it.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|code| code.as_str() == name)
    }

    /// The HTTP status of this code in every dialect (RFC 9110). 499 is a convention for a client
    /// that disconnected; it is only logged.
    #[must_use]
    pub fn http_status(self) -> u16 {
        match self {
            Self::InvalidInput | Self::NotDeployed => 400,
            Self::Unauthenticated => 401,
            Self::PermissionDenied => 403,
            Self::NotFound => 404,
            Self::Conflict => 409,
            Self::TooLarge => 413,
            Self::Overloaded => 429,
            Self::Cancelled => 499,
            Self::Internal => 500,
            Self::Unimplemented => 501,
            Self::UpstreamFailed | Self::UpstreamIncomplete => 502,
            Self::Unavailable => 503,
            Self::DeadlineExceeded | Self::UpstreamTimeout => 504,
        }
    }

    /// Whether another replica may be tried, provided that no chunk has been forwarded. Upstream
    /// failures are excluded: the upstream may already have billed the request.
    #[must_use]
    pub fn may_retry_elsewhere(self) -> bool {
        match self {
            Self::Overloaded | Self::Unavailable => true,
            Self::InvalidInput
            | Self::Unauthenticated
            | Self::PermissionDenied
            | Self::NotFound
            | Self::NotDeployed
            | Self::Conflict
            | Self::TooLarge
            | Self::Cancelled
            | Self::DeadlineExceeded
            | Self::UpstreamFailed
            | Self::UpstreamTimeout
            | Self::UpstreamIncomplete
            | Self::Unimplemented
            | Self::Internal => false,
        }
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A refinement of an error's code, for dialects that have a specific name for it. A reason never
/// contradicts the code, so a client that does not recognize it can rely on the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorReason {
    /// The prompt plus the requested output exceed the model's context (`InvalidInput`).
    ContextLength,
    /// A content filter rejected the request (`InvalidInput`).
    ContentFilter,
    /// The upstream has no model with the connector's name (`UpstreamFailed`).
    ModelMissing,
    /// The account at the upstream has no credit or quota left (`Unavailable`).
    QuotaExhausted,
    /// The replica holds no state for the continued sequence (`InvalidInput`).
    SequenceUnknown,
    /// The upstream answered, but with an answer that cannot be passed on (`UpstreamFailed`).
    AnswerUnusable,
    /// The upstream rejected the call with a 4xx status of no other class (`UpstreamFailed`).
    CallRejected,
}

impl ErrorReason {
    /// Every reason, for tables and tests.
    pub const ALL: [Self; 7] = [
        Self::ContextLength,
        Self::ContentFilter,
        Self::ModelMissing,
        Self::QuotaExhausted,
        Self::SequenceUnknown,
        Self::AnswerUnusable,
        Self::CallRejected,
    ];

    /// The stable name, used on the wire and in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ContextLength => "context_length_exceeded",
            Self::ContentFilter => "content_filter",
            Self::ModelMissing => "model_missing",
            Self::QuotaExhausted => "quota_exhausted",
            Self::SequenceUnknown => "sequence_unknown",
            Self::AnswerUnusable => "answer_unusable",
            Self::CallRejected => "call_rejected",
        }
    }

    /// The reason with this name; `None` if this version does not define it.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == name)
    }
}

/// The part of the system that an error comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum ErrorOrigin {
    /// The coordinator, where most errors occur.
    #[default]
    Coordinator,
    /// The worker.
    Worker,
    /// The model or the upstream.
    Model,
}

/// A classified error. `message` is sent to the caller and never contains paths, addresses or
/// secrets. `source` is only logged.
#[derive(Clone, Debug)]
pub struct PredictError {
    /// The class of the error.
    pub code: ErrorCode,
    /// A refinement of `code`, if known.
    pub reason: Option<ErrorReason>,
    /// Public text: the problem and what to do about it.
    pub message: String,
    /// How long the caller should wait before a retry, if known.
    pub retry_after: Option<Duration>,
    /// Where the error occurred.
    pub origin: ErrorOrigin,
    source: Option<Arc<dyn Error + Send + Sync>>,
    logged: bool,
}

impl PredictError {
    /// Creates an error with a public `message`.
    #[must_use]
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            code,
            reason: None,
            message: message.into(),
            retry_after: None,
            origin: ErrorOrigin::default(),
            source: None,
            logged: false,
        }
    }

    /// Attaches the private cause, for the log.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(Arc::from(source.into()));
        self
    }

    /// Refines the code.
    #[must_use]
    pub fn with_reason(mut self, reason: ErrorReason) -> Self {
        self.reason = Some(reason);
        self
    }

    /// Sets how long the caller should wait before a retry.
    #[must_use]
    pub fn with_retry_after(mut self, after: Duration) -> Self {
        self.retry_after = Some(after);
        self
    }

    /// Sets where the error occurred.
    #[must_use]
    pub fn with_origin(mut self, origin: ErrorOrigin) -> Self {
        self.origin = origin;
        self
    }

    /// Marks the error as logged, so that callers do not log it again.
    #[must_use]
    pub fn logged(mut self) -> Self {
        self.logged = true;
        self
    }

    /// Whether the error has already been logged.
    #[must_use]
    pub fn is_logged(&self) -> bool {
        self.logged
    }

    /// Creates an [`ErrorCode::InvalidInput`].
    #[must_use]
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidInput, message)
    }

    /// Creates an [`ErrorCode::InvalidInput`] with [`ErrorReason::ContextLength`], for a prompt
    /// that does not fit the model's context.
    #[must_use]
    pub fn context_length(message: impl Into<String>) -> Self {
        Self::invalid(message).with_reason(ErrorReason::ContextLength)
    }

    /// Creates an [`ErrorCode::Internal`] with a private cause.
    #[must_use]
    pub fn internal(
        message: impl Into<String>,
        source: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Self {
        Self::new(ErrorCode::Internal, message).with_source(source)
    }

    /// The private causes, outermost first, joined with `: `. For logs only.
    #[must_use]
    pub fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut next = self.source();
        while let Some(cause) = next {
            text.push_str(": ");
            text.push_str(&cause.to_string());
            next = cause.source();
        }
        text
    }
}

impl fmt::Display for PredictError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

impl Error for PredictError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source
            .as_deref()
            .map(|source| source as &(dyn Error + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_statuses_are_errors() {
        for code in ErrorCode::ALL {
            assert_eq!(ErrorCode::from_name(code.as_str()), Some(code));
            assert!(400 <= code.http_status() && code.http_status() < 600);
        }
        assert_eq!(ErrorCode::from_name("no_such_code"), None);
        for reason in ErrorReason::ALL {
            assert_eq!(ErrorReason::from_name(reason.as_str()), Some(reason));
        }
    }

    #[test]
    fn the_public_text_leaves_the_cause_out_and_the_chain_has_it() {
        let error = PredictError::internal("load failed", std::io::Error::other("secret path"));
        assert_eq!(error.to_string(), "internal: load failed");
        assert_eq!(error.chain(), "internal: load failed: secret path");
    }
}
