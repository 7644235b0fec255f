//! Errors, in the shape of the house that the caller knows.
//!
//! A handler answers with an [`ApiError`], which has a status and no body yet; [`render`], around
//! all routes, writes the body as the route's dialect has it.

mod anthropic;
mod openai;
mod opensearch;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::{HeaderName, HeaderValue, StatusCode, header};
use serde_json::{Value, json};
use volley_types::{ErrorCode, PredictError};

pub(crate) use self::anthropic::error as anthropic_error;
pub(crate) use self::openai::error as openai_error;
pub(crate) use self::opensearch::kind;

const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// A failed request.
#[derive(Debug)]
pub(crate) struct ApiError(pub(crate) PredictError);

impl From<PredictError> for ApiError {
    fn from(error: PredictError) -> Self {
        Self(error)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.code.http_status())
            .unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        tell(&self.0);
        respond(&self.0, status)
    }
}

/// Logs a defect of which no log tells yet, in the request's span.
pub(crate) fn tell(error: &PredictError) {
    if error.code != ErrorCode::Internal {
        return;
    }
    if error.is_logged() {
        tracing::debug!(error = error.chain(), "request failed");
    } else {
        tracing::error!(error = error.chain(), "request failed");
    }
}

/// What a response without a body yet is to say.
#[derive(Clone)]
struct Failure(PredictError);

/// An error under a status of HTTP's own, for what HTTP alone knows.
pub(crate) fn respond(error: &PredictError, status: StatusCode) -> Response {
    let mut response = status.into_response();
    if let Some(after) = error.retry_after {
        // Whole seconds, never 0: "now" would bring everybody back at once.
        let seconds = (after.as_millis().div_ceil(1_000)).max(1);
        if let Ok(seconds) = HeaderValue::from_str(&seconds.to_string()) {
            response.headers_mut().insert(header::RETRY_AFTER, seconds);
        }
    }
    response.extensions_mut().insert(Failure(error.clone()));
    response
}

/// Whose clients a route is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum House {
    OpenSearch,
    OpenAi,
    Anthropic,
    Cohere,
    Oip,
    Ollama,
}

/// Cohere's routes that no other house has.
const COHERE: [&str; 4] = ["/v2/chat", "/v2/embed", "/v2/rerank", "/v1/embed"];

impl House {
    pub(crate) fn of(path: &str) -> Self {
        if path == "/v1/messages" || path.starts_with("/v1/messages/") {
            Self::Anthropic
        } else if COHERE.contains(&path) {
            Self::Cohere
        } else if path.starts_with("/api/") {
            Self::Ollama
        } else if path == "/v2" || path.starts_with("/v2/") {
            Self::Oip
        } else if path.starts_with("/v1/") && !path.starts_with("/v1/streams/") {
            Self::OpenAi
        } else {
            Self::OpenSearch
        }
    }
}

/// Writes the body of a failed response for the house of `path`.
pub(crate) fn render(mut response: Response, path: &str, request_id: &str) -> Response {
    let Some(Failure(error)) = response.extensions_mut().remove::<Failure>() else {
        return response;
    };
    let status = response.status();
    let house = House::of(path);
    if matches!(house, House::OpenAi | House::Anthropic) && is_final(error.code) {
        let never = HeaderValue::from_static("false");
        response.headers_mut().insert(SHOULD_RETRY, never);
    }
    let (status, body): (StatusCode, Value) = match house {
        House::OpenSearch => (status, opensearch::body(&error, status)),
        House::Cohere => (
            openai::status(&error, status),
            json!({ "id": request_id, "message": error.message }),
        ),
        House::Oip => (status, json!({ "error": error.message })),
        // Where Ollama runs, what is not deployed is not there.
        House::Ollama if error.code == ErrorCode::NotDeployed => {
            (StatusCode::NOT_FOUND, json!({ "error": error.message }))
        }
        House::Ollama => (status, json!({ "error": error.message })),
        House::OpenAi => (openai::status(&error, status), openai::body(&error)),
        House::Anthropic => {
            let mut body = anthropic::error(&error);
            body["request_id"] = request_id.into();
            (anthropic::status(&error, status), body)
        }
    };
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    *response.body_mut() = Body::from(body.to_string());
    response
}

/// Whether another try was made here already, or would fail in the same way: the official clients
/// try again twice by themselves unless they are told.
fn is_final(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::UpstreamFailed
            | ErrorCode::UpstreamIncomplete
            | ErrorCode::UpstreamTimeout
            | ErrorCode::DeadlineExceeded
            | ErrorCode::Conflict
            | ErrorCode::Unimplemented
    )
}
