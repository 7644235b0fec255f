//! A wire format each: how a request is written, and what its events mean. Pure.

pub(crate) mod anthropic;
pub(crate) mod openai;
mod typed;

use serde_json::{Map, Value};
use volley_backend::items::Item;
use volley_types::registry::{ConnectorSpec, ProviderKind};
use volley_types::{ChatMessage, FinishReason, ParamValue, Parameters, PredictError, Usage};

use crate::sse::Event;
use crate::template;

/// What an event brings. Empty where it brings nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Delta {
    pub(crate) text: Option<String>,
    pub(crate) thinking: Option<String>,
    /// A JSON array of tool-call deltas.
    pub(crate) tool_calls: Option<String>,
    pub(crate) finish_reason: Option<FinishReason>,
    pub(crate) prompt_tokens: Option<u32>,
    pub(crate) completion_tokens: Option<u32>,
}

impl Delta {
    /// Whether it has something for the caller by itself.
    pub(crate) fn has_content(&self) -> bool {
        let some = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
        some(&self.text) || some(&self.thinking) || some(&self.tool_calls)
    }
}

/// What came of one event.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    /// It brings something, or nothing.
    Delta(Delta),
    /// It is the answer's own end.
    End,
    /// The server says that it failed; its message.
    Failed(String),
}

/// Reads an event; `tools` counts the answer's tool calls where the format does not.
///
/// # Errors
/// `Err` with what is wrong when it is not of the format; never with what the event says.
pub(crate) fn read(provider: ProviderKind, event: &Event, tools: &mut u32) -> Result<Step, String> {
    match provider {
        ProviderKind::OpenAi => openai::read(event),
        ProviderKind::Anthropic => anthropic::read(event, tools),
    }
}

/// Reads an answer that is one whole JSON object, from a server that does not stream.
///
/// # Errors
/// `Err` with what is wrong when it is not of the format.
pub(crate) fn read_whole(provider: ProviderKind, body: &[u8]) -> Result<Step, String> {
    match provider {
        ProviderKind::OpenAi => openai::read_whole(body),
        ProviderKind::Anthropic => anthropic::read_whole(body),
    }
}

/// The body of a request.
///
/// # Errors
/// `InvalidInput` when a template lacks a parameter or makes no JSON object, or a parameter that
/// is known is not of its type.
pub(crate) fn body(
    connector: &ConnectorSpec,
    item: &Item,
    parameters: &Parameters,
) -> Result<Value, PredictError> {
    let fields = fields(parameters)?;
    let mut body = match &connector.request_body {
        Some(template) => template::fill(template, |name| {
            template_value(connector, item, &fields, name)
        })?,
        None => match connector.provider {
            ProviderKind::OpenAi => openai::body(&connector.model, item, fields),
            ProviderKind::Anthropic => anthropic::body(&connector.model, item, fields),
        },
    };
    // Whatever the caller or a template says: this worker reads streams.
    if let Value::Object(fields) = &mut body {
        fields.insert("stream".to_owned(), true.into());
    }
    Ok(body)
}

fn template_value(
    connector: &ConnectorSpec,
    item: &Item,
    fields: &Map<String, Value>,
    name: &str,
) -> Option<Value> {
    let given = fields.get(name).cloned();
    given.or_else(|| match (name, item) {
        ("model", _) => Some(connector.model.clone().into()),
        ("prompt" | "inputs", Item::Prompt(prompt)) => Some(prompt.clone().into()),
        ("messages", item) => Some(Value::Array(messages(item).iter().map(message).collect())),
        _ => None,
    })
}

/// A plain prompt is one user's message.
pub(crate) fn messages(item: &Item) -> Vec<ChatMessage> {
    match item {
        Item::Prompt(prompt) => {
            vec![ChatMessage::new("user", prompt)]
        }
        Item::Chat(messages) => messages.clone(),
    }
}

/// A message in OpenAI's form.
pub(crate) fn message(message: &ChatMessage) -> Value {
    let mut fields = serde_json::json!({ "role": message.role, "content": message.content });
    if let Some(calls) = message.tool_calls.as_deref().and_then(parsed) {
        if message.content.is_empty() {
            fields["content"] = Value::Null;
        }
        fields["tool_calls"] = calls;
    }
    if let Some(id) = &message.tool_call_id {
        fields["tool_call_id"] = id.as_str().into();
    }
    fields
}

fn parsed(json: &str) -> Option<Value> {
    serde_json::from_str(json).ok()
}

/// All parameters as fields of a body. Names are the server's business.
fn fields(parameters: &Parameters) -> Result<Map<String, Value>, PredictError> {
    let parameters = typed::typed(parameters)?;
    let choices = parameters.unsigned("n")?;
    if choices.is_some_and(|choices| choices != 1) {
        return Err(PredictError::invalid(
            "parameter 'n' must be 1: a request to a remote model has one answer",
        ));
    }
    // `raw` is about chat templates, which are the upstream's business.
    let given = parameters.iter().filter(|(name, _)| *name != "raw");
    let fields = given.map(|(name, value)| {
        let value = match name {
            "stop" => parameters.strings(name)?.into(),
            "n" => 1.into(),
            _ => json(value),
        };
        Ok((name.to_owned(), value))
    });
    fields.collect()
}

fn json(value: &ParamValue) -> Value {
    match value {
        ParamValue::Bool(value) => (*value).into(),
        ParamValue::Int(value) => (*value).into(),
        ParamValue::Float(value) => (*value).into(),
        ParamValue::Text(text) => text.as_str().into(),
        ParamValue::Json(text) => {
            serde_json::from_str(text).unwrap_or_else(|_| text.as_str().into())
        }
    }
}

/// Adds what is known of the usage.
pub(crate) fn usage(total: &mut Usage, delta: &Delta) {
    total.prompt_tokens = delta.prompt_tokens.unwrap_or(total.prompt_tokens);
    total.completion_tokens = delta.completion_tokens.unwrap_or(total.completion_tokens);
}

#[cfg(test)]
mod tests {
    use volley_types::ErrorCode;

    use super::*;

    fn given(pairs: &[(&str, ParamValue)]) -> Result<Map<String, Value>, PredictError> {
        let pairs = pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.clone()));
        fields(&pairs.collect())
    }

    #[test]
    fn numbers_may_come_as_text_and_stops_in_every_form() {
        let text = |text: &str| ParamValue::Text(text.to_owned());
        let fields = given(&[
            ("max_tokens", text(" 32 ")),
            ("temperature", text("0.5")),
            ("stop", text("END")),
            ("user", text("7")),
        ]);
        let expected = serde_json::json!({
            "max_tokens": 32, "temperature": 0.5, "stop": ["END"], "user": "7",
        });
        assert_eq!(Value::Object(fields.unwrap()), expected);
    }

    #[test]
    fn a_parameter_of_the_wrong_type_is_named() {
        for (name, value) in [
            ("temperature", ParamValue::Text("hot".to_owned())),
            ("top_p", ParamValue::Float(f64::NAN)),
            ("stop", ParamValue::Int(3)),
            ("n", ParamValue::Int(2)),
        ] {
            let error = given(&[(name, value)]).unwrap_err();
            assert_eq!(error.code, ErrorCode::InvalidInput);
            assert!(error.message.contains(name), "{}", error.message);
        }
    }
}
