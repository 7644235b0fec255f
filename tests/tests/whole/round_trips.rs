//! What must survive between dialects and providers: 25 checks, by their numbers. Five and 22 are
//! of callers who speak Gemini's dialect, which Volley does not serve.

#[path = "round_trips/world.rs"]
mod world;

use serde_json::{Value, json};

use self::world::{CHAT, MESSAGES, RESPONSES, World};

fn user(text: &str) -> Value {
    json!({ "role": "user", "content": text })
}

fn tool() -> Value {
    json!({ "type": "function", "function": { "name": "f",
        "parameters": { "type": "object", "properties": { "a": { "type": "integer" } } } } })
}

fn call(id: &str, arguments: &str) -> Value {
    json!({ "id": id, "type": "function", "function": { "name": "f", "arguments": arguments } })
}

fn result(id: &str, text: &str) -> Value {
    json!({ "role": "tool", "tool_call_id": id, "content": text })
}

/// A chat with calls in its history.
fn called(model: &str, calls: &[Value], results: &[Value]) -> Value {
    let mut messages = vec![
        user("Hi"),
        json!({ "role": "assistant", "content": null, "tool_calls": calls }),
    ];
    messages.extend(results.iter().cloned());
    json!({ "model": model, "messages": messages, "max_tokens": 9 })
}

fn message(content: &Value) -> Value {
    json!({ "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": content,
            "stop_reason": "end_turn", "usage": { "input_tokens": 1, "output_tokens": 1 } })
}

fn completion(text: &str) -> Value {
    json!({ "id": "c", "choices": [{ "index": 0, "finish_reason": "stop",
            "message": { "role": "assistant", "content": text } }] })
}

fn converse(text: &str) -> Value {
    json!({ "output": { "message": { "role": "assistant", "content": [{ "text": text }] } },
            "stopReason": "end_turn",
            "usage": { "inputTokens": 1, "outputTokens": 1, "totalTokens": 2 } })
}

fn candidate(parts: &Value, reason: &str) -> Value {
    json!({ "candidates": [{ "content": { "role": "model", "parts": parts },
                             "finishReason": reason, "index": 0 }],
            "usageMetadata": { "promptTokenCount": 5, "candidatesTokenCount": 2,
                               "thoughtsTokenCount": 3, "totalTokenCount": 10 } })
}

