use super::*;
use crate::tests::asking;

fn made(item: &Item, fields: Value) -> Result<Value, PredictError> {
    let fields = fields.as_object().cloned().unwrap();
    asking(&PARAMETERS, fields, |request| body("m", item, request))
}

#[test]
fn what_is_not_converses_is_the_models() {
    let item = Item::Prompt("hi".to_owned());
    let fields = json!({
        "max_tokens": 9, "top_k": 5, "user": "u", "region": "eu-west-1", "tool_choice": "none",
        "guardrailConfig": { "guardrailIdentifier": "g" }, "tools": [],
        "thinking": { "type": "enabled" }, "newest": 1,
    });
    let expected = json!({
        "messages": [{ "role": "user", "content": [{ "text": "hi" }] }],
        "inferenceConfig": { "maxTokens": 9 },
        "guardrailConfig": { "guardrailIdentifier": "g" },
        "requestMetadata": { "user": "u" },
        "additionalModelRequestFields": { "top_k": 5, "thinking": { "type": "enabled" }, "newest": 1 },
    });
    assert_eq!(made(&item, fields).unwrap(), expected);
}

#[test]
fn one_sides_messages_in_a_row_are_one_turn() {
    let call = |id: &str| json!({ "id": id, "function": { "name": "f", "arguments": "{}" } });
    let result = |id: &str| ChatMessage {
        tool_call_id: Some(id.to_owned()),
        ..ChatMessage::new("tool", "21")
    };
    let talk = Item::Chat(vec![
        ChatMessage {
            tool_calls: Some(json!([call("a"), call("b")]).to_string()),
            ..ChatMessage::new("assistant", "")
        },
        result("a"),
        result("b"),
        ChatMessage::new("user", "So?"),
    ]);
    let body = made(&talk, json!({})).unwrap();
    assert_eq!(body["messages"].as_array().unwrap().len(), 2);
    assert_eq!(body["messages"][0]["content"].as_array().unwrap().len(), 2);
    assert_eq!(body["messages"][1]["content"][2]["text"], "So?");
    let tools = json!([{ "type": "function", "function": { "name": "f" } }]);
    let error = made(&talk, json!({ "tools": tools, "tool_choice": "none" })).unwrap_err();
    assert!(error.message.contains("'tool_choice'"));
    let named = json!({ "type": "function", "function": { "name": "f" } });
    let body = made(&talk, json!({ "tools": tools, "tool_choice": named })).unwrap();
    assert_eq!(body["toolConfig"]["toolChoice"]["tool"]["name"], "f");
}

#[test]
fn text_between_calls_and_later_system_messages_stay_in_place() {
    let call = |id: &str| json!({ "id": id, "function": { "name": "f", "arguments": "{}" } });
    let talk = Item::Chat(vec![
        ChatMessage::new("system", "be brief"),
        ChatMessage::new("user", "hi"),
        ChatMessage::new("system", "be rude"),
        ChatMessage {
            tool_calls: Some(json!([call("a"), call("b")]).to_string()),
            details: Some(json!({ "calls_at": [0, 2] }).to_string()),
            ..ChatMessage::new("assistant", "so")
        },
    ]);
    let body = made(&talk, json!({})).unwrap();
    assert_eq!(body["system"], json!([{ "text": "be brief" }]));
    assert_eq!(
        body["messages"][1],
        json!({ "role": "system", "content": [{ "text": "be rude" }] })
    );
    let blocks = &body["messages"][2]["content"];
    assert_eq!(blocks[0]["toolUse"]["toolUseId"], "a");
    assert_eq!(blocks[1]["text"], "so");
    assert_eq!(blocks[2]["toolUse"]["toolUseId"], "b");
}

