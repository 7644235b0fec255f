//! Context of a request: id, trace and deadline. The edge creates it once.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{FromRequestParts, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::FutureExt;
use futures::stream::BoxStream;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use tracing::Instrument;
use volley_types::{Deadline, ErrorCode, PredictError, RequestId, TraceContext};

use crate::config::EdgeConfig;
use crate::error::{self, ApiError, ErrorFormats};
use crate::idle;
use crate::inference::AnswerHeaders;
use crate::intake::BodyShare;
use crate::watch::BodyWatchdogs;

/// The header with a request's id, in both directions.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const TIMEOUT_MS: HeaderName = HeaderName::from_static("x-volley-timeout-ms");
const SESSION: HeaderName = HeaderName::from_static("x-volley-session");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// Maximum length of a session's name in bytes.
const MAX_SESSION: usize = 128;

/// The error for a request that exceeds its deadline.
pub fn too_late() -> PredictError {
    PredictError::new(
        ErrorCode::DeadlineExceeded,
        format!("the request did not end in time; header '{TIMEOUT_MS}' sets a longer limit"),
    )
}

/// Receives the events of a stream instead of the connection.
pub trait StreamSink: Send + Sync {
    /// Buffers `pieces`, each with complete events, and returns the response of the request.
    fn attach(
        &self,
        pieces: BoxStream<'static, Bytes>,
        keep_alive: Duration,
        context: &RequestContext,
    ) -> Response;
}

/// Request data for handlers besides the dialect's own fields.
#[derive(Clone)]
pub struct RequestContext {
    /// The caller's request id, or a generated one.
    pub request_id: RequestId,
    /// The trace that the request belongs to.
    pub trace: TraceContext,
    /// Deadline of the complete response.
    pub deadline: Deadline,
    /// Requests of one session go to the same replica if possible.
    pub session: Option<String>,
    /// The span of logs and traces.
    pub span: tracing::Span,
    /// Watchdogs of the connection's running responses.
    pub watches: BodyWatchdogs,
    /// Headers of the response that depend on the answer.
    pub answer_headers: AnswerHeaders,
    /// Receiver of a resumable stream's events.
    pub sink: Option<Arc<dyn StreamSink>>,
}

impl RequestContext {
    /// Deadline as a tokio instant.
    pub fn until(&self) -> tokio::time::Instant {
        self.deadline.instant().into()
    }

    /// Awaits `work` until the deadline, and drops it after that.
    pub async fn in_time<T>(
        &self,
        work: impl Future<Output = Result<T, PredictError>>,
    ) -> Result<T, PredictError> {
        match tokio::time::timeout_at(self.until(), work).await {
            Ok(done) => done,
            Err(_) => Err(too_late()),
        }
    }
}

impl<S: Sync> FromRequestParts<S> for RequestContext {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        parts.extensions.get::<Self>().cloned().ok_or_else(|| {
            ApiError(PredictError::internal(
                "the request was lost",
                "no context in the request",
            ))
        })
    }
}

/// Middleware of every route: creates the context, catches panics, returns the id.
pub async fn middleware(
    State((config, errors)): State<(Arc<EdgeConfig>, ErrorFormats)>,
    mut request: Request,
    next: Next,
) -> Response {
    let request_id = request_id(request.headers());
    let trace = trace(request.headers());
    let span = tracing::info_span!(
        "http",
        request_id = %request_id,
        trace_id = format_args!("{:032x}", trace.trace_id),
        method = %request.method(),
        path = request.uri().path(),
    );
    let format = errors.of(request.uri().path(), request.headers());
    let checked = timeout(request.headers(), &config)
        .and_then(|timeout| Ok((timeout, session(request.headers())?)));
    let answer_headers = AnswerHeaders::default();
    let mut response = match checked {
        Err(error) => ApiError(error).into_response(),
        Ok((timeout, session)) => {
            let deadline = Deadline::after(Instant::now(), timeout);
            let context = RequestContext {
                request_id: request_id.clone(),
                trace,
                deadline,
                session,
                span: span.clone(),
                watches: request.extensions().get().cloned().unwrap_or_default(),
                answer_headers: answer_headers.clone(),
                sink: None,
            };
            request.extensions_mut().insert(context);
            let held = BodyShare::default();
            request.extensions_mut().insert(held.clone());
            let answered = AssertUnwindSafe(next.run(request))
                .catch_unwind()
                .instrument(span);
            let answered = answered.await.unwrap_or_else(|_| {
                let error = PredictError::internal("the request failed unexpectedly", "a panic");
                ApiError(error).into_response()
            });
            match held.rows() {
                Some(rows) => idle::until_sent(answered, rows),
                None => answered,
            }
        }
    };
    response = error::render(response, format, request_id.as_str());
    answer_headers.insert(response.headers_mut());
    if let Ok(id) = HeaderValue::from_str(request_id.as_str()) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response
}

