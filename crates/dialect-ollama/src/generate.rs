//! `POST /api/chat` and `POST /api/generate`.

use serde_json::{Map, Value, json};
use volley_http_edge::axum::Json;
use volley_http_edge::axum::response::{IntoResponse, Response};
use volley_types::{Dialect, GenerationRow, Input, PredictError, PredictRequest, Task};

use super::events::{EventsInterface, Lines};
use super::request::{self, ParsedRequest};
use super::{FORMAT, Times, calls, done_reason, named};
use volley_dialect_kit::answer;
use volley_dialect_kit::blocks;
use volley_dialect_kit::sse;
use volley_dialect_kit::supplement;
use volley_http_edge::body::{JsonMessages, JsonObject};
use volley_http_edge::context::RequestContext;
use volley_http_edge::edge::Caller;
use volley_http_edge::error::ApiError;

/// Creates a chat response, streamed unless `stream` is false.
pub(crate) async fn chat(
    caller: Caller,
    context: RequestContext,
    JsonMessages(body): JsonMessages,
) -> Result<Response, ApiError> {
    answer(&caller, &context, &body, EventsInterface::Chat).await
}

/// Generates text, streamed unless `stream` is false.
pub(crate) async fn generate(
    caller: Caller,
    context: RequestContext,
    JsonObject(body): JsonObject,
) -> Result<Response, ApiError> {
    answer(&caller, &context, &body, EventsInterface::Generate).await
}

async fn answer(
    caller: &Caller,
    context: &RequestContext,
    body: &Map<String, Value>,
    kind: EventsInterface,
) -> Result<Response, ApiError> {
    let mut times = Times::begin();
    let (name, model) = named(body)?;
    let signature = context
        .in_time(caller.cluster.inference.signature(&model))
        .await?;
    if signature.task != Task::Generate {
        let verb = if kind == EventsInterface::Chat {
            "chat"
        } else {
            "generate"
        };
        let message = format!("\"{name}\" does not support {verb}");
        return Err(PredictError::invalid(message).into());
    }
    let ParsedRequest {
        rows,
        parameters,
        stream,
    } = match kind {
        EventsInterface::Chat => request::chat(body, &signature)?,
        EventsInterface::Generate => request::generate(body)?,
    };
    let Some(rows) = rows else {
        return Ok(loaded(kind, &name));
    };
    let mut request = PredictRequest::new(model, Input::Batch(rows));
    request.request_id = context.request_id.clone();
    request.trace = context.trace;
    request.deadline = Some(context.deadline);
    request.parameters = parameters;
    request.dialect = Dialect::Ollama;
    request.whole = !stream;
    if stream {
        let begun = async {
            let mut chunks = caller.cluster.inference.predict(request).await?;
            let first = sse::first(&mut chunks).await?;
            GenerationRow::rows(&first)?
                .next()
                .map_or(Ok(()), |row| answer::failure(&row))?;
            Ok((first, chunks))
        };
        let (first, chunks) = context.in_time(begun).await?;
        let lines = Lines::new(kind, &name, times);
        return Ok(sse::lines(first, chunks, lines, context));
    }
    let whole = async {
        let mut chunks = caller.cluster.inference.predict(request).await?;
        let first = sse::first(&mut chunks).await?;
        times.heard();
        let mut batches = vec![first];
        batches.extend(answer::collect(chunks).await?);
        whole(kind, &name, times, &batches)
    };
    Ok(blocks::body(&context.in_time(whole).await?))
}

/// The response to a request without a prompt, by which clients load a model. The model is already
/// deployed.
fn loaded(kind: EventsInterface, name: &str) -> Response {
    let mut object = kind.object(name, "", "", true);
    object["done_reason"] = "load".into();
    Json(object).into_response()
}

fn whole(
    kind: EventsInterface,
    name: &str,
    times: Times,
    batches: &[arrow_array::RecordBatch],
) -> Result<Value, PredictError> {
    let mut choices = answer::choices(batches)?;
    let usage = answer::usage(&choices);
    if choices.is_empty() {
        return Err(sse::silent_end());
    }
    let choice = choices.swap_remove(0);
    let mut object = kind.object(name, &choice.text_or_note(), &choice.thinking, true);
    if !choice.tool_calls.is_empty() && kind == EventsInterface::Chat {
        let told = calls(&choice.tool_calls, choice.finish_reason)?;
        if told != json!([]) {
            object["message"]["tool_calls"] = told;
        }
    }
    if !choice.tokens.is_empty() {
        object["logprobs"] = choice.tokens.clone().into();
    }
    object["done_reason"] = done_reason(choice.finish_reason, choice.is_refused()).into();
    times.write_into(usage, &choice.details, &mut object);
    if let Some(Value::Object(given)) = supplement::of(&choice.details, FORMAT) {
        let mut given = given.clone();
        // An upstream may have been called through the other of the two routes.
        given.retain(|name, _| kind == EventsInterface::Generate || name != "response");
        given.retain(|name, _| kind == EventsInterface::Chat || name != "message");
        supplement::supplement(&mut object, &given.into());
    }
    Ok(object)
}
