//! Error format of Volley's own routes, which is OpenSearch's.

use http::{HeaderMap, StatusCode};
use serde_json::{Value, json};
use volley_types::{ErrorCode, PredictError};

use super::{ErrorFormat, Failure};

/// The format for requests that no dialect claims.
#[derive(Clone, Copy, Debug)]
pub struct OwnErrors;

impl ErrorFormat for OwnErrors {
    fn name(&self) -> &'static str {
        "Volley"
    }

    fn schema(&self) -> &'static str {
        "VolleyError"
    }

    fn claims(&self, _: &str, _: &HeaderMap) -> bool {
        true
    }

    fn render(&self, failure: Failure<'_>) -> (StatusCode, Value) {
        (failure.status, body(failure.error, failure.status))
    }
}

/// OpenSearch's exception for a code, or else the name of the code.
pub fn kind(code: ErrorCode) -> &'static str {
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
fn body(error: &PredictError, status: StatusCode) -> Value {
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
