//! Converts error responses of a remote model's server to Volley's errors, by status and body.
//! Pure.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, StatusCode};
use serde_json::Value;
use volley_provider_kit::fault::{self, FaultKind};
use volley_types::{ErrorCode, ErrorReason, PredictError};

use crate::upstream::{error, shortened};

/// Maximum of a server's `Retry-After`.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(3_600);

/// A response with an error status.
pub struct Refusal<'a> {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: &'a HeaderMap,
    /// The body, or its beginning.
    pub body: &'a [u8],
}

impl Refusal<'_> {
    /// The error for the caller. `redact` removes the secret from the server's message, because
    /// some servers repeat a rejected key.
    pub fn error(&self, redact: impl Fn(&str) -> String) -> PredictError {
        let body = ErrorBody::read(self.body, self.headers);
        let text = body.message.as_ref().map_or(String::new(), |text| {
            format!(": {}", shortened(&redact(text)))
        });
        let result = self.classified(&body, &text);
        // Time does not fill an account.
        if result.reason == Some(ErrorReason::QuotaExhausted) {
            return result;
        }
        let wait = retry_after(self.headers, SystemTime::now());
        match wait.or(body.retry_after) {
            Some(after) => result.with_retry_after(after.min(MAX_RETRY_AFTER)),
            None => result,
        }
    }

    fn classified(&self, body: &ErrorBody, text: &str) -> PredictError {
        let status = self.status.as_u16();
        let spoken = body.message.as_deref().unwrap_or_default();
        let of_request = matches!(status, 400 | 413 | 422 | 424)
            && matches!(
                body.blame,
                None | Some(FaultKind::Request | FaultKind::Size)
            );
        let blame = match of_request && fault::is_context_length(spoken) {
            true => Some(FaultKind::Context),
            false => body.blame,
        };
        match (status, blame) {
            (300..=399, _) => error(
                ErrorCode::UpstreamFailed,
                "the remote model's server answered with a redirect, which is not followed; \
                 give the connector the final URL",
            ),
            (_, Some(FaultKind::Context)) => refused(text).with_reason(ErrorReason::ContextLength),
            (402, _) | (_, Some(FaultKind::Quota)) => error(
                ErrorCode::Unavailable,
                format!("the account at the remote model's server has no credit left{text}"),
            )
            .with_reason(ErrorReason::QuotaExhausted),
            (400 | 403 | 422, Some(FaultKind::Filter)) => {
                refused(text).with_reason(ErrorReason::ContentFilter)
            }
            (401 | 403 | 498, _) | (400, Some(FaultKind::Key)) => refused_key(),
            (_, Some(FaultKind::NotReady | FaultKind::Overload)) | (529, _) => overloaded(text),
            (503, _) => error(
                ErrorCode::Unavailable,
                format!("the remote model's server is not available{text}"),
            ),
            (429, _) | (424, Some(FaultKind::Rate)) => error(
                ErrorCode::Overloaded,
                format!("the remote model's server is limiting requests{text}"),
            ),
            (400 | 422, _) | (424, Some(FaultKind::Request)) => refused(text),
            (413, _) => error(
                ErrorCode::TooLarge,
                format!("the request is too large for the remote model's server{text}"),
            ),
            (408 | 504, _) => error(
                ErrorCode::UpstreamTimeout,
                format!("the remote model's server took too long to respond{text}"),
            ),
            (404, _) => error(
                ErrorCode::UpstreamFailed,
                format!(
                    "the remote model's server answered with status 404{text}; check the \
                     connector's URL and model"
                ),
            )
            .with_reason(ErrorReason::ModelMissing),
            // The server reports failures of its model with 424.
            (code @ (400..=423 | 425..=499), _) => {
                answered(code, text).with_reason(ErrorReason::CallRejected)
            }
            (code, _) => answered(code, text),
        }
    }
}

fn answered(status: u16, text: &str) -> PredictError {
    error(
        ErrorCode::UpstreamFailed,
        format!("the remote model's server answered with status {status}{text}"),
    )
}

fn refused(text: &str) -> PredictError {
    error(
        ErrorCode::InvalidInput,
        format!("the remote model's server rejected the request{text}"),
    )
}

