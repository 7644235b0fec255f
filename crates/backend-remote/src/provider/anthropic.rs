//! Anthropic messages.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::{Value, json};
use volley_backend::items::Item;
use volley_types::{FinishReason, Parameters};

use super::openai::error_text;
use super::{Delta, Step, fields, message, messages};
use crate::sse::Event;

/// The server demands a limit; this is where the caller gives none.
const DEFAULT_MAX_TOKENS: u32 = 1_024;

pub(crate) fn body(model: &str, item: &Item, parameters: &Parameters) -> Value {
    let mut body = fields(parameters);
    body.insert("model".to_owned(), model.into());
    if let Some(limit) = body.remove("max_completion_tokens") {
        body.entry("max_tokens").or_insert(limit);
    }
    body.entry("max_tokens")
        .or_insert_with(|| DEFAULT_MAX_TOKENS.into());
    match body.remove("stop") {
        Some(Value::String(stop)) => {
            body.insert("stop_sequences".to_owned(), json!([stop]));
        }
        Some(stop) => {
            body.insert("stop_sequences".to_owned(), stop);
        }
        None => {}
    }
    // System messages have a place of their own in this format.
    let (system, rest): (Vec<_>, Vec<_>) = messages(item)
        .into_iter()
        .partition(|message| message.role == "system");
    if !system.is_empty() {
        let texts: Vec<_> = system.into_iter().map(|message| message.content).collect();
        body.entry("system")
            .or_insert_with(|| texts.join("\n\n").into());
    }
    let rest: Vec<_> = rest.iter().map(message).collect();
    body.insert("messages".to_owned(), rest.into());
    Value::Object(body)
}

#[derive(Deserialize)]
struct Body<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    delta: Option<Inner<'a>>,
    #[serde(borrow, default)]
    message: Option<Start<'a>>,
    #[serde(default)]
    content_block: Option<Value>,
    #[serde(default)]
    index: u32,
    #[serde(default)]
    usage: Option<Tokens>,
    #[serde(default)]
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Inner<'a> {
    #[serde(borrow, default)]
    text: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    thinking: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    partial_json: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    stop_reason: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct Start<'a> {
    #[serde(default)]
    usage: Option<Tokens>,
    #[serde(borrow, default)]
    stop_reason: Option<Cow<'a, str>>,
}

#[derive(Clone, Copy, Deserialize)]
struct Tokens {
    #[serde(default)]
    input_tokens: Option<u32>,
    #[serde(default)]
    output_tokens: Option<u32>,
}

pub(crate) fn read(event: &Event) -> Result<Step, String> {
    let body: Body<'_> = serde_json::from_str(&event.data).map_err(|error| error.to_string())?;
    let mut delta = Delta::default();
    match body.kind.as_ref() {
        "message_stop" => return Ok(Step::End),
        "error" => {
            let error = body.error.unwrap_or(Value::Null);
            return Ok(Step::Failed(error_text(&error.to_string())));
        }
        "message_start" => {
            let start = body.message.as_ref();
            tokens(&mut delta, start.and_then(|start| start.usage));
            delta.finish_reason = start.and_then(|start| reason(start.stop_reason.as_deref()));
        }
        "content_block_start" => delta.tool_calls = tool_start(body.index, body.content_block),
        "content_block_delta" | "message_delta" => {
            tokens(&mut delta, body.usage);
            if let Some(inner) = body.delta {
                delta.text = inner.text.map(Cow::into_owned);
                delta.thinking = inner.thinking.map(Cow::into_owned);
                delta.tool_calls = inner.partial_json.map(|json| {
                    json!([{ "index": body.index, "function": { "arguments": json } }]).to_string()
                });
                delta.finish_reason = reason(inner.stop_reason.as_deref());
            }
        }
        // Pings, ends of blocks, and what later versions add.
        _ => {}
    }
    Ok(Step::Delta(delta))
}

fn tokens(delta: &mut Delta, tokens: Option<Tokens>) {
    let Some(tokens) = tokens else { return };
    delta.prompt_tokens = tokens.input_tokens;
    delta.completion_tokens = tokens.output_tokens;
}

