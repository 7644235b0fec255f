//! Classifies upstream errors by the codes and messages of all providers. Pure.

use serde_json::Value;
use volley_types::ErrorCode;

use crate::step::Step;

/// Class of an upstream error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The prompt does not fit the model's context.
    Context,
    /// A content filter rejected the request.
    Filter,
    /// The request is invalid in another way.
    Request,
    /// The request is too large.
    Size,
    /// The server rejected the connector's credential.
    Key,
    /// The account has no credit or quota left.
    Quota,
    /// The account exceeded a rate limit.
    Rate,
    /// The server is overloaded.
    Overload,
    /// The model is still starting.
    NotReady,
    /// The request timed out.
    Timeout,
}

/// Codes in `type`, `code`, `status`, `reason` and `error_type`, in lower case.
const WORDS: [(&str, FaultKind); 33] = [
    ("context_length_exceeded", FaultKind::Context),
    ("exceed_context_size_error", FaultKind::Context),
    ("string_above_max_length", FaultKind::Context),
    ("content_filter", FaultKind::Filter),
    ("content_policy_violation", FaultKind::Filter),
    ("responsibleaipolicyviolation", FaultKind::Filter),
    ("insufficient_quota", FaultKind::Quota),
    ("billing_error", FaultKind::Quota),
    ("billing_hard_limit_reached", FaultKind::Quota),
    ("billing_not_active", FaultKind::Quota),
    ("servicequotaexceededexception", FaultKind::Quota),
    ("api_key_invalid", FaultKind::Key),
    ("invalid_api_key", FaultKind::Key),
    ("authentication_error", FaultKind::Key),
    ("permission_error", FaultKind::Key),
    ("rate_limit_error", FaultKind::Rate),
    ("rate_limit_exceeded", FaultKind::Rate),
    ("resource_exhausted", FaultKind::Rate),
    ("throttlingexception", FaultKind::Rate),
    ("overloaded_error", FaultKind::Overload),
    ("overloaded", FaultKind::Overload),
    ("unavailable", FaultKind::Overload),
    ("serviceunavailableexception", FaultKind::Overload),
    ("modelnotreadyexception", FaultKind::NotReady),
    ("timeout_error", FaultKind::Timeout),
    ("deadline_exceeded", FaultKind::Timeout),
    ("modeltimeoutexception", FaultKind::Timeout),
    ("request_too_large", FaultKind::Size),
    ("invalid_request_error", FaultKind::Request),
    ("invalid_argument", FaultKind::Request),
    ("invalid_prompt", FaultKind::Request),
    ("badrequesterror", FaultKind::Request),
    ("validationexception", FaultKind::Request),
];

/// Values of `error_type` that denote an invalid request.
pub const REQUEST_ERRORS: [&str; 4] = [
    "validation",
    "template_error",
    "missing_template_variable",
    "tool_error",
];

/// Messages that mean that the prompt exceeds the context, in lower case.
const CONTEXT_TEXTS: [&str; 19] = [
    "maximum context length",
    "context_length_exceeded",
    "context length exceeded",
    "exceeds the maximum number of tokens",
    "exceeds the available context size",
    "exceeds the context window",
    "exceeds the model's maximum context",
    "exceeds context window",
    "exceed context limit",
    "exceeds the limit of the context",
    "prompt is too long",
    "input is too long",
    "input length exceeds",
    "too many input tokens",
    "too many tokens",
    "input token count",
    "longer than the maximum model length",
    "longer than the model's context",
    "`inputs` tokens + `max_new_tokens` must be <=",
];

/// Messages that mean that the account has no credit left, in lower case. Some servers report that
/// as an invalid request.
const QUOTA_TEXTS: [&str; 3] = [
    "credit balance is too low",
    "reached your specified api usage limits",
    "spend limit",
];

/// Whether a message means that the prompt exceeds the model's context.
pub fn is_context_length(text: &str) -> bool {
    let text = text.to_lowercase();
    CONTEXT_TEXTS.iter().any(|known| text.contains(known))
}

/// The class of an AWS exception, by its name.
pub fn of_exception(name: &str) -> Option<FaultKind> {
    // The name may have a namespace after it.
    let name = name.split(':').next().unwrap_or(name);
    word(name)
}

fn word(word: &str) -> Option<FaultKind> {
    let lower = word.to_ascii_lowercase();
    let known = WORDS.iter().find(|(known, _)| *known == lower);
    known.map(|(_, blame)| *blame)
}

/// The class of an error object. `None` if it is unknown.
pub fn of_error(error: &Value) -> Option<FaultKind> {
    if error.is_array() {
        return Some(FaultKind::Request);
    }
    let message = error["message"]
        .as_str()
        .or(error.as_str())
        .unwrap_or_default();
    if QUOTA_TEXTS
        .iter()
        .any(|known| message.to_lowercase().contains(known))
    {
        return Some(FaultKind::Quota);
    }
    let details = error["details"].as_array().into_iter().flatten();
    let reasons = details.filter_map(|detail| detail["reason"].as_str());
    let inner = error.pointer("/innererror/code").and_then(Value::as_str);
    let own = ["code", "type", "status", "error_type"];
    let own = own.iter().filter_map(|name| error[*name].as_str());
    let request = error["error_type"].as_str();
    let request = request.filter(|kind| REQUEST_ERRORS.contains(kind));
    let original = error["originalStatusCode"].as_u64().and_then(of_status);
    original
        .or_else(|| reasons.chain(inner).chain(own).find_map(word))
        .or_else(|| request.map(|_| FaultKind::Request))
}