/// 1, 2, 3, 4, 6: what a provider signed.
async fn signatures(world: &World) {
    let signed = json!([
        { "type": "thinking", "thinking": "hm", "signature": "c2ln+/==" },
        { "type": "thinking", "thinking": "", "signature": "YmxhbmsA" },
        { "type": "redacted_thinking", "data": "ZGF0YQ==" },
        { "type": "tool_use", "id": "toolu_1", "name": "f", "input": { "a": 1 } },
    ]);
    let asked = json!({ "model": "am", "max_tokens": 99, "messages": [user("Hi")] });
    let (_, told, _) = world.ask(MESSAGES, asked.clone(), &message(&signed)).await;
    assert_eq!(told["content"], signed, "1 and 6");
    let answer = json!({ "type": "tool_result", "tool_use_id": "toolu_1", "content": "2" });
    let turns = json!([user("Hi"), { "role": "assistant", "content": told["content"] },
                       { "role": "user", "content": [answer] }]);
    let again = json!({ "model": "am", "max_tokens": 99, "messages": turns });
    let (_, _, sent) = world.ask(MESSAGES, again, &message(&json!([]))).await;
    assert_eq!(sent.unwrap()["messages"], turns, "1 and 6");

    // A client of OpenAI keeps nothing but the calls: reasoning is left out whole.
    let chat = called(
        "am",
        &[call("toolu_1", "{\"a\":1}")],
        &[result("toolu_1", "2")],
    );
    let (_, _, sent) = world.ask(CHAT, chat, &message(&json!([]))).await;
    let turn = &sent.unwrap()["messages"][1]["content"];
    assert_eq!(turn, &json!([signed[3]]), "2");

    // A client of responses sends back what is encrypted.
    let asked = json!({ "model": "am", "input": "Hi", "store": false,
                        "include": ["reasoning.encrypted_content"] });
    let (_, told, _) = world.ask(RESPONSES, asked, &message(&signed)).await;
    let output = told["output"].as_array().unwrap().clone();
    let replay = |items: &[Value]| {
        let mut input = vec![user("Hi")];
        input.extend(items.iter().cloned());
        input.push(json!({ "type": "function_call_output", "call_id": "toolu_1", "output": "2" }));
        json!({ "model": "am", "input": input, "store": false })
    };
    let (_, _, sent) = world
        .ask(RESPONSES, replay(&output), &message(&json!([])))
        .await;
    assert_eq!(sent.unwrap()["messages"][1]["content"], signed, "3");
    let mut changed = output.clone();
    let sealed = changed[0]["encrypted_content"].as_str().unwrap();
    changed[0]["encrypted_content"] = sealed.replace('.', ".A").into();
    let (_, _, sent) = world
        .ask(RESPONSES, replay(&changed), &message(&json!([])))
        .await;
    let turn = sent.unwrap()["messages"][1]["content"].clone();
    assert_eq!(
        turn.as_array().unwrap()[..],
        signed.as_array().unwrap()[1..],
        "3"
    );

    // The first of two calls has the signature, and keeps it through ids.
    let parts = json!([
        { "functionCall": { "name": "f", "args": { "a": 1 } }, "thoughtSignature": "ab+/cQ==" },
        { "functionCall": { "name": "f", "args": { "a": 2 } } },
    ]);
    let asked = json!({ "model": "gm", "max_tokens": 99, "messages": [user("Hi")] });
    let (_, told, _) = world.ask(MESSAGES, asked, &candidate(&parts, "STOP")).await;
    let calls = told["content"].as_array().unwrap();
    assert_eq!(calls.len(), 2, "{told}");
    let results = calls
        .iter()
        .map(|call| json!({ "type": "tool_result", "tool_use_id": call["id"], "content": "2" }));
    let turns = json!([user("Hi"), { "role": "assistant", "content": calls },
                       { "role": "user", "content": results.collect::<Vec<_>>() }]);
    let again = json!({ "model": "gm", "max_tokens": 99, "messages": turns });
    let (_, _, sent) = world
        .ask(MESSAGES, again, &candidate(&json!([]), "STOP"))
        .await;
    assert_eq!(sent.unwrap()["contents"][1]["parts"], parts, "4");
}

/// The same of Bedrock, whose own dialect nobody speaks here.
async fn signatures_of_bedrock(world: &World) {
    let signed = json!([
        { "reasoningContent": { "reasoningText": { "text": "hm", "signature": "c2ln+/==" } } },
        { "reasoningContent": { "redactedContent": "ZGF0YQ==" } },
        { "text": "I call." },
        { "toolUse": { "toolUseId": "tooluse_1", "name": "f", "input": { "a": 1 } } },
    ]);
    let answer = json!({ "output": { "message": { "role": "assistant", "content": signed } },
                         "stopReason": "tool_use",
                         "usage": { "inputTokens": 1, "outputTokens": 1, "totalTokens": 2 } });
    let asked = json!({ "model": "bc", "max_tokens": 99, "messages": [user("Hi")] });
    let (_, told, _) = world.ask(MESSAGES, asked, &answer).await;
    let content = told["content"].as_array().unwrap();
    let kinds: Vec<_> = content.iter().map(|block| &block["type"]).collect();
    let expected = ["thinking", "redacted_thinking", "text", "tool_use"];
    assert_eq!(kinds, expected, "{told}");
    let result = json!({ "type": "tool_result", "tool_use_id": "tooluse_1", "content": "2" });
    let turns = json!([user("Hi"), { "role": "assistant", "content": content },
                       { "role": "user", "content": [result] }]);
    let again = json!({ "model": "bc", "max_tokens": 99, "messages": turns });
    let (_, _, sent) = world.ask(MESSAGES, again, &converse("So.")).await;
    assert_eq!(sent.unwrap()["messages"][1]["content"], signed);

    let asked = json!({ "model": "bc", "input": "Hi", "store": false,
                        "include": ["reasoning.encrypted_content"] });
    let (_, told, _) = world.ask(RESPONSES, asked, &answer).await;
    let mut input = vec![user("Hi")];
    input.extend(told["output"].as_array().unwrap().iter().cloned());
    input.push(json!({ "type": "function_call_output", "call_id": "tooluse_1", "output": "2" }));
    let again = json!({ "model": "bc", "input": input, "store": false });
    let (_, _, sent) = world.ask(RESPONSES, again, &converse("So.")).await;
    assert_eq!(sent.unwrap()["messages"][1]["content"], signed);
}

