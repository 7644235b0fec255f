use volley_types::ChatMessage;

use super::*;
use crate::tests::asking;

fn delta(data: &str, calls: &mut ToolCallAccumulator) -> Delta {
    match read(data, calls) {
        Ok(Step::Delta(delta)) => delta,
        other => panic!("{other:?}"),
    }
}

#[test]
fn parameters_have_the_servers_names() {
    let tool = |name: &str| json!({ "type": "function", "function": { "name": name } });
    let fields = json!({
        "top_k": 4, "top_p": 0.5, "stop": ["x"], "max_new_tokens": 9, "n": 1,
        "tools": [tool("f"), tool("g")], "tool_choice": tool("g"),
        "response_format": { "type": "json_schema", "json_schema": { "schema": { "a": 1 } } },
    });
    let called = ChatMessage {
        tool_calls: Some(
            json!([{ "id": "1", "type": "function",
            "function": { "name": "g", "arguments": "{}" } }])
            .to_string(),
        ),
        ..ChatMessage::new("assistant", "I look")
    };
    let item = Item::Chat(vec![ChatMessage::new("user", "hi"), called]);
    let fields = fields.as_object().cloned().unwrap();
    let body = asking(&PARAMETERS, fields, |request| {
        body("command", &item, request)
    })
    .unwrap();
    let expected = json!({
        "model": "command", "k": 4, "p": 0.5, "stop_sequences": ["x"], "max_tokens": 9,
        "tools": [tool("g")], "tool_choice": "REQUIRED",
        "response_format": { "type": "json_object", "json_schema": { "a": 1 } },
        "messages": [{ "role": "user", "content": "hi" }, {
            "role": "assistant", "tool_plan": "I look", "tool_calls": [{ "id": "1",
            "type": "function", "function": { "name": "g", "arguments": "{}" } }] }],
    });
    assert_eq!(body, expected);
}

#[test]
fn events_of_every_kind() {
    let calls = &mut ToolCallAccumulator::default();
    let start = r#"{"type":"message-start","id":"x","delta":{"message":{"role":"assistant","content":[],"tool_plan":"","tool_calls":[],"citations":[]}}}"#;
    assert_eq!(delta(start, calls), Delta::default());
    let thinking =
        r#"{"type":"content-delta","index":0,"delta":{"message":{"content":{"thinking":"hm"}}}}"#;
    assert_eq!(delta(thinking, calls).thinking.as_deref(), Some("hm"));
    let plan = r#"{"type":"tool-plan-delta","delta":{"message":{"tool_plan":"I look"}}}"#;
    assert_eq!(delta(plan, calls).thinking.as_deref(), Some("I look"));
    let begun = r#"{"type":"tool-call-start","index":0,"delta":{"message":{"tool_calls":{"id":"c","type":"function","function":{"name":"f","arguments":""}}}}}"#;
    let begun: Value = serde_json::from_str(&delta(begun, calls).tool_calls.unwrap()).unwrap();
    assert_eq!(
        (&begun[0]["id"], &begun[0]["index"]),
        (&json!("c"), &json!(0))
    );
    let more = r#"{"type":"tool-call-delta","index":0,"delta":{"message":{"tool_calls":{"function":{"arguments":"{}"}}}}}"#;
    let more: Value = serde_json::from_str(&delta(more, calls).tool_calls.unwrap()).unwrap();
    assert_eq!(
        more,
        json!([{ "function": { "arguments": "{}" }, "index": 0 }])
    );
    let cited = r#"{"type":"citation-start","index":0,"delta":{"message":{"citations":{"start":0,"end":1,"text":"h"}}}}"#;
    assert_eq!(
        delta(cited, calls),
        Delta::default(),
        "a citation has sources"
    );
    let end = r#"{"type":"message-end","delta":{"finish_reason":"TOOL_CALL","usage":{"billed_units":{"input_tokens":1.0},"tokens":{"input_tokens":9.0,"output_tokens":4.0}}}}"#;
    let Ok(Step::Last(end)) = read(end, calls) else {
        panic!()
    };
    assert_eq!(end.finish_reason, Some(FinishReason::ToolCalls));
    assert_eq!(
        (end.prompt_tokens, end.completion_tokens),
        (Some(9), Some(4))
    );
    for failed in [
        r#"{"type":"message-end","delta":{"finish_reason":"ERROR","error":"no"}}"#,
        r#"{"message":"no"}"#,
    ] {
        assert_eq!(read(failed, calls), Ok(Step::Failed("no".to_owned())));
    }
    assert!(read("{}", calls).is_err());
}

#[test]
fn a_whole_message_has_all_its_parts() {
    let body = br#"{"id":"x","finish_reason":"MAX_TOKENS","message":{"role":"assistant","content":[{"type":"thinking","thinking":"hm"},{"type":"text","text":"hi"}]},"usage":{"tokens":{"input_tokens":2,"output_tokens":3}}}"#;
    let Ok(Step::All(deltas)) = read_whole(body, &mut ToolCallAccumulator::default()) else {
        panic!()
    };
    assert_eq!(deltas[0].thinking.as_deref(), Some("hm"));
    let delta = deltas.last().unwrap();
    assert_eq!(delta.text.as_deref(), Some("hi"));
    assert_eq!(delta.finish_reason, Some(FinishReason::Length));
    assert_eq!(delta.completion_tokens, Some(3));
}

#[test]
fn content_of_other_kinds_is_an_error_and_a_string_is_text() {
    let calls = &mut ToolCallAccumulator::default();
    let image = r#"{"type":"content-start","index":0,"delta":{"message":{"content":{"type":"image_url","image_url":{"url":"x"}}}}}"#;
    assert!(
        delta(image, calls)
            .unusable
            .unwrap()
            .contains("'image_url'")
    );
    let plain = r#"{"type":"content-delta","index":0,"delta":{"message":{"content":"hi"}}}"#;
    assert_eq!(delta(plain, calls).text.as_deref(), Some("hi"));
    let whole = |content: &str| {
        let body = format!(r#"{{"finish_reason":"COMPLETE","message":{{"content":{content}}}}}"#);
        let Ok(Step::All(mut deltas)) =
            read_whole(body.as_bytes(), &mut ToolCallAccumulator::default())
        else {
            panic!("{content}")
        };
        deltas.pop().unwrap()
    };
    assert_eq!(whole(r#""hi""#).text.as_deref(), Some("hi"));
    let image = whole(r#"[{"type":"text","text":"a"},{"type":"image_url"}]"#);
    assert!(image.unusable.unwrap().contains("'image_url'"));
}
