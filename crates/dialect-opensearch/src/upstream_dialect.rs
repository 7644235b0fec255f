//! Complete responses in the format of the server that a connector calls. OpenSearch forwards a
//! server's response unchanged, so its clients expect the fields of that server in `dataAsMap`.

use serde_json::{Map, Value, json};
use volley_providers::AnswerForm;
use volley_types::registry::{ModelSource, ProviderName, RegistryState};
use volley_types::{FinishReason, ModelRef, PredictError, Usage};

use volley_dialect_kit::answer::Choice;
use volley_dialect_kit::blocks as anthropic;
use volley_dialect_kit::pieces::Piece;
use volley_http_edge::body::Fields;

/// The provider whose response format is added to Volley's own.
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
    /// The format that `parameters._llm_interface` names, or otherwise the one of the connector.
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

    /// Adds the response in this format to `map`.
    ///
    /// # Errors
    /// `UpstreamFailed` if the arguments of a call are not an object, which this format needs.
    pub(crate) fn write_into(self, choice: &Choice, map: &mut Value) -> Result<(), PredictError> {
        match self {
            Self::OpenAi => write_openai(choice, map),
            Self::Converse => write_converse(choice, map)?,
            Self::Gemini => write_gemini(choice, map)?,
            Self::Anthropic => write_anthropic(choice, map)?,
        }
        Ok(())
    }
}

fn write_openai(choice: &Choice, map: &mut Value) {
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
    if !choice.thinking.is_empty() {
        message["reasoning_content"] = choice.thinking.as_str().into();
    }
    if !choice.refusal.is_empty() {
        message["refusal"] = choice.refusal.as_str().into();
    }
    let reason = choice.finish_reason.unwrap_or(FinishReason::Stop).as_str();
    map["choices"] = json!([{ "index": 0, "message": message, "finish_reason": reason }]);
}

fn write_converse(choice: &Choice, map: &mut Value) -> Result<(), PredictError> {
    let thought = |text: &str, signature: Option<&str>| {
        let mut reasoning = json!({ "text": text });
        if let Some(signature) = signature {
            reasoning["signature"] = signature.into();
        }
        json!({ "reasoningContent": { "reasoningText": reasoning } })
    };
    let content = blocks(choice, thought, converse)?;
    let message = json!({ "role": "assistant", "content": content });
    map["output"] = json!({ "message": message });
    map["stopReason"] = stop_reason(choice.finish_reason).into();
    let names = ["inputTokens", "outputTokens", "totalTokens"];
    if let Some(usage) = choice.usage {
        count(usage, names, &mut map["usage"]);
        map["usage"]["inputTokens"] = anthropic::uncached(usage).into();
        let counts = [
            ("cacheReadInputTokens", usage.cached_tokens),
            ("cacheWriteInputTokens", usage.cache_write_tokens),
        ];
        for (name, count) in counts.into_iter().filter(|(_, count)| *count != 0) {
            map["usage"][name] = count.into();
        }
    }
    Ok(())
}

fn write_gemini(choice: &Choice, map: &mut Value) -> Result<(), PredictError> {
    let thought = |text: &str, signature: Option<&str>| {
        let mut part = json!({ "text": text, "thought": true });
        if let Some(signature) = signature {
            part["thoughtSignature"] = signature.into();
        }
        part
    };
    let parts = blocks(choice, thought, gemini)?;
    let content = json!({ "role": "model", "parts": parts });
    let reason = match choice.finish_reason {
        Some(FinishReason::Length) => "MAX_TOKENS",
        Some(FinishReason::ContentFilter) => "SAFETY",
        _ => "STOP",
    };
    map["candidates"] = json!([{ "index": 0, "content": content, "finishReason": reason }]);
    let names = [
        "promptTokenCount",
        "candidatesTokenCount",
        "totalTokenCount",
    ];
    if let Some(usage) = choice.usage {
        let told = &mut map["usageMetadata"];
        count(usage, names, told);
        if usage.reasoning_tokens != 0 {
            let said = usage
                .completion_tokens
                .saturating_sub(usage.reasoning_tokens);
            told["candidatesTokenCount"] = said.into();
            told["thoughtsTokenCount"] = usage.reasoning_tokens.into();
        }
        if usage.cached_tokens != 0 {
            told["cachedContentTokenCount"] = usage.cached_tokens.into();
        }
    }
    Ok(())
}

fn write_anthropic(choice: &Choice, map: &mut Value) -> Result<(), PredictError> {
    map["role"] = "assistant".into();
    let thought = |text: &str, signature: Option<&str>| {
        let signature = signature.unwrap_or_default();
        json!({ "type": "thinking", "thinking": text, "signature": signature })
    };
    let mut content = blocks(choice, thought, tool_use)?;
    for block in content.as_array_mut().into_iter().flatten() {
        if block.get("text").is_some() {
            block["type"] = "text".into();
        }
    }
    map["content"] = content;
    map["stop_reason"] = anthropic::stop_reason(choice.finish_reason).into();
    if let Some(usage) = choice.usage
        && let Value::Object(counts) = anthropic::usage(usage)
    {
        for (name, count) in counts {
            map["usage"][name.as_str()] = count;
        }
    }
    Ok(())
}

fn provider(registry: &RegistryState, model: &ModelRef) -> Option<ProviderName> {
    let entry = registry.models.get(&model.name)?;
    // All versions of a remote model serve the same clients, so the newest version determines the
    // format.
    let spec = match model.version {
        Some(version) => entry.versions.get(&version),
        None => entry.versions.values().next_back(),
    };
    match &spec?.source {
        ModelSource::Connector(id) => Some(registry.connectors.get(id)?.provider),
        _ => None,
    }
}

/// The content blocks, for a body that [`exact::write`](volley_types::exact::write) serializes: the
/// reasoning formatted by `thought`, the text, unless it is empty beside
/// calls, and the calls formatted by `call`.
///
/// # Errors
/// `UpstreamFailed` if the arguments of a call are not an object.
fn blocks(
    choice: &Choice,
    thought: impl Fn(&str, Option<&str>) -> Value,
    call: impl Fn(&Value, Value) -> Value,
) -> Result<Value, PredictError> {
    let signature = choice.pieces.iter().find_map(|piece| match piece {
        Piece::Details(details) => details.signature.as_deref(),
        _ => None,
    });
    let thinks = !choice.thinking.is_empty() || signature.is_some();
    let thought = thinks.then(|| thought(&choice.thinking, signature));
    let text = !choice.text.is_empty() || choice.tool_calls.is_empty();
    let text = text.then(|| json!({ "text": choice.text }));
    let mut told: Vec<_> = thought.into_iter().chain(text).collect();
    for given in &choice.tool_calls {
        let text = |path: &str| given.pointer(path).and_then(Value::as_str);
        let name = text("/function/name").unwrap_or_default();
        let arguments = text("/function/arguments").unwrap_or_default();
        if let Some(input) = anthropic::input(name, arguments, choice.finish_reason)? {
            told.push(call(given, input));
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
mod tests;
