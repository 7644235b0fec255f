//! Requests in the form of OpenAI's responses. Pure.

use serde_json::{Map, Value, json};
use volley_backend::items::Item;
use volley_types::{ChatMessage, PredictError};

use crate::provider::conversation::{calls, messages};
use crate::provider::tidy::rename;

const NAMES: [(&str, &str); 3] = [
    ("max_tokens", "max_output_tokens"),
    ("max_completion_tokens", "max_output_tokens"),
    ("max_new_tokens", "max_output_tokens"),
];

/// The body of a request. Nothing of it is to be stored, unless the caller says so.
pub(super) fn body(
    model: &str,
    item: &Item,
    mut body: Map<String, Value>,
) -> Result<Value, PredictError> {
    body.retain(|name, value| match name.as_str() {
        "n" => value != 1,
        "stream_options" => false,
        _ => true,
    });
    rename(&mut body, &NAMES);
    if body.remove("logprobs") == Some(Value::Bool(true)) {
        body.entry("include")
            .or_insert_with(|| json!(["message.output_text.logprobs"]));
    }
    if let Some(effort) = body.remove("reasoning_effort") {
        body.entry("reasoning")
            .or_insert_with(|| json!({ "effort": effort }));
    }
    if let Some(form) = body.remove("response_format") {
        let form = flattened(form, "json_schema");
        body.entry("text")
            .or_insert_with(|| json!({ "format": form }));
    }
    if let Some(Value::Array(tools)) = body.get_mut("tools") {
        for tool in tools {
            *tool = flattened(tool.take(), "function");
        }
    }
    if let Some(choice) = body.get_mut("tool_choice") {
        *choice = flattened(choice.take(), "function");
    }
    body.entry("store").or_insert_with(|| false.into());
    body.insert("model".to_owned(), model.into());
    let input = messages(item).iter().flat_map(items).collect::<Vec<_>>();
    body.insert("input".to_owned(), input.into());
    Ok(Value::Object(body))
}

/// What stands inside `name` beside it: `{"type": "function", "function": {"name": …}}` is
/// `{"type": "function", "name": …}` here.
fn flattened(mut value: Value, name: &str) -> Value {
    let inner = value.as_object_mut().and_then(|fields| fields.remove(name));
    if let (Some(outer), Some(Value::Object(inner))) = (value.as_object_mut(), inner) {
        outer.extend(inner);
    }
    value
}

/// A message as the items that it is here: its text, and each call of a tool.
fn items(message: &ChatMessage) -> Vec<Value> {
    if message.role == "tool" {
        return vec![json!({
            "type": "function_call_output",
            "call_id": message.tool_call_id,
            "output": message.content,
        })];
    }
    let calls = calls(message);
    let text = (!message.content.is_empty() || calls.is_empty())
        .then(|| json!({ "role": message.role, "content": message.content }));
    let uses = calls.iter().map(|call| {
        let function = &call["function"];
        json!({
            "type": "function_call",
            "call_id": call["id"],
            "name": function["name"],
            "arguments": function["arguments"],
        })
    });
    text.into_iter().chain(uses).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chat_settings_become_those_of_responses() {
        let fields = json!({
            "max_tokens": 9, "n": 1, "stream_options": {}, "logprobs": true, "top_logprobs": 2,
            "reasoning_effort": "low", "store": true,
            "tool_choice": { "type": "function", "function": { "name": "f" } },
            "response_format": { "type": "json_schema", "json_schema": {
                "name": "s", "schema": { "type": "object" }, "strict": true } },
        });
        let item = Item::Prompt("hi".to_owned());
        let made = body("m", &item, fields.as_object().cloned().unwrap()).unwrap();
        let expected = json!({
            "model": "m", "input": [{ "role": "user", "content": "hi" }], "max_output_tokens": 9,
            "include": ["message.output_text.logprobs"], "top_logprobs": 2, "store": true,
            "reasoning": { "effort": "low" },
            "tool_choice": { "type": "function", "name": "f" },
            "text": { "format": {
                "type": "json_schema", "name": "s", "schema": { "type": "object" }, "strict": true } },
        });
        assert_eq!(made, expected);
    }
}