fn overloaded(text: &str) -> PredictError {
    error(
        ErrorCode::Unavailable,
        format!("the remote model's server is overloaded{text}"),
    )
}

fn refused_key() -> PredictError {
    error(
        ErrorCode::UpstreamFailed,
        "the remote model's server rejected the connector's credential",
    )
    .with_reason(ErrorReason::CallRejected)
}

/// The content of an error body; empty if it is not JSON, such as an HTML page.
#[derive(Default)]
struct ErrorBody {
    message: Option<String>,
    /// The class of the error, from the body or a header.
    blame: Option<FaultKind>,
    retry_after: Option<Duration>,
}

impl ErrorBody {
    fn read(body: &[u8], headers: &HeaderMap) -> Self {
        let named = headers
            .get("x-amzn-errortype")
            .and_then(|it| it.to_str().ok());
        let blame = named.and_then(fault::of_exception);
        // Triton formats even errors as events.
        let body = body.trim_ascii();
        let body = body.strip_prefix(b"data:").unwrap_or(body);
        // Google may wrap the object in a list.
        let body = match serde_json::from_slice::<Value>(body) {
            Ok(Value::Array(mut list)) if list.len() == 1 => list.remove(0),
            Ok(body) => body,
            Err(_) => {
                return Self {
                    message: plain_text(body, headers),
                    blame,
                    ..Self::default()
                };
            }
        };
        // Mistral nests the faults in the message.
        let nested = body.pointer("/message/detail");
        let error = body.get("error").or_else(|| body.get("detail")).or(nested);
        let details = error.and_then(|error| error["details"].as_array());
        let mut details = details.into_iter().flatten();
        let delay = details.find_map(|detail| detail["retryDelay"].as_str());
        Self {
            message: match error {
                Some(Value::Array(faults)) => Some(faults_text(faults)),
                Some(error) => Some(fault::text(&error.to_string())),
                None => {
                    let message = body["message"].as_str().or(body["Message"].as_str());
                    message.map(str::to_owned)
                }
            },
            blame: blame
                .or_else(|| error.and_then(fault::of_error))
                .or_else(|| fault::of_error(&body)),
            retry_after: delay.and_then(|delay| seconds(delay.strip_suffix('s')?)),
        }
    }
}

