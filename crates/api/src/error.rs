//! Errors, in the shape of the house that the caller knows.
//!
//! A handler answers with an [`ApiError`], which has a status and no body yet; [`render`], around
//! all routes, writes the body as the route's dialect has it.

mod anthropic;
mod huggingface;
mod openai;
mod opensearch;
#[cfg(test)]
mod reference;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use serde_json::{Value, json};
use volley_types::{ErrorCode, PredictError};

pub(crate) use self::anthropic::error as anthropic_error;
pub(crate) use self::huggingface::error as huggingface_error;
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

/// A failed request of a house that its path does not tell.
#[derive(Debug)]
pub(crate) struct HouseError(pub(crate) House, pub(crate) PredictError);

impl IntoResponse for HouseError {
    fn into_response(self) -> Response {
        let mut response = ApiError(self.1).into_response();
        response.extensions_mut().insert(self.0);
        response
    }
}

/// The code of a refusal that is HTTP's alone, for houses that have codes.
#[derive(Clone, Copy, Debug)]
struct Code(&'static str);

/// `response`, a refusal with this code.
pub(crate) fn with_code(mut response: Response, code: &'static str) -> Response {
    response.extensions_mut().insert(Code(code));
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
    HuggingFace,
}

/// Cohere's routes that no other house has.
const COHERE: [&str; 4] = ["/v2/chat", "/v2/embed", "/v2/rerank", "/v1/embed"];

/// Routes of Hugging Face's servers that no other house has.
const HUGGING_FACE: [&str; 10] = [
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
/// Routes at the root that OpenAI's clients share with those of vLLM and llama.cpp.
const AT_ROOT: [&str; 5] = ["/tokenize", "/detokenize", "/rerank", "/version", "/ping"];

/// What Anthropic's clients send with every request.
const ANTHROPIC_VERSION: &str = "anthropic-version";

impl House {
    /// The house of a request: models are listed at one path for two of them.
    pub(crate) fn of_request(path: &str, headers: &HeaderMap) -> Self {
        let models = path == "/v1/models" || path.starts_with("/v1/models/");
        match models && headers.contains_key(ANTHROPIC_VERSION) {
            true => Self::Anthropic,
            false => Self::of(path),
        }
    }

    pub(crate) fn of(path: &str) -> Self {
        if path == "/v1/messages" || path.starts_with("/v1/messages/") {
            Self::Anthropic
        } else if COHERE.contains(&path) {
            Self::Cohere
        } else if path.starts_with("/api/") {
            Self::Ollama
        } else if path == "/v2" || path.starts_with("/v2/") {
            Self::Oip
        } else if path.starts_with("/tei/")
            || path.starts_with("/tgi/")
            || HUGGING_FACE.contains(&path)
        {
            Self::HuggingFace
        } else if AT_ROOT.contains(&path)
            || path.starts_with("/v1/") && !path.starts_with("/v1/streams/")
        {
            Self::OpenAi
        } else {
            Self::OpenSearch
        }
    }
}

/// Writes the body of a failed response for the house of `path`.
pub(crate) fn render(response: Response, path: &str, request_id: &str) -> Response {
    render_for(response, House::of(path), request_id)
}

/// The same for `house`, where the response names no other.
pub(crate) fn render_for(mut response: Response, house: House, request_id: &str) -> Response {
    let extensions = response.extensions_mut();
    let Some(Failure(error)) = extensions.remove::<Failure>() else {
        return response;
    };
    let house = extensions.remove::<House>().unwrap_or(house);
    let code = extensions.remove::<Code>();
    let status = response.status();
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
        House::OpenAi => {
            let mut body = openai::body(&error);
            if let Some(Code(code)) = code {
                body["error"]["code"] = code.into();
            }
            (openai::status(&error, status), body)
        }
        House::HuggingFace => (
            huggingface::status(&error, status),
            huggingface::error(&error),
        ),
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
