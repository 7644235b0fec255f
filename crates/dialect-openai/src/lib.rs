//! OpenAI's dialect (`/v1`): chat and plain completions, responses, embeddings and models. It
//! includes reranking in the format of Cohere and Jina, which most servers offer beside OpenAI's
//! routes.

pub(crate) mod chat;
pub(crate) mod completions;
pub mod dialect;
pub(crate) mod embeddings;
pub(crate) mod events;
pub mod models;
pub(crate) mod operations;
pub mod responses;
pub mod state;

use serde_json::{Map, Value, json};
use volley_types::{Details, ErrorCode, FinishReason, PredictError, Usage};

use volley_http_edge::body::{Fields, take_flag};

/// Removes `stream` and `stream_options`. Returns whether to stream, and whether to send the usage
/// in the stream.
fn take_stream(body: &mut Map<String, Value>) -> Result<(bool, bool), PredictError> {
    let stream = take_flag(body, "stream")?;
    let mut options = match body.remove("stream_options") {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(options)) if stream => options,
        Some(Value::Object(_)) => {
            return Err(PredictError::invalid(
                "field 'stream_options' needs 'stream' to be true",
            ));
        }
        Some(_) => {
            return Err(PredictError::invalid(
                "field 'stream_options' must be an object",
            ));
        }
    };
    let usage = take_flag(&mut options, "include_usage")?;
    for name in ["continuous_usage_stats", "include_obfuscation"] {
        if take_flag(&mut options, name)? {
            return Err(unsupported(&format!("field 'stream_options.{name}'")));
        }
    }
    options.only("the field 'stream_options'", &["include_usage"])?;
    Ok((stream, usage))
}

/// The `system_fingerprint` of every response: the version of this server.
pub(crate) const FINGERPRINT: &str = concat!("volley-", env!("CARGO_PKG_VERSION"));

/// The usage of a response, with further fields of an upstream of this format.
fn usage(usage: Usage, details: &Details) -> Value {
    let mut told = json!({
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": u64::from(usage.prompt_tokens) + u64::from(usage.completion_tokens),
    });
    let counts = [
        (
            "prompt_tokens_details",
            "cached_tokens",
            usage.cached_tokens,
        ),
        (
            "prompt_tokens_details",
            "cache_write_tokens",
            usage.cache_write_tokens,
        ),
        (
            "completion_tokens_details",
            "reasoning_tokens",
            usage.reasoning_tokens,
        ),
    ];
    for (object, name, count) in counts.into_iter().filter(|(.., count)| *count != 0) {
        told[object][name] = count.into();
    }
    let native = details.usage.as_ref().and_then(Value::as_object);
    if let (Some("openai"), Some(native)) = (details.format.as_deref(), native) {
        for (name, value) in native {
            match (&mut told[name.as_str()], value) {
                (Value::Object(own), Value::Object(value)) => {
                    for (name, value) in value {
                        own.entry(name.clone()).or_insert_with(|| value.clone());
                    }
                }
                (own @ Value::Null, value) => *own = value.clone(),
                _ => {}
            }
        }
    }
    told
}

/// The finish reason in OpenAI's terms. A failed item never gets here, because it fails the whole
/// response.
fn finish_reason(reason: Option<FinishReason>) -> &'static str {
    reason.unwrap_or(FinishReason::Stop).as_str()
}

/// The provider's own word for a pause. OpenAI's reasons have none, so that a paused answer looks
/// like one that reached its limit.
fn pause(details: &Details) -> Option<&str> {
    const PAUSES: [&str; 3] = ["pause_turn", "compaction", "CONTINUATION"];
    let own = details.stop_reason.as_deref();
    own.filter(|own| PAUSES.contains(own))
}

/// Log probabilities in the format of chat completions; null if there are none.
fn logprobs(tokens: Vec<Value>) -> Value {
    if tokens.is_empty() {
        return Value::Null;
    }
    json!({ "content": tokens, "refusal": null })
}

/// The error for an unsupported field.
fn unsupported(what: &str) -> PredictError {
    PredictError::new(ErrorCode::InvalidInput, format!("{what} is not supported"))
}
