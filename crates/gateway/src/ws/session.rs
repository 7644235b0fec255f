//! Messages of one socket. The number of running requests, the pending output and the idle time of
//! a client are limited. The stream of a model is not polled before its last output is written, so
//! a client that does not read pauses its models.
//!
//! The future of [`Session::run`] owns all work, and drops it when the socket closes.

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::task::{Poll, ready};
use std::time::{Duration, Instant};

use async_stream::stream;
use futures::stream::{AbortHandle, BoxStream, SelectAll, abortable};
use futures::{Sink, SinkExt, Stream, StreamExt};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_util::sync::CancellationToken;
use volley_types::{
    Deadline, ErrorCode, Input, ModelRef, PredictError, PredictRequest, RequestId, Share, Signature,
};

use super::message::{ClientMessage, MessageError, PredictMessage};
use volley_dialect_kit::sse;
use volley_dialect_opensearch::rows::{self, failure};
use volley_http_edge::context::RequestContext;
use volley_http_edge::edge::Caller;
use volley_http_edge::intake::tree_room;

/// Maximum number of concurrent requests of a socket.
const MAX_RUNNING: usize = 16;
/// Number of pending replies above which no more messages are read.
const MAX_OUTBOX: usize = 64;
/// Time limit for the client's close frame.
const GOODBYE: Duration = Duration::from_secs(2);

/// One socket to a model.
pub(super) struct Session {
    pub(super) caller: Caller,
    pub(super) model: ModelRef,
    pub(super) signature: Signature,
    pub(super) context: RequestContext,
    pub(super) draining: CancellationToken,
}

/// Output of a running request.
enum SessionEvent {
    Rows(String, Vec<Value>),
    Over(String),
}