/// 7, 9, 10, 15, 17, 18: parameters.
async fn parameters(world: &World) {
    let chat = |model: &str, more: Value| {
        let mut body = json!({ "model": model, "messages": [user("Hi")], "max_tokens": 2000 });
        for (name, value) in more.as_object().unwrap() {
            body[name.as_str()] = value.clone();
        }
        body
    };
    let warm = json!({ "temperature": 0.5 });
    let (_, _, sent) = world
        .ask(CHAT, chat("am", warm.clone()), &message(&json!([])))
        .await;
    assert_eq!(sent.unwrap()["temperature"], 0.5, "7");
    world
        .refused(CHAT, chat("am-new", warm), "'temperature'")
        .await;
    world
        .refused(
            CHAT,
            chat("bc", json!({ "temperature": 1.5 })),
            "'temperature'",
        )
        .await;
    let stops = json!({ "stop": ["a", "b", "c", "d", "e", "f"] });
    world.refused(CHAT, chat("gm", stops), "'stop'").await;
    world
        .refused(CHAT, chat("or", json!({ "stop": ["a"] })), "'stop'")
        .await;
    let bad = called("am", &[call("c", "{bad")], &[result("c", "2")]);
    world.refused(CHAT, bad, "'arguments'").await;
    let schema = json!({ "type": "object", "properties": { "b": { "type": "string" }, "a": {} },
                         "required": ["b"], "additionalProperties": false });
    let form = json!({ "type": "json_schema", "json_schema": { "name": "s", "schema": schema } });
    let body = chat("bc", json!({ "response_format": form }));
    let (_, _, sent) = world.ask(CHAT, body, &converse("{\"b\":\"x\"}")).await;
    let sent = sent.unwrap();
    let text = sent.pointer("/outputConfig/textFormat/structure/jsonSchema/schema");
    let text = text
        .and_then(Value::as_str)
        .unwrap_or_else(|| panic!("17: {sent}"));
    assert_eq!(
        serde_json::from_str::<Value>(text).unwrap()["required"],
        json!(["b"]),
        "17"
    );
    let forced =
        json!({ "tools": [tool()], "tool_choice": "required", "reasoning_effort": "high" });
    world
        .refused(CHAT, chat("am", forced.clone()), "'reasoning_effort'")
        .await;
    let (_, _, sent) = world
        .ask(CHAT, chat("am-new", forced), &message(&json!([])))
        .await;
    let sent = sent.unwrap();
    assert_eq!(sent["output_config"]["effort"], "high", "18");
    assert_eq!(sent["tool_choice"]["type"], "any", "18");
}

