//! What goes wrong between a worker and a remote model's server, as Volley's errors.

use std::error::Error;
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use serde_json::Value;
use volley_types::{ErrorCode, ErrorOrigin, PredictError};

use crate::egress::Forbidden;
use crate::provider::openai::error_text;
use crate::sse::SseError;

/// How much of a server's own message is passed on, in characters.
const MAX_MESSAGE: usize = 512;

fn error(code: ErrorCode, message: impl Into<String>) -> PredictError {
    PredictError::new(code, message).with_origin(ErrorOrigin::Model)
}

/// The server answered with a status that is no success. What it says is passed on through
/// `redact`: some repeat the key that they refuse.
pub(crate) fn status(
    status: StatusCode,
    headers: &HeaderMap,
    body: &[u8],
    redact: impl Fn(&str) -> String,
) -> PredictError {
    let said = Said::read(body);
    let text = said.message.map_or(String::new(), |text| {
        format!(": {}", shortened(&redact(&text)))
    });
    let result = match status.as_u16() {
        401 | 403 => error(
            ErrorCode::UpstreamFailed,
            "the remote model's server refused the connector's credential",
        ),
        429 => error(
            ErrorCode::Overloaded,
            format!("the remote model's server is limiting requests{text}"),
        ),
        300..=399 => error(
            ErrorCode::UpstreamFailed,
            "the remote model's server answered with a redirect, which is not followed; give \
             the connector the final URL",
        ),
        400 | 422 if said.blames_request => error(
            ErrorCode::InvalidInput,
            format!("the remote model's server refused the request{text}"),
        ),
        413 if said.blames_request => error(
            ErrorCode::TooLarge,
            format!("the request is too large for the remote model's server{text}"),
        ),
        code => error(
            ErrorCode::UpstreamFailed,
            format!("the remote model's server answered with status {code}{text}"),
        ),
    };
    match retry_after(headers) {
        Some(after) => result.with_retry_after(after),
        None => result,
    }
}

/// What an error body says; nothing where it is not JSON, as an HTML page.
#[derive(Default)]
struct Said {
    message: Option<String>,
    /// The server's own word for it, which both providers share.
    blames_request: bool,
}

impl Said {
    fn read(body: &[u8]) -> Self {
        let Ok(body) = serde_json::from_slice::<Value>(body) else {
            return Self::default();
        };
        let error = body.get("error").or_else(|| body.get("detail"));
        let kind = error.and_then(|error| error.get("type"));
        Self {
            message: match error {
                Some(error) => Some(error_text(&error.to_string())),
                None => body["message"].as_str().map(str::to_owned),
            },
            blames_request: kind
                .and_then(Value::as_str)
                .is_some_and(|kind| matches!(kind, "invalid_request_error" | "request_too_large")),
        }
    }
}

/// A server's text as it may stand in a message: no control characters, not too long.
fn shortened(text: &str) -> String {
    text.chars()
        .filter(|c| !c.is_control())
        .take(MAX_MESSAGE)
        .collect()
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let number = |name: &str| -> Option<f64> {
        let number = headers.get(name)?.to_str().ok()?.trim().parse().ok()?;
        (0.0..).contains(&number).then_some(number)
    };
    let exact = number("retry-after-ms").map(|millis| millis / 1_000.0);
    let seconds = exact.or_else(|| number("retry-after"))?;
    Some(Duration::from_secs_f64(seconds.min(3_600.0)))
}

/// The call failed before an answer.
pub(crate) fn call(failure: reqwest::Error) -> PredictError {
    let failure = failure.without_url();
    if is_forbidden(&failure) {
        return error(
            ErrorCode::InvalidInput,
            "the host in the connector's URL has no address that this worker may call",
        )
        .with_source(failure);
    }
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

fn is_forbidden(failure: &reqwest::Error) -> bool {
    let mut cause = failure.source();
    while let Some(error) = cause {
        if error.is::<Forbidden>() {
            return true;
        }
        cause = error.source();
    }
    false
}

/// The connection broke in the middle of an answer.
pub(crate) fn broken(failure: reqwest::Error) -> PredictError {
    incomplete().with_source(failure.without_url())
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
pub(crate) fn failed(message: &str, redact: impl Fn(&str) -> String) -> PredictError {
    let message = shortened(&redact(message));
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

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(code: u16, body: &str) -> PredictError {
        let code = StatusCode::from_u16(code).unwrap();
        status(code, &HeaderMap::new(), body.as_bytes(), |text| {
            text.replace("sk-canary", "[redacted]")
        })
    }

    #[test]
    fn a_request_that_the_server_blames_is_the_callers_to_mend() {
        let blamed = r#"{"error":{"type":"invalid_request_error","message":"temperature is 9"}}"#;
        for (code, expected) in [
            (400, ErrorCode::InvalidInput),
            (422, ErrorCode::InvalidInput),
            (413, ErrorCode::TooLarge),
            (404, ErrorCode::UpstreamFailed),
            (500, ErrorCode::UpstreamFailed),
        ] {
            let error = answered(code, blamed);
            assert_eq!(error.code, expected, "{code}");
            assert!(error.message.contains("temperature is 9"));
        }
        let other = answered(400, r#"{"detail":"no such model"}"#);
        assert_eq!(other.code, ErrorCode::UpstreamFailed);
        assert!(other.message.contains("no such model"));
    }

    #[test]
    fn no_part_of_a_key_is_passed_on_however_long_the_text() {
        for filler in 480..520 {
            let text = format!("{}sk-canary", "x".repeat(filler));
            let error = answered(500, &format!("{{\"message\":\"{text}\"}}"));
            assert!(!error.message.contains("sk-"), "{}", error.message);
            assert!(error.message.len() < MAX_MESSAGE + 100);
        }
    }

    #[test]
    fn the_time_to_wait_is_read_in_every_form_and_bounded() {
        let read = |name: &'static str, value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, http::HeaderValue::from_static(value));
            retry_after(&headers)
        };
        assert_eq!(read("retry-after", "7"), Some(Duration::from_secs(7)));
        assert_eq!(read("retry-after", "0.5"), Some(Duration::from_millis(500)));
        assert_eq!(
            read("retry-after-ms", "1500"),
            Some(Duration::from_millis(1_500))
        );
        assert_eq!(
            read("retry-after", "1e300"),
            Some(Duration::from_secs(3_600))
        );
        for nonsense in ["-1", "NaN", "soon", ""] {
            assert_eq!(read("retry-after", nonsense), None, "{nonsense}");
        }
    }
}