/// The text of a plain body. Other bodies, such as HTML pages, have no message.
fn plain_text(body: &[u8], headers: &HeaderMap) -> Option<String> {
    let media = headers.get(http::header::CONTENT_TYPE)?.to_str().ok()?;
    let (media, _) = media.split_once(';').unwrap_or((media, ""));
    if !media.trim().eq_ignore_ascii_case("text/plain") {
        return None;
    }
    let text = std::str::from_utf8(body).ok()?.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// Joins the messages of a validation error, each with its location. The submitted value is
/// omitted.
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

/// Reads `retry-after-ms` in milliseconds, or `retry-after` in seconds or as a date.
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

/// Parses a number of seconds that is not negative.
fn seconds(text: &str) -> Option<Duration> {
    let number: f64 = text.trim().parse().ok()?;
    let bounded = (0.0..)
        .contains(&number)
        .then(|| number.min(f64::from(u32::MAX)));
    bounded.map(Duration::from_secs_f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::MAX_MESSAGE;

    fn answered(code: u16, body: &str) -> PredictError {
        let code = StatusCode::from_u16(code).unwrap();
        let mut headers = HeaderMap::new();
        if code == StatusCode::PAYMENT_REQUIRED {
            headers.insert("retry-after", http::HeaderValue::from_static("5"));
        }
        let refusal = Refusal {
            status: code,
            headers: &headers,
            body: body.as_bytes(),
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
        let other = answered(400, r#"{"detail":"no such parameter"}"#);
        assert_eq!(other.code, ErrorCode::InvalidInput);
        assert!(other.message.contains("no such parameter"));
        assert_eq!(answered(413, "").code, ErrorCode::TooLarge);
    }

    #[test]
    fn the_reason_is_read_from_a_nested_detail_and_from_plain_text() {
        let nested = r#"{"object":"error","message":{"detail":[{"loc":["body","temperature"],"msg":"bad temp"}]}}"#;
        let error = answered(422, nested);
        assert_eq!(error.code, ErrorCode::InvalidInput);
        assert!(
            error.message.contains("body.temperature: bad temp"),
            "{error}"
        );
        let told = |media: &'static str, body: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("content-type", http::HeaderValue::from_static(media));
            let refusal = Refusal {
                status: StatusCode::BAD_REQUEST,
                headers: &headers,
                body: body.as_bytes(),
            };
            refusal.error(str::to_owned).message
        };
        assert!(told("text/plain; charset=utf-8", "no such model").contains("no such model"));
        assert!(!told("text/html", "<html>no</html>").contains("<html>"));
        let long = told("text/plain", &"x".repeat(10_000));
        assert!(long.len() < MAX_MESSAGE + 100);
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
        };
        let error = refusal.error(str::to_owned);
        assert_eq!(error.retry_after, Some(MAX_RETRY_AFTER));
    }

    #[test]
    fn each_providers_way_to_say_it_is_understood() {
        let filtered = r#"{"error":{"message":"no","code":"content_filter"}}"#;
        let filtered = answered(400, filtered);
        assert_eq!(filtered.reason, Some(ErrorReason::ContentFilter));
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
        assert_eq!(answered(529, "{}").code, ErrorCode::Unavailable);
    }

    #[test]
    fn each_kind_of_failure_has_its_code_and_its_reason() {
        use ErrorCode::{InvalidInput, Overloaded, Unavailable, UpstreamFailed, UpstreamTimeout};
        let long = r#"{"error":{"type":"invalid_request_error","code":"context_length_exceeded","message":"no"}}"#;
        let text = r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 9 tokens > 8 maximum"}}"#;
        let quota = r#"{"error":{"code":"insufficient_quota","message":"You exceeded your current quota"}}"#;
        let credit = r#"{"error":{"type":"invalid_request_error","message":"Your credit balance is too low"}}"#;
        let rate = r#"{"error":{"code":429,"status":"RESOURCE_EXHAUSTED","message":"You exceeded your current quota"}}"#;
        let original = r#"{"message":"slow down","originalStatusCode":429}"#;
        for (status, body, code, reason) in [
            (400, long, InvalidInput, Some(ErrorReason::ContextLength)),
            (400, text, InvalidInput, Some(ErrorReason::ContextLength)),
            (429, quota, Unavailable, Some(ErrorReason::QuotaExhausted)),
            (400, credit, Unavailable, Some(ErrorReason::QuotaExhausted)),
            (402, "{}", Unavailable, Some(ErrorReason::QuotaExhausted)),
            (429, rate, Overloaded, None),
            (424, original, Overloaded, None),
            (424, "{}", UpstreamFailed, None),
            (404, "{}", UpstreamFailed, Some(ErrorReason::ModelMissing)),
            (408, "{}", UpstreamTimeout, None),
            (504, "", UpstreamTimeout, None),
            (500, "", UpstreamFailed, None),
            (498, "{}", UpstreamFailed, Some(ErrorReason::CallRejected)),
            (401, "{}", UpstreamFailed, Some(ErrorReason::CallRejected)),
            (405, "{}", UpstreamFailed, Some(ErrorReason::CallRejected)),
            (409, "{}", UpstreamFailed, Some(ErrorReason::CallRejected)),
            (415, "{}", UpstreamFailed, Some(ErrorReason::CallRejected)),
            (431, "{}", UpstreamFailed, Some(ErrorReason::CallRejected)),
        ] {
            let error = answered(status, body);
            assert_eq!(
                (error.code, error.reason),
                (code, reason),
                "{status} {body}"
            );
            // Time does not fill an account.
            assert_eq!(error.retry_after, None, "{status}");
        }
        let mut headers = HeaderMap::new();
        let name = http::HeaderValue::from_static("ModelNotReadyException:http://x/");
        headers.insert("x-amzn-errortype", name);
        let refusal = Refusal {
            status: StatusCode::TOO_MANY_REQUESTS,
            headers: &headers,
            body: br#"{"message":"wait"}"#,
        };
        assert_eq!(refusal.error(str::to_owned).code, Unavailable);
    }
}
