//! Errors in the shape of Hugging Face's servers.

use http::StatusCode;
use serde_json::{Value, json};
use volley_types::{ErrorCode, PredictError};

fn kind(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::InvalidInput | ErrorCode::TooLarge | ErrorCode::Unimplemented => "validation",
        ErrorCode::NotFound | ErrorCode::NotDeployed => "model_not_found",
        ErrorCode::Unauthenticated | ErrorCode::PermissionDenied => "authorization",
        ErrorCode::Overloaded => "overloaded",
        ErrorCode::Unavailable => "unhealthy",
        ErrorCode::UpstreamIncomplete => "incomplete_generation",
        ErrorCode::Conflict
        | ErrorCode::Cancelled
        | ErrorCode::DeadlineExceeded
        | ErrorCode::UpstreamFailed
        | ErrorCode::UpstreamTimeout
        | ErrorCode::Internal => "generation",
    }
}

/// The status: what they refuse in a body that could be read is not a bad request.
pub(super) fn status(error: &PredictError, status: StatusCode) -> StatusCode {
    match error.code {
        ErrorCode::NotDeployed => StatusCode::NOT_FOUND,
        ErrorCode::InvalidInput if status == StatusCode::BAD_REQUEST => {
            StatusCode::UNPROCESSABLE_ENTITY
        }
        _ => status,
    }
}

/// The error as a body, and as an event of a stream.
pub(crate) fn error(error: &PredictError) -> Value {
    json!({ "error": error.message, "error_type": kind(error.code) })
}