/// 11, 12, 13, 14: calls and their results.
async fn results(world: &World) {
    let calls: Vec<_> = ["a", "b", "c"].map(|id| call(id, "{}")).to_vec();
    let told: Vec<_> = ["a", "b", "c"].map(|id| result(id, id)).to_vec();
    let body = called("am", &calls, &told);
    let (_, _, sent) = world.ask(CHAT, body, &message(&json!([]))).await;
    let turns = sent.unwrap()["messages"].clone();
    assert_eq!(turns.as_array().unwrap().len(), 3, "11");
    let blocks = turns[2]["content"].as_array().unwrap().iter();
    let ids: Vec<_> = blocks
        .map(|block| block["tool_use_id"].as_str().unwrap())
        .collect();
    assert_eq!(ids, ["a", "b", "c"], "11");

    let image = json!({ "type": "image", "source": {
        "type": "base64", "media_type": "image/png", "data": "AAAA" } });
    let body = |model: &str| {
        let used = json!({ "type": "tool_use", "id": "toolu_1", "name": "f", "input": {} });
        let answer = json!({ "type": "tool_result", "tool_use_id": "toolu_1", "is_error": true,
                             "content": [{ "type": "text", "text": "seen" }, image] });
        json!({ "model": model, "max_tokens": 9, "messages": [
            user("Hi"), { "role": "assistant", "content": [used] },
            { "role": "user", "content": [answer] } ] })
    };
    let (status, told, sent) = world.ask(MESSAGES, body("bc"), &converse("ok")).await;
    assert_eq!(status, 200, "12: {told}");
    let block = sent.unwrap()["messages"][2]["content"][0]["toolResult"].clone();
    assert_eq!(block["status"], "error", "12");
    let kept = json!([{ "text": "Error: seen" },
                      { "image": { "format": "png", "source": { "bytes": "AAAA" } } }]);
    assert_eq!(block["content"], kept, "12");
    let (status, told, sent) = world.ask(MESSAGES, body("oc"), &completion("ok")).await;
    assert_eq!(status, 200, "13: {told}");
    let messages = sent.unwrap()["messages"].clone();
    assert_eq!(messages[2]["role"], "tool", "13");
    assert!(
        messages[2]["content"].as_str().unwrap().contains("seen"),
        "13: {messages}"
    );
    let shown =
        json!({ "type": "image_url", "image_url": { "url": "data:image/png;base64,AAAA" } });
    let parts = messages[3]["content"].as_array().unwrap();
    assert!(
        messages[3]["role"] == "user" && parts.contains(&shown),
        "13: {messages}"
    );

    let body = called("bc", &[call("a", "{}")], &[result("a", "2")]);
    let (_, _, sent) = world.ask(CHAT, body, &converse("ok")).await;
    let tools = sent.unwrap()["toolConfig"]["tools"].clone();
    assert_eq!(tools[0]["toolSpec"]["name"], "f", "14");
}

