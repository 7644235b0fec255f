//! `POST /v1/completions`: prompts go to the model as they are.

use serde_json::{Map, Value, json};
use volley_http_edge::axum::Json;
use volley_http_edge::axum::response::{IntoResponse, Response};
use volley_types::params::ECHO;
use volley_types::{FinishReason, PredictError, PredictRequest, Task};

use super::events::{CompletionEvents, EventsInterface, text_logprobs};
use super::{FINGERPRINT, finish_reason, take_stream, unsupported, usage};
use volley_dialect_kit::answer::{self, Choice};
use volley_dialect_kit::clock::now;
use volley_dialect_kit::generation;
use volley_dialect_kit::inputs::Inputs;
use volley_dialect_kit::requests::{model_for, request};
use volley_http_edge::body::{Fields, JsonObject, take_flag};
use volley_http_edge::context::RequestContext;
use volley_http_edge::edge::Caller;
use volley_http_edge::error::ApiError;

/// Handles a plain completion, complete or streamed.
pub(crate) async fn complete(
    caller: Caller,
    context: RequestContext,
    JsonObject(mut body): JsonObject,
) -> Result<Response, ApiError> {
    let read = context.in_time(read(&caller, &mut body, &context)).await?;
    let id = format!("cmpl-{}", context.request_id);
    if !read.stream {
        let answer = whole(&caller, read, &id);
        return Ok(Json(context.in_time(answer).await?).into_response());
    }
    let kind = EventsInterface::Text {
        answers: read.answers,
    };
    let events = CompletionEvents::new(kind, &id, now(), &read.name, read.include_usage);
    generation::stream(&caller, read.request, events, &context).await
}

struct ParsedCompletion {
    name: String,
    request: PredictRequest,
    /// Number of answers to each prompt.
    answers: u32,
    stream: bool,
    include_usage: bool,
}

async fn read(
    caller: &Caller,
    body: &mut Map<String, Value>,
    context: &RequestContext,
) -> Result<ParsedCompletion, PredictError> {
    let (name, model, _) = model_for(caller, body, Task::Generate).await?;
    let prompts = Inputs::take(body, "prompt")?.into_texts(body);
    let (stream, include_usage) = take_stream(body)?;
    take_logprobs(body)?;
    let answers = body.count("n")?.unwrap_or(1);
    refuse(body, answers)?;
    // Plain completions bypass the chat template of the model.
    body.entry("raw").or_insert(Value::Bool(true));
    let rows = volley_dialect_kit::chat::prompts(&prompts)?;
    let mut request = request(model, rows, body, context)?;
    request.whole = !stream;
    Ok(ParsedCompletion {
        name,
        request,
        answers: u32::try_from(answers).unwrap_or(u32::MAX),
        stream,
        include_usage,
    })
}

/// Rejects fields that would otherwise be ignored silently.
fn refuse(body: &mut Map<String, Value>, answers: u64) -> Result<(), PredictError> {
    if !take_flag(body, "echo")? {
        body.remove("echo");
    } else {
        body.insert(ECHO.to_owned(), true.into());
    }
    if !body.text("suffix")?.unwrap_or_default().is_empty() {
        return Err(unsupported("field 'suffix'"));
    }
    body.remove("suffix");
    // A `best_of` equal to `n` selects nothing: all generated answers are returned.
    if body.count("best_of")?.is_some_and(|best| best != answers) {
        return Err(unsupported(
            "field 'best_of', where it is another number than 'n',",
        ));
    }
    body.remove("best_of");
    Ok(())
}

async fn whole(caller: &Caller, read: ParsedCompletion, id: &str) -> Result<Value, PredictError> {
    let chunks = caller.cluster.inference.predict(read.request).await?;
    let choices = answer::choices(&answer::collect(chunks).await?)?;
    let (told, details) = (answer::usage(&choices), answer::details(&choices));
    let choices = choices
        .into_iter()
        .map(|choice| self::choice(choice, read.answers));
    let mut body = json!({
        "id": id,
        "object": "text_completion",
        "created": now(),
        "model": read.name,
        "system_fingerprint": FINGERPRINT,
        "choices": choices.collect::<Vec<_>>(),
    });
    if let Some(told) = told {
        body["usage"] = usage(told, &details);
    }
    Ok(body)
}

fn choice(choice: Choice, answers: u32) -> Value {
    let told = text_logprobs(&choice.tokens, 0);
    let reason = match choice.finish_reason {
        Some(FinishReason::Stop) if choice.is_refused() => Some(FinishReason::ContentFilter),
        reason => reason,
    };
    json!({
        "index": choice.item.saturating_mul(answers).saturating_add(choice.choice),
        "text": choice.text_or_note(),
        "logprobs": told,
        "finish_reason": finish_reason(reason),
    })
}

/// Converts `logprobs`, which is the number of alternatives in plain completions.
fn take_logprobs(body: &mut Map<String, Value>) -> Result<(), PredictError> {
    // Some clients send the boolean of chat completions.
    if body.get("logprobs").is_some_and(Value::is_boolean) {
        return Ok(());
    }
    if let Some(count) = body.count("logprobs")? {
        body.insert("logprobs".to_owned(), true.into());
        body.insert("top_logprobs".to_owned(), count.into());
    }
    Ok(())
}
