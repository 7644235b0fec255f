//! Requests in OpenAI's format. Pure.

use serde_json::{Map, Value, json};
use volley_backend::items::Item;
use volley_provider_kit::conversation::{self, messages, openai_messages, unsigned_reasoning};
use volley_provider_kit::effort::{self, Effort, Thinking};
use volley_provider_kit::parameters::{ParameterTable, RequestFields};
use volley_types::{Dialect, PredictError};

/// Parameters of OpenAI's servers and of all compatible ones.
pub(crate) static PARAMETERS: ParameterTable = ParameterTable {
    server: "OpenAI's chat completions",
    dialects: &[Dialect::OpenAi, Dialect::Own],
    names: &[],
    own: &[
        "audio",
        "bad_words",
        "best_of",
        "chat_template_kwargs",
        "documents",
        "echo",
        "frequency_penalty",
        "function_call",
        "functions",
        "grammar",
        "guided_choice",
        "guided_grammar",
        "guided_json",
        "guided_regex",
        "ignore_eos",
        "json_schema",
        "length_penalty",
        "logit_bias",
        "logprobs",
        "max_completion_tokens",
        "max_new_tokens",
        "max_tokens",
        "metadata",
        "min_p",
        "min_tokens",
        "modalities",
        "moderation",
        "n",
        "parallel_tool_calls",
        "prediction",
        "presence_penalty",
        "prompt_cache_key",
        "prompt_cache_retention",
        "reasoning",
        "reasoning_effort",
        "repeat_penalty",
        "repetition_penalty",
        "response_format",
        "safety_identifier",
        "seed",
        "service_tier",
        "stop",
        "stop_token_ids",
        "store",
        "stream_options",
        "structured_outputs",
        "suffix",
        "temperature",
        "thinking",
        "tool_choice",
        "tools",
        "top_k",
        "top_logprobs",
        "top_p",
        "user",
        "verbosity",
    ],
    ranges: &[],
    stops: usize::MAX,
};

pub(super) fn body(
    model: &str,
    item: &Item,
    mut request: RequestFields<'_>,
) -> Result<Value, PredictError> {
    translated(&mut request)?;
    let mut body = request.finish()?;
    talk(model, item, &mut body);
    refusals(item, &mut body);
    // `false` is a setting for servers without this field.
    if body.get("stream_options") == Some(&Value::Bool(false)) {
        body.remove("stream_options");
    } else {
        body.entry("stream_options")
            .or_insert_with(|| json!({ "include_usage": true }));
    }
    Ok(Value::Object(body))
}

/// Converts parameters of other dialects to OpenAI's.
pub(crate) fn translated(request: &mut RequestFields<'_>) -> Result<(), PredictError> {
    let (max, older) = ("max_completion_tokens", "max_tokens");
    let both = request.fields.get(max).zip(request.fields.get(older));
    if both.is_some_and(|(one, other)| one != other) {
        match (request.is_given(max), request.is_given(older)) {
            (true, false) => _ = request.take(older),
            (false, true) => _ = request.take(max),
            _ => {
                return Err(PredictError::invalid(
                    "parameter 'max_tokens' and parameter 'max_completion_tokens' contradict each \
                     other; send one of them",
                ));
            }
        }
    }
    let dialect = request.dialect();
    if matches!(
        dialect,
        Dialect::Anthropic | Dialect::Cohere | Dialect::Ollama
    ) {
        let level = match effort::take(request)? {
            Some(Thinking::Off) => Some("none"),
            // The model also decides without the parameter.
            Some(Thinking::On) if dialect == Dialect::Anthropic => None,
            Some(Thinking::On) => Some("medium"),
            None => None,
            Some(thinking) => thinking.level().map(Effort::as_str),
        };
        if let Some(level) = level {
            request
                .fields
                .insert("reasoning_effort".to_owned(), level.into());
        }
    }
    if request.dialect() == Dialect::Anthropic {
        translate_user_and_tier(request)?;
    }
    if request.dialect() == Dialect::Cohere && request.fields.get("strict_tools").is_some() {
        let strict = request.take("strict_tools").unwrap_or_default();
        let tools = request
            .fields
            .get_mut("tools")
            .and_then(Value::as_array_mut);
        for tool in tools.into_iter().flatten() {
            if tool["function"].is_object() {
                tool["function"]["strict"] = strict.clone();
            }
        }
    }
    Ok(())
}

/// Translates the user and the service tier of Anthropic's dialect.
fn translate_user_and_tier(request: &mut RequestFields<'_>) -> Result<(), PredictError> {
    if let Some(metadata) = request.take("metadata") {
        let user = metadata.get("user_id").filter(|user| !user.is_null());
        let others = metadata
            .as_object()
            .is_none_or(|all| all.keys().any(|it| it != "user_id"));
        if others {
            return Err(request.refused("metadata", "it may only have a 'user_id'"));
        }
        if let Some(user) = user {
            request.fields.insert("user".to_owned(), user.clone());
        }
    }
    match request.fields.get("service_tier").and_then(Value::as_str) {
        None | Some("auto") => {}
        Some("standard_only") => {
            request
                .fields
                .insert("service_tier".to_owned(), "default".into());
        }
        Some(_) => {
            let why = "it must be 'auto' or 'standard_only'";
            return Err(request.refused("service_tier", why));
        }
    }
    Ok(())
}

