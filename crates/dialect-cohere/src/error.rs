//! Errors in Cohere's format.

use http::{HeaderMap, StatusCode};
use serde_json::{Value, json};

use volley_dialect_kit::openai_error;
use volley_http_edge::error::{ErrorFormat, Failure};

/// Routes that only this dialect has.
const PATHS: [&str; 4] = ["/v2/chat", "/v2/embed", "/v2/rerank", "/v1/embed"];

/// The error format of Cohere's API.
#[derive(Clone, Copy, Debug)]
pub struct CohereErrors;

impl ErrorFormat for CohereErrors {
    fn name(&self) -> &'static str {
        "Cohere"
    }

    fn schema(&self) -> &'static str {
        "CohereError"
    }

    fn claims(&self, path: &str, _: &HeaderMap) -> bool {
        PATHS.contains(&path)
    }

    fn render(&self, failure: Failure<'_>) -> (StatusCode, Value) {
        let body = json!({ "id": failure.request_id, "message": failure.error.message });
        (openai_error::status(failure.error, failure.status), body)
    }
}
