//! Converts failures of calls to servers of remote models to Volley's errors.

use std::error::Error;
use std::time::Duration;

use volley_provider_kit::fault;
use volley_types::{ErrorCode, ErrorOrigin, ErrorReason, PredictError};

use crate::egress::EgressDenied;
use crate::event::SseError;

/// Maximum length of a server's message in an error, in characters.
pub const MAX_MESSAGE: usize = 512;

/// Creates an error with the origin `Model`.
pub fn error(code: ErrorCode, message: impl Into<String>) -> PredictError {
    PredictError::new(code, message).with_origin(ErrorOrigin::Model)
}

/// Shortens a server's text for an error message to [`MAX_MESSAGE`] characters without control
/// characters.
pub fn shortened(text: &str) -> String {
    text.chars()
        .filter(|c| !c.is_control())
        .take(MAX_MESSAGE)
        .collect()
}

/// The error for a call that failed before the headers of the answer.
pub fn call(failure: reqwest::Error) -> PredictError {
    let failure = failure.without_url();
    if is_forbidden(&failure) {
        return error(
            ErrorCode::InvalidInput,
            "the host in the connector's URL has no address that this worker may call",
        )
        .with_source(failure);
    }
    if failure.is_connect() {
        // No request was sent, so that another worker may retry.
        return error(
            ErrorCode::Unavailable,
            "the remote model's server cannot be reached",
        )
        .with_source(failure);
    }
    error(
        ErrorCode::UpstreamFailed,
        "the connection to the remote model's server broke",
    )
    .with_source(failure)
}

fn is_forbidden(failure: &reqwest::Error) -> bool {
    let mut cause = failure.source();
    while let Some(error) = cause {
        if error.is::<EgressDenied>() {
            return true;
        }
        cause = error.source();
    }
    false
}

/// The error for a connection that broke inside an answer.
pub fn broken(failure: reqwest::Error) -> PredictError {
    incomplete().with_source(failure.without_url())
}

/// The error for a server that sent nothing within `limit`.
pub fn silent(limit: Duration) -> PredictError {
    error(
        ErrorCode::UpstreamTimeout,
        format!(
            "the remote model's server sent nothing for {} s",
            limit.as_secs_f64()
        ),
    )
}

/// The error for an answer in an unexpected format.
pub fn unexpected(what: &str, expected: &str) -> PredictError {
    error(
        ErrorCode::UpstreamFailed,
        format!(
            "the remote model's server answered with {what} instead of {expected}; check the \
             connector's URL"
        ),
    )
}

/// The error for an unreadable stream.
pub fn unreadable(failure: SseError) -> PredictError {
    error(
        ErrorCode::UpstreamFailed,
        match failure {
            SseError::TooLong => "the remote model's server sent an event over the limit of 12 MiB",
            SseError::NotText => "the remote model's server sent an event that is not UTF-8",
            SseError::Damaged => "the remote model's server sent a damaged frame",
        },
    )
}

/// The error for an event that is not in the provider's format.
pub fn malformed(cause: String) -> PredictError {
    error(
        ErrorCode::UpstreamFailed,
        "the remote model's server sent an event that is not in its provider's format; check the \
         connector's provider",
    )
    .with_source(cause)
}

/// The error for a failure that the server reports without a class. `redact` removes the secret.
pub fn failed(message: &str, redact: impl Fn(&str) -> String) -> PredictError {
    let message = shortened(&redact(message));
    error(
        ErrorCode::UpstreamFailed,
        format!("the remote model's server failed: {message}"),
    )
}

/// The error for a rejection that the server reports inside an answer. `redact` removes the secret.
pub fn refused(code: ErrorCode, message: &str, redact: impl Fn(&str) -> String) -> PredictError {
    let message = shortened(&redact(message));
    let said = match code {
        ErrorCode::Overloaded => "the remote model's server is limiting requests",
        ErrorCode::Unavailable => "the remote model's server is not available",
        ErrorCode::UpstreamTimeout => "the remote model's server took too long to respond",
        ErrorCode::TooLarge => "the request is too large for the remote model's server",
        _ => "the remote model's server rejected the request",
    };
    let told = error(code, format!("{said}: {message}"));
    if code == ErrorCode::InvalidInput && fault::is_context_length(&message) {
        return told.with_reason(ErrorReason::ContextLength);
    }
    told
}

/// The error for an answer that cannot be passed on. `why` is a clause.
pub fn unusable(why: &str) -> PredictError {
    error(
        ErrorCode::UpstreamFailed,
        format!("the remote model's answer is unusable: {}", shortened(why)),
    )
    .with_reason(ErrorReason::AnswerUnusable)
}

/// The error for an account without credit or quota. `redact` removes the secret.
pub fn exhausted(message: &str, redact: impl Fn(&str) -> String) -> PredictError {
    let message = shortened(&redact(message));
    error(
        ErrorCode::Unavailable,
        format!("the account at the remote model's server has no credit left: {message}"),
    )
    .with_reason(ErrorReason::QuotaExhausted)
}

/// The error for an answer in which no response path of the connector has a value.
pub fn not_found() -> PredictError {
    error(
        ErrorCode::UpstreamFailed,
        "the response of the remote model's server has no value at the connector's response \
         paths; check its parameters 'response' and 'response_filter'",
    )
}

/// The error for a stream that ended without a terminal event.
pub fn incomplete() -> PredictError {
    error(
        ErrorCode::UpstreamIncomplete,
        "the remote model's stream ended without a terminal event; the response may be incomplete",
    )
}
