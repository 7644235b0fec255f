use volley_types::ErrorCode;

use super::*;

fn delta(data: &str, calls: &mut ToolCallAccumulator) -> Delta {
    match read(data, calls) {
        Ok(Step::Delta(delta)) => delta,
        other => panic!("{other:?}"),
    }
}

#[test]
fn events_of_every_kind() {
    let calls = &mut ToolCallAccumulator::new(1);
    let both = delta(
        r#"{"candidates":[{"content":{"role":"model","parts":[{"text":"hm","thought":true},{"text":"hi"}]},"index":0}],"usageMetadata":{"promptTokenCount":4,"totalTokenCount":4}}"#,
        calls,
    );
    assert_eq!(both.thinking.as_deref(), Some("hm"));
    assert_eq!(both.text.as_deref(), Some("hi"));
    let called = delta(
        r#"{"candidates":[{"content":{"parts":[{"functionCall":{"name":"f","args":{"a": 1}},"thoughtSignature":"sig"}]},"finishReason":"STOP"}],"usageMetadata":{"promptTokenCount":4,"candidatesTokenCount":2,"thoughtsTokenCount":3}}"#,
        calls,
    );
    let call: Value = serde_json::from_str(&called.tool_calls.unwrap()).unwrap();
    assert_eq!(call[0]["function"]["arguments"], "{\"a\": 1}");
    assert_eq!(
        call[0]["extra_content"]["google"]["thought_signature"],
        "sig"
    );
    assert_eq!(called.finish_reason, Some(FinishReason::ToolCalls));
    assert_eq!(
        (called.prompt_tokens, called.completion_tokens),
        (Some(4), Some(5))
    );
    let blocked = delta(r#"{"promptFeedback":{"blockReason":"SAFETY"}}"#, calls);
    assert_eq!(blocked.finish_reason, Some(FinishReason::ContentFilter));
    let failed = read(r#"[{"error":{"code":503,"message":"busy"}}]"#, calls);
    let expected = Step::Refused(ErrorCode::Unavailable, "busy".to_owned());
    assert_eq!(failed, Ok(expected));
    let failed = r#"{"candidates":[{"finishReason":"MALFORMED_FUNCTION_CALL"}]}"#;
    assert!(delta(failed, calls).unusable.is_some());
    assert!(read("{}", calls).is_err());
}

#[test]
fn signatures_of_thoughts_and_texts_are_kept() {
    let body = r#"{"candidates":[{"content":{"parts":[{"text":"hm","thought":true,"thoughtSignature":"t1"},{"text":"hi"},{"text":"","thoughtSignature":"t2"}]},"finishReason":"STOP"}]}"#;
    let whole = read_whole(body.as_bytes(), &mut ToolCallAccumulator::default());
    for step in [read(body, &mut ToolCallAccumulator::default()), whole] {
        let Ok(Step::All(all)) = step else {
            panic!("{step:?}")
        };
        let told = all.iter().map(|delta| {
            let details = delta.details.clone().unwrap();
            assert_eq!(details.format.as_deref(), Some("gemini"));
            (details.signature.unwrap(), details.item.unwrap())
        });
        let expected = [("t1", "thought"), ("t2", "text")];
        let expected = expected.map(|(one, other)| (one.to_owned(), other.to_owned()));
        assert_eq!(told.collect::<Vec<_>>(), expected);
        assert_eq!(all[0].thinking.as_deref(), Some("hm"));
        assert_eq!(all[1].text.as_deref(), Some("hi"));
        assert_eq!(all[1].finish_reason, Some(FinishReason::Stop));
    }
}

#[test]
fn a_list_of_responses_is_one_answer() {
    let body = br#"[{"candidates":[{"content":{"parts":[{"text":"a"}]}}]},
        {"candidates":[{"content":{"parts":[{"text":"b"}]},"finishReason":"MAX_TOKENS"}],"usageMetadata":{"promptTokenCount":1,"candidatesTokenCount":2}}]"#;
    let Ok(Step::Delta(delta)) = read_whole(body, &mut ToolCallAccumulator::default()) else {
        panic!()
    };
    assert_eq!(delta.text.as_deref(), Some("ab"));
    assert_eq!(delta.finish_reason, Some(FinishReason::Length));
    assert_eq!(delta.completion_tokens, Some(2));
}

#[test]
fn pieces_of_arguments_are_an_error() {
    for call in [
        r#"{"name":"f","willContinue":true}"#,
        r#"{"partialArgs":[{"jsonPath":"$.a","numberValue":1}]}"#,
    ] {
        let data =
            format!(r#"{{"candidates":[{{"content":{{"parts":[{{"functionCall":{call}}}]}}}}]}}"#);
        let Ok(Step::Delta(delta)) = read(&data, &mut ToolCallAccumulator::default()) else {
            panic!("{call}")
        };
        assert_eq!(delta.tool_calls, None);
        assert!(delta.unusable.unwrap().contains("'partialArgs'"));
    }
}
