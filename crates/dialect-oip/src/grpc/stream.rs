//! `ModelStreamInfer`: requests arrive while responses are sent.
//!
//! Responses of tensor models keep the order of their requests. Generations are sent in pieces, and
//! models that stream events send a message for each; those of several requests interleave. Dropping the stream cancels all its work.

mod events;

use std::pin::Pin;
use std::time::Instant;

use async_stream::stream;
use futures::future::BoxFuture;
use futures::stream::{BoxStream, FuturesOrdered, SelectAll};
use futures::{FutureExt, Stream, StreamExt};
use tonic::{Status, Streaming};
use tracing::Instrument;
use volley_proto::inference::triton::{ModelInferRequest, ModelInferResponse};
use volley_types::{ChunkStream, Deadline, ErrorCode, GenerationRow, PredictError, RequestId};

use super::GrpcFlavor;
use super::context::{CallContext, status};
use super::reply::{GenerationEnd, OutputEncoding, Reply};
use super::request::{ModelInferCall, rows};
use super::service::InferenceService;
use crate::state::OipCaller;
use volley_dialect_kit::answer;
use volley_dialect_kit::sse;
use volley_http_edge::context::{RequestContext, too_late};

/// Maximum number of concurrent requests of a stream. The next one is read when one has ended.
const MAX_RUNNING: usize = 32;

/// The next message of a stream. An error ends the call.
pub(super) type StreamItem = Result<Message, Status>;

/// A message for one request.
pub(super) enum Message {
    /// A complete response, or a piece of one.
    Response {
        response: ModelInferResponse,
        /// Whether this is the last message for the request.
        last: bool,
    },
    /// The request failed.
    Refused { id: String, error: PredictError },
}

type RequestResult = Result<ModelInferCall, (String, PredictError)>;

/// Streams the responses to `requests`.
pub(super) fn answers(
    service: InferenceService,
    context: CallContext,
    mut requests: Streaming<ModelInferRequest>,
) -> impl Stream<Item = StreamItem> + Send + 'static {
    let most = match service.flavor {
        GrpcFlavor::Triton => MAX_RUNNING,
        // Messages of this flavor do not identify their request, so requests run one after the
        // other.
        GrpcFlavor::MlServer => 1,
    };
    stream! {
        let mut reading: FuturesOrdered<BoxFuture<'static, RequestResult>> = FuturesOrdered::new();
        let mut whole: FuturesOrdered<BoxFuture<'static, Message>> = FuturesOrdered::new();
        let mut pieces: SelectAll<BoxStream<'static, Message>> = SelectAll::new();
        let (mut open, mut draining) = (true, false);
        let late = wait_for(context.deadline);
        tokio::pin!(late);
        loop {
            let running = reading.len() + whole.len() + pieces.len();
            if !open && running == 0 {
                break;
            }
            tokio::select! {
                () = &mut late => {
                    yield Err(status(&too_late()));
                    return;
                }
                read = reading.next(), if !reading.is_empty() => match read {
                    Some(Ok(asked)) if asked.streams => pieces.push(generation(&context.caller, asked).boxed()),
                    Some(Ok(asked)) => whole.push_back(at_once(&context.caller, asked)),
                    Some(Err((id, error))) => {
                        let refused = Message::Refused { id, error };
                        whole.push_back(std::future::ready(refused).boxed());
                    }
                    None => {}
                },
                message = whole.next(), if !whole.is_empty() => {
                    if let Some(message) = message {
                        yield Ok(message);
                    }
                }
                // The end of the last stream also resolves this branch.
                message = pieces.next(), if !pieces.is_empty() => {
                    if let Some(message) = message {
                        yield Ok(message);
                    }
                }
                () = context.draining.0.cancelled(), if open => {
                    (open, draining) = (false, true);
                }
                next = requests.message(), if open && running < most => match next {
                    Ok(Some(request)) => reading.push_back(read(service, &context, request)),
                    Ok(None) => open = false,
                    Err(status) => {
                        yield Err(status);
                        return;
                    }
                },
            }
        }
        if draining {
            let message = "this node is shutting down; open the stream on another node";
            yield Err(status(&PredictError::new(ErrorCode::Unavailable, message)));
        }
    }
}

/// Waits for the deadline of a stream; forever where it has none.
async fn wait_for(deadline: Option<Deadline>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.instant().into()).await,
        None => std::future::pending().await,
    }
}

