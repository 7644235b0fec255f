//! Errors in OpenSearch's shape.

use http::StatusCode;
use serde_json::{Value, json};
use volley_types::{ErrorCode, PredictError};

/// OpenSearch's name for a code: its exception where it has one, else the code's own name.
pub(crate) fn kind(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::InvalidInput => "illegal_argument_exception",
        ErrorCode::NotFound => "status_exception",
        ErrorCode::NotDeployed => "illegal_state_exception",
        ErrorCode::Unauthenticated | ErrorCode::PermissionDenied => "security_exception",
        ErrorCode::Conflict => "version_conflict_engine_exception",
        ErrorCode::Overloaded => "rejected_execution_exception",
        ErrorCode::DeadlineExceeded => "timeout_exception",
        ErrorCode::TooLarge
        | ErrorCode::Cancelled
        | ErrorCode::Unavailable
        | ErrorCode::UpstreamFailed
        | ErrorCode::UpstreamTimeout
        | ErrorCode::UpstreamIncomplete
        | ErrorCode::Unimplemented
        | ErrorCode::Internal => code.as_str(),
    }
}

/// The error body.
pub(super) fn body(error: &PredictError, status: StatusCode) -> Value {
    let cause = json!({ "type": kind(error.code), "reason": error.message });
    json!({
        "error": {
            "root_cause": [cause],
            "type": kind(error.code),
            "reason": error.message,
            "code": error.code.as_str(),
        },
        "status": status.as_u16(),
    })
}
