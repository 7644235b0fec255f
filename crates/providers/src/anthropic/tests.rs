use volley_types::ErrorCode;

use super::*;

fn step(data: &str) -> Step {
    read(data, &mut ToolCallAccumulator::default()).unwrap()
}

fn delta(data: &str) -> Delta {
    let Step::Delta(delta) = step(data) else {
        panic!("{data}")
    };
    delta
}

#[test]
fn numbers_of_a_whole_call_keep_their_text() {
    let input = r#"{"a":12345678901234567890123,"e":1e2}"#;
    let body = format!(
        r#"{{"content":[{{"type":"text","text":"x"}},{{"type":"tool_use","id":"c","name":"f","input":{input}}}],"stop_reason":"tool_use"}}"#
    );
    let step = read_whole(body.as_bytes(), &mut ToolCallAccumulator::default());
    let Ok(Step::All(deltas)) = step else {
        panic!("{step:?}")
    };
    let calls = deltas
        .iter()
        .filter_map(|delta| delta.tool_calls.as_deref());
    let calls = calls.flat_map(|calls| serde_json::from_str::<Vec<Value>>(calls).unwrap());
    let arguments = calls.map(|call| call["function"]["arguments"].as_str().unwrap().to_owned());
    assert_eq!(arguments.collect::<String>(), input);
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
        Step::Refused(ErrorCode::Unavailable, "busy".to_owned())
    );
}

#[test]
fn tool_calls_are_counted_from_zero_whatever_their_blocks_are() {
    let mut begun = ToolCallAccumulator::default();
    let mut calls = |data: &str| {
        let Ok(Step::Delta(delta)) = read(data, &mut begun) else {
            panic!("{data}")
        };
        serde_json::from_str::<Value>(&delta.tool_calls.unwrap()).unwrap()[0].take()
    };
    for index in 0..2 {
        let block = index + 1;
        let start = calls(&format!(
            r#"{{"type":"content_block_start","index":{block},"content_block":{{"type":"tool_use","id":"t","name":"f","input":{{}}}}}}"#
        ));
        assert_eq!(start["index"], index);
        assert_eq!(start["function"]["name"], "f");
        let piece = calls(&format!(
            r#"{{"type":"content_block_delta","index":{block},"delta":{{"type":"input_json_delta","partial_json":"{{\"a\""}}}}"#
        ));
        assert_eq!(piece["index"], index);
        assert_eq!(piece["function"]["arguments"], "{\"a\"");
    }
}

/// The deltas of a whole message.
fn whole(body: &Value) -> Vec<Delta> {
    let body = body.to_string();
    match read_whole(body.as_bytes(), &mut ToolCallAccumulator::default()) {
        Ok(Step::All(all)) => all,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_whole_message_has_its_blocks_in_order_and_its_usage() {
    let body = json!({
        "type": "message", "stop_reason": "tool_use",
        "content": [
            { "type": "thinking", "thinking": "hm", "signature": "c2ln" },
            { "type": "redacted_thinking", "data": "eHg=" },
            { "type": "text", "text": "hi" },
            { "type": "server_tool_use", "id": "s", "name": "web_search", "input": { "q": 1 } },
            { "type": "tool_use", "id": "t", "name": "f", "input": { "a": 1 } },
            { "type": "tool_use", "id": "u", "name": "g", "input": {} },
        ],
        "usage": { "input_tokens": 1, "cache_read_input_tokens": 8,
                   "cache_creation_input_tokens": 4, "output_tokens": 3,
                   "output_tokens_details": { "thinking_tokens": 2 } },
    });
    let all = whole(&body);
    let details = |at: usize| all[at].details.as_deref().unwrap();
    assert_eq!(all[0].thinking.as_deref(), Some("hm"));
    assert_eq!(details(0).signature.as_deref(), Some("c2ln"));
    assert_eq!(details(2).redacted.as_deref(), Some("eHg="));
    assert_eq!(all[4].text.as_deref(), Some("hi"));
    assert_eq!(details(7).blocks[0]["input"]["q"], 1);
    let arguments = all[9].tool_calls.as_deref().unwrap();
    assert!(arguments.contains(r#"{\"a\":1}"#), "{arguments}");
    let last = all.last().unwrap();
    assert_eq!(last.finish_reason, Some(FinishReason::ToolCalls));
    assert_eq!(last.prompt_tokens, Some(13), "cached tokens are tokens");
    assert_eq!(
        (last.cached_tokens, last.cache_write_tokens),
        (Some(8), Some(4))
    );
    assert_eq!(last.reasoning_tokens, Some(2));
    let error = br#"{"type":"error","error":{"message":"no"}}"#;
    assert_eq!(
        read_whole(error, &mut ToolCallAccumulator::default()),
        Ok(Step::Failed("no".to_owned()))
    );
    assert!(read_whole(b"{}", &mut ToolCallAccumulator::default()).is_err());
}

#[test]
fn signatures_unknown_blocks_and_the_providers_own_reason_come_along() {
    let calls = &mut ToolCallAccumulator::default();
    let mut delta = |data: &str| match read(data, calls) {
        Ok(Step::Delta(delta)) => delta,
        other => panic!("{other:?}"),
    };
    let start = r#"{"type":"message_start","message":{"usage":{"input_tokens":20,"cache_read_input_tokens":100,"output_tokens":1}}}"#;
    assert_eq!(delta(start).prompt_tokens, Some(120));
    let signed = r#"{"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"c2ln"}}"#;
    assert_eq!(
        delta(signed).details.unwrap().signature.as_deref(),
        Some("c2ln")
    );
    delta(
        r#"{"type":"content_block_start","index":1,"content_block":{"type":"server_tool_use","id":"s","name":"n","input":{}}}"#,
    );
    delta(
        r#"{"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{\"q\":1}"}}"#,
    );
    let block = delta(r#"{"type":"content_block_stop","index":1}"#);
    assert_eq!(block.details.unwrap().blocks[0]["input"]["q"], 1);
    let end = delta(
        r#"{"type":"message_delta","delta":{"stop_reason":"stop_sequence","stop_sequence":"END"},"usage":{"output_tokens":7}}"#,
    );
    assert_eq!(
        (end.prompt_tokens, end.completion_tokens),
        (Some(120), Some(7))
    );
    let told = end.end.unwrap();
    assert_eq!(told.stop_sequence.as_deref(), Some("END"));
    assert_eq!(told.usage.unwrap()["cache_read_input_tokens"], 100);
}

#[test]
fn unknown_deltas_belong_to_their_block() {
    let calls = &mut ToolCallAccumulator::default();
    for data in [
        r#"{"type":"content_block_start","index":0,"content_block":{"type":"compaction","content":""}}"#,
        r#"{"type":"content_block_delta","index":0,"delta":{"type":"compaction_delta","content":"summary "}}"#,
        r#"{"type":"content_block_delta","index":0,"delta":{"type":"compaction_delta","content":"text"}}"#,
    ] {
        read(data, calls).unwrap();
    }
    let end = read(r#"{"type":"content_block_stop","index":0}"#, calls);
    let Ok(Step::Delta(end)) = end else {
        panic!("{end:?}")
    };
    assert_eq!(
        end.details.unwrap().blocks,
        [json!({ "type": "compaction", "content": "summary text" })]
    );
}
