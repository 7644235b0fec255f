//! What goes wrong between a worker and a remote model's server, as Volley's errors.

use std::error::Error;
use std::time::{Duration, SystemTime};

use http::{HeaderMap, StatusCode};
use serde_json::Value;
use volley_types::{ErrorCode, ErrorOrigin, PredictError};

use crate::egress::Forbidden;
use crate::provider::openai::error_text;
use crate::provider::tgi::REQUEST_ERRORS;
use crate::sse::SseError;

/// How much of a server's own message is passed on, in characters.
const MAX_MESSAGE: usize = 512;
/// The longest wait that a server is believed.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(3_600);

fn error(code: ErrorCode, message: impl Into<String>) -> PredictError {
    PredictError::new(code, message).with_origin(ErrorOrigin::Model)
}

/// An answer whose status is no success.
pub(crate) struct Refusal<'a> {
    pub(crate) status: StatusCode,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) body: &'a [u8],
    /// Whether such a server means the request whenever it answers 400.
    pub(crate) blames_request: bool,
}

impl Refusal<'_> {
    /// What the caller is told. What the server says is passed on through `redact`: some repeat
    /// the key that they refuse.
    pub(crate) fn error(&self, redact: impl Fn(&str) -> String) -> PredictError {
        let said = Said::read(self.body);
        let text = said.message.map_or(String::new(), |text| {
            format!(": {}", shortened(&redact(&text)))
        });
        let blames_request = said.blames_request || self.blames_request;
        let result = match self.status.as_u16() {
            400 if said.blames_key => refused_key(),
            401 | 403 => refused_key(),
            429 | 529 => error(
                ErrorCode::Overloaded,
                format!("the remote model's server is limiting requests{text}"),
            ),
            503 => error(
                ErrorCode::Unavailable,
                format!("the remote model's server is not available{text}"),
            ),
            300..=399 => error(
                ErrorCode::UpstreamFailed,
                "the remote model's server answered with a redirect, which is not followed; \
                 give the connector the final URL",
            ),
            400 | 422 if blames_request => error(
                ErrorCode::InvalidInput,
                format!("the remote model's server refused the request{text}"),
            ),
            413 if blames_request => error(
                ErrorCode::TooLarge,
                format!("the request is too large for the remote model's server{text}"),
            ),
            code => error(
                ErrorCode::UpstreamFailed,
                format!("the remote model's server answered with status {code}{text}"),
            ),
        };
        let wait = retry_after(self.headers, SystemTime::now());
        match wait.or(said.retry_after) {
            Some(after) => result.with_retry_after(after.min(MAX_RETRY_AFTER)),
            None => result,
        }
    }
}

fn refused_key() -> PredictError {
    error(
        ErrorCode::UpstreamFailed,
        "the remote model's server refused the connector's credential",
    )
}

/// What an error body says; nothing where it is not JSON, as an HTML page.
#[derive(Default)]
struct Said {
    message: Option<String>,
    /// The servers' own words for it.
    blames_request: bool,
    blames_key: bool,
    retry_after: Option<Duration>,
}

impl Said {
    fn read(body: &[u8]) -> Self {
        // Triton answers with an event even then.
        let body = body.trim_ascii();
        let body = body.strip_prefix(b"data:").unwrap_or(body);
        // Google may put the object into a list.
        let body = match serde_json::from_slice::<Value>(body) {
            Ok(Value::Array(mut list)) if list.len() == 1 => list.remove(0),
            Ok(body) => body,
            Err(_) => return Self::default(),
        };
        let error = body.get("error").or_else(|| body.get("detail"));
        let word = |holder: Option<&Value>, name: &str, words: &[&str]| {
            let given = holder.and_then(|holder| holder[name].as_str());
            given.is_some_and(|given| words.contains(&given))
        };
        let kinds = ["invalid_request_error", "request_too_large"];
        let details = error.and_then(|error| error["details"].as_array());
        let details = || details.into_iter().flatten();
        let delay = details().find_map(|detail| detail["retryDelay"].as_str());
        Self {
            message: match error {
                Some(Value::Array(faults)) => Some(faults_text(faults)),
                Some(error) => Some(error_text(&error.to_string())),
                None => {
                    let message = body["message"].as_str().or(body["Message"].as_str());
                    message.map(str::to_owned)
                }
            },
            blames_request: word(error, "type", &kinds)
                || word(Some(&body), "type", &kinds)
                || word(error, "status", &["INVALID_ARGUMENT"])
                || word(Some(&body), "error_type", &REQUEST_ERRORS)
                || word(error, "code", &["content_filter"])
                || error.is_some_and(Value::is_array),
            blames_key: details().any(|detail| detail["reason"] == "API_KEY_INVALID"),
            retry_after: delay.and_then(|delay| seconds(delay.strip_suffix('s')?)),
        }
    }
}

/// What is wrong with a request, as servers that check it by a schema list it. Each fault has the
/// place, a text, and what was sent, which is left out.
fn faults_text(faults: &[Value]) -> String {
    let text = |fault: &Value| {
        let place = fault["loc"].as_array().into_iter().flatten();
        let place = place.map(|step| {
            step.as_str()
                .map_or_else(|| step.to_string(), str::to_owned)
        });
        let place = place.collect::<Vec<_>>().join(".");
        format!("{place}: {}", fault["msg"].as_str().unwrap_or("wrong"))
    };
    faults.iter().map(text).collect::<Vec<_>>().join("; ")
}

