//! Server-sent events (WHATWG HTML, §9.2): a [`ChunkStream`] as a response body.
//!
//! Events that are ready together are sent as one frame; nothing waits for more. Dropping the body
//! drops the chunks and cancels the work.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use arrow_array::RecordBatch;
use async_stream::stream;
use bytes::{BufMut, Bytes, BytesMut};
use futures::{FutureExt, Stream, StreamExt};
use http::{HeaderValue, header};
use serde_json::Value;
use tokio::time::Instant;
use volley_http_edge::axum::body::Body;
use volley_http_edge::axum::response::Response;
use volley_types::{ChunkStream, EventPieces, PredictError};

use volley_http_edge::context::RequestContext;

/// Maximum size of a frame in bytes, even if more events are ready.
const PIECE_BYTES: usize = 64 << 10;
const KEEP_ALIVE: &[u8] = b": keep-alive\n\n";
/// Without the usual empty line: some clients treat that as an empty event after they have received
/// an id.
const COMMENT: &[u8] = b": keep-alive\n";

/// Event encoder of a dialect.
pub trait Events: Send + 'static {
    /// Appends the events of a batch's rows.
    ///
    /// # Errors
    /// When the rows cannot be read; the stream ends with that error.
    fn batch(&mut self, batch: &RecordBatch, out: &mut BytesMut) -> Result<(), PredictError>;

    /// Whether the terminal event of a success was written; nothing may follow it.
    fn finished(&self) -> bool;

    /// Whether the end of the source is a success without a terminal event.
    fn may_just_end(&self) -> bool {
        false
    }

    /// Appends the terminal event at the end of a source that [may just
    /// end](Self::may_just_end).
    fn end(&mut self, _out: &mut BytesMut) {}

    /// Appends the event of an error, the stream's last.
    fn error(&mut self, error: &PredictError, out: &mut BytesMut);
}

/// The first batch that has a row.
///
/// # Errors
/// The errors of the stream; `Internal` when it ends without a row.
pub async fn first(chunks: &mut ChunkStream) -> Result<RecordBatch, PredictError> {
    while let Some(batch) = chunks.next().await {
        let batch = batch?;
        if batch.num_rows() != 0 {
            return Ok(batch);
        }
    }
    Err(silent_end())
}

/// The error for a stream without a terminal event.
pub fn silent_end() -> PredictError {
    PredictError::internal(
        "the model's stream ended without a terminal event",
        "no terminal row",
    )
}

/// A response that streams `first` and then the rest of `chunks`, whose deadline the cluster
/// enforces. For a resumable stream, the events go to the caller's buffer.
pub fn response(
    first: RecordBatch,
    chunks: ChunkStream,
    events: impl Events,
    keep_alive: Duration,
    context: &RequestContext,
) -> Response {
    if let Some(sink) = &context.sink {
        // Comments are only for connections; buffered streams have events only.
        let pieces = pieces(first, chunks, events, None);
        return sink.attach(pieces.boxed(), keep_alive, context);
    }
    let pieces = pieces(first, chunks, events, Some(keep_alive));
    body(pieces.map(Ok::<_, Infallible>), context)
}

/// A response that streams lines until the deadline. Lines have no comments and are not resumable.
pub fn lines(
    first: RecordBatch,
    chunks: ChunkStream,
    events: impl Events,
    context: &RequestContext,
) -> Response {
    let pieces = pieces(first, chunks, events, None);
    let mut response = body(pieces.map(Ok::<_, Infallible>), context);
    let media = HeaderValue::from_static("application/x-ndjson");
    response.headers_mut().insert(header::CONTENT_TYPE, media);
    response
}

