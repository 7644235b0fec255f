//! Streams that can be taken up again, on this coordinator or on another: each event has an id,
//! and a client that comes back with the last one that it has is given the rest.
//!
//! A caller asks for one by the header `x-volley-stream`; plain streams know nothing of this.
//! The events are held as they were written, whatever the dialect, by the coordinator that took
//! the request; its node id is part of the stream's, so that any other finds the way.

mod held;
mod store;

use std::sync::Arc;
use std::time::Duration;

use async_stream::stream;
use async_trait::async_trait;
use axum::Json;
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::{Stream, StreamExt};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header};
use serde::Deserialize;
use serde_json::{Value, json};
use volley_types::{
    ErrorCode, EventId, EventPieces, HeldStreams, NodeId, PredictError, StreamId, StreamOwner,
    TakenUp,
};

pub use self::store::{HeldCounts, Streams};
use crate::app::App;
use crate::context::RequestContext;
use crate::error::{self, ApiError};
use crate::extract::{Path, Query, State};
use crate::openai::responses::store::Responses;
use crate::sse;

const STREAM: HeaderName = HeaderName::from_static("x-volley-stream");
/// The same in a query, for clients that cannot set headers.
const STREAM_PARAMETER: &str = "volley-stream";
const STREAM_ID: HeaderName = HeaderName::from_static("x-volley-stream-id");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// Without the empty line of other keep-alives: some clients take that for an empty event once
/// they have seen an id.
const KEEP_ALIVE: &[u8] = b": keep-alive\n";

/// The way to the streams that another coordinator holds; `None` when it is no member.
pub type PeerStreams = Arc<dyn Fn(NodeId) -> Option<Arc<dyn HeldStreams>> + Send + Sync>;

/// What the edge needs for streams that can be taken up again.
#[derive(Clone)]
pub(crate) struct Resume {
    streams: Streams,
    responses: Responses,
    peers: PeerStreams,
}

impl Resume {
    pub(crate) fn new(streams: Streams, responses: Responses, peers: PeerStreams) -> Self {
        Self {
            streams,
            responses,
            peers,
        }
    }

    /// The responses that are held here.
    pub(crate) fn responses(&self) -> &Responses {
        &self.responses
    }

    /// Whoever holds a response; `None` when that is no member.
    pub(crate) fn holder_of_response(&self, id: &StreamId) -> Option<Arc<dyn HeldStreams>> {
        if id.node == self.responses.node() {
            return Some(Arc::new(self.responses.clone()));
        }
        (self.peers)(id.node)
    }

    fn holder(&self, id: &StreamId) -> Result<Arc<dyn HeldStreams>, PredictError> {
        if id.node == self.streams.node() {
            return Ok(Arc::new(self.streams.clone()));
        }
        (self.peers)(id.node).ok_or_else(|| {
            let message = "the coordinator that held this stream is no member of the cluster (any \
                           more), and its streams are gone; send the request again";
            PredictError::new(ErrorCode::NotFound, message)
        })
    }
}

/// What a coordinator holds for its callers and for other coordinators: streams and responses,
/// whose ids are of one form.
#[derive(Clone, Debug)]
pub struct HeldAll {
    /// Streams that can be taken up again.
    pub streams: Streams,
    /// Responses that later requests name.
    pub responses: Responses,
}

