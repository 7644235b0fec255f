//! Differences among the models behind Converse, by name. Pure.

use serde_json::{Map, Value, json};
use volley_provider_kit::effort::{self, Effort, Thinking};
use volley_provider_kit::normalize::ResponseFormat;
use volley_provider_kit::parameters::RequestFields;
use volley_provider_kit::provider::ANSWER_TOOL;
use volley_types::{Dialect, PredictError};

use crate::anthropic::claude::{self, Claude};

/// Whether a model is from Anthropic.
pub(super) fn is_claude(model: &str) -> bool {
    model.contains("claude")
}

/// Whether a model caches prompts. Others reject marks for a cache.
pub(super) fn has_cache(model: &str) -> bool {
    is_claude(model) || model.contains("nova")
}

/// Takes the reasoning options of a request and returns them as fields of the model.
///
/// # Errors
/// `InvalidInput` for malformed options.
pub(super) fn thinking(
    model: &str,
    request: &mut RequestFields<'_>,
) -> Result<Option<Value>, PredictError> {
    // Options in the model's own format are forwarded unchanged.
    let is_models = match request.dialect() {
        Dialect::Own => true,
        Dialect::Cohere | Dialect::Ollama => false,
        _ => is_claude(model),
    };
    if is_models && !request.fields.contains_key("reasoning_effort") {
        return Ok(None);
    }
    let Some(thinking) = effort::take(request)? else {
        return Ok(None);
    };
    Ok(Some(if is_claude(model) {
        of_claude(model, thinking)
    } else if model.contains("nova") {
        of_nova(thinking)
    } else {
        let level = match thinking {
            Thinking::Off => "none",
            // The model also decides without the parameter.
            Thinking::On if request.dialect() == Dialect::Anthropic => return Ok(None),
            thinking => thinking.level().map_or("medium", Effort::as_str),
        };
        json!({ "reasoning_effort": level })
    }))
}

fn of_claude(model: &str, thinking: Thinking) -> Value {
    match (thinking, Claude::of(model).adapts) {
        (Thinking::Off, _) => json!({ "thinking": { "type": "disabled" } }),
        (thinking, true) => {
            let mut made = json!({ "thinking": { "type": "adaptive", "display": "summarized" } });
            if let Some(level) = thinking.level() {
                made["output_config"] = json!({ "effort": claude::level(level) });
            }
            made
        }
        (thinking, false) => {
            let budget = thinking.budget().unwrap_or(1_024).max(1_024);
            json!({ "thinking": { "type": "enabled", "budget_tokens": budget } })
        }
    }
}

fn of_nova(thinking: Thinking) -> Value {
    let level = thinking.level().map(|level| match level {
        Effort::Minimal | Effort::Low => "low",
        Effort::Medium => "medium",
        Effort::High | Effort::Xhigh | Effort::Max => "high",
    });
    match (thinking, level) {
        (Thinking::Off, _) => json!({ "reasoningConfig": { "type": "disabled" } }),
        (_, None) => json!({ "reasoningConfig": { "type": "enabled" } }),
        (_, Some(level)) => {
            json!({ "reasoningConfig": { "type": "enabled", "maxReasoningEffort": level } })
        }
    }
}

/// Adds the reasoning fields to those of the model.
///
/// # Errors
/// `InvalidInput` if a tool call is required and the model cannot reason then, or if the token
/// limit leaves no room for the answer.
pub(super) fn think(body: &mut Map<String, Value>, thinking: Value) -> Result<(), PredictError> {
    let choice = body
        .get("toolConfig")
        .and_then(|config| config.get("toolChoice"));
    let forced = choice.is_some_and(|choice| choice.get("auto").is_none());
    let budget = thinking
        .pointer("/thinking/budget_tokens")
        .and_then(Value::as_u64);
    if forced && budget.is_some() {
        return Err(PredictError::invalid(
            "this model does not support parameter 'reasoning_effort' with a required tool call \
             or a response schema: leave one of them out",
        ));
    }
    // The token limit includes reasoning.
    let limit = body
        .get("inferenceConfig")
        .and_then(|config| config["maxTokens"].as_u64());
    if let Some((budget, limit)) = budget.zip(limit).filter(|(budget, limit)| limit <= budget) {
        return Err(PredictError::invalid(format!(
            "parameter 'reasoning_effort' allows {budget} reasoning tokens and needs a \
             'max_tokens' above that instead of {limit}"
        )));
    }
    let Value::Object(mut fields) = thinking else {
        return Ok(());
    };
    if forced && fields.contains_key("output_config") {
        // The effort level applies without it.
        fields.remove("thinking");
    }
    let own = body.entry("additionalModelRequestFields");
    let own = own.or_insert_with(|| json!({}));
    if let Value::Object(own) = own {
        for (name, value) in fields {
            own.entry(name).or_insert(value);
        }
    }
    Ok(())
}