fn read(
    service: InferenceService,
    call: &CallContext,
    given: ModelInferRequest,
) -> BoxFuture<'static, RequestResult> {
    let now = Instant::now();
    let own = Deadline::after(now, call.caller.config.request_timeout);
    let context = RequestContext {
        request_id: RequestId::random(),
        trace: call.request.trace.child(),
        deadline: call.deadline.map_or(own, |deadline| deadline.earlier(own)),
        ..call.request.clone()
    };
    let span = tracing::info_span!(parent: &context.span, "request", id = %context.request_id);
    let caller = call.caller.clone();
    let share = call.share_of(&given);
    let work = async move {
        let id = given.id.clone();
        let asked =
            async { ModelInferCall::read(&caller, service.flavor, given, &context, share?).await };
        let asked = context
            .in_time(asked)
            .await
            .and_then(|asked| match asked.reply.prompts() {
                0 | 1 => Ok(asked),
                _ => Err(PredictError::invalid(
                    "a stream accepts one prompt per request; send several requests",
                )),
            });
        asked.map_err(|error| (id, error))
    };
    work.instrument(span).boxed()
}

/// The complete response of a tensor model.
fn at_once(caller: &OipCaller, asked: ModelInferCall) -> BoxFuture<'static, Message> {
    let caller = caller.clone();
    let (until, id) = (until(asked.request.deadline), asked.reply.id.clone());
    let work = async move {
        let done = tokio::time::timeout_at(until, asked.answer(&caller)).await;
        match done.unwrap_or_else(|_| Err(too_late())) {
            Ok(response) => Message::Response {
                response,
                last: true,
            },
            Err(error) => Message::Refused { id, error },
        }
    };
    work.in_current_span().boxed()
}

/// The pieces of a generated text, or the events of a model that streams them.
fn generation(
    caller: &OipCaller,
    asked: ModelInferCall,
) -> impl Stream<Item = Message> + Send + 'static {
    let caller = caller.clone();
    let ModelInferCall {
        found,
        request,
        mut reply,
        share,
        ..
    } = asked;
    let until = until(request.deadline);
    stream! {
        let _held = share;
        let mut run = caller.state.statistics().start(&reply.model_name, &reply.model_version);
        run.is_read(rows(&request));
        let begun = tokio::time::timeout_at(until, found.predict(&caller, request)).await;
        let mut chunks = match begun.unwrap_or_else(|_| Err(too_late())) {
            Ok(chunks) => chunks,
            Err(error) => {
                yield Message::Refused { id: reply.id, error };
                return;
            }
        };
        reply.model_version = found.answering(&caller, &chunks);
        let mut end = GenerationEnd::default();
        loop {
            match next(&mut chunks, until, &reply, &mut end).await {
                Ok((said, ended)) => {
                    for message in said {
                        yield message;
                    }
                    if ended {
                        run.is_inferred();
                        run.is_done();
                        break;
                    }
                }
                Err(error) => {
                    yield Message::Refused { id: reply.id, error };
                    return;
                }
            }
        }
        // Drains the source, so that it can end normally.
        while let Ok(Some(Ok(_))) = tokio::time::timeout_at(until, chunks.next()).await {}
    }
}

/// Formats the next rows. The flag is true after the last row.
async fn next(
    chunks: &mut ChunkStream,
    until: tokio::time::Instant,
    reply: &Reply,
    end: &mut GenerationEnd,
) -> Result<(Vec<Message>, bool), PredictError> {
    let next = tokio::time::timeout_at(until, chunks.next()).await;
    let next = next.map_err(|_| too_late())?.transpose()?;
    if let OutputEncoding::Tensors { .. } = reply.form {
        return events::messages(next, reply);
    }
    let batch = next.ok_or_else(sse::silent_end)?;
    let mut said = Vec::new();
    for row in GenerationRow::rows(&batch)? {
        answer::failure(&row)?;
        end.finish_reason = row.finish_reason().or(end.finish_reason);
        end.usage = row.usage().or(end.usage);
        let text = row.text().filter(|text| !text.is_empty());
        let last = row.last();
        if let Some(text) = text {
            let mut response = reply.piece(text, row.choice())?;
            let last = last && !reply.empty_final;
            if last {
                response.parameters.extend(end.parameters());
            }
            said.push(Message::Response { response, last });
        }
        if last {
            if reply.empty_final {
                let mut response = reply.empty();
                response.parameters = end.parameters();
                said.push(Message::Response {
                    response,
                    last: true,
                });
            }
            return Ok((said, true));
        }
    }
    Ok((said, false))
}

fn until(deadline: Option<Deadline>) -> tokio::time::Instant {
    // Requests of this edge have one.
    deadline.map_or_else(tokio::time::Instant::now, |deadline| {
        deadline.instant().into()
    })
}

/// The response stream of a flavor's call.
pub(super) type Responses<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;
