//! Message blocks in Anthropic's format, which responses of other dialects use too. Pure.

use serde_json::{Value, json};
use volley_types::FinishReason;

/// Converts a call in OpenAI's format to a message block.
pub fn tool_use(call: &Value) -> Value {
    let arguments = call.pointer("/function/arguments").and_then(Value::as_str);
    json!({
        "type": "tool_use",
        "id": call.get("id"),
        "name": call.pointer("/function/name"),
        "input": input(arguments.unwrap_or_default()),
    })
}

/// Anthropic's name of a finish reason.
pub fn stop_reason(reason: Option<FinishReason>) -> &'static str {
    match reason {
        Some(FinishReason::Length) => "max_tokens",
        Some(FinishReason::ToolCalls) => "tool_use",
        Some(FinishReason::ContentFilter) => "refusal",
        Some(FinishReason::Stop | FinishReason::Error) | None => "end_turn",
    }
}

/// The input of a call. Arguments that are not JSON become a text.
pub fn input(arguments: &str) -> Value {
    if arguments.trim().is_empty() {
        return json!({});
    }
    serde_json::from_str(arguments).unwrap_or_else(|_| json!({ "text": arguments }))
}