/// A response with these frames.
pub fn body<E>(
    pieces: impl Stream<Item = Result<Bytes, E>> + Send + 'static,
    context: &RequestContext,
) -> Response
where
    E: Into<volley_http_edge::axum::BoxError> + 'static,
{
    let pieces = InSpan::new(pieces, context.span.clone());
    let mut response = Response::new(context.watches.watch(Body::from_stream(pieces)));
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/event-stream"),
    );
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// Adds keep-alive comments while no events arrive.
pub fn commented(
    mut pieces: EventPieces,
    keep_alive: Duration,
) -> impl Stream<Item = Result<Bytes, PredictError>> + Send {
    stream! {
        loop {
            match tokio::time::timeout(keep_alive, pieces.next()).await {
                Ok(Some(piece)) => yield piece,
                Ok(None) => break,
                Err(_) => yield Ok(Bytes::from_static(COMMENT)),
            }
        }
    }
}

fn pieces(
    first: RecordBatch,
    mut chunks: ChunkStream,
    mut events: impl Events,
    keep_alive: Option<Duration>,
) -> impl Stream<Item = Bytes> + Send {
    stream! {
        let mut item = Some(Ok(first));
        let mut silent_since = Instant::now();
        let comments = keep_alive.is_some();
        let keep_alive = keep_alive.unwrap_or_default();
        let silence = tokio::time::sleep_until(silent_since + keep_alive);
        tokio::pin!(silence);
        let mut ended = false;
        while !ended {
            let next = match item.take() {
                Some(item) => Some(item),
                None => tokio::select! {
                    biased;
                    next = chunks.next() => next,
                    () = &mut silence, if comments => {
                        // The timer is not reset by every event, so it may fire early.
                        if keep_alive <= silent_since.elapsed() {
                            silent_since = Instant::now();
                            yield Bytes::from_static(KEEP_ALIVE);
                        }
                        silence.as_mut().reset(silent_since + keep_alive);
                        continue;
                    }
                },
            };
            let mut out = BytesMut::new();
            ended = !append(next, &mut events, &mut out);
            while !ended && out.len() < PIECE_BYTES {
                let Some(ready) = chunks.next().now_or_never() else { break };
                ended = !append(ready, &mut events, &mut out);
            }
            silent_since = Instant::now();
            if !out.is_empty() {
                yield out.freeze();
            }
        }
    }
}

/// Appends one item; returns whether the stream continues.
fn append(
    item: Option<Result<RecordBatch, PredictError>>,
    events: &mut impl Events,
    out: &mut BytesMut,
) -> bool {
    if events.finished() {
        // The source is polled to its end, so that it can finish normally.
        return matches!(item, Some(Ok(_)));
    }
    if item.is_none() && events.may_just_end() {
        events.end(out);
        return false;
    }
    let item = item.unwrap_or_else(|| Err(silent_end()));
    match item.and_then(|batch| events.batch(&batch, out)) {
        Ok(()) => true,
        Err(error) => {
            events.error(&error, out);
            false
        }
    }
}

/// Appends an event with a name and data.
pub fn named_event(name: &str, body: &Value, out: &mut BytesMut) {
    out.put_slice(format!("event: {name}\ndata: {body}\n\n").as_bytes());
}

/// Appends `text` as a JSON string.
pub fn json_string(text: &str, out: &mut BytesMut) {
    let plain = |byte: u8| byte >= 0x20 && byte != b'"' && byte != b'\\';
    if text.bytes().all(plain) {
        out.put_u8(b'"');
        out.put_slice(text.as_bytes());
        out.put_u8(b'"');
        return;
    }
    if let Err(error) = serde_json::to_writer(out.writer(), text) {
        // Writing to memory does not fail, and any string can be written.
        tracing::error!(error = %error, "SSE event not encoded");
    }
}

/// Polls a stream inside a span, so that log messages have the request id.
pub struct InSpan<S> {
    inner: Pin<Box<S>>,
    span: tracing::Span,
}

impl<S> InSpan<S> {
    /// `inner`, polled within `span`.
    pub fn new(inner: S, span: tracing::Span) -> Self {
        Self {
            inner: Box::pin(inner),
            span,
        }
    }
}

impl<S: Stream> Stream for InSpan<S> {
    type Item = S::Item;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<S::Item>> {
        let this = &mut *self;
        let _entered = this.span.enter();
        this.inner.as_mut().poll_next(cx)
    }
}
