//! Anthropic's dialect: `POST /v1/messages`, and the count of a prompt's tokens.
//!
//! Its messages become the pipeline's own form, which is OpenAI's: a block `tool_use` is a call of
//! an assistant's message, a block `tool_result` a message of the role `tool`.

pub(crate) mod events;
mod request;

use std::sync::Arc;

use axum::Json;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use volley_types::params::COUNT_TOKENS;
use volley_types::{
    ChunkStream, FinishReason, GenerationRow, Input, PredictError, PredictRequest, Task, Usage,
};

use self::events::MessageEvents;
use self::request::{Asked, Limit};
use crate::answer::{self, Choice};
use crate::app::App;
use crate::body::JsonObject;
use crate::context::RequestContext;
use crate::error::ApiError;
use crate::extract::State;
use crate::{chat, citations, parameters, sse};

/// A message, whole or streamed.
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    context: RequestContext,
    JsonObject(body): JsonObject,
) -> Result<Response, ApiError> {
    let asked = request::read(body, Limit::Needed)?;
    let id = format!("msg_{}", context.request_id);
    let begun = begin(&app, &asked, &context);
    if asked.stream {
        let first = async {
            let mut chunks = begun.await?;
            let first = sse::first(&mut chunks).await?;
            GenerationRow::rows(&first)?
                .next()
                .map_or(Ok(()), |row| answer::failure(&row))?;
            Ok((first, chunks))
        };
        let (first, chunks) = context.in_time(first).await?;
        let events = MessageEvents::new(&id, &asked.name);
        let keep_alive = app.config.keep_alive;
        return Ok(sse::response(first, chunks, events, keep_alive, &context));
    }
    let whole = async { answer::choices(&answer::collect(begun.await?).await?) };
    let choice = context.in_time(whole).await?.into_iter().next();
    let choice = choice.ok_or_else(sse::silent_end)?;
    Ok(Json(message(&id, &asked.name, choice)).into_response())
}

/// The tokens of a message's prompt, as the model's own tokenizer counts them.
pub(crate) async fn count_tokens(
    State(app): State<Arc<App>>,
    context: RequestContext,
    JsonObject(body): JsonObject,
) -> Result<Json<Value>, ApiError> {
    let mut asked = request::read(body, Limit::Open)?;
    asked
        .parameters
        .insert(COUNT_TOKENS.to_owned(), true.into());
    let counted = async {
        let chunks = begin(&app, &asked, &context).await?;
        answer::prompt_tokens(&answer::collect(chunks).await?)
    };
    let tokens = context.in_time(counted).await?;
    Ok(Json(json!({ "input_tokens": tokens })))
}

async fn begin(
    app: &App,
    asked: &Asked,
    context: &RequestContext,
) -> Result<ChunkStream, PredictError> {
    let signature = app.control.signature(&asked.model).await?;
    if signature.task != Task::Generate {
        return Err(PredictError::invalid(format!(
            "model '{}' has the task '{}', and this route needs '{}'",
            asked.name,
            signature.task.as_str(),
            Task::Generate.as_str()
        )));
    }
    let rows = chat::conversation(&asked.messages)?;
    let mut request = PredictRequest::new(asked.model.clone(), Input::Batch(rows));
    request.request_id = context.request_id.clone();
    request.trace = context.trace;
    request.session = context.session.clone();
    request.deadline = Some(context.deadline);
    request.parameters = parameters::from_json(&asked.parameters)?;
    app.control.predict(request).await
}

fn message(id: &str, model: &str, choice: Choice) -> Value {
    let mut content = Vec::new();
    if !choice.thinking.is_empty() {
        content.push(json!({
            "type": "thinking", "thinking": choice.thinking, "signature": "",
        }));
    }
    if !choice.text.is_empty() || choice.tool_calls.is_empty() {
        content.extend(citations::blocks(&choice.text, &choice.citations));
    }
    content.extend(choice.tool_calls.iter().map(tool_use));
    json!({
        "id": id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": stop_reason(choice.finish_reason),
        "stop_sequence": null,
        "usage": usage(choice.usage.unwrap_or_default()),
    })
}

/// A call in OpenAI's form as a block of a message. Arguments that are no JSON are told as text.
pub(crate) fn tool_use(call: &Value) -> Value {
    let arguments = call.pointer("/function/arguments").and_then(Value::as_str);
    let arguments = arguments.unwrap_or_default();
    let input = if arguments.trim().is_empty() {
        json!({})
    } else {
        serde_json::from_str(arguments).unwrap_or_else(|_| json!({ "text": arguments }))
    };
    json!({
        "type": "tool_use",
        "id": call.get("id"),
        "name": call.pointer("/function/name"),
        "input": input,
    })
}

pub(crate) fn stop_reason(reason: Option<FinishReason>) -> &'static str {
    match reason {
        Some(FinishReason::Length) => "max_tokens",
        Some(FinishReason::ToolCalls) => "tool_use",
        Some(FinishReason::ContentFilter) => "refusal",
        Some(FinishReason::Stop | FinishReason::Error) | None => "end_turn",
    }
}

fn usage(usage: Usage) -> Value {
    let read = usage.prompt_tokens.saturating_sub(usage.cached_tokens);
    let mut told = json!({ "input_tokens": read, "output_tokens": usage.completion_tokens });
    if usage.cached_tokens != 0 {
        told["cache_read_input_tokens"] = json!(usage.cached_tokens);
    }
    told
}
