//! `POST /v1/chat/completions`.

mod legacy;

use serde_json::{Map, Value, json};
use volley_http_edge::axum::Json;
use volley_http_edge::axum::response::{IntoResponse, Response};
use volley_types::{PredictError, PredictRequest, Task};

use super::events::{CompletionEvents, EventsInterface};
use super::{FINGERPRINT, finish_reason, logprobs, pause, take_stream, usage};
use volley_dialect_kit::answer::{self, Choice};
use volley_dialect_kit::chat;
use volley_dialect_kit::citations;
use volley_dialect_kit::clock::now;
use volley_dialect_kit::generation;
use volley_dialect_kit::messages;
use volley_dialect_kit::refusal::explanation;
use volley_dialect_kit::requests::{model_for, request};
use volley_dialect_kit::supplement;
use volley_http_edge::body::JsonObject;
use volley_http_edge::context::RequestContext;
use volley_http_edge::edge::Caller;
use volley_http_edge::error::ApiError;

/// Name of the provider whose format this dialect uses.
const FORMAT: &str = "openai";

/// Handles a chat completion, complete or streamed.
pub(crate) async fn complete(
    caller: Caller,
    context: RequestContext,
    JsonObject(mut body): JsonObject,
) -> Result<Response, ApiError> {
    let read = context.in_time(read(&caller, &mut body, &context)).await?;
    let id = format!("chatcmpl-{}", context.request_id);
    if !read.stream {
        let answer = whole(&caller, read, &id);
        return Ok(Json(context.in_time(answer).await?).into_response());
    }
    let events = CompletionEvents::new(
        EventsInterface::Chat,
        &id,
        now(),
        &read.name,
        read.include_usage,
    )
    .of_functions(read.legacy);
    generation::stream(&caller, read.request, events, &context).await
}

struct ParsedChat {
    name: String,
    request: PredictRequest,
    stream: bool,
    include_usage: bool,
    /// Whether the caller uses the deprecated `functions` instead of `tools`.
    legacy: bool,
}

async fn read(
    caller: &Caller,
    body: &mut Map<String, Value>,
    context: &RequestContext,
) -> Result<ParsedChat, PredictError> {
    let (name, model, signature) = model_for(caller, body, Task::Generate).await?;
    refuse(body)?;
    let legacy = legacy::take(body)?;
    let talk = messages::take(body)?;
    let (stream, include_usage) = take_stream(body)?;
    let (rows, native) = chat::native_rows(&signature, &talk.messages, talk.native)?;
    let mut request = request(model, rows, body, context)?;
    request.whole = !stream;
    if let Some(native) = native {
        native.put(&mut request.parameters)?;
    }
    Ok(ParsedChat {
        name,
        request,
        stream,
        include_usage,
        legacy,
    })
}

/// Rejects audio, which would otherwise be ignored silently, and `tools` that are no list.
fn refuse(body: &Map<String, Value>) -> Result<(), PredictError> {
    let tools = body.get("tools");
    if tools.is_some_and(|tools| !tools.is_null() && !tools.is_array()) {
        return Err(PredictError::invalid("field 'tools' must be a list"));
    }
    let given = |name: &str| body.get(name).is_some_and(|value| !value.is_null());
    let text = |modalities: &Value| modalities == &json!(["text"]);
    if given("audio") || given("modalities") && !body.get("modalities").is_some_and(text) {
        return Err(PredictError::invalid(
            "field 'modalities' must be [\"text\"]: responses are text only",
        ));
    }
    Ok(())
}

async fn whole(caller: &Caller, read: ParsedChat, id: &str) -> Result<Value, PredictError> {
    let chunks = caller.cluster.inference.predict(read.request).await?;
    let choices = answer::choices(&answer::collect(chunks).await?)?;
    let (told, details) = (answer::usage(&choices), answer::details(&choices));
    let choices = choices
        .into_iter()
        .map(|choice| self::choice(choice, read.legacy));
    let mut body = json!({
        "id": id,
        "object": "chat.completion",
        "created": now(),
        "model": read.name,
        "system_fingerprint": FINGERPRINT,
        "choices": choices.collect::<Vec<_>>(),
    });
    if let Some(told) = told {
        body["usage"] = usage(told, &details);
    }
    if let (Some(FORMAT), Some(Value::Object(fields))) =
        (details.format.as_deref(), &details.fields)
    {
        for (name, value) in fields {
            body[name] = value.clone();
        }
    }
    if let Some(Value::Object(given)) = supplement::of(&details, FORMAT) {
        let mut given = given.clone();
        // The upstream's choices and usage cover one choice; the response covers all.
        given.retain(|name, _| name != "choices" && name != "usage");
        supplement::supplement(&mut body, &given.into());
    }
    Ok(body)
}

fn choice(choice: Choice, legacy: bool) -> Value {
    let calls = !choice.tool_calls.is_empty();
    let said = choice.said();
    let told = explanation(&choice.details).unwrap_or_default();
    let refusal = format!("{}{told}", choice.refusal);
    let refusal = Some(refusal).filter(|refusal| !refusal.is_empty());
    let says = !said.is_empty() || !calls && refusal.is_none();
    let content = says.then_some(said);
    let logprobs = logprobs(choice.tokens);
    let mut message = json!({ "role": "assistant", "content": content, "refusal": refusal });
    let mut reason = finish_reason(choice.finish_reason);
    if legacy && calls {
        message["function_call"] = choice.tool_calls[0]["function"].clone();
        reason = "function_call";
    } else if calls {
        message["tool_calls"] = choice.tool_calls.into();
    }
    if !choice.citations.is_empty() {
        message["annotations"] = choice.citations.iter().map(citations::of_chat).collect();
    }
    if !choice.thinking.is_empty() {
        message["reasoning_content"] = choice.thinking.into();
    }
    let mut told = json!({
        "index": choice.choice,
        "message": message,
        "logprobs": logprobs,
        "finish_reason": reason,
    });
    if let Some(own) = pause(&choice.details) {
        told["native_finish_reason"] = own.into();
    }
    let given = supplement::of(&choice.details, FORMAT).filter(|_| !legacy);
    if let Some(given) = given.and_then(|given| given.pointer("/choices/0")) {
        supplement::supplement(&mut told, given);
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn audio_and_tools_that_are_no_list_are_refused() {
        for (field, value, is_refused) in [
            ("tools", json!({}), true),
            ("tools", json!([]), false),
            ("tools", Value::Null, false),
            ("modalities", json!(["text"]), false),
            ("modalities", json!(["audio"]), true),
        ] {
            let mut body = Map::new();
            body.insert(field.to_owned(), value.clone());
            let refused = refuse(&body).err();
            assert_eq!(refused.is_some(), is_refused, "{field}: {value}");
            let named = refused.is_none_or(|it| it.message.contains(&format!("'{field}'")));
            assert!(named, "{field}");
        }
    }
}