#[async_trait]
impl HeldStreams for HeldAll {
    async fn take_up(
        &self,
        id: &StreamId,
        after: u64,
        caller: &str,
    ) -> Result<TakenUp, PredictError> {
        match self.responses.take_up(id, after, caller).await {
            Err(error) if error.code == ErrorCode::NotFound => {
                self.streams.take_up(id, after, caller).await
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

/// How a stream that is held begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// With its events, as the answer.
    Attached,
    /// With its id alone.
    Detached,
}

/// What a request that asks for such a stream carries with it.
#[derive(Clone)]
pub(crate) struct Resumable {
    streams: Streams,
    owner: StreamOwner,
    mode: Mode,
}

/// Around routes that stream: takes up streams for requests that are sent again, and marks those
/// that ask for a stream that can be.
pub(crate) async fn middleware(
    State(app): State<Arc<App>>,
    context: RequestContext,
    mut request: Request,
    next: Next,
) -> Response {
    let again = match last_event(request.headers()) {
        Ok(again) => again,
        Err(error) => return ApiError(error).into_response(),
    };
    if let Some(event) = again {
        return take_up(&app, &event.stream, event.sequence, &context).await;
    }
    match mode(request.headers(), request.uri()) {
        Ok(None) => {}
        Ok(Some(mode)) => {
            let resume = Some(Resumable {
                streams: app.resume.streams.clone(),
                owner: owner(&app),
                mode,
            });
            let context = RequestContext { resume, ..context };
            request.extensions_mut().insert(context);
        }
        Err(error) => return ApiError(error).into_response(),
    }
    next.run(request).await
}

/// Who begins a stream.
pub(crate) fn owner(app: &App) -> StreamOwner {
    StreamOwner {
        caller: app.principal.who().to_owned(),
        tenant: app.principal.tenant().cloned().unwrap_or_default(),
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

/// Holds `pieces`, and answers as was asked.
pub(crate) fn hold(
    asked: &Resumable,
    pieces: impl Stream<Item = Bytes> + Send + 'static,
    keep_alive: Duration,
    context: &RequestContext,
) -> Response {
    let owner = asked.owner.clone();
    let held = asked.streams.keep(owner, pieces, context.span.clone());
    let begun = held.and_then(|id| match asked.mode {
        Mode::Detached => Ok((detached(&id), id)),
        Mode::Attached => match asked.streams.read(&id, 0, &asked.owner.caller)? {
            TakenUp::Events(pieces) => Ok((attached(pieces, keep_alive, context), id)),
            TakenUp::Finished => Err(sse::silent_end()),
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
    sse::body(commented(pieces, keep_alive), context)
}

/// Fills silence with comments.
pub(crate) fn commented(
    mut pieces: EventPieces,
    keep_alive: Duration,
) -> impl Stream<Item = Result<Bytes, PredictError>> + Send {
    stream! {
        loop {
            match tokio::time::timeout(keep_alive, pieces.next()).await {
                Ok(Some(piece)) => yield piece,
                Ok(None) => break,
                Err(_) => yield Ok(Bytes::from_static(KEEP_ALIVE)),
            }
        }
    }
}

/// The query of a stream's route.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Behind {
    /// The place of the last event that the caller has, where it cannot set the header.
    after: Option<u64>,
}

/// The rest of a stream, as events.
pub(crate) async fn get(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    Query(behind): Query<Behind>,
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
    Ok(take_up(&app, &id, after, &context).await)
}

async fn take_up(app: &App, id: &StreamId, after: u64, context: &RequestContext) -> Response {
    let taken_up = async {
        app.resume
            .holder(id)?
            .take_up(id, after, app.principal.who())
            .await
    };
    match context.in_time(taken_up).await {
        Ok(TakenUp::Events(pieces)) => {
            let mut response = attached(pieces, app.config.keep_alive, context);
            name(&mut response, id);
            response
        }
        // A browser's EventSource comes back after the end too, until it is told this.
        Ok(TakenUp::Finished) => StatusCode::NO_CONTENT.into_response(),
        Err(error) => lost(error),
    }
}

/// An error; what is not held any more will not be again.
fn lost(error: PredictError) -> Response {
    match error.code {
        ErrorCode::NotFound => error::respond(&error, StatusCode::GONE),
        _ => ApiError(error).into_response(),
    }
}

/// Ends a stream and the work behind it.
pub(crate) async fn delete(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    context: RequestContext,
) -> Result<Json<Value>, Response> {
    let cancelled = async {
        let id: StreamId = id.parse()?;
        app.resume
            .holder(&id)?
            .cancel(&id, app.principal.who())
            .await
    };
    context.in_time(cancelled).await.map_err(lost)?;
    Ok(Json(json!({ "stream_id": id, "cancelled": true })))
}