/// 19, 20, 21: streams.
async fn streams(world: &World) {
    let used = |index: u32, id: &str| {
        let block = json!({ "type": "tool_use", "id": id, "name": "f", "input": {} });
        let delta = json!({ "type": "input_json_delta", "partial_json": "{\"a\":1}" });
        [
            json!({ "type": "content_block_start", "index": index, "content_block": block }),
            json!({ "type": "content_block_delta", "index": index, "delta": delta }),
            json!({ "type": "content_block_stop", "index": index }),
        ]
    };
    let text = json!({ "type": "text_delta", "text": "I look." });
    let mut events = vec![
        json!({ "type": "message_start", "message": message(&json!([])) }),
        json!({ "type": "content_block_start", "index": 0, "content_block": { "type": "text", "text": "" } }),
        json!({ "type": "content_block_delta", "index": 0, "delta": text }),
        json!({ "type": "content_block_stop", "index": 0 }),
    ];
    events[0]["message"]["stop_reason"] = Value::Null;
    events.extend(used(1, "a").into_iter().chain(used(2, "b")));
    events.push(
        json!({ "type": "message_delta", "delta": { "stop_reason": "tool_use" },
                        "usage": { "output_tokens": 7 } }),
    );
    events.push(json!({ "type": "message_stop" }));
    let chat = json!({ "model": "am", "messages": [user("Hi")], "tools": [tool()] });
    let (told, _) = world.stream(CHAT, chat, &events).await;
    let calls = told
        .iter()
        .filter_map(|event| event.pointer("/choices/0/delta/tool_calls/0"));
    let calls: Vec<_> = calls.collect();
    let named: Vec<_> = calls
        .iter()
        .filter(|call| call.get("id").is_some())
        .collect();
    let places: Vec<_> = named
        .iter()
        .map(|call| (&call["index"], &call["id"]))
        .collect();
    assert_eq!(
        places,
        [(&json!(0), &json!("a")), (&json!(1), &json!("b"))],
        "19"
    );
    assert!(
        calls
            .iter()
            .all(|call| call["function"].get("name").is_some() == call.get("id").is_some()),
        "19"
    );

    let chunk = |delta: Value, reason: Value| json!({ "choices": [{ "index": 0, "delta": delta, "finish_reason": reason }] });
    let mut whole = call("a", "{\"a\":1}");
    whole["index"] = 0.into();
    let usage = json!({ "prompt_tokens": 120, "completion_tokens": 7,
                        "prompt_tokens_details": { "cached_tokens": 100 } });
    let events = [
        chunk(json!({ "content": "One" }), Value::Null),
        chunk(json!({ "tool_calls": [whole] }), Value::Null),
        chunk(json!({ "content": "Two" }), Value::Null),
        chunk(json!({}), "tool_calls".into()),
        json!({ "choices": [], "usage": usage }),
    ];
    let asked = json!({ "model": "oc", "max_tokens": 9, "messages": [user("Hi")] });
    let (told, _) = world.stream(MESSAGES, asked, &events).await;
    let begun = told
        .iter()
        .filter(|event| event["type"] == "content_block_start");
    let begun: Vec<_> = begun
        .map(|event| {
            (
                event["index"].as_u64().unwrap(),
                event["content_block"]["type"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(begun, [(0, "text"), (1, "tool_use"), (2, "text")], "20");
    let of = |kind: &str| told.iter().find(|event| event["type"] == kind).unwrap();
    assert!(
        of("message_start")
            .pointer("/message/usage/input_tokens")
            .unwrap()
            .is_u64(),
        "20"
    );
    let counted = &of("message_delta")["usage"];
    assert_eq!(
        (
            &counted["input_tokens"],
            &counted["cache_read_input_tokens"]
        ),
        (&json!(20), &json!(100)),
        "20 and 24"
    );

    let asked = json!({ "model": "oc", "input": "Hi", "store": false });
    let cut = [
        chunk(json!({ "content": "One" }), Value::Null),
        chunk(json!({}), "length".into()),
    ];
    let broken = [
        chunk(json!({ "content": "One" }), Value::Null),
        json!({ "error": { "message": "no" } }),
    ];
    for (events, last) in [
        (&cut[..], "response.incomplete"),
        (&broken[..], "response.failed"),
    ] {
        let (told, _) = world.stream(RESPONSES, asked.clone(), events).await;
        let end = told.last().unwrap();
        assert_eq!(end["type"], last, "21: {told:?}");
        assert_eq!(end["response"]["id"], told[0]["response"]["id"], "21");
    }
}

/// 23, 24, 25: ends, counts and failures.
async fn ends(world: &World) {
    let asked = |model: &str| json!({ "model": model, "messages": [user("Hi")] });
    let bad = candidate(&json!([]), "MALFORMED_FUNCTION_CALL");
    let (status, told, _) = world.ask(CHAT, asked("gm"), &bad).await;
    assert_eq!(status, 502, "23: {told}");
    let good = candidate(&json!([{ "text": "ok" }]), "STOP");
    let (_, told, _) = world.ask(CHAT, asked("gm"), &good).await;
    let usage = &told["usage"];
    let counts = (&usage["completion_tokens"], &usage["total_tokens"]);
    assert_eq!(counts, (&json!(5), &json!(10)), "24: {told}");
    let refusal = json!({ "message": "slow down", "originalStatusCode": 429 });
    let (status, text, _) = world.tell(CHAT, &asked("bc"), 424, refusal).await;
    assert_eq!(status, 429, "25: {text}");
    let (_, told, _) = world.ask(CHAT, asked("bc"), &converse("ok")).await;
    assert_eq!(told["usage"]["total_tokens"], 2, "25");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_house_says_survives_the_way_to_another_and_back() {
    let world = World::start().await;
    signatures(&world).await;
    signatures_of_bedrock(&world).await;
    parameters(&world).await;
    results(&world).await;
    streams(&world).await;
    ends(&world).await;
}
