//! The messages of a model that streams events: one for each event.

use async_stream::stream;
use futures::{Stream, StreamExt};
use tokio::time::{Instant, timeout_at};
use volley_types::{ChunkStream, PredictError};

use super::{Message, until};
use crate::grpc::reply::Reply;
use crate::grpc::request::{ModelInferCall, rows};
use crate::state::OipCaller;
use volley_http_edge::context::too_late;

/// Sends a message for each event. The model may end the stream at any time, so the last event does
/// not have the mark of the last message; with `empty_final` a message without outputs has it.
pub(super) fn messages(
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
        let begun = timeout_at(until, found.predict(&caller, request)).await;
        let mut events = match begun.unwrap_or_else(|_| Err(too_late())) {
            Ok(events) => events,
            Err(error) => {
                yield Message::Refused { id: reply.id, error };
                return;
            }
        };
        reply.model_version = found.answering(&caller, &events);
        loop {
            match next(&mut events, until, &reply).await {
                Ok(Some(message)) => yield message,
                Ok(None) => break,
                Err(error) => {
                    yield Message::Refused { id: reply.id, error };
                    return;
                }
            }
        }
        run.is_inferred();
        run.is_done();
        if reply.empty_final {
            yield Message::Response { response: reply.empty(), last: true };
        }
    }
}

/// The message of the next event; `None` at the end.
async fn next(
    events: &mut ChunkStream,
    until: Instant,
    reply: &Reply,
) -> Result<Option<Message>, PredictError> {
    let next = timeout_at(until, events.next()).await;
    let Some(event) = next.map_err(|_| too_late())?.transpose()? else {
        return Ok(None);
    };
    let (response, shared) = reply.whole(&[event])?;
    if !shared.is_empty() {
        return Err(PredictError::invalid(
            "events cannot be written to shared memory, because each would replace the one before; \
             leave its parameters out",
        ));
    }
    let last = false;
    Ok(Some(Message::Response { response, last }))
}
