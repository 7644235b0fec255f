//! Errors in the format of Hugging Face's servers.

use http::{HeaderMap, StatusCode};
use serde_json::{Value, json};
use volley_types::{ErrorCode, PredictError};

use volley_http_edge::error::{ErrorFormat, Failure};

/// Routes of Hugging Face's servers that only this dialect has.
const PATHS: [&str; 10] = [
    "/embed",
    "/embed_all",
    "/embed_sparse",
    "/similarity",
    "/predict",
    "/decode",
    "/info",
    "/generate",
    "/generate_stream",
    "/chat_tokenize",
];

/// The error format of Hugging Face's servers.
#[derive(Clone, Copy, Debug)]
pub struct HuggingFaceErrors;

impl ErrorFormat for HuggingFaceErrors {
    fn name(&self) -> &'static str {
        "Hugging Face"
    }

    fn schema(&self) -> &'static str {
        "AnyError"
    }

    fn claims(&self, path: &str, _: &HeaderMap) -> bool {
        path.starts_with("/tei/") || path.starts_with("/tgi/") || PATHS.contains(&path)
    }

    fn render(&self, failure: Failure<'_>) -> (StatusCode, Value) {
        (status(failure.error, failure.status), error(failure.error))
    }
}

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

/// The HTTP status. Hugging Face's servers use 422, not 400, for a well-formed body that they
/// reject.
fn status(error: &PredictError, status: StatusCode) -> StatusCode {
    match error.code {
        ErrorCode::NotDeployed => StatusCode::NOT_FOUND,
        ErrorCode::InvalidInput if status == StatusCode::BAD_REQUEST => {
            StatusCode::UNPROCESSABLE_ENTITY
        }
        _ => status,
    }
}

/// Formats an error, both for a body and for an event of a stream.
pub(crate) fn error(error: &PredictError) -> Value {
    json!({ "error": error.message, "error_type": kind(error.code) })
}
