//! Resumable streams, on this coordinator or on another one. Each event has an id, and a client
//! that reconnects with the id of its last event receives the rest.
//!
//! A caller requests one with the header `x-volley-stream`. Other streams are not affected. The
//! coordinator of the request buffers the encoded events of any dialect. Its node id is part of the
//! stream's id, so that other coordinators can find the stream.

mod buffered_stream;
mod store;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header};
use serde::Deserialize;
use serde_json::{Value, json};
use volley_http_edge::axum::Json;
use volley_http_edge::axum::extract::Request;
use volley_http_edge::axum::middleware::Next;
use volley_http_edge::axum::response::{IntoResponse, Response};
use volley_types::{
    ErrorCode, EventId, EventPieces, PredictError, ResumedStream, StreamId, StreamOwner,
    StreamSource,
};

pub use self::store::{ResumeCounts, Streams};
use volley_dialect_kit::peers::PeerStreams;
use volley_dialect_kit::sse;
use volley_dialect_openai::responses::store::Responses;
use volley_http_edge::auth::PREDICT;
use volley_http_edge::context::{RequestContext, StreamSink};
use volley_http_edge::dialect::Dialect;
use volley_http_edge::edge::{self, DialectCaller, Edge, StreamKeeper};
use volley_http_edge::error::{self, ApiError};
use volley_http_edge::extract::{Path, Query};
use volley_http_edge::operation::{self, Operation};
use volley_http_edge::routes::{self, Routes};

const STREAM: HeaderName = HeaderName::from_static("x-volley-stream");
/// Query parameter with the meaning of the header, for clients that cannot set headers.
const STREAM_PARAMETER: &str = "volley-stream";
const STREAM_ID: HeaderName = HeaderName::from_static("x-volley-stream-id");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// Routes of the resumable streams of all nodes.
#[derive(Clone)]
pub(crate) struct Resume {
    edge: Edge,
    keeper: ResumeLayer,
}

impl Resume {
    pub(crate) fn new(edge: &Edge, keeper: ResumeLayer) -> Self {
        let edge = edge.clone();
        Self { edge, keeper }
    }
}

/// The caller of a route of resumable streams.
type Caller = DialectCaller<Resume>;

impl AsRef<Edge> for Resume {
    fn as_ref(&self) -> &Edge {
        &self.edge
    }
}

/// Makes the streams of other routes resumable.
#[derive(Clone)]
pub(crate) struct ResumeLayer {
    streams: Streams,
    peers: PeerStreams,
}

impl ResumeLayer {
    pub(crate) fn new(streams: Streams, peers: PeerStreams) -> Self {
        Self { streams, peers }
    }

    fn holder(&self, id: &StreamId) -> Result<Arc<dyn StreamSource>, PredictError> {
        if id.node == self.streams.node() {
            return Ok(Arc::new(self.streams.clone()));
        }
        (self.peers)(id.node).ok_or_else(|| {
            let message =
                "the coordinator of this stream is not a member of the cluster, and its streams \
                 are lost; send the request again";
            PredictError::new(ErrorCode::NotFound, message)
        })
    }
}

/// Stored state for callers and other coordinators: streams and responses. Their ids have the same
/// format.
#[derive(Clone, Debug)]
pub struct LocalStreams {
    /// Resumable streams of this node.
    pub streams: Streams,
    /// Stored responses of this node.
    pub responses: Responses,
}

#[async_trait]
impl StreamSource for LocalStreams {
    async fn resume(
        &self,
        id: &StreamId,
        after: u64,
        caller: &str,
    ) -> Result<ResumedStream, PredictError> {
        match self.responses.resume(id, after, caller).await {
            Err(error) if error.code == ErrorCode::NotFound => {
                self.streams.resume(id, after, caller).await
            }
            answer => answer,
        }
    }

    async fn cancel(&self, id: &StreamId, caller: &str) -> Result<(), PredictError> {
        match self.responses.cancel(id, caller).await {
            Err(error) if error.code == ErrorCode::NotFound => {
                self.streams.cancel(id, caller).await
            }
            answer => answer,
        }
    }
}

/// How a resumable stream starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// The response has the events.
    Attached,
    /// The response has only the id.
    Detached,
}

/// A request for a resumable stream.
struct ResumeRequest {
    streams: Streams,
    owner: StreamOwner,
    mode: Mode,
}

#[async_trait]
impl StreamKeeper for ResumeLayer {
    async fn around(
        &self,
        caller: edge::Caller,
        context: RequestContext,
        mut request: Request,
        next: Next,
    ) -> Response {
        let again = match last_event(request.headers()) {
            Ok(again) => again,
            Err(error) => return ApiError(error).into_response(),
        };
        if let Some(event) = again {
            return resume(self, &caller, &event.stream, event.sequence, &context).await;
        }
        match mode(request.headers(), request.uri()) {
            Ok(None) => {}
            Ok(Some(mode)) => {
                let sink = ResumeRequest {
                    streams: self.streams.clone(),
                    owner: caller.owner(),
                    mode,
                };
                let sink: Option<Arc<dyn StreamSink>> = Some(Arc::new(sink));
                let context = RequestContext { sink, ..context };
                request.extensions_mut().insert(context);
            }
            Err(error) => return ApiError(error).into_response(),
        }
        next.run(request).await
    }
}

fn last_event(headers: &HeaderMap) -> Result<Option<EventId>, PredictError> {
    match headers.get(LAST_EVENT_ID) {
        None => Ok(None),
        Some(value) if value.is_empty() => Ok(None),
        Some(value) => value.to_str().unwrap_or_default().parse().map(Some),
    }
}