/// A server's text as it may stand in a message: no control characters, not too long.
fn shortened(text: &str) -> String {
    text.chars()
        .filter(|c| !c.is_control())
        .take(MAX_MESSAGE)
        .collect()
}

/// In milliseconds, in seconds, or as a date.
fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = |name: &str| headers.get(name)?.to_str().ok();
    let exact = text("retry-after-ms").and_then(seconds);
    exact.map(|exact| exact / 1_000).or_else(|| {
        let text = text("retry-after")?;
        seconds(text).or_else(|| {
            let date = httpdate::parse_http_date(text.trim()).ok()?;
            Some(date.duration_since(now).unwrap_or_default())
        })
    })
}

/// A number of seconds, not negative.
fn seconds(text: &str) -> Option<Duration> {
    let number: f64 = text.trim().parse().ok()?;
    let bounded = (0.0..)
        .contains(&number)
        .then(|| number.min(f64::from(u32::MAX)));
    bounded.map(Duration::from_secs_f64)
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
            SseError::TooLong => "the remote model's server sent an event over the limit of 12 MiB",
            SseError::NotText => "the remote model's server sent an event that is not UTF-8",
            SseError::Damaged => "the remote model's server sent a damaged frame",
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

/// The server says in its answer that it does not do it.
pub(crate) fn refused(
    code: ErrorCode,
    message: &str,
    redact: impl Fn(&str) -> String,
) -> PredictError {
    let message = shortened(&redact(message));
    let said = match code {
        ErrorCode::Overloaded => "the remote model's server is limiting requests",
        ErrorCode::Unavailable => "the remote model's server is not available",
        _ => "the remote model's server refused the request",
    };
    error(code, format!("{said}: {message}"))
}

/// Nothing of an answer is where the connector says.
pub(crate) fn not_found() -> PredictError {
    error(
        ErrorCode::UpstreamFailed,
        "the remote model's server answered with nothing at the connector's response paths; check \
         its parameters 'response' and 'response_filter'",
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
        let refusal = Refusal {
            status: code,
            headers: &HeaderMap::new(),
            body: body.as_bytes(),
            blames_request: false,
        };
        refusal.error(|text| text.replace("sk-canary", "[redacted]"))
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
        let now = httpdate::parse_http_date("Sat, 21 Nov 2026 07:00:00 GMT").unwrap();
        let read = |name: &'static str, value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, http::HeaderValue::from_static(value));
            retry_after(&headers, now).map(|after| after.as_millis())
        };
        assert_eq!(read("retry-after", "7"), Some(7_000));
        assert_eq!(read("retry-after", "0.5"), Some(500));
        assert_eq!(read("retry-after-ms", "1500"), Some(1_500));
        let date = "Sat, 21 Nov 2026 07:00:30 GMT";
        assert_eq!(read("retry-after", date), Some(30_000));
        let past = "Sat, 21 Nov 2026 06:00:30 GMT";
        assert_eq!(read("retry-after", past), Some(0));
        for nonsense in ["-1", "NaN", "soon", ""] {
            assert_eq!(read("retry-after", nonsense), None, "{nonsense}");
        }
        let mut headers = HeaderMap::new();
        headers.insert("retry-after", http::HeaderValue::from_static("1e300"));
        let refusal = Refusal {
            status: StatusCode::TOO_MANY_REQUESTS,
            headers: &headers,
            body: b"",
            blames_request: false,
        };
        let error = refusal.error(str::to_owned);
        assert_eq!(error.retry_after, Some(MAX_RETRY_AFTER));
    }

    #[test]
    fn each_houses_way_to_say_it_is_understood() {
        let key = r#"[{"error":{"code":400,"status":"INVALID_ARGUMENT","message":"API key not valid","details":[{"reason":"API_KEY_INVALID"}]}}]"#;
        assert!(answered(400, key).message.contains("credential"));
        let argument = r#"{"error":{"code":400,"status":"INVALID_ARGUMENT","message":"topK"}}"#;
        assert_eq!(answered(400, argument).code, ErrorCode::InvalidInput);
        let quota = r#"{"error":{"code":429,"message":"quota","details":[{"retryDelay":"17s"}]}}"#;
        let quota = answered(429, quota);
        assert_eq!(quota.retry_after, Some(Duration::from_secs(17)));
        let filtered = r#"{"error":{"message":"filtered","type":null,"code":"content_filter"}}"#;
        assert_eq!(answered(400, filtered).code, ErrorCode::InvalidInput);
        let faults = r#"{"detail":[{"loc":["body","topk"],"msg":"extra","input":"secret"}]}"#;
        let faults = answered(422, faults);
        assert_eq!(faults.code, ErrorCode::InvalidInput);
        assert!(faults.message.ends_with(": body.topk: extra"));
        assert_eq!(answered(529, "{}").code, ErrorCode::Overloaded);
    }
}
