//! Errors in Ollama's format.

use http::{HeaderMap, StatusCode};
use serde_json::{Value, json};
use volley_types::ErrorCode;

use volley_http_edge::error::{ErrorFormat, Failure};

/// The error format of Ollama's API.
#[derive(Clone, Copy, Debug)]
pub struct OllamaErrors;

impl ErrorFormat for OllamaErrors {
    fn name(&self) -> &'static str {
        "Ollama"
    }

    fn schema(&self) -> &'static str {
        "OipError"
    }

    fn claims(&self, path: &str, _: &HeaderMap) -> bool {
        path.starts_with("/api/")
    }

    fn render(&self, failure: Failure<'_>) -> (StatusCode, Value) {
        // Ollama has no deployments, so a model that is not deployed is reported as not found.
        let status = match failure.error.code {
            ErrorCode::NotDeployed => StatusCode::NOT_FOUND,
            _ => failure.status,
        };
        (status, json!({ "error": failure.error.message }))
    }
}
