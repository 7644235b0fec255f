//! Errors in Anthropic's shape.

use http::StatusCode;
use serde_json::{Value, json};
use volley_types::{ErrorCode, PredictError};

fn kind(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::InvalidInput => "invalid_request_error",
        ErrorCode::NotFound | ErrorCode::NotDeployed => "not_found_error",
        ErrorCode::TooLarge => "request_too_large",
        ErrorCode::Unauthenticated => "authentication_error",
        ErrorCode::PermissionDenied => "permission_error",
        ErrorCode::Overloaded => "rate_limit_error",
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

/// The status: theirs for a service that has no room is one of their own.
pub(super) fn status(error: &PredictError, status: StatusCode) -> StatusCode {
    match error.code {
        ErrorCode::NotDeployed => StatusCode::NOT_FOUND,
        ErrorCode::Unavailable => StatusCode::from_u16(529).unwrap_or(status),
        _ => status,
    }
}

/// The error as a body, and as an event of a stream.
pub(crate) fn error(error: &PredictError) -> Value {
    json!({
        "type": "error",
        "error": { "type": kind(error.code), "message": error.message },
    })
}
