//! Mistral's chat completions: OpenAI's format with fewer fields and unnumbered tool calls.

use serde_json::{Value, json};
use volley_backend::items::Item;
use volley_provider_kit::calls::in_order;
use volley_provider_kit::conversation::{
    messages_without_developer, openai_messages, unsigned_reasoning,
};
use volley_provider_kit::effort::{self, Effort, Thinking};
use volley_provider_kit::names::{IdRule, NameRule, NameRules};
use volley_provider_kit::normalize::{allowed_only, check_tool_choice, take_users};
use volley_provider_kit::parameters::{ParameterTable, RequestFields};
use volley_provider_kit::provider::{AnswerForm, Page, Provider};
use volley_types::{ChatMessage, Dialect, PredictError};

use crate::openai;

pub(crate) static PROVIDER: Provider = Provider {
    page: Page {
        endpoint: "chat completions, `…/v1/chat/completions`",
        url: "host `*.mistral.ai`",
        ..Page::NONE
    },
    route: "/v1/chat/completions",
    other_routes: &[("/v1/completions", false), ("/fim/completions", false)],
    recognizes: |address| address.is_of("mistral.ai"),
    flat_body: true,
    answer_form: Some(AnswerForm::OpenAi),
    names: Some(NameRules {
        tools: NameRule::up_to(64),
        ids: Some(IdRule::Letters(9)),
        domains: &[],
    }),
    read: |data, calls| openai::read(data).and_then(|step| in_order(step, calls)),
    read_whole: |body, calls| openai::read_whole(body).and_then(|step| in_order(step, calls)),
    ..Provider::new("mistral", &PARAMETERS, body)
};

static PARAMETERS: ParameterTable = ParameterTable {
    server: "Mistral's chat completions",
    dialects: &[Dialect::Own],
    names: &[
        ("max_tokens", "max_tokens"),
        ("max_completion_tokens", "max_tokens"),
        ("max_new_tokens", "max_tokens"),
        ("seed", "random_seed"),
        ("random_seed", "random_seed"),
    ],
    own: &[
        "frequency_penalty",
        "guardrails",
        "logprobs",
        "metadata",
        "parallel_tool_calls",
        "prediction",
        "presence_penalty",
        "prompt_cache_key",
        "prompt_mode",
        "reasoning_effort",
        "response_format",
        "safe_prompt",
        "service_tier",
        "stop",
        "temperature",
        "tool_choice",
        "tools",
        "top_k",
        "top_logprobs",
        "top_p",
    ],
    ranges: &[
        ("temperature", 0.0, 1.5),
        ("top_p", 0.0, 1.0),
        ("presence_penalty", -2.0, 2.0),
        ("frequency_penalty", -2.0, 2.0),
    ],
    stops: usize::MAX,
};

fn body(model: &str, item: &Item, mut request: RequestFields<'_>) -> Result<Value, PredictError> {
    check_tool_choice(&request.fields)?;
    allowed_only(&mut request.fields);
    if request.fields.contains_key("thinking") {
        let level = match effort::take(&mut request)? {
            Some(Thinking::Off) => Some("none"),
            Some(thinking) => Some(thinking.level().unwrap_or(Effort::Medium).as_str()),
            None => None,
        };
        if let Some(level) = level {
            request
                .fields
                .insert("reasoning_effort".to_owned(), level.into());
        }
    }
    for (name, user) in take_users(&mut request.fields) {
        let metadata = request
            .fields
            .entry("metadata")
            .or_insert_with(|| json!({}));
        metadata[name] = user.into();
    }
    let mut body = request.finish()?;
    if let Some(choice) = body.get_mut("tool_choice").filter(|c| **c == "required") {
        *choice = "any".into();
    }
    body.insert("model".to_owned(), model.into());
    let talk = messages_without_developer(item);
    let mut turns = openai_messages(&talk);
    place_reasoning(&talk, &mut turns);
    body.insert("messages".to_owned(), turns.into());
    Ok(Value::Object(body))
}

