//! Blocks of messages in Anthropic's form, which models of other dialects answer with too. Pure.

use serde_json::{Value, json};
use volley_types::FinishReason;

/// A call in OpenAI's form as a block of a message.
pub fn tool_use(call: &Value) -> Value {
    let arguments = call.pointer("/function/arguments").and_then(Value::as_str);
    json!({
        "type": "tool_use",
        "id": call.get("id"),
        "name": call.pointer("/function/name"),
        "input": input(arguments.unwrap_or_default()),
    })
}

/// Anthropic's name for the reason of an end.
pub fn stop_reason(reason: Option<FinishReason>) -> &'static str {
    match reason {
        Some(FinishReason::Length) => "max_tokens",
        Some(FinishReason::ToolCalls) => "tool_use",
        Some(FinishReason::ContentFilter) => "refusal",
        Some(FinishReason::Stop | FinishReason::Error) | None => "end_turn",
    }
}

/// The input of a call. Arguments that are no JSON are told as text.
pub fn input(arguments: &str) -> Value {
    if arguments.trim().is_empty() {
        return json!({});
    }
    serde_json::from_str(arguments).unwrap_or_else(|_| json!({ "text": arguments }))
}
