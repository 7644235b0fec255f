//! Errors in the format of the Open Inference Protocol.

use http::{HeaderMap, StatusCode};
use serde_json::{Value, json};

use volley_http_edge::error::{ErrorFormat, Failure};

/// The error format of the Open Inference Protocol.
#[derive(Clone, Copy, Debug)]
pub struct OipErrors;

impl ErrorFormat for OipErrors {
    fn name(&self) -> &'static str {
        "Open Inference Protocol"
    }

    fn schema(&self) -> &'static str {
        "OipError"
    }

    fn claims(&self, path: &str, _: &HeaderMap) -> bool {
        path == "/v2" || path.starts_with("/v2/")
    }

    fn render(&self, failure: Failure<'_>) -> (StatusCode, Value) {
        (failure.status, json!({ "error": failure.error.message }))
    }
}
