//! Context of each gRPC call: its caller, deadline, limits and errors.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{FutureExt, StreamExt, future};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version, header};
use hyper::body::Body as HttpBody;
use parking_lot::Mutex;
use tonic::Status;
use tonic::metadata::MetadataValue;
use tracing::Instrument;
use volley_http_edge::axum::body::Body;
use volley_http_edge::axum::extract::{Request, State};
use volley_http_edge::axum::middleware::Next;
use volley_http_edge::axum::response::Response;
use volley_proto::inference::triton::ModelInferRequest;
use volley_proto::status::{grpc_code, public_message};
use volley_proto::wire_bytes;
use volley_security::Principal;
use volley_types::deadline::grpc_timeout;
use volley_types::{Deadline, ErrorCode, PredictError, Role, Share};

use super::GrpcFlavor;
use crate::state::{Oip, OipCaller};
use volley_http_edge::auth::served_here;
use volley_http_edge::context::{self, REQUEST_ID, RequestContext, is_grpc};
use volley_http_edge::edge::DialectCaller;
use volley_http_edge::idle;
use volley_http_edge::inference::AnswerHeaders;
use volley_http_edge::serve::{PeerAddress, ServerShutdown};

const ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
const ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");
const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
/// Metadata that gives gRPC clients with retries the delay before the next attempt.
const RETRY_AFTER_MS: &str = "grpc-retry-pushback-ms";
/// The streaming call, whose messages may arrive without a time limit.
const STREAM: &str = "/ModelStreamInfer";

/// Data of a call besides its messages.
#[derive(Clone)]
pub(super) struct CallContext {
    /// The cluster.
    pub(super) caller: OipCaller,
    /// As over REST. The deadline applies to a call with one request.
    pub(super) request: RequestContext,
    /// Deadline of the client, which applies to a complete stream.
    pub(super) deadline: Option<Deadline>,
    pub(super) draining: ServerShutdown,
    /// Memory of received bytes that are not yet part of a decoded message.
    taken: Arc<Mutex<Share>>,
}

impl CallContext {
    /// Returns the context that the middleware has set.
    pub(super) fn of<T>(request: &tonic::Request<T>) -> Result<Self, Status> {
        let context = request.extensions().get::<Self>().cloned();
        context.ok_or_else(|| Status::internal("the request was lost"))
    }

    /// Splits off the share of a message from the memory for bodies.
    ///
    /// # Errors
    /// `TooLarge` or `Overloaded` if the memory limits do not permit it.
    pub(super) fn share_of(&self, message: &ModelInferRequest) -> Result<Share, PredictError> {
        self.taken.lock().split(wire_bytes(message))
    }
}

/// Converts an error to the status of a call. Internal errors are logged.
pub(super) fn status(error: &PredictError) -> Status {
    volley_http_edge::error::log_defect(error);
    let mut status = Status::new(grpc_code(error.code), public_message(error));
    if let Some(after) = error.retry_after {
        let after = MetadataValue::from(u64::try_from(after.as_millis()).unwrap_or(u64::MAX));
        status.metadata_mut().insert(RETRY_AFTER_MS, after);
    }
    status
}

