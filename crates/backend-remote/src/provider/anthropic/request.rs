//! Requests in Anthropic's form. Pure.

use serde_json::{Map, Value, json};
use volley_backend::items::Item;
use volley_types::ChatMessage;

use crate::provider::conversation::{arguments, calls, messages, without_system};

/// The server demands a limit; this is where the caller gives none.
const DEFAULT_MAX_TOKENS: u32 = 1_024;

/// OpenAI's fields that say nothing about the answer, or ask only for what comes anyway.
const OF_NO_EFFECT: [&str; 5] = [
    "stream_options",
    "store",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
];

/// The body of a request: parameters under their names there, messages as blocks.
pub(super) fn body(model: &str, item: &Item, mut body: Map<String, Value>) -> Value {
    tidy_for_anthropic(&mut body);
    body.insert("model".to_owned(), model.into());
    for name in ["max_completion_tokens", "max_new_tokens"] {
        if let Some(limit) = body.remove(name) {
            body.entry("max_tokens").or_insert(limit);
        }
    }
    body.entry("max_tokens")
        .or_insert_with(|| DEFAULT_MAX_TOKENS.into());
    if let Some(stop) = body.remove("stop") {
        body.insert("stop_sequences".to_owned(), stop);
    }
    if let Some(Value::Array(given)) = body.get_mut("tools") {
        given.iter_mut().for_each(tool);
    }
    // System messages have a place of their own in this format.
    let (system, rest) = without_system(messages(item));
    if let Some(system) = system {
        body.entry("system").or_insert_with(|| system.into());
    }
    body.insert("messages".to_owned(), turns(&rest).into());
    Value::Object(body)
}

/// The server refuses fields that it does not know. Those of OpenAI's that change nothing in the
/// answer go; the caller's name, and whether tools may be called together, have a place of their
/// own. All else is for the server to take or to refuse.
fn tidy_for_anthropic(body: &mut Map<String, Value>) {
    body.retain(|name, value| match name.as_str() {
        "n" => value != 1,
        "logprobs" => value != false,
        "parallel_tool_calls" => value == false,
        name => !OF_NO_EFFECT.contains(&name),
    });
    if let Some(user) = body.remove("user").filter(Value::is_string) {
        body.entry("metadata")
            .or_insert_with(|| json!({ "user_id": user }));
    }
    if let Some(choice) = body.get_mut("tool_choice") {
        tool_choice(choice);
    }
    if body.remove("parallel_tool_calls").is_some() && body.contains_key("tools") {
        let choice = body.entry("tool_choice");
        let choice = choice.or_insert_with(|| json!({ "type": "auto" }));
        if let Value::Object(choice) = choice {
            choice.insert("disable_parallel_tool_use".to_owned(), true.into());
        }
    }
}

/// A tool in OpenAI's form becomes one in Anthropic's; one that is already stays.
fn tool(tool: &mut Value) {
    let Some(function) = tool.get_mut("function").map(Value::take) else {
        return;
    };
    let schema = function.get("parameters").cloned();
    let schema = schema.unwrap_or_else(|| json!({ "type": "object" }));
    let mut made = json!({ "name": function["name"], "input_schema": schema });
    if let Some(description) = function.get("description") {
        made["description"] = description.clone();
    }
    *tool = made;
}

fn tool_choice(choice: &mut Value) {
    let made = match (choice.as_str(), choice.pointer("/function/name")) {
        (Some("auto"), _) => json!({ "type": "auto" }),
        (Some("none"), _) => json!({ "type": "none" }),
        (Some("required"), _) => json!({ "type": "any" }),
        (None, Some(name)) => json!({ "type": "tool", "name": name }),
        _ => return,
    };
    *choice = made;
}

/// Messages as Anthropic has them: the results of tools are blocks of one message of the user.
fn turns(messages: &[ChatMessage]) -> Vec<Value> {
    let mut turns: Vec<Value> = Vec::new();
    let mut after_result = false;
    for message in messages {
        let result = message.role == "tool";
        if result {
            let block = json!({
                "type": "tool_result",
                "tool_use_id": message.tool_call_id,
                "content": message.content,
            });
            match turns
                .last_mut()
                .and_then(|turn| turn["content"].as_array_mut())
            {
                Some(blocks) if after_result => blocks.push(block),
                _ => turns.push(json!({ "role": "user", "content": [block] })),
            }
        } else {
            turns.push(turn(message));
        }
        after_result = result;
    }
    turns
}