fn mode(headers: &HeaderMap, uri: &Uri) -> Result<Option<Mode>, PredictError> {
    let given = match headers.get(STREAM) {
        Some(value) => Some(value.to_str().unwrap_or_default()),
        None => uri
            .query()
            .unwrap_or_default()
            .split('&')
            .find_map(|pair| pair.strip_prefix(STREAM_PARAMETER)?.strip_prefix('=')),
    };
    match given {
        None => Ok(None),
        Some("resumable") => Ok(Some(Mode::Attached)),
        Some("detached") => Ok(Some(Mode::Detached)),
        Some(_) => Err(PredictError::invalid(format!(
            "header '{STREAM}' (or '{STREAM_PARAMETER}' in the query) must be 'resumable' or \
             'detached'"
        ))),
    }
}

impl StreamSink for ResumeRequest {
    fn attach(
        &self,
        pieces: BoxStream<'static, Bytes>,
        keep_alive: Duration,
        context: &RequestContext,
    ) -> Response {
        let owner = self.owner.clone();
        let held = self.streams.keep(owner, pieces, context.span.clone());
        let begun = held.and_then(|id| match self.mode {
            Mode::Detached => Ok((detached(&id), id)),
            Mode::Attached => match self.streams.read(&id, 0, &self.owner.caller)? {
                ResumedStream::Events(pieces) => Ok((attached(pieces, keep_alive, context), id)),
                ResumedStream::Finished => Err(sse::silent_end()),
            },
        });
        match begun {
            Ok((mut response, id)) => {
                name(&mut response, &id);
                response
            }
            Err(error) => ApiError(error).into_response(),
        }
    }
}

fn name(response: &mut Response, id: &StreamId) {
    if let Ok(id) = HeaderValue::from_str(&id.to_string()) {
        response.headers_mut().insert(STREAM_ID, id);
    }
}

fn detached(id: &StreamId) -> Response {
    let path = format!("/v1/streams/{id}");
    let body = json!({ "stream_id": id.to_string(), "url": path });
    (StatusCode::ACCEPTED, [(header::LOCATION, path)], Json(body)).into_response()
}

fn attached(pieces: EventPieces, keep_alive: Duration, context: &RequestContext) -> Response {
    sse::body(sse::commented(pieces, keep_alive), context)
}

/// Query parameters of the route of a stream.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResumeQuery {
    /// Sequence number of the caller's last event, for callers that cannot set the header.
    after: Option<u64>,
}

/// Streams the remaining events.
pub(crate) async fn get(
    caller: Caller,
    Path(id): Path<String>,
    Query(behind): Query<ResumeQuery>,
    context: RequestContext,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let id: StreamId = id.parse()?;
    let after = match last_event(&headers)? {
        Some(event) if event.stream == id => event.sequence,
        Some(_) => {
            let message = "the header 'last-event-id' names an event of another stream";
            return Err(ApiError(PredictError::invalid(message)));
        }
        None => behind.after.unwrap_or(0),
    };
    Ok(resume(&caller.state.keeper, &caller, &id, after, &context).await)
}

async fn resume(
    keeper: &ResumeLayer,
    caller: &edge::Caller,
    id: &StreamId,
    after: u64,
    context: &RequestContext,
) -> Response {
    let resumed = async {
        keeper
            .holder(id)?
            .resume(id, after, caller.principal.who())
            .await
    };
    match context.in_time(resumed).await {
        Ok(ResumedStream::Events(pieces)) => {
            let mut response = attached(pieces, caller.config.keep_alive, context);
            name(&mut response, id);
            response
        }
        // A browser's EventSource also reconnects after the end, until it receives this status.
        Ok(ResumedStream::Finished) => StatusCode::NO_CONTENT.into_response(),
        Err(error) => lost(error),
    }
}

/// The error response. A lost stream never becomes available again, so its status is 410.
fn lost(error: PredictError) -> Response {
    match error.code {
        ErrorCode::NotFound => error::respond(&error, StatusCode::GONE),
        _ => ApiError(error).into_response(),
    }
}

/// Cancels a stream and its work.
pub(crate) async fn delete(
    caller: Caller,
    Path(id): Path<String>,
    context: RequestContext,
) -> Result<Json<Value>, Response> {
    let cancelled = async {
        let id: StreamId = id.parse()?;
        caller
            .state
            .keeper
            .holder(&id)?
            .cancel(&id, caller.principal.who())
            .await
    };
    context.in_time(cancelled).await.map_err(lost)?;
    Ok(Json(json!({ "stream_id": id, "cancelled": true })))
}

/// All operations with their summaries and the schemas of their bodies.
const OPERATIONS: &[Operation] = &[
    operation::get("/v1/streams/{id}", "Resumes a stream.", "").streamed(),
    operation::delete("/v1/streams/{id}", "Ends a resumable stream.", "Anything"),
];

impl Dialect for Resume {
    fn operations(&self) -> &'static [Operation] {
        OPERATIONS
    }

    fn routes(&self) -> Routes<()> {
        let streams = routes::get(PREDICT, get).streamed();
        let streams = streams.and(routes::delete(PREDICT, delete));
        Routes::new()
            .route("/v1/streams/{id}", streams.clone())
            .route("/_plugins/_ml/streams/{id}", streams)
            .with_state(self.clone())
    }
}