/// Tool calls in the one form that all providers are brought to.
fn tool_start(index: u32, block: Option<Value>) -> Option<String> {
    let block = block.filter(|block| block["type"] == "tool_use")?;
    let call = json!({
        "index": index,
        "id": block["id"],
        "type": "function",
        "function": { "name": block["name"], "arguments": "" },
    });
    Some(Value::Array(vec![call]).to_string())
}

fn reason(reason: Option<&str>) -> Option<FinishReason> {
    Some(match reason? {
        "max_tokens" => FinishReason::Length,
        "tool_use" => FinishReason::ToolCalls,
        "refusal" => FinishReason::ContentFilter,
        _ => FinishReason::Stop,
    })
}

pub(crate) fn read_whole(body: &[u8]) -> Result<Delta, String> {
    let body: Value = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    let blocks = body["content"].as_array().ok_or("no content")?;
    let text: String = blocks
        .iter()
        .filter_map(|block| block["text"].as_str())
        .collect();
    let count = |name: &str| {
        body["usage"][name]
            .as_u64()
            .and_then(|count| u32::try_from(count).ok())
    };
    Ok(Delta {
        text: Some(text),
        finish_reason: reason(body["stop_reason"].as_str()),
        prompt_tokens: count("input_tokens"),
        completion_tokens: count("output_tokens"),
        ..Delta::default()
    })
}

#[cfg(test)]
mod tests {
    use volley_backend::items::Message;
    use volley_types::ParamValue;

    use super::*;

    fn step(data: &str) -> Step {
        read(&Event {
            name: String::new(),
            data: data.to_owned(),
        })
        .unwrap()
    }

    fn delta(data: &str) -> Delta {
        let Step::Delta(delta) = step(data) else {
            panic!("{data}")
        };
        delta
    }

    #[test]
    fn events_of_every_kind() {
        let start = delta(
            r#"{"type":"message_start","message":{"usage":{"input_tokens":9,"output_tokens":1},"stop_reason":null}}"#,
        );
        assert_eq!(start.prompt_tokens, Some(9));
        assert_eq!(delta(r#"{"type":"ping"}"#), Delta::default());
        let text = delta(
            r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"hi"}}"#,
        );
        assert_eq!(text.text.as_deref(), Some("hi"));
        let thinking = delta(
            r#"{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"hm"}}"#,
        );
        assert_eq!(thinking.thinking.as_deref(), Some("hm"));
        let tool = delta(
            r#"{"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"t","name":"f"}}"#,
        );
        assert!(tool.tool_calls.unwrap().contains("\"name\":\"f\""));
        let end = delta(
            r#"{"type":"message_delta","delta":{"stop_reason":"max_tokens"},"usage":{"output_tokens":7}}"#,
        );
        assert_eq!(
            (end.finish_reason, end.completion_tokens),
            (Some(FinishReason::Length), Some(7))
        );
        assert_eq!(step(r#"{"type":"message_stop"}"#), Step::End);
        assert_eq!(
            step(r#"{"type":"error","error":{"type":"overloaded_error","message":"busy"}}"#),
            Step::Failed("busy".to_owned())
        );
    }

    #[test]
    fn system_messages_and_stops_have_their_own_fields() {
        let say = |role: &str, content: &str| Message {
            role: role.into(),
            content: content.into(),
        };
        let item = Item::Chat(vec![say("system", "be brief"), say("user", "hi")]);
        let parameters = [("stop".to_owned(), ParamValue::Text("x".into()))]
            .into_iter()
            .collect();
        let body = body("claude", &item, &parameters);
        assert_eq!(body["system"], "be brief");
        assert_eq!(
            body["messages"],
            json!([{ "role": "user", "content": "hi" }])
        );
        assert_eq!(body["stop_sequences"], json!(["x"]));
        assert_eq!(body["max_tokens"], DEFAULT_MAX_TOKENS);
    }
}