#[test]
fn marks_for_a_cache_are_points_for_models_that_have_one() {
    let control = json!({ "type": "ephemeral", "ttl": "1h" });
    let marked = |role: &str, text: &str, at: usize| {
        let marks = json!({ "cache": [{ "at": at, "calls": 0, "control": control }] });
        ChatMessage {
            details: Some(marks.to_string()),
            ..ChatMessage::new(role, text)
        }
    };
    let talk = Item::Chat(vec![
        marked("system", "be brief", 8),
        marked("user", "hi you", 2),
    ]);
    let tools = json!([{ "type": "function", "function": { "name": "f" },
                         "cache_control": { "type": "ephemeral" } }]);
    let made = |model: &str| {
        let fields = json!({ "tools": tools }).as_object().cloned().unwrap();
        asking(&PARAMETERS, fields, |request| body(model, &talk, request)).unwrap()
    };
    let claude = made("anthropic.claude-opus-4-1-v1:0");
    let point = json!({ "cachePoint": { "type": "default", "ttl": "1h" } });
    assert_eq!(claude["system"], json!([{ "text": "be brief" }, point]));
    assert_eq!(
        claude["messages"][0]["content"],
        json!([{ "text": "hi" }, point, { "text": " you" }])
    );
    let last = &claude["toolConfig"]["tools"][1];
    assert_eq!(*last, json!({ "cachePoint": { "type": "default" } }));
    let other = made("meta.llama4-v1:0").to_string();
    assert!(
        !other.contains("cachePoint") && other.contains("hi you"),
        "{other}"
    );
}

#[test]
fn what_converse_cannot_do_is_refused_by_name() {
    let item = Item::Prompt("hi".to_owned());
    for (name, value) in [
        ("temperature", json!(1.5)),
        ("stop", json!([""])),
        ("seed", json!(7)),
        ("presence_penalty", json!(0.5)),
        ("logprobs", json!(true)),
        ("logit_bias", json!({ "1": 2 })),
        ("service_tier", json!("scale")),
    ] {
        let error = made(&item, json!({ name: value })).unwrap_err();
        assert!(error.message.contains(&format!("'{name}'")), "{error}");
    }
}

#[test]
fn a_schema_is_text_and_tools_of_a_talk_are_defined() {
    let schema = json!({ "type": "object", "properties": { "a": { "type": "integer" } } });
    let form = json!({ "type": "json_schema", "json_schema": { "name": "s", "schema": schema } });
    let item = Item::Prompt("hi".to_owned());
    let body = made(&item, json!({ "response_format": form })).unwrap();
    let format = &body["outputConfig"]["textFormat"];
    assert_eq!(format["type"], "json_schema");
    let text = format["structure"]["jsonSchema"]["schema"]
        .as_str()
        .unwrap();
    assert_eq!(
        serde_json::from_str::<Value>(text).unwrap()["type"],
        "object"
    );
    let call = json!([{ "id": "a", "function": { "name": "f", "arguments": "{}" } }]);
    let talk = Item::Chat(vec![
        ChatMessage {
            tool_calls: Some(call.to_string()),
            ..ChatMessage::new("assistant", "")
        },
        ChatMessage {
            tool_call_id: Some("a".to_owned()),
            ..ChatMessage::new("tool", "21")
        },
    ]);
    let body = made(&talk, json!({})).unwrap();
    assert_eq!(body["toolConfig"]["tools"][0]["toolSpec"]["name"], "f");
}

#[test]
fn a_required_call_cannot_be_met_by_the_tool_of_the_answer() {
    let item = Item::Prompt("hi".to_owned());
    let tools = json!([{ "type": "function", "function": { "name": "f" } }]);
    let open = json!({ "type": "json_object" });
    let sent = |choice: &str| {
        let fields = json!({ "tools": tools, "tool_choice": choice, "response_format": open });
        made(&item, fields).unwrap()["toolConfig"].take()
    };
    let required = sent("required");
    assert_eq!(required["tools"].as_array().map(Vec::len), Some(1));
    assert_eq!(required["toolChoice"], json!({ "any": {} }));
    let either = sent("auto");
    assert_eq!(either["tools"].as_array().map(Vec::len), Some(2));
    assert_eq!(either["toolChoice"], json!({ "any": {} }));
}
