//! Rows of generation requests.

use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, StringArray};
use serde_json::Value;
use volley_types::chat::conversations;
use volley_types::signature::{MESSAGES, PROMPT};
use volley_types::{ChatMessage, PredictError};

/// One row for each prompt.
pub(crate) fn prompts<S: AsRef<str>>(prompts: &[S]) -> Result<RecordBatch, PredictError> {
    let texts: StringArray = prompts.iter().map(|text| Some(text.as_ref())).collect();
    batch(PROMPT, Arc::new(texts))
}

/// One row: this conversation.
pub(crate) fn conversation(messages: &[ChatMessage]) -> Result<RecordBatch, PredictError> {
    batch(MESSAGES, conversations([Some(messages)]))
}

fn batch(name: &str, column: ArrayRef) -> Result<RecordBatch, PredictError> {
    RecordBatch::try_from_iter_with_nullable([(name, column, true)])
        .map_err(|error| PredictError::internal("the request's row cannot be built", error))
}

/// A message in OpenAI's form, which most dialects share: a `role`, a `content` of text, of
/// parts of text, or null, and perhaps `tool_calls` or a `tool_call_id`. `None` when it is none.
pub(crate) fn openai_message(message: &Value) -> Option<ChatMessage> {
    let content = match message.get("content") {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(content)) => content.clone(),
        Some(Value::Array(parts)) => text_parts(parts)?,
        Some(_) => return None,
    };
    let tool_calls = match message.get("tool_calls") {
        None | Some(Value::Null) => None,
        Some(calls @ Value::Array(_)) => Some(calls.to_string()),
        Some(_) => return None,
    };
    let tool_call_id = match message.get("tool_call_id") {
        None | Some(Value::Null) => None,
        Some(id) => Some(id.as_str()?.to_owned()),
    };
    Some(ChatMessage {
        role: message.get("role")?.as_str()?.to_owned(),
        content,
        tool_calls,
        tool_call_id,
    })
}

/// The text of a content that comes in parts; `None` when a part is no text.
pub(crate) fn text_parts(parts: &[Value]) -> Option<String> {
    parts
        .iter()
        .map(|part| part.get("text").and_then(Value::as_str))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn messages_are_read_and_what_is_none_is_not() {
        let parts = json!({ "role": "user", "content": [{ "type": "text", "text": "a" }, { "text": "b" }] });
        assert_eq!(openai_message(&parts), Some(ChatMessage::new("user", "ab")));
        let calls = json!({ "role": "assistant", "content": null, "tool_calls": [{ "id": "1" }] });
        let calls = openai_message(&calls).unwrap();
        assert_eq!(calls.tool_calls.as_deref(), Some(r#"[{"id":"1"}]"#));
        let tool = json!({ "role": "tool", "content": "4", "tool_call_id": "1" });
        assert_eq!(
            openai_message(&tool).unwrap().tool_call_id.as_deref(),
            Some("1")
        );
        for bad in [
            json!({ "content": "a" }),
            json!({ "role": 1, "content": "a" }),
            json!({ "role": "user", "content": 1 }),
            json!({ "role": "user", "content": [{ "image_url": "x" }] }),
            json!({ "role": "user", "tool_calls": "x" }),
            json!({ "role": "user", "tool_call_id": 1 }),
            json!("user"),
        ] {
            assert_eq!(openai_message(&bad), None, "{bad}");
        }
    }
}