/// Middleware of all calls. It rejects requests that are not gRPC, creates the context, limits the
/// time of the body, catches panics, returns the request id, and aborts responses that are not
/// read.
pub(super) async fn middleware(
    State((oip, flavor)): State<(Oip, GrpcFlavor)>,
    request: Request,
    next: Next,
) -> Response {
    // This also prevents requests from web pages of other origins.
    if !is_grpc(request.headers()) || request.method() != Method::POST {
        let why = "this path is for gRPC: send a POST with 'content-type: application/grpc'";
        return bare(StatusCode::UNSUPPORTED_MEDIA_TYPE, why);
    }
    if request.version() != Version::HTTP_2 {
        let why = "gRPC needs HTTP/2";
        return bare(StatusCode::HTTP_VERSION_NOT_SUPPORTED, why);
    }
    let call: Option<String> = request.uri().path().rsplit('/').next().map(printable);
    let request_id = context::request_id(request.headers());
    let trace = context::trace(request.headers());
    let span = tracing::info_span!(
        "grpc",
        request_id = %request_id,
        trace_id = format_args!("{:032x}", trace.trace_id),
        path = request.uri().path(),
    );
    let now = Instant::now();
    let config = *oip.edge().config();
    let limits = context::timeout(request.headers(), &config).and_then(|most| {
        let given = call_timeout(request.headers())?;
        let session = context::session(request.headers())?;
        Ok((most, given, session, admit(&oip, flavor, &request)?))
    });
    let mut response = match limits {
        Err(error) => status(&error).into_http(),
        Ok((most, given, session, caller)) => {
            let given = given.map(|given| Deadline::after(now, given));
            let most = Deadline::after(now, most);
            let answer_headers = caller.answer_headers.clone();
            let context = CallContext {
                caller,
                request: RequestContext {
                    request_id: request_id.clone(),
                    trace,
                    deadline: given.map_or(most, |given| given.earlier(most)),
                    session,
                    span,
                    watches: request.extensions().get().cloned().unwrap_or_default(),
                    answer_headers,
                    sink: None,
                },
                deadline: given,
                draining: request.extensions().get().cloned().unwrap_or_default(),
                taken: Arc::new(Mutex::new(oip.edge().intake().share())),
            };
            respond(context, request, next, config.body_timeout).await
        }
    };
    reasoned(&mut response, call.as_deref().unwrap_or_default());
    if let Ok(id) = HeaderValue::from_str(request_id.as_str()) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response
}

/// Runs a call in its context. It limits the memory and the time of the body, catches panics, and
/// watches the response.
async fn respond(
    context: CallContext,
    mut request: Request,
    next: Next,
    body_timeout: Duration,
) -> Response {
    let span = context.request.span.clone();
    let taken = context.taken.clone();
    let watches = context.request.watches.clone();
    request.extensions_mut().insert(context);
    same_compression(request.headers_mut());
    request = request.map(|body| counted(body, taken.clone()));
    if !request.uri().path().ends_with(STREAM) {
        request = request.map(|body| in_time(body, body_timeout));
    }
    let answered = AssertUnwindSafe(next.run(request))
        .catch_unwind()
        .instrument(span);
    let answered = answered.await.unwrap_or_else(|_| {
        let error = PredictError::internal("the request failed unexpectedly", "a panic");
        status(&error).into_http()
    });
    let is_over = answered.body().is_end_stream();
    let answered = answered.map(|body| if is_over { body } else { watches.watch(body) });
    idle::until_sent(answered, taken)
}

/// The cluster for who calls, where that is allowed to them. A call that the flavor does not have is
/// admitted without rights, and answered as one that is not there.
fn admit(oip: &Oip, flavor: GrpcFlavor, request: &Request) -> Result<OipCaller, PredictError> {
    let call = request.uri().path().rsplit('/').next();
    let needed = match call.unwrap_or_default() {
        "ServerLive" | "ServerReady" => return Ok(open(oip, request, Principal::nobody())),
        "ServerMetadata" | "ModelReady" | "ModelMetadata" | "RepositoryIndex" => Role::Viewer,
        "ModelInfer" | "ModelStreamInfer" => Role::Predict,
        "RepositoryModelLoad" | "RepositoryModelUnload" => Role::ModelAdmin,
        call if flavor == GrpcFlavor::Triton => match call {
            "ModelConfig" | "ModelStatistics" => Role::Viewer,
            // Shared-memory regions concern the whole node.
            "SystemSharedMemoryStatus"
            | "SystemSharedMemoryRegister"
            | "SystemSharedMemoryUnregister"
            | "CudaSharedMemoryStatus"
            | "CudaSharedMemoryRegister"
            | "CudaSharedMemoryUnregister" => Role::ClusterAdmin,
            other => return Err(unimplemented(other)),
        },
        other => return Err(unimplemented(other)),
    };
    served_here(needed.into(), request.extensions())?;
    let address = request.extensions().get::<PeerAddress>().map(|peer| peer.0);
    let principal = oip
        .edge()
        .gate()
        .identify_from(request.headers(), address)?;
    principal.allow(needed)?;
    Ok(open(oip, request, principal))
}

