//! Errors in OpenAI's format: all four fields are always present.

use http::{HeaderMap, StatusCode};
use serde_json::{Value, json};
use volley_types::{ErrorCode, ErrorReason, PredictError};

use volley_http_edge::error::{ErrorFormat, Failure};

/// Routes at the root that OpenAI's clients share with those of vLLM and llama.cpp.
const AT_ROOT: [&str; 5] = ["/tokenize", "/detokenize", "/rerank", "/version", "/ping"];

/// OpenAI's error format.
#[derive(Clone, Copy, Debug)]
pub struct OpenAiErrors;

impl ErrorFormat for OpenAiErrors {
    fn name(&self) -> &'static str {
        "OpenAI"
    }

    fn schema(&self) -> &'static str {
        "OpenAiError"
    }

    fn claims(&self, path: &str, _: &HeaderMap) -> bool {
        AT_ROOT.contains(&path) || path.starts_with("/v1/") && !path.starts_with("/v1/streams/")
    }

    fn render(&self, failure: Failure<'_>) -> (StatusCode, Value) {
        let mut body = json!({ "error": error(failure.error) });
        if let Some(code) = failure.code {
            body["error"]["code"] = code.into();
        }
        (status(failure.error, failure.status), body)
    }

    fn has_retry_header(&self) -> bool {
        true
    }
}

/// OpenAI's `type` and `code` for a code.
fn names(code: ErrorCode) -> (&'static str, &'static str) {
    match code {
        ErrorCode::InvalidInput => ("invalid_request_error", "invalid_value"),
        ErrorCode::NotFound => ("invalid_request_error", "model_not_found"),
        ErrorCode::NotDeployed => ("invalid_request_error", "model_not_deployed"),
        ErrorCode::TooLarge => ("invalid_request_error", "request_too_large"),
        ErrorCode::Unauthenticated => ("authentication_error", "invalid_api_key"),
        ErrorCode::PermissionDenied => ("permission_error", "permission_denied"),
        ErrorCode::Overloaded => ("rate_limit_error", "rate_limit_exceeded"),
        ErrorCode::Conflict
        | ErrorCode::Cancelled
        | ErrorCode::Unavailable
        | ErrorCode::DeadlineExceeded
        | ErrorCode::UpstreamFailed
        | ErrorCode::UpstreamTimeout
        | ErrorCode::UpstreamIncomplete
        | ErrorCode::Unimplemented
        | ErrorCode::Internal => ("server_error", code.as_str()),
    }
}

/// The status: for these clients, a model that is not deployed does not exist.
pub fn status(error: &PredictError, status: StatusCode) -> StatusCode {
    if error.code == ErrorCode::NotDeployed {
        StatusCode::NOT_FOUND
    } else {
        status
    }
}

/// The error object in bodies and streams.
pub fn error(error: &PredictError) -> Value {
    let (mut kind, mut code) = names(error.code);
    let mut param = parameter(&error.message);
    match error.reason {
        Some(ErrorReason::ContextLength) => {
            (kind, code) = ("invalid_request_error", "context_length_exceeded");
            param = param.or(Some("messages"));
        }
        Some(ErrorReason::ContentFilter) => code = "content_filter",
        Some(ErrorReason::QuotaExhausted) => code = "insufficient_quota",
        Some(
            ErrorReason::ModelMissing
            | ErrorReason::SequenceUnknown
            | ErrorReason::AnswerUnusable
            | ErrorReason::CallRejected,
        )
        | None => {}
    }
    json!({
        "message": error.message,
        "type": kind,
        "param": param,
        "code": code,
    })
}

/// The first parameter in a message.
fn parameter(message: &str) -> Option<&str> {
    let (_, rest) = ["parameter '", "field '"]
        .into_iter()
        .find_map(|before| message.split_once(before))?;
    rest.split_once('\'').map(|(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_four_fields_are_there() {
        let bad = PredictError::invalid("parameter 'top_p' must be 0 to 1");
        assert_eq!(
            error(&bad),
            json!({
                "message": "parameter 'top_p' must be 0 to 1",
                "type": "invalid_request_error",
                "param": "top_p",
                "code": "invalid_value",
            })
        );
        let long = error(&PredictError::context_length("8193 tokens do not fit"));
        assert_eq!(
            (&long["code"], &long["type"], &long["param"]),
            (
                &json!("context_length_exceeded"),
                &json!("invalid_request_error"),
                &json!("messages")
            )
        );
        let busy = PredictError::new(ErrorCode::Overloaded, "busy");
        assert_eq!(error(&busy)["param"], Value::Null);
    }
}