/// Sets the format of the answer: by Converse's `outputConfig`, or by a required tool whose input
/// is the answer.
///
/// # Errors
/// `InvalidInput` for a schema that the model does not support.
pub(super) fn answer_in(
    body: &mut Map<String, Value>,
    model: &str,
    form: ResponseFormat,
) -> Result<(), PredictError> {
    let schema = match form {
        ResponseFormat::Text => return Ok(()),
        ResponseFormat::Object => json!({ "type": "object" }),
        ResponseFormat::Schema(schema) => {
            let claude = is_claude(model).then(|| Claude::of(model));
            let fitted = match claude {
                Some(claude) => claude.has_forms.then(|| claude::fitted(&schema)).flatten(),
                None => Some(schema.clone()),
            };
            if let Some(schema) = fitted {
                let structure = json!({ "jsonSchema": {
                    "name": "answer", "schema": schema.to_string() } });
                let config = body.entry("outputConfig").or_insert_with(|| json!({}));
                config["textFormat"] = json!({ "type": "json_schema", "structure": structure });
                return Ok(());
            }
            schema
        }
    };
    let spec = json!({
        "name": ANSWER_TOOL,
        "description": "Gives the answer. Call this tool once, with the whole answer as its input.",
        "inputSchema": { "json": claude::object(schema)? },
    });
    let config = body.entry("toolConfig").or_insert_with(|| json!({}));
    let mut tools = config["tools"].as_array().cloned().unwrap_or_default();
    let given = &config["toolChoice"];
    let is_forced = given.get("any").or_else(|| given.get("tool")).is_some();
    // The required call comes first, and the answer in a later turn.
    if is_forced && !tools.is_empty() {
        return Ok(());
    }
    let choice = match tools.is_empty() {
        true => json!({ "tool": { "name": ANSWER_TOOL } }),
        false => json!({ "any": {} }),
    };
    tools.push(json!({ "toolSpec": spec }));
    config["tools"] = tools.into();
    config["toolChoice"] = choice;
    Ok(())
}

/// Limits an Anthropic model to one tool call at a time. Converse has no such field.
pub(super) fn one_at_a_time(body: &mut Map<String, Value>) {
    let chosen = body
        .get("toolConfig")
        .is_some_and(|config| config.get("toolChoice").is_some());
    let mut choice = json!({ "disable_parallel_tool_use": true });
    if !chosen {
        choice["type"] = "auto".into();
    }
    let fields = body.entry("additionalModelRequestFields");
    let fields = fields.or_insert_with(|| json!({}));
    if fields["tool_choice"].is_null() {
        fields["tool_choice"] = choice;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bedrock::PROVIDER;
    use crate::tests::asking_in;

    #[test]
    fn reasoning_without_a_level_is_not_turned_off() {
        let effort = |dialect, asked: Value| {
            let fields = [("thinking".to_owned(), asked)].into_iter().collect();
            let made = asking_in(dialect, PROVIDER.parameters, fields, |mut request| {
                thinking("openai.gpt-oss-120b-1:0", &mut request)
            });
            made.unwrap().map(|made| made["reasoning_effort"].clone())
        };
        let on = json!({ "type": "enabled" });
        assert_eq!(effort(Dialect::Cohere, on), Some(json!("medium")));
        let off = json!({ "type": "disabled" });
        assert_eq!(effort(Dialect::Cohere, off), Some(json!("none")));
        let adaptive = json!({ "type": "adaptive" });
        assert_eq!(effort(Dialect::Anthropic, adaptive), None);
    }
}
