use super::*;

fn told(form: UpstreamDialect) -> Value {
    let call = json!({ "id": "c", "type": "function",
                       "function": { "name": "f", "arguments": "{\"a\":1}" } });
    let choice = Choice {
        text: "I look.".to_owned(),
        tool_calls: vec![call],
        finish_reason: Some(FinishReason::ToolCalls),
        usage: Some(Usage {
            prompt_tokens: 2,
            completion_tokens: 3,
            ..Usage::default()
        }),
        ..Choice::default()
    };
    let mut map = json!({ "response": "I look.", "usage": { "total_tokens": 5 } });
    form.write_into(&choice, &mut map).unwrap();
    let broken = Choice {
        tool_calls: vec![json!({ "function": { "name": "f", "arguments": "{\"a" } })],
        ..choice
    };
    let error = form.write_into(&broken, &mut json!({}));
    assert_eq!(error.is_err(), form != UpstreamDialect::OpenAi, "{form:?}");
    assert_eq!(map["response"], "I look.", "Volley's own stays");
    map
}

#[test]
fn numbers_in_arguments_keep_their_text() {
    let arguments = r#"{"a":12345678901234567890123,"e":1e2}"#;
    let choice = Choice {
        tool_calls: vec![json!({ "id": "c", "function": { "name": "f", "arguments": arguments } })],
        ..Choice::default()
    };
    let forms = [
        (UpstreamDialect::Converse, "input"),
        (UpstreamDialect::Gemini, "args"),
        (UpstreamDialect::Anthropic, "input"),
    ];
    for (form, name) in forms {
        let mut map = json!({});
        form.write_into(&choice, &mut map).unwrap();
        let written = volley_types::exact::write(&map);
        assert!(
            written.contains(&format!("\"{name}\":{arguments}")),
            "{written}"
        );
    }
}

#[test]
fn each_dialect_finds_its_own() {
    let openai = told(UpstreamDialect::OpenAi);
    let message = &openai["choices"][0]["message"];
    assert_eq!(message["content"], "I look.");
    assert_eq!(message["tool_calls"][0]["function"]["name"], "f");
    assert_eq!(openai["choices"][0]["finish_reason"], "tool_calls");
    let converse = told(UpstreamDialect::Converse);
    assert_eq!(
        converse["output"]["message"]["content"],
        json!([{ "text": "I look." },
               { "toolUse": { "toolUseId": "c", "name": "f", "input": { "a": 1 } } }])
    );
    assert_eq!(converse["stopReason"], "tool_use");
    assert_eq!(
        converse["usage"],
        json!({ "total_tokens": 5, "inputTokens": 2, "outputTokens": 3, "totalTokens": 5 })
    );
    let gemini = told(UpstreamDialect::Gemini);
    assert_eq!(
        gemini["candidates"][0]["content"]["parts"],
        json!([{ "text": "I look." }, { "functionCall": { "name": "f", "args": { "a": 1 } } }])
    );
    assert_eq!(gemini["usageMetadata"]["totalTokenCount"], 5);
    let anthropic = told(UpstreamDialect::Anthropic);
    assert_eq!(
        anthropic["content"][0],
        json!({ "type": "text", "text": "I look." })
    );
    assert_eq!(anthropic["content"][1]["input"], json!({ "a": 1 }));
    assert_eq!(anthropic["stop_reason"], "tool_use");
}

#[test]
fn reasoning_has_each_servers_form_and_an_unknown_usage_has_no_zeros() {
    let choice = Choice {
        text: "Hi".to_owned(),
        thinking: "hm".to_owned(),
        finish_reason: Some(FinishReason::Stop),
        ..Choice::default()
    };
    for (form, place, expected) in [
        (
            UpstreamDialect::OpenAi,
            "/choices/0/message/reasoning_content",
            json!("hm"),
        ),
        (
            UpstreamDialect::Converse,
            "/output/message/content/0",
            json!({ "reasoningContent": { "reasoningText": { "text": "hm" } } }),
        ),
        (
            UpstreamDialect::Gemini,
            "/candidates/0/content/parts/0",
            json!({ "text": "hm", "thought": true }),
        ),
        (
            UpstreamDialect::Anthropic,
            "/content/0",
            json!({ "type": "thinking", "thinking": "hm", "signature": "" }),
        ),
    ] {
        let mut map = json!({});
        form.write_into(&choice, &mut map).unwrap();
        assert_eq!(map.pointer(place), Some(&expected), "{map}");
        let names = map.as_object().unwrap().keys();
        assert!(
            names.into_iter().all(|name| !name.starts_with("usage")),
            "{map}"
        );
    }
}

#[test]
fn interfaces_have_their_forms() {
    for (name, form) in [
        (" OpenAI/v1/chat/completions", Some(UpstreamDialect::OpenAi)),
        ("bedrock/converse/claude", Some(UpstreamDialect::Converse)),
        (
            "gemini/v1beta/generatecontent",
            Some(UpstreamDialect::Gemini),
        ),
        ("other", None),
    ] {
        assert_eq!(UpstreamDialect::of_interface(name), form);
    }
}

#[test]
fn tokens_of_a_cache_are_counted_as_each_server_does() {
    let choice = Choice {
        usage: Some(Usage {
            prompt_tokens: 8,
            completion_tokens: 5,
            cached_tokens: 4,
            cache_write_tokens: 1,
            reasoning_tokens: 2,
        }),
        ..Choice::default()
    };
    let counts = |form: UpstreamDialect, name: &str| {
        let mut map = json!({});
        form.write_into(&choice, &mut map).unwrap();
        map[name].take()
    };
    assert_eq!(
        counts(UpstreamDialect::Anthropic, "usage"),
        json!({ "input_tokens": 3, "output_tokens": 5, "cache_read_input_tokens": 4,
                "cache_creation_input_tokens": 1,
                "output_tokens_details": { "thinking_tokens": 2 } })
    );
    assert_eq!(
        counts(UpstreamDialect::Converse, "usage"),
        json!({ "inputTokens": 3, "outputTokens": 5, "totalTokens": 13,
                "cacheReadInputTokens": 4, "cacheWriteInputTokens": 1 })
    );
    assert_eq!(
        counts(UpstreamDialect::Gemini, "usageMetadata"),
        json!({ "promptTokenCount": 8, "candidatesTokenCount": 3, "thoughtsTokenCount": 2,
                "cachedContentTokenCount": 4, "totalTokenCount": 13 })
    );
}
