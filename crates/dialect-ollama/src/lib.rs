//! Ollama's dialect (`/api`): chats, plain generations, embeddings, and what there is. Streams
//! are lines of JSON, and are the default.

pub mod dialect;
mod embed;
pub mod error;
mod events;
mod generate;
mod models;
pub(crate) mod operations;
mod request;

use std::time::Instant;

use serde_json::{Map, Value, json};
use volley_types::{Details, FinishReason, ModelRef, PredictError, Usage};

use volley_dialect_kit::clock::{now_ms, time};
use volley_dialect_kit::requests;
use volley_http_edge::body::Fields;

/// The name of the provider whose form this is.
const FORMAT: &str = "ollama";

/// The model that a body names, in `model` or, as older clients do, in `name`.
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

/// `latest` is what clients write who mean no version.
fn reference(name: &str) -> Result<ModelRef, PredictError> {
    requests::reference(name.strip_suffix(":latest").unwrap_or(name))
}

/// What takes time, in nanoseconds as the last line tells it.
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

    /// Adds the durations and counts of a finished answer. A server of this form knows its own
    /// durations.
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
        // What was not counted is not told.
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

/// Why an answer ended, in Ollama's words.
fn done_reason(reason: Option<FinishReason>) -> &'static str {
    match reason {
        Some(FinishReason::Length) => "length",
        _ => "stop",
    }
}

/// Calls in OpenAI's form as Ollama has them: with arguments that are objects, and without ids.
fn calls(calls: &[Value]) -> Value {
    let calls = calls.iter().map(|call| {
        let function = &call["function"];
        let arguments = function["arguments"].as_str().unwrap_or_default();
        let arguments = match serde_json::from_str(arguments) {
            Ok(arguments @ Value::Object(_)) => arguments,
            _ if arguments.trim().is_empty() => json!({}),
            // They are no object, and there is no other place for what they say.
            _ => json!({ "text": arguments }),
        };
        json!({ "function": { "name": function["name"], "arguments": arguments } })
    });
    calls.collect()
}

/// This moment, as RFC 3339 has it.
fn now() -> String {
    time(now_ms())
}

#[cfg(test)]
mod tests {
    use super::*;

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