fn open(oip: &Oip, request: &Request, principal: Principal) -> OipCaller {
    let answer_headers = AnswerHeaders::default();
    let caller = oip
        .edge()
        .caller(Arc::new(principal), request.headers(), answer_headers);
    DialectCaller {
        caller,
        state: oip.clone(),
    }
}

fn bare(status: StatusCode, why: &'static str) -> Response {
    let mut response = Response::new(Body::from(why));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    let media = HeaderValue::from_static("text/plain; charset=utf-8");
    headers.insert(header::CONTENT_TYPE, media);
    headers.insert(MESSAGE, HeaderValue::from_static(why));
    response
}

/// Adds a message to an error without one, which only occurs for unknown calls.
fn reasoned(response: &mut Response, call: &str) {
    let headers = response.headers_mut();
    let unknown = headers.get(STATUS).is_some_and(|status| status == "12");
    if !unknown || headers.contains_key(MESSAGE) {
        return;
    }
    let why = format!("this server has no call '{call}'");
    if let Ok(why) = HeaderValue::from_str(&why) {
        headers.insert(MESSAGE, why);
    }
}

/// The answer to a method that this service lacks, with or without a key.
fn unimplemented(call: &str) -> PredictError {
    let message = format!("the method '{}' is not implemented", printable(call));
    PredictError::new(ErrorCode::Unimplemented, message)
}

fn printable(call: &str) -> String {
    let plain = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.');
    call.chars().filter(plain).take(64).collect()
}

/// Compresses the response in the same way as the request. Most clients accept compressed
/// responses, but few want their latency.
fn same_compression(headers: &mut HeaderMap) {
    match headers.get(ENCODING).cloned() {
        Some(encoding) if encoding != "identity" => {
            headers.insert(ACCEPT_ENCODING, encoding);
        }
        _ => {
            headers.remove(ACCEPT_ENCODING);
        }
    }
}

/// Parses `grpc-timeout`.
fn call_timeout(headers: &HeaderMap) -> Result<Option<Duration>, PredictError> {
    let Some(value) = headers.get(TIMEOUT) else {
        return Ok(None);
    };
    let malformed = || PredictError::invalid("metadata 'grpc-timeout' is malformed");
    let given = value.to_str().ok().and_then(grpc_timeout);
    given.map(Some).ok_or_else(malformed)
}

/// Counts each piece of `body` in `taken`. The body fails if the memory limits do not permit a
/// piece.
fn counted(body: Body, taken: Arc<Mutex<Share>>) -> Body {
    Body::from_stream(body.into_data_stream().map(move |piece| {
        let piece = piece?;
        let grown = taken.lock().grow(piece.len());
        grown.map_err(|error| volley_http_edge::axum::Error::new(status(&error)))?;
        Ok::<_, volley_http_edge::axum::Error>(piece)
    }))
}

/// A body that fails if it has not ended within `limit`.
fn in_time(body: Body, limit: Duration) -> Body {
    let late = tokio::time::sleep(limit).map(|()| {
        let error = Status::deadline_exceeded("the request's message did not arrive in time");
        Some(Err(volley_http_edge::axum::Error::new(error)))
    });
    let data = body.into_data_stream().map(Some);
    let data = data.chain(futures::stream::once(future::ready(None)));
    let pieces = futures::stream::select(data, futures::stream::once(late));
    Body::from_stream(
        pieces
            .take_while(|piece| future::ready(piece.is_some()))
            .filter_map(future::ready),
    )
}

#[cfg(test)]
mod tests;
