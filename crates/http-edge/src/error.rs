//! Errors, in the form that the caller's dialect has for them.
//!
//! A handler answers with an [`ApiError`], which has a status and no body yet. [`render`], around
//! all routes, writes the body in the [`ErrorFormat`] of the dialect that claims the request.

pub mod own;

use std::sync::Arc;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use serde_json::Value;
use volley_types::{ErrorCode, PredictError};

use self::own::OwnErrors;

const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// A failed request.
#[derive(Debug)]
pub struct ApiError(pub PredictError);

impl From<PredictError> for ApiError {
    fn from(error: PredictError) -> Self {
        Self(error)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.code.http_status())
            .unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        log_defect(&self.0);
        respond(&self.0, status)
    }
}

/// Logs a defect of which no log tells yet, in the request's span.
pub fn log_defect(error: &PredictError) {
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
struct PendingError(PredictError);

/// An error under a status of HTTP's own, for what HTTP alone knows.
pub fn respond(error: &PredictError, status: StatusCode) -> Response {
    let mut response = status.into_response();
    if let Some(after) = error.retry_after {
        // Whole seconds, never 0: "now" would bring everybody back at once.
        let seconds = (after.as_millis().div_ceil(1_000)).max(1);
        if let Ok(seconds) = HeaderValue::from_str(&seconds.to_string()) {
            response.headers_mut().insert(header::RETRY_AFTER, seconds);
        }
    }
    response
        .extensions_mut()
        .insert(PendingError(error.clone()));
    response
}

/// The form of a failed response, where its path does not show it.
#[derive(Clone, Copy)]
struct Format(&'static dyn ErrorFormat);

/// A failed request that is answered in this form, whatever its path is.
pub struct DialectError(pub &'static dyn ErrorFormat, pub PredictError);

impl IntoResponse for DialectError {
    fn into_response(self) -> Response {
        let mut response = ApiError(self.1).into_response();
        response.extensions_mut().insert(Format(self.0));
        response
    }
}

/// The code of a refusal that is HTTP's alone, for dialects that have codes.
#[derive(Clone, Copy, Debug)]
struct Code(&'static str);

/// `response`, a refusal with this code.
pub fn with_code(mut response: Response, code: &'static str) -> Response {
    response.extensions_mut().insert(Code(code));
    response
}

/// What a form of errors renders.
#[derive(Clone, Copy, Debug)]
pub struct Failure<'f> {
    /// The error.
    pub error: &'f PredictError,
    /// The status that the error's code has in HTTP.
    pub status: StatusCode,
    /// A code that is HTTP's alone, as that of an unknown route.
    pub code: Option<&'static str>,
    /// The request's id.
    pub request_id: &'f str,
}

/// How a dialect writes errors, and which requests are its clients'.
pub trait ErrorFormat: Send + Sync {
    /// The dialect's name, as documentation has it.
    fn name(&self) -> &'static str;

    /// The name of the body's schema in the OpenAPI document.
    fn schema(&self) -> &'static str;

    /// Whether a request is of this dialect's clients. It is also asked for paths that match no
    /// route.
    fn claims(&self, path: &str, headers: &HeaderMap) -> bool;

    /// The status and the body of a failed response.
    fn render(&self, failure: Failure<'_>) -> (StatusCode, Value);

    /// Whether the dialect's clients repeat failed requests unless `x-should-retry` is false.
    fn has_retry_header(&self) -> bool {
        false
    }

    /// Statuses that only this dialect has.
    fn statuses(&self) -> &'static [u16] {
        &[]
    }
}

/// The forms of all dialects of a node, in the order in which they are asked. A request that none
/// claims gets [`OwnErrors`].
#[derive(Clone, Default)]
pub struct ErrorFormats(Arc<[&'static dyn ErrorFormat]>);

impl ErrorFormats {
    /// These forms, in this order.
    pub fn new(formats: impl IntoIterator<Item = &'static dyn ErrorFormat>) -> Self {
        Self(formats.into_iter().collect())
    }

    /// The form for a request.
    pub fn of(&self, path: &str, headers: &HeaderMap) -> &'static dyn ErrorFormat {
        let mut formats = self.0.iter().copied();
        let claiming = formats.find(|format| format.claims(path, headers));
        claiming.unwrap_or(&OwnErrors)
    }
}

/// Writes the body of a failed response in `format`, unless the response names another form.
pub fn render(
    mut response: Response,
    format: &'static dyn ErrorFormat,
    request_id: &str,
) -> Response {
    let extensions = response.extensions_mut();
    let Some(PendingError(error)) = extensions.remove::<PendingError>() else {
        return response;
    };
    let format = extensions
        .remove::<Format>()
        .map_or(format, |named| named.0);
    let code = extensions.remove::<Code>().map(|code| code.0);
    if format.has_retry_header() && is_final(error.code) {
        let never = HeaderValue::from_static("false");
        response.headers_mut().insert(SHOULD_RETRY, never);
    }
    let (status, body) = format.render(Failure {
        error: &error,
        status: response.status(),
        code,
        request_id,
    });
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
