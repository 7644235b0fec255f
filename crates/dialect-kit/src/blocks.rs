//! Message blocks in Anthropic's format, which responses of other dialects use too. Pure.

use http::{HeaderValue, header};
use serde_json::{Value, json};
use volley_http_edge::axum::response::{IntoResponse, Response};
use volley_types::{Details, ErrorCode, FinishReason, PredictError, Usage, exact};

/// Anthropic's name of a finish reason.
pub fn stop_reason(reason: Option<FinishReason>) -> &'static str {
    match reason {
        Some(FinishReason::Length) => "max_tokens",
        Some(FinishReason::ToolCalls) => "tool_use",
        Some(FinishReason::ContentFilter) => "refusal",
        Some(FinishReason::Stop | FinishReason::Error) | None => "end_turn",
    }
}

/// Whether a stop string ended the answer. Some providers do not report which one.
pub fn is_stop_sequence(details: &Details) -> bool {
    let reason = details.stop_reason.as_deref().unwrap_or_default();
    details.stop_sequence.is_some() || reason.eq_ignore_ascii_case("stop_sequence")
}

/// The counts of a usage. `input_tokens` excludes the tokens that were read from or written to a
/// cache.
#[must_use]
pub fn usage(usage: Usage) -> Value {
    let mut told = json!({
        "input_tokens": uncached(usage),
        "output_tokens": usage.completion_tokens,
    });
    let counts = [
        ("cache_creation_input_tokens", usage.cache_write_tokens),
        ("cache_read_input_tokens", usage.cached_tokens),
    ];
    for (name, count) in counts.into_iter().filter(|(_, count)| *count != 0) {
        told[name] = count.into();
    }
    if usage.reasoning_tokens != 0 {
        told["output_tokens_details"] = json!({ "thinking_tokens": usage.reasoning_tokens });
    }
    told
}

/// The prompt tokens that were neither read from nor written to a cache.
#[must_use]
pub fn uncached(usage: Usage) -> u32 {
    let cached = usage.cached_tokens.saturating_add(usage.cache_write_tokens);
    usage.prompt_tokens.saturating_sub(cached)
}

/// The input of a call of `name`, an object for a body that [`body`] or [`exact::write`] writes. No
/// arguments mean an empty one. `None` if the end of the answer cut the arguments off: such a call
/// must not be run.
///
/// # Errors
/// `UpstreamFailed` naming the function if complete arguments are not an object.
pub fn input(
    name: &str,
    arguments: &str,
    reason: Option<FinishReason>,
) -> Result<Option<Value>, PredictError> {
    let is_cut = matches!(
        reason,
        Some(FinishReason::Length | FinishReason::ContentFilter)
    );
    let read = match arguments.trim() {
        "" => (!is_cut).then(|| json!({})),
        text => exact::object(text),
    };
    match read {
        Some(input) => Ok(Some(input)),
        None if is_cut => Ok(None),
        None => Err(PredictError::new(
            ErrorCode::UpstreamFailed,
            format!(
                "the model called '{name}' with arguments that are not a JSON object; send the \
                 request again"
            ),
        )),
    }
}

/// A response with this body.
pub fn body(body: &Value) -> Response {
    let media = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, media)], exact::write(body)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_of_a_cache_are_counted_apart() {
        let counts = Usage {
            prompt_tokens: 127,
            completion_tokens: 2,
            cached_tokens: 100,
            cache_write_tokens: 7,
            ..Usage::default()
        };
        assert_eq!(
            usage(counts),
            json!({ "input_tokens": 20, "output_tokens": 2,
                    "cache_creation_input_tokens": 7, "cache_read_input_tokens": 100 })
        );
    }

    #[test]
    fn arguments_are_never_made_up() {
        let stop = Some(FinishReason::ToolCalls);
        assert_eq!(input("f", " ", stop).unwrap(), Some(json!({})));
        assert_eq!(input("f", "", Some(FinishReason::Length)).unwrap(), None);
        assert_eq!(
            input("f", "{\"a\":1}", Some(FinishReason::Length)).unwrap(),
            Some(json!({ "a": 1 }))
        );
        for bad in ["{\"city\":\"Be", "[1]", "\"a\"", "text"] {
            let error = input("weather", bad, stop).unwrap_err();
            assert_eq!(error.code, ErrorCode::UpstreamFailed);
            assert!(error.message.contains("'weather'"), "{error}");
            assert_eq!(input("f", bad, Some(FinishReason::Length)).unwrap(), None);
        }
    }
}