/// Close code and reason for a socket that the server closes.
type CloseReason = (CloseCode, &'static str);

/// The running requests.
#[derive(Default)]
struct RunningStreams {
    streams: SelectAll<BoxStream<'static, SessionEvent>>,
    by_id: HashMap<String, AbortHandle>,
}

/// Messages that wait to be written.
#[derive(Default)]
struct Outbox {
    messages: VecDeque<Message>,
    unflushed: bool,
}

impl Outbox {
    fn is_clear(&self) -> bool {
        self.messages.is_empty() && !self.unflushed
    }

    fn put(&mut self, id: Option<&str>, mut told: Value) {
        if let (Some(id), Some(told)) = (id, told.as_object_mut()) {
            told.insert("id".to_owned(), id.into());
        }
        self.messages.push_back(Message::text(told.to_string()));
    }

    /// Writes all messages.
    ///
    /// # Cancel safety
    /// Cancel safe: unwritten messages are kept.
    async fn write(
        &mut self,
        sink: &mut (impl Sink<Message, Error = Error> + Unpin),
    ) -> Result<(), Error> {
        poll_fn(|cx| {
            while !self.messages.is_empty() {
                ready!(sink.poll_ready_unpin(cx))?;
                if let Some(message) = self.messages.pop_front() {
                    self.unflushed = true;
                    sink.start_send_unpin(message)?;
                }
            }
            ready!(sink.poll_flush_unpin(cx))?;
            self.unflushed = false;
            Poll::Ready(Ok(()))
        })
        .await
    }
}

impl Session {
    /// Serves the socket until one side closes it. Dropping the future cancels all requests of the
    /// socket.
    pub(super) async fn run<S>(self, socket: WebSocketStream<S>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (mut sink, mut source) = socket.split();
        match self.talk(&mut sink, &mut source).await {
            Ok(Some((code, reason))) => {
                let frame = CloseFrame {
                    code,
                    reason: reason.into(),
                };
                let close_frame = async {
                    sink.send(Message::Close(Some(frame))).await?;
                    while source.next().await.transpose()?.is_some() {}
                    Ok::<_, Error>(())
                };
                // A client that does not receive the frame in time has already disconnected.
                let _ = tokio::time::timeout(GOODBYE, close_frame).await;
            }
            Ok(None) => {
                // The reply to the client's close frame is written, but not yet flushed.
                let _ = tokio::time::timeout(GOODBYE, sink.close()).await;
            }
            Err(error) => tracing::debug!(error = %error, "WebSocket session failed"),
        }
    }

    /// Runs the session until it ends; `None` when the client has sent a close frame.
    async fn talk(
        &self,
        sink: &mut (impl Sink<Message, Error = Error> + Unpin),
        source: &mut (impl Stream<Item = Result<Message, Error>> + Unpin),
    ) -> Result<Option<CloseReason>, Error> {
        let config = self.caller.config;
        let (mut running, mut outbox) = (RunningStreams::default(), Outbox::default());
        let mut heard = Instant::now();
        let mut ping = tokio::time::interval(config.keep_alive);
        let lifetime = tokio::time::sleep(config.max_request_timeout);
        tokio::pin!(lifetime);
        let mut leaving = None;
        loop {
            if let (Some(close_frame), true) =
                (leaving, running.by_id.is_empty() && outbox.is_clear())
            {
                return Ok(Some(close_frame));
            }
            tokio::select! {
                written = outbox.write(sink), if !outbox.is_clear() => written?,
                message = source.next(), if outbox.messages.len() < MAX_OUTBOX => {
                    heard = Instant::now();
                    match message {
                        None | Some(Ok(Message::Close(_))) => return Ok(None),
                        Some(Ok(Message::Text(text))) => {
                            self.hear(&text, leaving.is_some(), &mut running, &mut outbox);
                        }
                        Some(Ok(Message::Binary(_))) => {
                            return Ok(Some((CloseCode::Unsupported, "messages must be JSON text")));
                        }
                        Some(Ok(_)) => {}
                        Some(Err(error)) => return close_frame(error).map(Some),
                    }
                }
                told = running.streams.next(), if outbox.is_clear() && !running.streams.is_empty() => {
                    match told {
                        Some(SessionEvent::Rows(id, rows)) => {
                            rows.into_iter().for_each(|row| outbox.put(Some(&id), row));
                        }
                        Some(SessionEvent::Over(id)) => {
                            running.by_id.remove(&id);
                        }
                        None => {}
                    }
                }
                _ = ping.tick() => {
                    if config.write_stall < heard.elapsed() {
                        return Err(Error::ConnectionClosed);
                    }
                    if outbox.is_clear() {
                        outbox.messages.push_back(Message::Ping(Default::default()));
                    }
                }
                () = self.draining.cancelled(), if leaving.is_none() => {
                    leaving = Some((CloseCode::Away, "this node is shutting down"));
                }
                () = &mut lifetime, if leaving.is_none() => {
                    leaving = Some((CloseCode::Away, "open the socket again"));
                }
            }
        }
    }

    fn hear(&self, text: &str, leaving: bool, running: &mut RunningStreams, outbox: &mut Outbox) {
        let mut share = self.caller.intake.share();
        let room = tree_room(text.as_bytes());
        if let Err(error) = room.and_then(|room| share.grow(text.len() + room)) {
            return outbox.put(None, failure(&error));
        }
        match ClientMessage::read(text) {
            Ok(ClientMessage::Cancel(id)) => {
                // A request that has ended meanwhile has already reported its end.
                if let Some(handle) = running.by_id.remove(&id) {
                    handle.abort();
                    let error =
                        PredictError::new(ErrorCode::Cancelled, "the request was cancelled");
                    outbox.put(Some(&id), failure(&error));
                }
            }
            Ok(ClientMessage::Ask(ask)) => {
                let id = ask.id.clone();
                if let Err(error) = self.ask(ask, leaving, running, share) {
                    outbox.put(Some(&id), failure(&error));
                }
            }
            Err(MessageError { id, error }) => outbox.put(id.as_deref(), failure(&error)),
        }
    }

    /// Starts a request, whose message has this share of the memory for bodies.
    fn ask(
        &self,
        ask: PredictMessage,
        leaving: bool,
        running: &mut RunningStreams,
        mut share: Share,
    ) -> Result<(), PredictError> {
        let config = &self.caller.config;
        if leaving {
            let message = "this socket is closing; open another one";
            return Err(PredictError::new(ErrorCode::Unavailable, message));
        }
        if running.by_id.contains_key(&ask.id) {
            let message = "a request with this id is already running";
            return Err(PredictError::invalid(message));
        }
        if MAX_RUNNING <= running.by_id.len() {
            let message = format!("this socket runs its limit of {MAX_RUNNING} requests");
            return Err(PredictError::new(ErrorCode::Overloaded, message));
        }
        let timeout = ask.timeout.unwrap_or(config.request_timeout);
        if config.max_request_timeout < timeout {
            let limit = config.max_request_timeout.as_millis();
            let message = format!("field 'timeout_ms' must be at most {limit}");
            return Err(PredictError::invalid(message));
        }
        let context = RequestContext {
            request_id: RequestId::random(),
            trace: self.context.trace.child(),
            deadline: Deadline::after(Instant::now(), timeout),
            ..self.context.clone()
        };
        let batch = rows::batch_of(&ask.rows, &self.signature)?;
        share.shrink_to(batch.get_array_memory_size());
        let mut request = PredictRequest::new(self.model.clone(), Input::Batch(batch));
        request.request_id = context.request_id.clone();
        request.trace = context.trace;
        request.session = context.session.clone();
        request.deadline = Some(context.deadline);
        request.parameters = ask.parameters;
        let answer = self.answer(ask.id.clone(), request, context, share);
        let (answer, handle) = abortable(answer);
        running.streams.push(answer.boxed());
        running.by_id.insert(ask.id, handle);
        Ok(())
    }

    /// The response to one request. Its last item is [`SessionEvent::Over`].
    fn answer(
        &self,
        id: String,
        request: PredictRequest,
        context: RequestContext,
        share: Share,
    ) -> impl Stream<Item = SessionEvent> + Send + 'static {
        let (caller, task) = (self.caller.clone(), self.signature.task);
        let span = tracing::info_span!(parent: &context.span, "request", id = %context.request_id);
        let over = id.clone();
        let told = stream! {
            let _held = share;
            match context.in_time(caller.cluster.inference.predict(request)).await {
                Ok(chunks) => {
                    let objects = rows::objects(task, chunks, &context);
                    tokio::pin!(objects);
                    while let Some(rows) = objects.next().await {
                        yield SessionEvent::Rows(id.clone(), rows);
                    }
                }
                Err(error) => yield SessionEvent::Rows(id.clone(), vec![failure(&error)]),
            }
            yield SessionEvent::Over(id);
        };
        let fenced = AssertUnwindSafe(told).catch_unwind();
        let told = fenced.flat_map(move |told| {
            let told = told.map(|told| vec![told]).unwrap_or_else(|_| {
                let error = PredictError::internal("the request failed unexpectedly", "a panic");
                let failed = SessionEvent::Rows(over.clone(), vec![failure(&error)]);
                vec![failed, SessionEvent::Over(over.clone())]
            });
            futures::stream::iter(told)
        });
        sse::InSpan::new(told, span)
    }
}

/// The close code and reason for a client that violates the protocol; an error if the connection is
/// lost.
fn close_frame(error: Error) -> Result<CloseReason, Error> {
    match error {
        Error::Capacity(_) => Ok((CloseCode::Size, "the message is too large")),
        Error::Utf8(_) => Ok((CloseCode::Invalid, "the message is not text")),
        Error::Protocol(_) => Ok((CloseCode::Protocol, "this is not a WebSocket message")),
        other => Err(other),
    }
}
