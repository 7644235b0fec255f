//! Ollama's dialect (`/api`): chats, plain generations, embeddings, and lists of models. Streams
//! are JSON lines, and streaming is the default.

pub mod dialect;
mod embed;
pub mod error;
mod events;
mod generate;
mod messages;
mod models;
pub(crate) mod operations;
mod request;
mod sampling;

use std::time::Instant;

use serde_json::{Map, Value, json};
use volley_types::{Details, FinishReason, ModelRef, PredictError, Usage};

use volley_dialect_kit::blocks::input;
use volley_dialect_kit::clock::{now_ms, time};
use volley_dialect_kit::requests;
use volley_http_edge::body::Fields;

/// Name of the provider whose format this dialect uses.
const FORMAT: &str = "ollama";

/// The model of a request: the field `model`, or `name`, which older clients send.
fn named(body: &Map<String, Value>) -> Result<(String, ModelRef), PredictError> {
    let name = match body.text("model")?.filter(|name| !name.is_empty()) {
        Some(name) => name,
        None => body.text("name")?.unwrap_or_default(),
    };
    if name.is_empty() {
        return Err(PredictError::invalid("field 'model' is missing"));
    }
    Ok((name.to_owned(), reference(name)?))
}

/// Parses a model name. Clients append `:latest` if they mean no version.
fn reference(name: &str) -> Result<ModelRef, PredictError> {
    requests::reference(name.strip_suffix(":latest").unwrap_or(name))
}

/// Start of a request and of its output. Durations are written in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Times {
    begun: Instant,
    first: Option<Instant>,
}

impl Times {
    fn begin() -> Self {
        Self {
            begun: Instant::now(),
            first: None,
        }
    }

    fn heard(&mut self) {
        self.first.get_or_insert_with(Instant::now);
    }

    /// Adds durations and token counts to a finished response. Durations of an upstream of this
    /// format take precedence.
    fn write_into(&self, usage: Option<Usage>, details: &Details, into: &mut Value) {
        let end = Instant::now();
        let first = self.first.unwrap_or(end);
        let nanos = |from: Instant, to: Instant| {
            let span = to.saturating_duration_since(from).as_nanos();
            u64::try_from(span).unwrap_or(u64::MAX)
        };
        into["total_duration"] = nanos(self.begun, end).into();
        into["load_duration"] = 0.into();
        into["prompt_eval_duration"] = nanos(self.begun, first).into();
        into["eval_duration"] = nanos(first, end).into();
        // Unknown counts are left out.
        if let Some(usage) = usage {
            into["prompt_eval_count"] = usage.prompt_tokens.into();
            into["eval_count"] = usage.completion_tokens.into();
        }
        let native = details.format.as_deref() == Some(FORMAT);
        let told = details.fields.as_ref().filter(|_| native);
        for (name, value) in told.and_then(Value::as_object).into_iter().flatten() {
            into[name.as_str()] = value.clone();
        }
    }
}

/// The finish reason in Ollama's terms, which has none for a refusal.
fn done_reason(reason: Option<FinishReason>, refused: bool) -> &'static str {
    match reason {
        Some(FinishReason::Length) => "length",
        Some(FinishReason::ContentFilter) => "content_filter",
        _ if refused => "content_filter",
        _ => "stop",
    }
}

/// Converts calls from OpenAI's format to Ollama's, in which arguments are objects and calls have
/// no ids. A call that the end of the answer cut off is left out.
///
/// # Errors
/// `UpstreamFailed` if the arguments of a call are not an object.
fn calls(calls: &[Value], reason: Option<FinishReason>) -> Result<Value, PredictError> {
    let mut told = Vec::with_capacity(calls.len());
    for call in calls {
        let function = &call["function"];
        let name = function["name"].as_str().unwrap_or_default();
        let arguments = function["arguments"].as_str().unwrap_or_default();
        if let Some(arguments) = input(name, arguments, reason)? {
            told.push(json!({ "function": { "name": name, "arguments": arguments } }));
        }
    }
    Ok(told.into())
}

/// The current time in the format of RFC 3339.
fn now() -> String {
    time(now_ms())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_never_made_up() {
        let call = |arguments: &str| json!({ "function": { "name": "f", "arguments": arguments } });
        let cut = [call("{\"a\":1}"), call("{\"city\":\"Be")];
        let error = calls(&cut, Some(FinishReason::ToolCalls)).unwrap_err();
        assert_eq!(error.code, volley_types::ErrorCode::UpstreamFailed);
        let whole = json!([{ "function": { "name": "f", "arguments": { "a": 1 } } }]);
        assert_eq!(calls(&cut, Some(FinishReason::Length)).unwrap(), whole);
    }

    #[test]
    fn latest_is_no_version() {
        assert_eq!(reference("m:latest").unwrap(), "m".parse().unwrap());
        assert_eq!(reference("m:2").unwrap(), "m:2".parse().unwrap());
        assert_eq!(
            reference("library/m:latest").unwrap(),
            "library/m".parse().unwrap()
        );
        let unknown = reference("library/m:7b").unwrap_err();
        assert_eq!(unknown.code, volley_types::ErrorCode::NotFound);
    }
}
