//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::Json;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};
use volley_types::{ChatMessage, GenerationRow, PredictError, PredictRequest, Task};

use super::events::{CompletionEvents, Kind};
use super::{finish_reason, logprobs, model, now, request, take_stream, usage};
use crate::answer::{self, Choice};
use crate::app::App;
use crate::body::JsonObject;
use crate::context::RequestContext;
use crate::error::ApiError;
use crate::extract::State;
use crate::sse::Events;
use crate::{chat, citations, sse};

/// A chat completion, whole or streamed.
pub(crate) async fn complete(
    State(app): State<Arc<App>>,
    context: RequestContext,
    JsonObject(mut body): JsonObject,
) -> Result<Response, ApiError> {
    let read = context.in_time(read(&app, &mut body, &context)).await?;
    let id = format!("chatcmpl-{}", context.request_id);
    if !read.stream {
        let answer = whole(&app, read, &id);
        return Ok(Json(context.in_time(answer).await?).into_response());
    }
    let events = CompletionEvents::new(Kind::Chat, &id, now(), &read.name, read.include_usage);
    stream(&app, read.request, events, &context).await
}

struct Read {
    name: String,
    request: PredictRequest,
    stream: bool,
    include_usage: bool,
}

async fn read(
    app: &App,
    body: &mut Map<String, Value>,
    context: &RequestContext,
) -> Result<Read, PredictError> {
    let (name, model, signature) = model(app, body).await?;
    super::expect(&name, &signature, Task::Generate)?;
    refuse(body)?;
    let messages = take_messages(body)?;
    let (stream, include_usage) = take_stream(body)?;
    let rows = chat::conversation(&messages)?;
    Ok(Read {
        name,
        request: request(model, rows, body, context)?,
        stream,
        include_usage,
    })
}

/// Refuses what would otherwise be passed over: what came before tools, and sound.
fn refuse(body: &Map<String, Value>) -> Result<(), PredictError> {
    let given = |name: &str| body.get(name).is_some_and(|value| !value.is_null());
    for (name, instead) in [("functions", "tools"), ("function_call", "tool_choice")] {
        if given(name) {
            return Err(PredictError::invalid(format!(
                "field '{name}' is not supported; give '{instead}'"
            )));
        }
    }
    let text = |modalities: &Value| modalities == &json!(["text"]);
    if given("audio") || given("modalities") && !body.get("modalities").is_some_and(text) {
        return Err(PredictError::invalid(
            "field 'modalities' may be [\"text\"] alone: answers are text",
        ));
    }
    Ok(())
}

fn take_messages(body: &mut Map<String, Value>) -> Result<Vec<ChatMessage>, PredictError> {
    let messages = match body.remove("messages") {
        Some(Value::Array(messages)) if !messages.is_empty() => messages,
        None | Some(Value::Null) => {
            return Err(PredictError::invalid("field 'messages' is missing"));
        }
        Some(_) => {
            return Err(PredictError::invalid(
                "field 'messages' must be a list of at least one message",
            ));
        }
    };
    let read = |(index, message)| {
        chat::openai_message(message).ok_or_else(|| {
            PredictError::invalid(format!(
                "field 'messages' has no message of text at place {index}: a message has a 'role', \
                 a 'content' (a text, parts of text, or null), and perhaps 'tool_calls' or a \
                 'tool_call_id'"
            ))
        })
    };
    messages.iter().enumerate().map(read).collect()
}

/// Streams a generation. The status is 200 only once the first chunk is there.
pub(crate) async fn stream(
    app: &App,
    request: PredictRequest,
    events: impl Events,
    context: &RequestContext,
) -> Result<Response, ApiError> {
    let begun = async {
        let mut chunks = app.control.predict(request).await?;
        let first = sse::first(&mut chunks).await?;
        GenerationRow::rows(&first)?
            .next()
            .map_or(Ok(()), |row| answer::failure(&row))?;
        Ok((first, chunks))
    };
    let (first, chunks) = context.in_time(begun).await?;
    let keep_alive = app.config.keep_alive;
    Ok(sse::response(first, chunks, events, keep_alive, context))
}

async fn whole(app: &App, read: Read, id: &str) -> Result<Value, PredictError> {
    let chunks = app.control.predict(read.request).await?;
    let choices = answer::choices(&answer::collect(chunks).await?)?;
    let told = answer::usage(&choices).unwrap_or_default();
    Ok(json!({
        "id": id,
        "object": "chat.completion",
        "created": now(),
        "model": read.name,
        "choices": choices.into_iter().map(choice).collect::<Vec<_>>(),
        "usage": usage(told),
    }))
}

fn choice(choice: Choice) -> Value {
    let logprobs = logprobs(choice.tokens);
    let calls = !choice.tool_calls.is_empty();
    let content = (!choice.text.is_empty() || !calls).then_some(choice.text);
    let mut message = json!({ "role": "assistant", "content": content, "refusal": null });
    if calls {
        message["tool_calls"] = choice.tool_calls.into();
    }
    if !choice.citations.is_empty() {
        message["annotations"] = choice.citations.iter().map(citations::of_chat).collect();
    }
    if !choice.thinking.is_empty() {
        message["reasoning_content"] = choice.thinking.into();
    }
    json!({
        "index": choice.choice,
        "message": message,
        "logprobs": logprobs,
        "finish_reason": finish_reason(choice.finish_reason),
    })
}
