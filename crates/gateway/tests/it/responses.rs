//! OpenAI's responses: complete, and as a sequence of typed events.

use serde_json::{Value, json};
use volley_types::chat::conversation;
use volley_types::{
    ErrorCode, FinishReason, GenerationChunk, GenerationChunks, PredictError, Usage,
};

use super::support::{Edge, Reply, Script, last, text};

const RESPONSES: &str = "/v1/responses";

fn finished(reason: FinishReason) -> GenerationChunk {
    GenerationChunk {
        finish_reason: Some(reason),
        usage: Some(Usage {
            prompt_tokens: 2,
            completion_tokens: 3,
            ..Usage::default()
        }),
        ..last()
    }
}

fn thinking(text: &str) -> GenerationChunk {
    GenerationChunk {
        thinking: Some(text.to_owned()),
        ..GenerationChunk::default()
    }
}

fn calls(deltas: &Value) -> GenerationChunk {
    GenerationChunk {
        tool_calls: Some(deltas.to_string()),
        ..GenerationChunk::default()
    }
}

/// Reasoning, text, and two calls whose arguments interleave.
fn rich() -> Vec<GenerationChunk> {
    let begun = |index: usize, name: &str| {
        json!({ "index": index, "id": format!("c{index}"), "type": "function",
                "function": { "name": name, "arguments": "" } })
    };
    let more =
        |index: usize, text: &str| json!({ "index": index, "function": { "arguments": text } });
    vec![
        thinking("h"),
        thinking("m"),
        text("Let \"me\" "),
        text("see."),
        calls(&json!([begun(0, "f")])),
        calls(&json!([begun(1, "g"), more(0, "{\"a\":")])),
        calls(&json!([more(1, "{}"), more(0, "1}")])),
        finished(FinishReason::ToolCalls),
    ]
}

fn rich_output() -> Value {
    let logprobs: [Value; 0] = [];
    json!([
        { "type": "reasoning", "summary": [],
          "content": [{ "type": "reasoning_text", "text": "hm" }] },
        { "type": "message", "role": "assistant", "status": "completed",
          "content": [{ "type": "output_text", "text": "Let \"me\" see.", "annotations": [],
                        "logprobs": logprobs }] },
        { "type": "function_call", "status": "completed", "call_id": "c0", "name": "f",
          "arguments": "{\"a\":1}" },
        { "type": "function_call", "status": "completed", "call_id": "c1", "name": "g",
          "arguments": "{}" },
    ])
}

/// The items without their ids, which are all different.
fn without_ids(output: &Value) -> Value {
    let mut output = output.clone();
    let mut ids = Vec::new();
    for item in output.as_array_mut().unwrap() {
        ids.push(item.as_object_mut().unwrap().remove("id").unwrap());
    }
    ids.dedup();
    assert_eq!(ids.len(), output.as_array().unwrap().len());
    output
}

/// The events of a stream. Checks that their names are their types, and that their sequence numbers
/// have no gap.
fn events(reply: &Reply) -> Vec<Value> {
    assert_eq!(reply.status, 200, "{}", reply.text());
    let blocks = reply.text().split_terminator("\n\n").enumerate();
    let events = blocks.map(|(number, block)| {
        let (name, data) = block.split_once('\n').expect(block);
        let event: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(
            Some(event["type"].as_str().unwrap()),
            name.strip_prefix("event: ")
        );
        assert_eq!(event["sequence_number"], number);
        event
    });
    events.collect()
}

#[tokio::test]
async fn a_response_has_its_items_and_repeats_its_request() {
    let edge = Edge::start().await;
    edge.cluster.script("m", Script::Chunks(rich()));
    let body = json!({ "model": "m", "input": "Weather?", "instructions": "Be brief.",
                       "max_output_tokens": 7, "temperature": 0.5, "metadata": { "a": "b" } });
    let response = edge.post(RESPONSES, &body.to_string()).await.ok();
    assert_eq!(without_ids(&response["output"]), rich_output());
    for (field, value) in [
        ("object", json!("response")),
        ("model", json!("m")),
        ("status", json!("completed")),
        ("error", Value::Null),
        ("incomplete_details", Value::Null),
        ("instructions", json!("Be brief.")),
        ("max_output_tokens", json!(7)),
        ("temperature", json!(0.5)),
        ("metadata", json!({ "a": "b" })),
        ("store", json!(true)),
        ("tools", json!([])),
        ("tool_choice", json!("auto")),
        ("parallel_tool_calls", json!(true)),
    ] {
        assert_eq!(response[field], value, "{field}");
    }
    assert_eq!(response["usage"]["input_tokens"], 2);
    assert_eq!(response["usage"]["total_tokens"], 5);
    assert!(response["id"].as_str().unwrap().starts_with("resp_"));
    let called = edge.cluster.last_call();
    let said = conversation(called.rows.column_by_name("messages").unwrap(), 0).unwrap();
    assert_eq!(
        (said[0].role.as_str(), said[1].content.as_str()),
        ("system", "Weather?")
    );
    let given: Vec<_> = called.parameters.iter().map(|(name, _)| name).collect();
    assert_eq!(given, ["max_tokens", "temperature"]);
}

