//! OpenAI chat completions, and the many servers that speak them.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use volley_backend::items::Item;
use volley_types::{FinishReason, Parameters};

use super::{Delta, Step, fields, message, messages};
use crate::sse::Event;

pub(crate) fn body(model: &str, item: &Item, parameters: &Parameters) -> Value {
    let mut body = fields(parameters);
    body.insert("model".to_owned(), model.into());
    let messages: Vec<_> = messages(item).iter().map(message).collect();
    body.insert("messages".to_owned(), messages.into());
    body.entry("stream_options")
        .or_insert_with(|| json!({ "include_usage": true }));
    Value::Object(body)
}

#[derive(Deserialize)]
struct Chunk<'a> {
    #[serde(borrow, default)]
    choices: Vec<Choice<'a>>,
    #[serde(default)]
    usage: Option<UsageField>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(borrow, default, alias = "message")]
    delta: Option<Content<'a>>,
    #[serde(borrow, default)]
    finish_reason: Option<Cow<'a, str>>,
    #[serde(default)]
    index: u32,
}

#[derive(Default, Deserialize)]
struct Content<'a> {
    #[serde(borrow, default)]
    content: Option<Cow<'a, str>>,
    #[serde(borrow, default, alias = "reasoning")]
    reasoning_content: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    tool_calls: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct UsageField {
    #[serde(default)]
    prompt_tokens: u32,
    #[serde(default)]
    completion_tokens: u32,
}

pub(crate) fn read(event: &Event) -> Result<Step, String> {
    if event.data.trim() == "[DONE]" {
        return Ok(Step::End);
    }
    let chunk: Chunk<'_> = serde_json::from_str(&event.data).map_err(|error| error.to_string())?;
    if let Some(error) = chunk.error.filter(|error| error.get() != "null") {
        return Ok(Step::Failed(error_text(error.get())));
    }
    Ok(Step::Delta(delta(chunk)))
}

pub(crate) fn read_whole(body: &[u8]) -> Result<Delta, String> {
    let chunk: Chunk<'_> = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    if chunk.choices.is_empty() {
        return Err("no choices".to_owned());
    }
    Ok(delta(chunk))
}

fn delta(chunk: Chunk<'_>) -> Delta {
    let mut delta = Delta::default();
    if let Some(usage) = chunk.usage {
        delta.prompt_tokens = Some(usage.prompt_tokens);
        delta.completion_tokens = Some(usage.completion_tokens);
    }
    // Only the first choice is asked for.
    let Some(choice) = chunk.choices.into_iter().find(|choice| choice.index == 0) else {
        return delta;
    };
    let content = choice.delta.unwrap_or_default();
    delta.text = content.content.map(Cow::into_owned);
    delta.thinking = content.reasoning_content.map(Cow::into_owned);
    delta.tool_calls = content
        .tool_calls
        .map(RawValue::get)
        .filter(|calls| !matches!(*calls, "null" | "[]"))
        .map(str::to_owned);
    delta.finish_reason = choice.finish_reason.map(|reason| match reason.as_ref() {
        "length" => FinishReason::Length,
        "tool_calls" | "function_call" => FinishReason::ToolCalls,
        "content_filter" => FinishReason::ContentFilter,
        _ => FinishReason::Stop,
    });
    delta
}

/// The message of an error: an object with one, or text.
pub(crate) fn error_text(json: &str) -> String {
    match serde_json::from_str::<Value>(json) {
        Ok(Value::String(text)) => text,
        Ok(value) => match value.get("message").and_then(Value::as_str) {
            Some(message) => message.to_owned(),
            None => value.to_string(),
        },
        Err(_) => json.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use volley_types::ParamValue;

    use super::*;

    fn step(data: &str) -> Step {
        read(&Event {
            name: String::new(),
            data: data.to_owned(),
        })
        .unwrap()
    }

    #[test]
    fn chunks_of_every_kind() {
        let text = step(
            r#"{"id":"x","choices":[{"index":0,"delta":{"role":"assistant","content":"a\"b"},"finish_reason":null}],"usage":null}"#,
        );
        assert_eq!(
            text,
            Step::Delta(Delta {
                text: Some("a\"b".into()),
                ..Delta::default()
            })
        );
        let Step::Delta(end) = step(r#"{"choices":[{"delta":{},"finish_reason":"length"}]}"#)
        else {
            panic!()
        };
        assert_eq!(end.finish_reason, Some(FinishReason::Length));
        let Step::Delta(usage) = step(
            r#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":5,"total_tokens":8}}"#,
        ) else {
            panic!()
        };
        assert_eq!(
            (usage.prompt_tokens, usage.completion_tokens),
            (Some(3), Some(5))
        );
        let Step::Delta(tools) = step(
            r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{"}}]}}]}"#,
        ) else {
            panic!()
        };
        assert!(tools.tool_calls.unwrap().starts_with("[{\"index\""));
        assert_eq!(step("[DONE]"), Step::End);
        assert_eq!(
            step(r#"{"error":{"message":"no","code":500}}"#),
            Step::Failed("no".to_owned())
        );
        assert_eq!(step(r#"{"error":"text"}"#), Step::Failed("text".to_owned()));
        assert!(
            read(&Event {
                name: String::new(),
                data: "<html>".to_owned()
            })
            .is_err()
        );
    }

    #[test]
    fn the_body_has_the_parameters_and_asks_for_usage() {
        let parameters = [
            ("temperature", ParamValue::Float(0.5)),
            ("stop", ParamValue::Json("[\"x\"]".into())),
        ];
        let parameters = parameters
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect();
        let body = body("gpt", &Item::Prompt("hi".into()), &parameters);
        assert_eq!(
            body["messages"][0],
            json!({ "role": "user", "content": "hi" })
        );
        assert_eq!(body["stop"][0], "x");
        assert_eq!(body["stream_options"]["include_usage"], true);
        assert_eq!(body["model"], "gpt");
    }
}
