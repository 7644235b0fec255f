//! The arguments of calls, which some servers send as an object and others as its text.

use volley_provider_kit::calls::ToolCallAccumulator;
use volley_provider_kit::step::{Delta, Step};

use super::*;

fn arguments(step: Step) -> String {
    let deltas = match step {
        Step::Delta(delta) | Step::Last(delta) => vec![delta],
        Step::All(deltas) => deltas,
        step => panic!("{step:?}"),
    };
    let calls = |delta: Delta| {
        delta
            .tool_calls
            .map(|it| serde_json::from_str(&it).unwrap())
    };
    let calls: Vec<Value> = deltas
        .into_iter()
        .filter_map(calls)
        .flat_map(|it: Vec<Value>| it)
        .collect();
    let texts = calls
        .iter()
        .filter_map(|call| call["function"]["arguments"].as_str());
    texts.collect()
}

#[test]
fn arguments_are_never_empty_because_of_their_type() {
    for input in [json!({ "a": 1 }), json!("{\"a\":1}")] {
        let function = json!({ "name": "f", "arguments": input });
        for (name, body) in [
            (
                "anthropic",
                json!({ "content": [{ "type": "tool_use", "id": "c", "name": "f", "input": input }] }),
            ),
            (
                "bedrock",
                json!({ "output": { "message": { "content": [
                    { "toolUse": { "toolUseId": "c", "name": "f", "input": input } }] } } }),
            ),
            (
                "gemini",
                json!({ "candidates": [{ "content": { "parts": [
                    { "functionCall": { "name": "f", "args": input } }] } }] }),
            ),
            (
                "cohere",
                json!({ "message": { "tool_calls": [{ "id": "c", "function": function }] } }),
            ),
            (
                "openai_responses",
                json!({ "output": [{ "type": "function_call", "call_id": "c", "name": "f",
                    "arguments": input }] }),
            ),
            (
                "openai",
                json!({ "choices": [{ "message": { "tool_calls": [
                    { "id": "c", "function": function }] } }] }),
            ),
            (
                "mistral",
                json!({ "choices": [{ "message": { "tool_calls": [
                    { "id": "c", "function": function }] } }] }),
            ),
            (
                "ollama",
                json!({ "message": { "tool_calls": [{ "function": function }] }, "done": true }),
            ),
        ] {
            let calls = &mut ToolCallAccumulator::default();
            let read = named(name).unwrap().read_whole;
            let read = read(body.to_string().as_bytes(), calls).unwrap();
            assert_eq!(arguments(read), "{\"a\":1}", "{name} {input}");
        }
    }
}