/// Moves the refusals in the conversation to their own field, which other servers of this format
/// may not know.
fn refusals(item: &Item, body: &mut Map<String, Value>) {
    let given = messages(item);
    let mut given = given.iter().filter(|it| it.role == "assistant");
    let made = body.get_mut("messages").and_then(Value::as_array_mut);
    for fields in made.into_iter().flatten() {
        if fields["role"] != "assistant" {
            continue;
        }
        if let Some((text, refusal)) = given.next().and_then(conversation::refusal) {
            fields["content"] = Some(text).filter(|text| !text.is_empty()).into();
            fields["refusal"] = refusal.into();
        }
    }
}

/// Adds the model and the messages.
pub(crate) fn talk(model: &str, item: &Item, body: &mut Map<String, Value>) {
    body.insert("model".to_owned(), model.into());
    let talk = messages(item);
    let mut turns = openai_messages(&talk);
    // The images of tools are additional turns, but of the user.
    let said = talk.iter().filter(|sent| sent.role == "assistant");
    let told = turns.iter_mut().filter(|turn| turn["role"] == "assistant");
    for (sent, turn) in said.zip(told) {
        if let Some(text) = unsigned_reasoning(sent) {
            turn["reasoning_content"] = text.into();
        }
    }
    body.insert("messages".to_owned(), turns.into());
}

#[cfg(test)]
mod tests {
    use volley_types::ChatMessage;

    use super::*;
    use crate::tests::{asking, asking_in};

    #[test]
    fn the_body_has_the_parameters_and_asks_for_usage() {
        let fields = |fields: Value| fields.as_object().cloned().unwrap();
        let item = Item::Prompt("hi".into());
        let made = |given: Value| {
            asking(&PARAMETERS, fields(given), |request| {
                body("gpt", &item, request)
            })
            .unwrap()
        };
        let body = made(json!({ "temperature": 0.5 }));
        assert_eq!(
            body["messages"],
            json!([{ "role": "user", "content": "hi" }])
        );
        assert_eq!(body["temperature"], 0.5);
        assert_eq!(body["stream_options"]["include_usage"], true);
        assert_eq!(body["model"], "gpt");
        let body = made(json!({ "stream_options": false }));
        assert!(body.get("stream_options").is_none());
    }

    #[test]
    fn a_refusal_in_the_history_stays_one() {
        let refused = ChatMessage {
            details: Some(json!({ "refusal": "No." }).to_string()),
            ..ChatMessage::new("assistant", "No.")
        };
        let item = Item::Chat(vec![
            ChatMessage::new("assistant", "a"),
            ChatMessage::new("user", "b"),
            refused,
        ]);
        let body = asking(&PARAMETERS, Map::new(), |request| {
            body("gpt", &item, request)
        });
        assert_eq!(
            body.unwrap()["messages"],
            json!([{ "role": "assistant", "content": "a" }, { "role": "user", "content": "b" },
                   { "role": "assistant", "content": null, "refusal": "No." }])
        );
    }

    #[test]
    fn unsigned_reasoning_returns_to_compatible_servers() {
        let thinking = json!([
            { "text": "hm" }, { "text": "no", "signature": "s", "format": "anthropic" },
        ]);
        let item = Item::Chat(vec![ChatMessage {
            details: Some(json!({ "thinking": thinking }).to_string()),
            ..ChatMessage::new("assistant", "ho")
        }]);
        let body = asking_in(Dialect::Anthropic, &PARAMETERS, Map::new(), |request| {
            body("m", &item, request)
        });
        let expected = json!([{ "role": "assistant", "content": "ho", "reasoning_content": "hm" }]);
        assert_eq!(body.unwrap()["messages"], expected);
    }

    #[test]
    fn what_other_providers_say_is_said_in_openais_words() {
        let item = Item::Prompt("hi".into());
        let made = |dialect: Dialect, fields: Value| {
            let fields = fields.as_object().cloned().unwrap();
            asking_in(dialect, &PARAMETERS, fields, |request| {
                body("gpt", &item, request)
            })
        };
        let claude = json!({
            "thinking": { "type": "enabled", "budget_tokens": 4096 },
            "metadata": { "user_id": "u" }, "service_tier": "standard_only",
        });
        let sent = made(Dialect::Anthropic, claude).unwrap();
        assert_eq!(sent["reasoning_effort"], "high");
        assert_eq!(
            (&sent["user"], &sent["service_tier"]),
            (&json!("u"), &json!("default"))
        );
        assert!(sent.get("thinking").is_none() && sent.get("metadata").is_none());
        let same = json!({ "thinking": { "type": "enabled" }, "newest": 1 });
        let sent = made(Dialect::OpenAi, same).unwrap();
        assert_eq!(
            (&sent["thinking"]["type"], &sent["newest"]),
            (&json!("enabled"), &json!(1))
        );
        for (dialect, name) in [
            (Dialect::Anthropic, "context_management"),
            (Dialect::Anthropic, "mcp_servers"),
            (Dialect::Cohere, "safety_mode"),
            (Dialect::Cohere, "citation_options"),
            (Dialect::OpenAiResponses, "newest"),
        ] {
            let error = made(dialect, json!({ name: {} })).unwrap_err();
            assert!(error.message.contains(&format!("'{name}'")), "{error}");
        }
        let both = json!({ "max_tokens": 9, "max_completion_tokens": 5 });
        assert!(
            made(Dialect::OpenAi, both)
                .unwrap_err()
                .message
                .contains("'max_tokens'")
        );
    }
}
