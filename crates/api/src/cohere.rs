//! Cohere's dialect: `POST /v2/chat`, and `POST /v1/embed` and `POST /v2/embed`. Its reranking
//! stands in [`crate::openai::rerank`], as it is Jina's too.
//!
//! Messages have OpenAI's form but for the content of tools' results, and for what an assistant
//! plans before its calls.

pub(crate) mod embed;
mod events;
mod request;

use std::sync::Arc;

use axum::Json;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};
use volley_types::{Citation, FinishReason, PredictError, PredictRequest, Task, Usage};

use self::events::ChatEvents;
use crate::answer::{self, Choice};
use crate::app::App;
use crate::body::JsonObject;
use crate::chat;
use crate::context::RequestContext;
use crate::error::ApiError;
use crate::extract::State;
use crate::openai::{self, chat::stream};
use crate::sse;

/// A chat, whole or streamed.
pub(crate) async fn chat(
    State(app): State<Arc<App>>,
    context: RequestContext,
    JsonObject(mut body): JsonObject,
) -> Result<Response, ApiError> {
    let id = context.request_id.to_string();
    let begun = read(&app, &mut body, &context);
    let (request, streams) = context.in_time(begun).await?;
    if streams {
        return stream(&app, request, ChatEvents::new(&id), &context).await;
    }
    let whole = async {
        let chunks = app.control.predict(request).await?;
        let choices = answer::choices(&answer::collect(chunks).await?)?;
        choices.into_iter().next().ok_or_else(sse::silent_end)
    };
    let choice = context.in_time(whole).await?;
    Ok(Json(message(&id, choice)).into_response())
}

async fn read(
    app: &App,
    body: &mut Map<String, Value>,
    context: &RequestContext,
) -> Result<(PredictRequest, bool), PredictError> {
    let (name, model, signature) = openai::model(app, body).await?;
    openai::expect(&name, &signature, Task::Generate)?;
    let asked = request::read(std::mem::take(body))?;
    let rows = chat::conversation(&asked.messages)?;
    let request = openai::request(model, rows, &asked.parameters, context)?;
    Ok((request, asked.stream))
}

fn message(id: &str, choice: Choice) -> Value {
    let mut content = Vec::new();
    if !choice.thinking.is_empty() {
        content.push(json!({ "type": "thinking", "thinking": choice.thinking }));
    }
    let place = content.len();
    if !choice.text.is_empty() || choice.tool_calls.is_empty() {
        content.push(json!({ "type": "text", "text": choice.text }));
    }
    let mut message = json!({ "role": "assistant", "content": content });
    if !choice.citations.is_empty() {
        let told = choice.citations.iter();
        message["citations"] = told
            .map(|cited| citation(cited, &choice.text, place))
            .collect();
    }
    if !choice.tool_calls.is_empty() {
        message["tool_calls"] = choice.tool_calls.into_iter().map(call).collect();
    }
    let mut told = json!({
        "id": id,
        "finish_reason": finish_reason(choice.finish_reason),
        "message": message,
        "usage": usage(choice.usage.unwrap_or_default()),
    });
    if !choice.tokens.is_empty() {
        told["logprobs"] = choice.tokens.iter().map(logprob).collect();
    }
    told
}

/// A whole call in OpenAI's form, which is Cohere's; some models leave the type out.
fn call(mut call: Value) -> Value {
    call["type"] = "function".into();
    call
}

/// Why an answer ended, in Cohere's words. What its filter cut has the one of its first version.
fn finish_reason(reason: Option<FinishReason>) -> &'static str {
    match reason {
        Some(FinishReason::Length) => "MAX_TOKENS",
        Some(FinishReason::ToolCalls) => "TOOL_CALL",
        Some(FinishReason::ContentFilter) => "ERROR_TOXIC",
        Some(FinishReason::Error) => "ERROR",
        Some(FinishReason::Stop) | None => "COMPLETE",
    }
}

fn usage(usage: Usage) -> Value {
    let counts = json!({
        "input_tokens": usage.prompt_tokens, "output_tokens": usage.completion_tokens,
    });
    let mut told = json!({ "tokens": counts });
    if usage.cached_tokens != 0 {
        told["cached_tokens"] = usage.cached_tokens.into();
    }
    told
}

/// A token with its probability. Its number is the model's own affair.
fn logprob(token: &Value) -> Value {
    json!({ "text": token["token"], "token_ids": [], "logprobs": [token["logprob"]] })
}

/// A citation of the part of the content at `place`, whose text is known as far as `text` goes.
fn citation(cited: &Citation, text: &str, place: usize) -> Value {
    let number = |place: Option<u32>| place.and_then(|place| usize::try_from(place).ok());
    let (start, end) = (number(cited.start).unwrap_or(0), number(cited.end));
    let length = end.map_or(usize::MAX, |end| end.saturating_sub(start));
    let passage: String = text.chars().skip(start).take(length).collect();
    let document = [
        ("title", &cited.title),
        ("url", &cited.url),
        ("snippet", &cited.quote),
    ];
    let document = document
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), Value::from(value.as_deref()?))));
    let id = cited.source.clone().unwrap_or_else(|| cited.uri());
    json!({
        "start": start,
        "end": end.unwrap_or_else(|| start + passage.chars().count()),
        "text": passage,
        "sources": [{
            "type": "document", "id": id, "document": document.collect::<Map<_, _>>(),
        }],
        "content_index": place,
        "type": "TEXT_CONTENT",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn citations_tell_their_passage_and_their_source() {
        let cited = Citation {
            url: Some("https://a.example".to_owned()),
            title: Some("A".to_owned()),
            start: Some(4),
            end: Some(5),
            ..Citation::default()
        };
        let told = citation(&cited, "Ein 🦊 lief.", 1);
        assert_eq!(
            (&told["text"], &told["end"], &told["content_index"]),
            (&json!("🦊"), &json!(5), &json!(1))
        );
        let source = &told["sources"][0];
        assert_eq!(source["id"], "https://a.example");
        assert_eq!(
            source["document"],
            json!({ "title": "A", "url": "https://a.example" })
        );
        let open = citation(&Citation::default(), "fox", 0);
        assert_eq!((&open["text"], &open["end"]), (&json!("fox"), &json!(3)));
        let past = Citation {
            start: Some(9),
            end: Some(2),
            ..cited
        };
        assert_eq!(citation(&past, "fox", 0)["text"], "");
    }
}