#[tokio::test]
async fn a_stream_is_the_whole_sequence_and_its_end_the_whole_response() {
    let edge = Edge::start().await;
    edge.cluster.script("m", Script::Chunks(rich()));
    let body = json!({ "model": "m", "input": "Weather?", "stream": true }).to_string();
    let events = events(&edge.post(RESPONSES, &body).await);
    let kinds: Vec<_> = events
        .iter()
        .map(|event| {
            let kind = event["type"].as_str().unwrap();
            let kind = kind.strip_prefix("response.").unwrap();
            match event["output_index"].as_u64() {
                Some(place) => format!("{place} {kind}"),
                None => kind.to_owned(),
            }
        })
        .collect();
    assert_eq!(
        kinds,
        [
            "created",
            "in_progress",
            "0 output_item.added",
            "0 content_part.added",
            "0 reasoning_text.delta",
            "0 reasoning_text.delta",
            "0 reasoning_text.done",
            "0 content_part.done",
            "0 output_item.done",
            "1 output_item.added",
            "1 content_part.added",
            "1 output_text.delta",
            "1 output_text.delta",
            "1 output_text.done",
            "1 content_part.done",
            "1 output_item.done",
            "2 output_item.added",
            "3 output_item.added",
            "2 function_call_arguments.delta",
            "3 function_call_arguments.delta",
            "2 function_call_arguments.delta",
            "2 function_call_arguments.done",
            "2 output_item.done",
            "3 function_call_arguments.done",
            "3 output_item.done",
            "completed",
        ]
    );
    assert_eq!(events[0]["response"]["status"], "in_progress");
    let response = &events.last().unwrap()["response"];
    assert_eq!(response["id"], events[0]["response"]["id"]);
    assert_eq!(without_ids(&response["output"]), rich_output());
    assert_eq!(response["usage"]["output_tokens"], 3);
    let done = events
        .iter()
        .filter(|event| event["type"] == "response.output_item.done");
    let done: Vec<_> = done.map(|event| event["item"].clone()).collect();
    assert_eq!(response["output"], json!(done));
}

#[tokio::test]
async fn an_answer_that_was_cut_is_incomplete_and_one_of_nothing_has_a_message() {
    let edge = Edge::start().await;
    let chunks = vec![text("Once"), finished(FinishReason::Length)];
    edge.cluster.script("cut", Script::Chunks(chunks));
    edge.cluster.script("dumb", Script::Chunks(vec![last()]));
    for stream in [false, true] {
        let ask =
            |model: &str| json!({ "model": model, "input": "Hi", "stream": stream }).to_string();
        let whole = |reply: Reply| match stream {
            true => events(&reply).pop().unwrap()["response"].clone(),
            false => reply.ok(),
        };
        let cut = whole(edge.post(RESPONSES, &ask("cut")).await);
        assert_eq!(cut["status"], "incomplete");
        assert_eq!(
            cut["incomplete_details"],
            json!({ "reason": "max_output_tokens" })
        );
        assert_eq!(cut["output"][0]["status"], "incomplete");
        let dumb = whole(edge.post(RESPONSES, &ask("dumb")).await);
        assert_eq!(dumb["status"], "completed");
        assert_eq!(dumb["output"][0]["content"][0]["text"], "");
    }
}

#[tokio::test]
async fn a_stream_that_fails_says_so_last_and_a_refusal_is_an_error_in_their_shape() {
    let edge = Edge::start().await;
    let error = PredictError::new(ErrorCode::UpstreamIncomplete, "it broke off");
    let feed = edge.cluster.feed("m");
    let batch = GenerationChunks::single(&text("Once"));
    feed.send(Ok(batch)).await.unwrap();
    feed.send(Err(error)).await.unwrap();
    let body = json!({ "model": "m", "input": "Hi", "stream": true }).to_string();
    let events = events(&edge.post(RESPONSES, &body).await);
    let end = events.last().unwrap();
    assert_eq!(end["type"], "response.failed");
    let expected = json!({ "code": "server_error", "message": "it broke off" });
    assert_eq!(end["response"]["error"], expected);
    assert_eq!(end["response"]["output"][0]["content"][0]["text"], "Once");
    assert_eq!(end["response"]["output"][0]["status"], "incomplete");

    let stored = json!({ "model": "m", "input": "Hi", "previous_response_id": "resp_1" });
    let refused = edge.post(RESPONSES, &stored.to_string()).await;
    assert!(
        refused
            .refused_openai(400)
            .contains("names a response that is not stored")
    );
    assert_eq!(refused.json()["error"]["param"], "previous_response_id");
    let unknown = json!({ "model": "nobody", "input": "Hi" }).to_string();
    edge.post(RESPONSES, &unknown).await.refused_openai(404);
}

#[tokio::test]
async fn unknown_nested_fields_are_refused_by_name() {
    let edge = Edge::start().await;
    edge.cluster
        .script("m", Script::Chunks(vec![text("Hi"), last()]));
    for (field, value, name) in [
        ("reasoning", json!({ "bogus": 1 }), "'reasoning.bogus'"),
        ("text", json!({ "bogus": 1 }), "'text.bogus'"),
        ("include", json!(["bogus"]), "'bogus'"),
        (
            "stream_options",
            json!({ "bogus": 1 }),
            "'stream_options.bogus'",
        ),
    ] {
        let mut body = json!({ "model": "m", "input": "Hi" });
        body[field] = value;
        let reply = edge.post("/v1/responses", &body.to_string()).await;
        assert!(reply.refused_openai(400).contains(name), "{name}");
    }
}

#[tokio::test]
async fn messages_of_the_same_format_stay_apart() {
    let edge = Edge::start().await;
    let begun = GenerationChunk {
        details: Some(json!({ "format": "openai_responses", "begins": true }).to_string()),
        ..GenerationChunk::default()
    };
    let chunks = vec![begun.clone(), text("a"), begun, text("b"), last()];
    edge.cluster.script("m", Script::Chunks(chunks));
    let body = json!({ "model": "m", "input": "Hi" }).to_string();
    let response = edge.post("/v1/responses", &body).await.ok();
    let output = response["output"].as_array().unwrap();
    let texts: Vec<_> = output
        .iter()
        .map(|item| item["content"][0]["text"].clone())
        .collect();
    assert_eq!(texts, ["a", "b"]);
}