/// The class of an HTTP status in a body.
fn of_status(status: u64) -> Option<FaultKind> {
    Some(match status {
        400 | 422 => FaultKind::Request,
        401 | 403 => FaultKind::Key,
        402 => FaultKind::Quota,
        408 | 504 => FaultKind::Timeout,
        413 => FaultKind::Size,
        429 => FaultKind::Rate,
        503 | 529 => FaultKind::Overload,
        _ => return None,
    })
}

/// The message of a JSON error: an object with `message`, or a string. Other text is returned as
/// is.
pub fn text(json: &str) -> String {
    match serde_json::from_str::<Value>(json) {
        Ok(Value::String(text)) => text,
        Ok(value) => match value.get("message").and_then(Value::as_str) {
            Some(message) => message.to_owned(),
            None => value.to_string(),
        },
        Err(_) => json.to_owned(),
    }
}

/// The step for an error object inside an answer, after the status 200 was sent.
pub fn step(error: &str) -> Step {
    let told: Value = serde_json::from_str(error).unwrap_or_default();
    let message = text(error);
    let in_code = told["code"].as_u64().and_then(of_status);
    let code = match of_error(&told).or(in_code) {
        Some(FaultKind::Context) => {
            let named = if is_context_length(&message) {
                message
            } else {
                format!("context_length_exceeded: {message}")
            };
            return Step::Refused(ErrorCode::InvalidInput, named);
        }
        Some(FaultKind::Filter | FaultKind::Request) => ErrorCode::InvalidInput,
        Some(FaultKind::Size) => ErrorCode::TooLarge,
        Some(FaultKind::Rate) => ErrorCode::Overloaded,
        Some(FaultKind::Quota) => return Step::Exhausted(message),
        Some(FaultKind::Overload | FaultKind::NotReady) => ErrorCode::Unavailable,
        Some(FaultKind::Timeout) => ErrorCode::UpstreamTimeout,
        Some(FaultKind::Key) | None if is_context_length(&message) => ErrorCode::InvalidInput,
        Some(FaultKind::Key) | None => return Step::Failed(message),
    };
    Step::Refused(code, message)
}

/// The position of a JSON error, without the content, which belongs to the caller.
pub fn json_position(error: &serde_json::Error) -> String {
    let (kind, line, column) = (error.classify(), error.line(), error.column());
    format!("{kind:?} error in JSON at line {line}, column {column}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_providers_words_for_a_prompt_that_does_not_fit() {
        for text in [
            "This model's maximum context length is 8192 tokens. However, you requested 9000.",
            "prompt is too long: 208310 tokens > 200000 maximum",
            "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
            "Input is too long for requested model.",
            "the request exceeds the available context size. try increasing the context size",
            "too many tokens: size limit exceeded by 12 tokens",
            "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096",
            "input length exceeds the context length",
        ] {
            assert!(is_context_length(text), "{text}");
        }
        assert!(!is_context_length("max_tokens must be at most 4096"));
        let coded = json!({ "code": "context_length_exceeded", "message": "no" });
        assert_eq!(of_error(&coded), Some(FaultKind::Context));
    }

    #[test]
    fn errors_within_an_answer_say_whose_fault_they_are() {
        let of = |error: Value| step(&error.to_string());
        for (error, code) in [
            (
                json!({ "type": "overloaded_error" }),
                ErrorCode::Unavailable,
            ),
            (json!({ "type": "rate_limit_error" }), ErrorCode::Overloaded),
            (json!({ "code": 429 }), ErrorCode::Overloaded),
            (json!({ "code": 400 }), ErrorCode::InvalidInput),
            (
                json!({ "code": 503, "status": "UNAVAILABLE" }),
                ErrorCode::Unavailable,
            ),
            (json!({ "originalStatusCode": 429 }), ErrorCode::Overloaded),
            (
                json!({ "type": "timeout_error" }),
                ErrorCode::UpstreamTimeout,
            ),
        ] {
            let mut error = error;
            error["message"] = "no".into();
            assert_eq!(
                of(error.clone()),
                Step::Refused(code, "no".to_owned()),
                "{error}"
            );
        }
        let long = of(json!({ "code": "context_length_exceeded", "message": "no" }));
        let expected = "context_length_exceeded: no".to_owned();
        assert_eq!(long, Step::Refused(ErrorCode::InvalidInput, expected));
        let empty = of(json!({ "type": "insufficient_quota", "message": "no" }));
        assert_eq!(empty, Step::Exhausted("no".to_owned()));
        let plain = of(json!({ "type": "server_error", "message": "no" }));
        assert_eq!(plain, Step::Failed("no".to_owned()));
        assert_eq!(step("\"no\""), Step::Failed("no".to_owned()));
    }
}
