//! Errors in Anthropic's format.

use http::{HeaderMap, StatusCode};
use serde_json::{Value, json};
use volley_types::{ErrorCode, ErrorReason, PredictError};

use volley_http_edge::error::{ErrorFormat, Failure};

/// A header that Anthropic's clients send with every request.
const VERSION: &str = "anthropic-version";

/// Whether the request comes from an Anthropic client. Needed on paths that other clients also
/// call.
pub fn is_client(headers: &HeaderMap) -> bool {
    headers.contains_key(VERSION)
}

/// The error format of Anthropic's API.
#[derive(Clone, Copy, Debug)]
pub struct AnthropicErrors;

impl ErrorFormat for AnthropicErrors {
    fn name(&self) -> &'static str {
        "Anthropic"
    }

    fn schema(&self) -> &'static str {
        "AnthropicError"
    }

    fn claims(&self, path: &str, headers: &HeaderMap) -> bool {
        let models = path == "/v1/models" || path.starts_with("/v1/models/");
        models && is_client(headers) || path == "/v1/messages" || path.starts_with("/v1/messages/")
    }

    fn render(&self, failure: Failure<'_>) -> (StatusCode, Value) {
        let mut body = error(failure.error);
        body["request_id"] = failure.request_id.into();
        (status(failure.error, failure.status), body)
    }

    fn has_retry_header(&self) -> bool {
        true
    }

    fn statuses(&self) -> &'static [u16] {
        &[529]
    }
}

/// The type of an error. A service whose account has no credit is not overloaded: a retry would
/// fail in the same way.
fn kind(error: &PredictError) -> &'static str {
    match error.code {
        ErrorCode::InvalidInput => "invalid_request_error",
        ErrorCode::NotFound | ErrorCode::NotDeployed => "not_found_error",
        ErrorCode::TooLarge => "request_too_large",
        ErrorCode::Unauthenticated => "authentication_error",
        ErrorCode::PermissionDenied => "permission_error",
        ErrorCode::Overloaded => "rate_limit_error",
        ErrorCode::Unavailable if is_exhausted(error) => "api_error",
        ErrorCode::Unavailable => "overloaded_error",
        ErrorCode::DeadlineExceeded | ErrorCode::UpstreamTimeout => "timeout_error",
        ErrorCode::Conflict
        | ErrorCode::Cancelled
        | ErrorCode::UpstreamFailed
        | ErrorCode::UpstreamIncomplete
        | ErrorCode::Unimplemented
        | ErrorCode::Internal => "api_error",
    }
}

fn is_exhausted(error: &PredictError) -> bool {
    error.reason == Some(ErrorReason::QuotaExhausted)
}

/// The HTTP status. Anthropic uses its own status, 529, for an overloaded service.
fn status(error: &PredictError, status: StatusCode) -> StatusCode {
    match error.code {
        ErrorCode::NotDeployed => StatusCode::NOT_FOUND,
        ErrorCode::Unavailable if !is_exhausted(error) => {
            StatusCode::from_u16(529).unwrap_or(status)
        }
        _ => status,
    }
}

/// Clients detect by these words that they must shorten the conversation.
const TOO_LONG: &str = "prompt is too long";

/// Formats an error, both for a body and for an event of a stream.
pub(crate) fn error(error: &PredictError) -> Value {
    let told = &error.message;
    let message = match error.reason {
        Some(ErrorReason::ContextLength) if !told.contains(TOO_LONG) => {
            format!("{TOO_LONG}: {told}")
        }
        _ => told.clone(),
    };
    json!({
        "type": "error",
        "error": { "type": kind(error), "message": message },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_beyond_the_context_is_named_in_the_clients_words() {
        let told = error(&PredictError::context_length("9 tokens, and 8 fit"));
        assert_eq!(told["error"]["type"], "invalid_request_error");
        assert_eq!(
            told["error"]["message"],
            "prompt is too long: 9 tokens, and 8 fit"
        );
        let own = PredictError::context_length("prompt is too long: 9 tokens > 8 maximum");
        assert_eq!(error(&own)["error"]["message"], own.message);
    }

    #[test]
    fn an_account_without_credit_is_not_an_overloaded_service() {
        let busy = PredictError::new(ErrorCode::Unavailable, "busy");
        assert_eq!(error(&busy)["error"]["type"], "overloaded_error");
        let own = StatusCode::SERVICE_UNAVAILABLE;
        assert_eq!(status(&busy, own).as_u16(), 529);
        let empty = busy.with_reason(ErrorReason::QuotaExhausted);
        assert_eq!(error(&empty)["error"]["type"], "api_error");
        assert_eq!(status(&empty, own), own);
    }
}
