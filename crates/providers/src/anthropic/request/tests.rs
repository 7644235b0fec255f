//! Requests in Anthropic's format.

use super::*;
use crate::tests::asking;

fn body(model: &str, item: &Item, fields: Map<String, Value>) -> Value {
    asking(&PARAMETERS, fields, |request| {
        super::body(model, item, request)
    })
    .unwrap()
}

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
    let plain = self::body("claude", &item, Map::new());
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
    let thought = json!({ "thinking": [
        { "text": "hm", "signature": "c2ln", "format": "anthropic" },
        { "redacted": "eHg=", "format": "anthropic" },
        { "text": "of another", "signature": "x", "format": "gemini" },
    ] });
    let item = Item::Chat(vec![
        ChatMessage::new("user", "hi"),
        ChatMessage {
            tool_calls: Some(json!([call("x"), call("y")]).to_string()),
            details: Some(thought.to_string()),
            ..ChatMessage::new("assistant", "wait")
        },
        result("x"),
        ChatMessage {
            details: Some(json!({ "is_error": true }).to_string()),
            ..result("y")
        },
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
    let used = |id: &str| json!({ "type": "tool_use", "id": id, "name": "f", "input": { "a": 1 } });
    let told = |id: &str| json!({ "type": "tool_result", "tool_use_id": id, "content": "21" });
    let mut failed = told("y");
    failed["is_error"] = true.into();
    assert_eq!(
        body["messages"],
        json!([
            { "role": "user", "content": "hi" },
            { "role": "assistant", "content": [
                { "type": "thinking", "thinking": "hm", "signature": "c2ln" },
                { "type": "redacted_thinking", "data": "eHg=" },
                { "type": "text", "text": "wait" }, used("x"), used("y") ] },
            { "role": "user", "content": [told("x"), failed] },
            { "role": "user", "content": "so?" },
        ])
    );
}

#[test]
fn a_schema_is_the_servers_own_form_or_a_tool_that_must_be_called() {
    let item = Item::Prompt("hi".to_owned());
    let schema = json!({ "type": "object", "properties": {
        "a": { "type": "integer", "minimum": 1 } } });
    let form = json!({ "type": "json_schema", "json_schema": { "name": "s", "schema": schema } });
    let made =
        |model: &str, fields: Value| body(model, &item, fields.as_object().cloned().unwrap());
    let new = made("claude-sonnet-4-5", json!({ "response_format": form }));
    let format = &new["output_config"]["format"];
    assert_eq!(format["type"], "json_schema");
    assert_eq!(format["schema"]["additionalProperties"], false);
    assert!(format["schema"]["properties"]["a"].get("minimum").is_none());
    let old = made(
        "claude-3-5-sonnet-20241022",
        json!({ "response_format": form }),
    );
    assert_eq!(
        old["tools"][0]["input_schema"], schema,
        "a tool's may say all"
    );
    let choice = json!({ "type": "tool", "name": ANSWER_TOOL });
    assert_eq!(old["tool_choice"], choice);
    let open = json!({ "response_format": { "type": "json_object" } });
    assert_eq!(made("claude-opus-5", open)["tool_choice"], choice);
    let tool = json!({ "type": "function", "function": { "name": "f" } });
    let both = made(
        "claude-3-5-sonnet",
        json!({ "tools": [tool], "response_format": form }),
    );
    assert_eq!(both["tool_choice"], json!({ "type": "any" }));
    // A required call cannot be met by the answer's tool.
    let named = json!({ "type": "function", "function": { "name": "f" } });
    for (given, expected) in [
        (json!("required"), json!({ "type": "any" })),
        (named, json!({ "type": "tool", "name": "f" })),
    ] {
        let open = json!({ "type": "json_object" });
        let called = made(
            "claude-opus-5",
            json!({ "tools": [tool], "tool_choice": given, "response_format": open }),
        );
        assert_eq!(called["tools"].as_array().map(Vec::len), Some(1));
        assert_eq!(called["tool_choice"], expected);
    }
}

#[test]
fn thinking_and_a_tool_that_must_be_called_are_both_heard() {
    let item = Item::Prompt("hi".to_owned());
    let fields = json!({
        "tools": [{ "type": "function", "function": { "name": "f" } }],
        "tool_choice": "required", "reasoning_effort": "high",
    });
    let fields = fields.as_object().cloned().unwrap();
    let new = body("claude-opus-5", &item, fields.clone());
    assert_eq!(new["output_config"]["effort"], "high");
    assert_eq!(new["tool_choice"], json!({ "type": "any" }));
    let old = asking(&PARAMETERS, fields, |request| {
        super::body("claude-opus-4-1", &item, request)
    });
    assert!(old.unwrap_err().message.contains("'reasoning_effort'"));
    let alone = json!({ "reasoning_effort": "medium" })
        .as_object()
        .cloned()
        .unwrap();
    let old = body("claude-opus-4-1", &item, alone.clone());
    assert_eq!(
        old["thinking"],
        json!({ "type": "enabled", "budget_tokens": 2_048 })
    );
    assert_eq!(old["max_tokens"], 2_048 + DEFAULT_MAX_TOKENS);
    assert_eq!(
        body("claude-opus-5", &item, alone)["thinking"]["type"],
        "adaptive"
    );
}

#[test]
fn arguments_that_are_no_object_are_refused_by_the_calls_name() {
    for (arguments, good) in [("{bad", false), ("[1]", false), ("", true), ("{}", true)] {
        let call = json!([{ "id": "x", "function": { "name": "f", "arguments": arguments } }]);
        let item = Item::Chat(vec![ChatMessage {
            tool_calls: Some(call.to_string()),
            ..ChatMessage::new("assistant", "")
        }]);
        let made = asking(&PARAMETERS, Map::new(), |request| {
            super::body("claude", &item, request)
        });
        assert_eq!(made.is_ok(), good, "{arguments}");
        if let Err(error) = made {
            assert!(error.message.contains("'f'") && error.message.contains("'arguments'"));
        }
    }
}

#[test]
fn later_system_messages_and_text_between_calls_stay_in_place() {
    let call = |id: &str| json!({ "id": id, "function": { "name": "f", "arguments": "{}" } });
    let item = Item::Chat(vec![
        ChatMessage::new("developer", "be brief"),
        ChatMessage::new("user", "hi"),
        ChatMessage::new("developer", "be rude"),
        ChatMessage {
            tool_calls: Some(json!([call("a")]).to_string()),
            details: Some(json!({ "calls_at": [0] }).to_string()),
            ..ChatMessage::new("assistant", "so")
        },
    ]);
    let body = body("claude", &item, Map::new());
    assert_eq!(body["system"], "be brief");
    let turns = &body["messages"];
    assert_eq!(turns[1], json!({ "role": "system", "content": "be rude" }));
    assert_eq!(turns[2]["content"][0]["id"], "a");
    assert_eq!(turns[2]["content"][1]["text"], "so");
}
