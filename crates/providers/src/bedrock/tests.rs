use serde_json::json;

use super::*;

fn delta(data: &str, calls: &mut ToolCallAccumulator) -> Delta {
    match read(data, calls) {
        Ok(Step::Delta(delta)) => delta,
        other => panic!("{data}: {other:?}"),
    }
}

#[test]
fn pieces_of_calls_that_come_in_turns_find_their_call() {
    let calls = &mut ToolCallAccumulator::new(1);
    let text = r#"{"contentBlockDelta":{"contentBlockIndex":0,"delta":{"text":"hi"},"p":"abc"}}"#;
    assert_eq!(delta(text, calls).text.as_deref(), Some("hi"));
    for (block, name) in [(1, "f"), (2, "g")] {
        let start = format!(
            r#"{{"contentBlockStart":{{"contentBlockIndex":{block},"start":{{"toolUse":{{"toolUseId":"t{block}","name":"{name}"}}}}}}}}"#
        );
        assert!(delta(&start, calls).tool_calls.unwrap().contains(name));
    }
    for (block, index) in [(1, 0), (2, 1), (1, 0)] {
        let piece = format!(
            r#"{{"contentBlockDelta":{{"contentBlockIndex":{block},"delta":{{"toolUse":{{"input":"{{"}}}}}}}}"#
        );
        let piece = delta(&piece, calls).tool_calls.unwrap();
        let piece: Value = serde_json::from_str(&piece).unwrap();
        assert_eq!(piece[0]["index"], index);
    }
    let foreign =
        r#"{"contentBlockDelta":{"contentBlockIndex":9,"delta":{"toolUse":{"input":"{"}}}}"#;
    assert_eq!(delta(foreign, calls).tool_calls, None);
}

/// Signed or redacted reasoning is returned unchanged, after streams and whole answers.
#[test]
fn signed_and_secret_reasoning_goes_back_as_it_came() {
    let calls = &mut ToolCallAccumulator::default();
    let pieces = [
        r#"{"text":"hm, "}"#,
        r#"{"text":"so"}"#,
        r#"{"signature":"c2ln+/=="}"#,
        r#"{"redactedContent":"ZGF0YQ=="}"#,
        r#"{"signature":"YmxhbmsA"}"#,
    ];
    let streamed = pieces.map(|piece| {
        let data = format!(
            r#"{{"contentBlockDelta":{{"contentBlockIndex":0,"delta":{{"reasoningContent":{piece}}}}}}}"#
        );
        delta(&data, calls)
    });
    let content = json!([
        { "reasoningContent": { "reasoningText": { "text": "hm, so", "signature": "c2ln+/==" } } },
        { "reasoningContent": { "redactedContent": "ZGF0YQ==" } },
        { "reasoningContent": { "reasoningText": { "text": "", "signature": "YmxhbmsA" } } },
    ]);
    let whole =
        json!({ "output": { "message": { "content": content } }, "stopReason": "end_turn" });
    let Ok(Step::All(whole)) = read_whole(whole.to_string().as_bytes(), calls) else {
        panic!("no message")
    };
    for deltas in [&streamed[..], &whole[..3]] {
        let (mut thinking, mut said) = (Vec::new(), String::new());
        for delta in deltas {
            said.push_str(delta.thinking.as_deref().unwrap_or_default());
            let Some(details) = delta.details.as_deref() else {
                continue;
            };
            assert_eq!(details.format.as_deref(), Some("bedrock"));
            thinking.push(match (&details.signature, &details.redacted) {
                (Some(signature), None) => json!({
                    "format": "bedrock", "text": std::mem::take(&mut said),
                    "signature": signature,
                }),
                (None, Some(data)) => json!({ "format": "bedrock", "redacted": data }),
                other => panic!("{other:?}"),
            });
        }
        let turn = volley_types::ChatMessage {
            details: Some(json!({ "thinking": thinking }).to_string()),
            ..volley_types::ChatMessage::new("assistant", "Hi")
        };
        let talk = volley_backend::items::Item::Chat(vec![turn]);
        let body = crate::tests::asking(&request::PARAMETERS, Default::default(), |request| {
            request::body("m", &talk, request)
        });
        let mut sent = body.unwrap()["messages"][0]["content"].take();
        let text = sent.as_array_mut().unwrap().pop().unwrap();
        assert_eq!((sent, text), (content.clone(), json!({ "text": "Hi" })));
    }
}

#[test]
fn the_end_is_the_usage_and_exceptions_say_whose_fault_they_are() {
    let calls = &mut ToolCallAccumulator::default();
    let stop = delta(
        r#"{"messageStop":{"stopReason":"guardrail_intervened"}}"#,
        calls,
    );
    assert_eq!(stop.finish_reason, Some(FinishReason::ContentFilter));
    let end = r#"{"metadata":{"usage":{"inputTokens":2,"outputTokens":3,"cacheReadInputTokens":4},"metrics":{"latencyMs":1}}}"#;
    let Ok(Step::Last(end)) = read(end, calls) else {
        panic!()
    };
    assert_eq!(
        (end.prompt_tokens, end.completion_tokens),
        (Some(6), Some(3))
    );
    for (name, code) in [
        ("throttlingException", Some(ErrorCode::Overloaded)),
        ("serviceUnavailableException", Some(ErrorCode::Unavailable)),
        ("validationException", Some(ErrorCode::InvalidInput)),
        ("modelStreamErrorException", None),
        ("internalServerException", None),
        ("modelTimeoutException", Some(ErrorCode::UpstreamTimeout)),
        ("error", None),
    ] {
        let step = read(&format!(r#"{{"{name}":{{"message":"no"}}}}"#), calls).unwrap();
        let expected = match code {
            Some(code) => Step::Refused(code, "no".to_owned()),
            None => Step::Failed("no".to_owned()),
        };
        assert_eq!(step, expected, "{name}");
    }
    assert!(read("7", calls).is_err());
}

#[test]
fn numbers_in_the_calls_of_a_whole_answer_keep_their_text() {
    let input = r#"{"a":12345678901234567890123,"e":1e2}"#;
    let whole = format!(
        r#"{{"output":{{"message":{{"role":"assistant","content":[{{"text":"a"}},{{"toolUse":{{"toolUseId":"t","name":"f","input":{input}}}}}]}}}},"stopReason":"tool_use"}}"#
    );
    let calls = &mut ToolCallAccumulator::new(1);
    let Ok(Step::All(deltas)) = read_whole(whole.as_bytes(), calls) else {
        panic!()
    };
    let made = deltas.iter().find_map(|delta| delta.tool_calls.as_deref());
    let made: Value = serde_json::from_str(made.unwrap()).unwrap();
    assert_eq!(made[0]["function"]["arguments"], input);
}