/// Writes reasoning as a part before the text. The server needs no signature.
fn place_reasoning(talk: &[ChatMessage], turns: &mut [Value]) {
    let of_assistant = |role: &str| role == "assistant";
    let said = talk.iter().filter(|sent| of_assistant(&sent.role));
    // The images of tools are additional turns, but of the user.
    let turns = turns.iter_mut();
    let turns = turns.filter(|turn| turn["role"].as_str().is_some_and(of_assistant));
    for (sent, turn) in said.zip(turns) {
        let Some(text) = unsigned_reasoning(sent) else {
            continue;
        };
        let thinking = json!([{ "type": "text", "text": text }]);
        let mut parts = vec![json!({ "type": "thinking", "thinking": thinking })];
        match turn["content"].take() {
            Value::String(text) if !text.is_empty() => {
                parts.push(json!({ "type": "text", "text": text }));
            }
            Value::Array(more) => parts.extend(more),
            _ => {}
        }
        turn["content"] = parts.into();
    }
}

#[cfg(test)]
mod tests {
    use volley_provider_kit::calls::ToolCallAccumulator;
    use volley_provider_kit::step::Step;

    use super::*;
    use crate::tests::asking;

    #[test]
    fn the_body_has_only_what_the_server_knows() {
        let tools = json!([{ "type": "function", "function": { "name": "f" } }]);
        let fields = json!({
            "tools": tools, "seed": 3, "max_completion_tokens": 9, "user": "u", "stream_options": {},
            "tool_choice": "required", "safe_prompt": true,
        });
        let fields = fields.as_object().cloned().unwrap();
        let item = Item::Prompt("hi".to_owned());
        let body = asking(&PARAMETERS, fields, |request| body("small", &item, request)).unwrap();
        let expected = json!({
            "model": "small", "messages": [{ "role": "user", "content": "hi" }],
            "tools": tools, "random_seed": 3, "max_tokens": 9, "tool_choice": "any", "safe_prompt": true,
            "metadata": { "user": "u" },
        });
        assert_eq!(body, expected);
    }

    #[test]
    fn reasoning_returns_as_a_part_and_developers_are_the_system() {
        let item = Item::Chat(vec![
            ChatMessage::new("developer", "be brief"),
            ChatMessage {
                details: Some(json!({ "thinking": [{ "text": "hm" }] }).to_string()),
                ..ChatMessage::new("assistant", "ho")
            },
        ]);
        let none = serde_json::Map::new();
        let body = asking(&PARAMETERS, none, |request| body("small", &item, request)).unwrap();
        let expected = json!([
            { "role": "system", "content": "be brief" },
            { "role": "assistant", "content": [
                { "type": "thinking", "thinking": [{ "type": "text", "text": "hm" }] },
                { "type": "text", "text": "ho" } ] },
        ]);
        assert_eq!(body["messages"], expected);
    }

    #[test]
    fn calls_are_numbered_and_their_arguments_are_text() {
        let mut calls = ToolCallAccumulator::new(7);
        let data = r#"{"choices":[{"delta":{"tool_calls":[
            {"id":"null","function":{"name":"f","arguments":{"a":1}}},
            {"id":"abcdefghi","function":{"name":"g","arguments":"{"}}]},"finish_reason":null}]}"#;
        let Step::Delta(delta) = (PROVIDER.read)(data, &mut calls).unwrap() else {
            panic!()
        };
        let begun: Value = serde_json::from_str(&delta.tool_calls.unwrap()).unwrap();
        assert_eq!(begun[0]["function"]["arguments"], "{\"a\":1}");
        assert_eq!(begun[0]["id"], "call_0000000000000007_0");
        assert_eq!(
            (&begun[1]["index"], &begun[1]["id"]),
            (&json!(1), &json!("abcdefghi"))
        );
        let data = r#"{"choices":[{"delta":{"tool_calls":[{"function":{"arguments":"}"}}]}}]}"#;
        let Step::Delta(delta) = (PROVIDER.read)(data, &mut calls).unwrap() else {
            panic!()
        };
        let more: Value = serde_json::from_str(&delta.tool_calls.unwrap()).unwrap();
        assert_eq!(
            more,
            json!([{ "function": { "arguments": "}" }, "index": 1 }])
        );
    }
}
