//! Errors in the format of the caller's dialect.
//!
//! A handler answers with an [`ApiError`], which has a status and no body yet. [`render`], around
//! all routes, writes the body in the [`ErrorFormat`] of the dialect that claims the request.

pub mod own;

use std::sync::Arc;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use serde_json::Value;
use volley_types::{ErrorCode, ErrorReason, PredictError};

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

/// Logs a defect that is not logged yet, in the request's span.
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

/// The error of a response whose body is not rendered yet.
#[derive(Clone)]
struct PendingError(PredictError);

/// An error with an explicit HTTP status, for conditions that only HTTP has.
pub fn respond(error: &PredictError, status: StatusCode) -> Response {
    let mut response = status.into_response();
    if let Some(after) = error.retry_after {
        // Whole seconds, never 0: otherwise all clients would retry at the same time.
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

/// Error format of a response, if the path does not determine it.
#[derive(Clone, Copy)]
struct Format(&'static dyn ErrorFormat);

/// A failed request with an explicit error format, independent of its path.
pub struct DialectError(pub &'static dyn ErrorFormat, pub PredictError);

impl IntoResponse for DialectError {
    fn into_response(self) -> Response {
        let mut response = ApiError(self.1).into_response();
        response.extensions_mut().insert(Format(self.0));
        response
    }
}

/// Code of an HTTP-only error, for dialects with codes.
#[derive(Clone, Copy, Debug)]
struct Code(&'static str);

/// Sets the code of an error response.
pub fn with_code(mut response: Response, code: &'static str) -> Response {
    response.extensions_mut().insert(Code(code));
    response
}

/// Input of an error format.
#[derive(Clone, Copy, Debug)]
pub struct Failure<'f> {
    /// The error.
    pub error: &'f PredictError,
    /// The HTTP status of the error's code.
    pub status: StatusCode,
    /// A code of an HTTP-only error, such as an unknown route.
    pub code: Option<&'static str>,
    /// The request's id.
    pub request_id: &'f str,
}

/// Error format of a dialect, and the requests to which it applies.
pub trait ErrorFormat: Send + Sync {
    /// The dialect's name in the documentation.
    fn name(&self) -> &'static str;

    /// The name of the body's schema in the OpenAPI document.
    fn schema(&self) -> &'static str;

    /// Whether the format applies to a request. Also called for paths without a route.
    fn claims(&self, path: &str, headers: &HeaderMap) -> bool;

    /// The status and the body of a failed response.
    fn render(&self, failure: Failure<'_>) -> (StatusCode, Value);

    /// Whether the dialect's clients retry failed requests unless `x-should-retry` is false.
    fn has_retry_header(&self) -> bool {
        false
    }

    /// Statuses that only this dialect has.
    fn statuses(&self) -> &'static [u16] {
        &[]
    }
}

/// The error formats of a node's dialects, in order of precedence. [`OwnErrors`] applies to all
/// other requests.
#[derive(Clone, Default)]
pub struct ErrorFormats(Arc<[&'static dyn ErrorFormat]>);

impl ErrorFormats {
    /// These formats, in this order.
    pub fn new(formats: impl IntoIterator<Item = &'static dyn ErrorFormat>) -> Self {
        Self(formats.into_iter().collect())
    }

    /// The format for a request.
    pub fn of(&self, path: &str, headers: &HeaderMap) -> &'static dyn ErrorFormat {
        let mut formats = self.0.iter().copied();
        let claiming = formats.find(|format| format.claims(path, headers));
        claiming.unwrap_or(&OwnErrors)
    }
}

/// Writes the body of a failed response in `format`, unless the response has an explicit format.
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
    if format.has_retry_header() && is_final(&error) {
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

/// Whether a retry is useless: Volley has already retried, or a retry would fail in the same way.
/// The official clients retry twice by default.
fn is_final(error: &PredictError) -> bool {
    let is_empty = error.reason == Some(ErrorReason::QuotaExhausted);
    is_empty
        || matches!(
            error.code,
            ErrorCode::UpstreamFailed
                | ErrorCode::UpstreamIncomplete
                | ErrorCode::UpstreamTimeout
                | ErrorCode::DeadlineExceeded
                | ErrorCode::Conflict
                | ErrorCode::Unimplemented
        )
}
