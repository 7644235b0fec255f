//! Whole answers in the form of the server that a connector calls. OpenSearch hands a server's
//! answer on as it is, so its clients look for theirs in `dataAsMap`.

use serde_json::{Map, Value, json};
use volley_providers::AnswerForm;
use volley_types::registry::{ModelSource, ProviderName, RegistryState};
use volley_types::{FinishReason, ModelRef, PredictError, Usage};

use volley_dialect_kit::answer::Choice;
use volley_dialect_kit::blocks as anthropic;
use volley_http_edge::body::Fields;

/// Whose form an answer has beside Volley's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UpstreamDialect {
    /// OpenAI's chat completions.
    OpenAi,
    /// Bedrock's Converse.
    Converse,
    /// Gemini's `generateContent`.
    Gemini,
    /// Anthropic's messages.
    Anthropic,
}

impl UpstreamDialect {
    /// What `parameters._llm_interface` names, or else the connector of a remote model has.
    pub(crate) fn of(
        body: &Map<String, Value>,
        registry: &RegistryState,
        model: &ModelRef,
    ) -> Option<Self> {
        let parameters = body.object("parameters").ok().flatten();
        let named = parameters.and_then(|all| all.get("_llm_interface")?.as_str());
        named
            .and_then(Self::of_interface)
            .or_else(|| Self::of_provider(provider(registry, model)?))
    }

    fn of_interface(name: &str) -> Option<Self> {
        let name = name.trim().to_ascii_lowercase();
        match name.as_str() {
            "openai/v1/chat/completions" => Some(Self::OpenAi),
            "gemini/v1beta/generatecontent" => Some(Self::Gemini),
            _ if name.starts_with("bedrock/converse") => Some(Self::Converse),
            _ => None,
        }
    }

    fn of_provider(provider: ProviderName) -> Option<Self> {
        let provider = volley_providers::named(provider.as_str())?;
        Some(match provider.answer_form? {
            AnswerForm::OpenAi => Self::OpenAi,
            AnswerForm::Converse => Self::Converse,
            AnswerForm::Gemini => Self::Gemini,
            AnswerForm::Anthropic => Self::Anthropic,
        })
    }

    /// Adds the answer in this form to `map`.
    ///
    /// # Errors
    /// `UpstreamFailed` if the arguments of a call are not an object, which this form needs.
    pub(crate) fn write_into(self, choice: &Choice, map: &mut Value) -> Result<(), PredictError> {
        let usage = choice.usage.unwrap_or_default();
        match self {
            Self::OpenAi => {
                let calls = !choice.tool_calls.is_empty();
                let said = choice.said();
                let refusal = &map["refusal"];
                let says = !said.is_empty() || !calls && refusal.is_null();
                let content = says.then_some(said);
                let mut message = json!({ "role": "assistant", "content": content });
                if !refusal.is_null() {
                    message["refusal"] = refusal.clone();
                }
                if calls {
                    message["tool_calls"] = choice.tool_calls.clone().into();
                }
                let reason = choice.finish_reason.unwrap_or(FinishReason::Stop).as_str();
                map["choices"] =
                    json!([{ "index": 0, "message": message, "finish_reason": reason }]);
            }
            Self::Converse => {
                let message = json!({ "role": "assistant", "content": blocks(choice, converse)? });
                map["output"] = json!({ "message": message });
                map["stopReason"] = stop_reason(choice.finish_reason).into();
                let names = ["inputTokens", "outputTokens", "totalTokens"];
                count(usage, names, &mut map["usage"]);
            }
            Self::Gemini => {
                let content = json!({ "role": "model", "parts": blocks(choice, gemini)? });
                let reason = match choice.finish_reason {
                    Some(FinishReason::Length) => "MAX_TOKENS",
                    Some(FinishReason::ContentFilter) => "SAFETY",
                    _ => "STOP",
                };
                map["candidates"] =
                    json!([{ "index": 0, "content": content, "finishReason": reason }]);
                let names = [
                    "promptTokenCount",
                    "candidatesTokenCount",
                    "totalTokenCount",
                ];
                count(usage, names, &mut map["usageMetadata"]);
            }
            Self::Anthropic => {
                map["role"] = "assistant".into();
                let mut content = blocks(choice, tool_use)?;
                for block in content.as_array_mut().into_iter().flatten() {
                    if block.get("text").is_some() {
                        block["type"] = "text".into();
                    }
                }
                map["content"] = content;
                map["stop_reason"] = anthropic::stop_reason(choice.finish_reason).into();
                map["usage"]["input_tokens"] = usage.prompt_tokens.into();
                map["usage"]["output_tokens"] = usage.completion_tokens.into();
            }
        }
        Ok(())
    }
}

fn provider(registry: &RegistryState, model: &ModelRef) -> Option<ProviderName> {
    let entry = registry.models.get(&model.name)?;
    // All versions of a remote model answer to the same clients: the newest says for whom.
    let spec = match model.version {
        Some(version) => entry.versions.get(&version),
        None => entry.versions.values().next_back(),
    };
    match &spec?.source {
        ModelSource::Connector(id) => Some(registry.connectors.get(id)?.provider),
        _ => None,
    }
}

/// The text, where there is any or no calls are, and the calls as `call` has them.
fn blocks(choice: &Choice, call: impl Fn(&Value, Value) -> Value) -> Result<Value, PredictError> {
    let text = !choice.text.is_empty() || choice.tool_calls.is_empty();
    let text = text.then(|| json!({ "text": choice.text }));
    let mut told: Vec<_> = text.into_iter().collect();
    for given in &choice.tool_calls {
        let text = |path: &str| given.pointer(path).and_then(Value::as_str);
        let name = text("/function/name").unwrap_or_default();
        let arguments = text("/function/arguments").unwrap_or_default();
        if anthropic::input(name, arguments, choice.finish_reason)?.is_some() {
            // Arguments without text are an empty object.
            let input = serde_json::from_str(arguments);
            told.push(call(given, input.unwrap_or_else(|_| json!({}))));
        }
    }
    Ok(told.into())
}

fn tool_use(call: &Value, input: Value) -> Value {
    json!({
        "type": "tool_use",
        "id": call.get("id"),
        "name": call.pointer("/function/name"),
        "input": input,
    })
}

fn converse(call: &Value, input: Value) -> Value {
    json!({ "toolUse": {
        "toolUseId": call["id"], "name": call.pointer("/function/name"), "input": input,
    } })
}

fn gemini(call: &Value, input: Value) -> Value {
    let name = call.pointer("/function/name");
    json!({ "functionCall": { "name": name, "args": input } })
}

fn stop_reason(reason: Option<FinishReason>) -> &'static str {
    match reason {
        Some(FinishReason::ContentFilter) => "content_filtered",
        reason => anthropic::stop_reason(reason),
    }
}

fn count(usage: Usage, names: [&str; 3], into: &mut Value) {
    let total = u64::from(usage.prompt_tokens) + u64::from(usage.completion_tokens);
    into[names[0]] = usage.prompt_tokens.into();
    into[names[1]] = usage.completion_tokens.into();
    into[names[2]] = total.into();
}

#[cfg(test)]
mod tests {
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
}
