//! Errors in OpenSearch's shape.

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use serde_json::{Value, json};
use volley_types::{ErrorCode, PredictError};

/// A failed request.
#[derive(Debug)]
pub(crate) struct ApiError(pub(crate) PredictError);

impl From<PredictError> for ApiError {
    fn from(error: PredictError) -> Self {
        Self(error)
    }
}

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

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.code.http_status())
            .unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        if self.0.code == ErrorCode::Internal {
            tracing::error!(error = self.0.chain(), "request failed");
        }
        respond(&self.0, status)
    }
}

/// An error under a status of HTTP's own, for what HTTP alone knows.
pub(crate) fn respond(error: &PredictError, status: StatusCode) -> Response {
    let mut response = (status, axum::Json(body(error, status))).into_response();
    if let Some(after) = error.retry_after {
        // Whole seconds, never 0: "now" would bring everybody back at once.
        let seconds = (after.as_millis().div_ceil(1_000)).max(1);
        if let Ok(seconds) = HeaderValue::from_str(&seconds.to_string()) {
            response.headers_mut().insert(header::RETRY_AFTER, seconds);
        }
    }
    response
}
