//! What goes wrong between a worker and a remote model's server, as Volley's errors.

use std::time::Duration;

use http::{HeaderMap, StatusCode};
use serde_json::Value;
use volley_types::{ErrorCode, ErrorOrigin, PredictError};

use crate::provider::openai::error_text;
use crate::sse::SseError;

/// How much of a server's own message is passed on, in characters.
const MAX_MESSAGE: usize = 512;

fn error(code: ErrorCode, message: impl Into<String>) -> PredictError {
    PredictError::new(code, message).with_origin(ErrorOrigin::Model)
}

/// The server answered with a status that is no success.
pub(crate) fn status(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> PredictError {
    let said = said(body).map_or(String::new(), |said| format!(": {said}"));
    let result = match status.as_u16() {
        401 | 403 => error(
            ErrorCode::UpstreamFailed,
            "the remote model's server refused the connector's credential",
        ),
        429 => error(
            ErrorCode::Overloaded,
            format!("the remote model's server is limiting requests{said}"),
        ),
        300..=399 => error(
            ErrorCode::UpstreamFailed,
            "the remote model's server answered with a redirect, which is not followed; give \
             the connector the final URL",
        ),
        code => error(
            ErrorCode::UpstreamFailed,
            format!("the remote model's server answered with status {code}{said}"),
        ),
    };
    match retry_after(headers) {
        Some(after) => result.with_retry_after(after),
        None => result,
    }
}

/// The message in an error body; `None` where it is not JSON, as an HTML page.
fn said(body: &[u8]) -> Option<String> {
    let body: Value = serde_json::from_slice(body).ok()?;
    let text = match body.get("error").or_else(|| body.get("detail")) {
        Some(error) => error_text(&error.to_string()),
        None => body.get("message")?.as_str()?.to_owned(),
    };
    Some(shortened(&text))
}

/// A server's text as it may stand in a message: no control characters, not too long.
pub(crate) fn shortened(text: &str) -> String {
    text.chars()
        .filter(|c| !c.is_control())
        .take(MAX_MESSAGE)
        .collect()
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(http::header::RETRY_AFTER)?.to_str().ok()?;
    let seconds: u64 = text.trim().parse().ok()?;
    Some(Duration::from_secs(seconds.min(3_600)))
}

/// The call itself failed.
pub(crate) fn call(failure: reqwest::Error) -> PredictError {
    let failure = failure.without_url();
    if failure.is_connect() {
        // Nothing was sent: another worker may try.
        return error(
            ErrorCode::Unavailable,
            "the remote model's server cannot be reached",
        )
        .with_retry_after(Duration::from_secs(1))
        .with_source(failure);
    }
    error(
        ErrorCode::UpstreamFailed,
        "the connection to the remote model's server broke",
    )
    .with_source(failure)
}

/// Nothing came in time.
pub(crate) fn silent(limit: Duration) -> PredictError {
    error(
        ErrorCode::UpstreamTimeout,
        format!(
            "the remote model's server sent nothing for {} s",
            limit.as_secs_f64()
        ),
    )
}

/// The answer is no stream and no completion.
pub(crate) fn not_a_stream(what: &str) -> PredictError {
    error(
        ErrorCode::UpstreamFailed,
        format!(
            "the remote model's server answered with {what} instead of a stream; check the \
             connector's URL"
        ),
    )
}

/// The events cannot be read.
pub(crate) fn unreadable(failure: SseError) -> PredictError {
    error(
        ErrorCode::UpstreamFailed,
        match failure {
            SseError::TooLong => "the remote model's server sent an event over the limit of 1 MiB",
            SseError::NotText => "the remote model's server sent an event that is not UTF-8",
        },
    )
}

/// An event is not of the provider's format.
pub(crate) fn malformed(cause: String) -> PredictError {
    error(
        ErrorCode::UpstreamFailed,
        "the remote model's server sent an event that is not of its provider's format; check \
         the connector's provider",
    )
    .with_source(cause)
}

/// The server says that it failed.
pub(crate) fn failed(message: &str) -> PredictError {
    let message = shortened(message);
    error(
        ErrorCode::UpstreamFailed,
        format!("the remote model's server failed: {message}"),
    )
}

/// The stream ended without the provider's own end.
pub(crate) fn incomplete() -> PredictError {
    error(
        ErrorCode::UpstreamIncomplete,
        "the remote model's stream ended before its end; what came before may be incomplete",
    )
}