fn turn(message: &ChatMessage) -> Value {
    let calls = calls(message);
    if calls.is_empty() {
        return json!({ "role": message.role, "content": message.content });
    }
    let text =
        (!message.content.is_empty()).then(|| json!({ "type": "text", "text": message.content }));
    let uses = calls.iter().map(|call| {
        let (id, name) = (&call["id"], &call["function"]["name"]);
        json!({ "type": "tool_use", "id": id, "name": name, "input": arguments(call) })
    });
    let blocks: Vec<_> = text.into_iter().chain(uses).collect();
    json!({ "role": message.role, "content": blocks })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_messages_and_stops_have_their_own_fields() {
        let item = Item::Chat(vec![
            ChatMessage::new("system", "be brief"),
            ChatMessage::new("user", "hi"),
        ]);
        let fields = json!({ "stop": ["x"], "max_new_tokens": 9 });
        let body = body("claude", &item, fields.as_object().cloned().unwrap());
        assert_eq!(body["system"], "be brief");
        assert_eq!(
            body["messages"],
            json!([{ "role": "user", "content": "hi" }])
        );
        assert_eq!(body["stop_sequences"], json!(["x"]));
        assert_eq!(body["max_tokens"], 9);
        let plain = super::body("claude", &item, Map::new());
        assert_eq!(plain["max_tokens"], DEFAULT_MAX_TOKENS);
    }

    #[test]
    fn what_clients_of_openai_add_is_brought_to_this_form() {
        let tool = json!({ "name": "f", "input_schema": { "type": "object" } });
        let fields = json!({
            "n": 1, "logprobs": false, "store": false, "stream_options": {}, "user": "u-1",
            "parallel_tool_calls": false, "tools": [tool], "top_k": 5,
        });
        let item = Item::Prompt("hi".to_owned());
        let made = body("claude", &item, fields.as_object().cloned().unwrap());
        let expected = json!({
            "model": "claude", "max_tokens": DEFAULT_MAX_TOKENS, "top_k": 5, "tools": [tool],
            "messages": [{ "role": "user", "content": "hi" }],
            "metadata": { "user_id": "u-1" },
            "tool_choice": { "type": "auto", "disable_parallel_tool_use": true },
        });
        assert_eq!(made, expected);
    }

    #[test]
    fn tools_their_calls_and_their_results_are_blocks() {
        let call = |id: &str| {
            json!({ "id": id, "type": "function",
                    "function": { "name": "f", "arguments": "{\"a\":1}" } })
        };
        let result = |id: &str| ChatMessage {
            tool_call_id: Some(id.to_owned()),
            ..ChatMessage::new("tool", "21")
        };
        let item = Item::Chat(vec![
            ChatMessage::new("user", "hi"),
            ChatMessage {
                tool_calls: Some(json!([call("x"), call("y")]).to_string()),
                ..ChatMessage::new("assistant", "wait")
            },
            result("x"),
            result("y"),
            ChatMessage::new("user", "so?"),
        ]);
        let fields = json!({
            "tools": [{ "type": "function", "function": {
                "name": "f", "description": "d", "parameters": { "type": "object" } } }],
            "tool_choice": "required",
        });
        let body = body("claude", &item, fields.as_object().cloned().unwrap());
        let tool = json!({ "name": "f", "description": "d", "input_schema": { "type": "object" } });
        assert_eq!(body["tools"], json!([tool]));
        assert_eq!(body["tool_choice"], json!({ "type": "any" }));
        let used =
            |id: &str| json!({ "type": "tool_use", "id": id, "name": "f", "input": { "a": 1 } });
        let told = |id: &str| json!({ "type": "tool_result", "tool_use_id": id, "content": "21" });
        assert_eq!(
            body["messages"],
            json!([
                { "role": "user", "content": "hi" },
                { "role": "assistant", "content": [
                    { "type": "text", "text": "wait" }, used("x"), used("y") ] },
                { "role": "user", "content": [told("x"), told("y")] },
                { "role": "user", "content": "so?" },
            ])
        );
    }
}