/// The caller's id if it is well formed, otherwise a new one.
pub fn request_id(headers: &HeaderMap) -> RequestId {
    let given = headers
        .get(REQUEST_ID)
        .and_then(|value| value.to_str().ok());
    given
        .and_then(|id| RequestId::new(id).ok())
        .unwrap_or_else(RequestId::random)
}

/// The caller's trace if it is well formed, otherwise a new one.
pub fn trace(headers: &HeaderMap) -> TraceContext {
    let given = headers
        .get(TRACEPARENT)
        .and_then(|value| value.to_str().ok());
    given
        .and_then(TraceContext::parse)
        .map_or_else(TraceContext::random, TraceContext::child)
}

/// Time limit of a prediction.
pub fn timeout(headers: &HeaderMap, config: &EdgeConfig) -> Result<Duration, PredictError> {
    let Some(value) = headers.get(TIMEOUT_MS) else {
        return Ok(config.request_timeout);
    };
    let limit_ms = config.max_request_timeout.as_millis();
    let given = value
        .to_str()
        .ok()
        .and_then(|text| text.trim().parse::<u64>().ok());
    match given {
        Some(ms) if 0 < ms && u128::from(ms) <= limit_ms => Ok(Duration::from_millis(ms)),
        _ => Err(PredictError::invalid(format!(
            "header '{TIMEOUT_MS}' must be a whole number of milliseconds from 1 to {limit_ms}"
        ))),
    }
}

/// The session of a request.
pub fn session(headers: &HeaderMap) -> Result<Option<String>, PredictError> {
    let Some(value) = headers.get(SESSION) else {
        return Ok(None);
    };
    match value.to_str() {
        Ok(name) if name.len() <= MAX_SESSION => {
            Ok(Some(name.to_owned()).filter(|name| !name.is_empty()))
        }
        _ => Err(PredictError::invalid(format!(
            "header '{SESSION}' must be text of at most {MAX_SESSION} bytes"
        ))),
    }
}

/// Handler for unknown routes.
pub async fn no_route(request: Request) -> Response {
    if is_grpc(request.headers()) {
        return no_service();
    }
    let path: String = request.uri().path().chars().take(200).collect();
    let error = PredictError::new(
        ErrorCode::NotFound,
        format!(
            "no route for {} {path}; see docs/reference/rest.md",
            request.method()
        ),
    );
    error::with_code(ApiError(error).into_response(), "unknown_url")
}

/// Whether a request is a gRPC call.
pub fn is_grpc(headers: &HeaderMap) -> bool {
    let given = headers.get(header::CONTENT_TYPE);
    let rest = given.and_then(|value| value.as_bytes().strip_prefix(b"application/grpc"));
    matches!(rest, Some([] | [b'+' | b';', ..]))
}

/// The end of a gRPC call of an unknown service, which gRPC clients read from the headers.
fn no_service() -> Response {
    let why = "no such gRPC service; coordinators serve inference.GRPCInferenceService";
    let mut response = Response::default();
    let headers = response.headers_mut();
    let media = HeaderValue::from_static("application/grpc");
    headers.insert(header::CONTENT_TYPE, media);
    headers.insert("grpc-status", HeaderValue::from_static("12"));
    headers.insert("grpc-message", HeaderValue::from_static(why));
    response
}

/// Handler for unsupported methods of a route.
pub async fn no_method(request: Request) -> Response {
    let error = PredictError::invalid(format!("this route does not support {}", request.method()));
    let refused = error::respond(&error, http::StatusCode::METHOD_NOT_ALLOWED);
    error::with_code(refused, "method_not_allowed")
}
