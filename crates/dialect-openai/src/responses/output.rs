//! Builds a response and its items.

use serde_json::{Map, Value, json};
use volley_types::{Details, ErrorCode, FinishReason, PredictError, StreamId, StreamOwner, Usage};

use super::FORMAT;
use super::store::Responses;
use crate::pause;
use volley_dialect_kit::clock::now;
use volley_dialect_kit::supplement::{self, supplement};

/// A response without its output.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    /// Base of all ids.
    id: String,
    fields: Map<String, Value>,
    /// Where to store the response when it has ended.
    keeping: Option<StoreTarget>,
}

/// Where to store a response, with its owner and its conversation.
#[derive(Clone, Debug)]
pub(super) struct StoreTarget {
    pub(super) responses: Responses,
    pub(super) id: StreamId,
    pub(super) owner: StreamOwner,
    /// The items of the conversation before the response.
    pub(super) items: Vec<Value>,
}

impl StoreTarget {
    /// Stores `response`. Returns false if it is too large.
    fn keep(&self, response: &Value) -> bool {
        let items = response["output"].as_array().into_iter().flatten();
        let items: Vec<_> = self.items.iter().chain(items).collect();
        let text = json!({ "response": response, "items": items }).to_string();
        self.responses
            .keep(self.id.clone(), self.owner.clone(), text.into())
    }
}

impl Draft {
    pub(super) fn new(
        id: &str,
        model: &str,
        created: u64,
        echo: Map<String, Value>,
        keeping: Option<StoreTarget>,
    ) -> Self {
        let mut fields = echo;
        let known = json!({
            "id": format!("resp_{id}"),
            "object": "response",
            "created_at": created,
            "model": model,
            "background": false,
            "max_tool_calls": null,
            "service_tier": "default",
            "store": keeping.is_some(),
            "truncation": "disabled",
        });
        if let Value::Object(known) = known {
            fields.extend(known);
        }
        Self {
            id: id.to_owned(),
            fields,
            keeping,
        }
    }

    /// The id of the item at this index of the output.
    pub(super) fn item_id(&self, kind: &str, place: usize) -> String {
        format!("{kind}_{}_{place}", self.id)
    }

    /// A generated id for a call without one.
    pub(super) fn call_id(&self, place: usize) -> String {
        format!("call_{}_{place}", self.id)
    }

    /// The response in progress.
    pub(super) fn begun(&self) -> Value {
        let more = json!({
            "status": "in_progress", "completed_at": null, "error": null,
            "incomplete_details": null, "output": [], "usage": null,
        });
        self.with(more)
    }

    /// The response after its end. Its `details` may have further fields of an upstream of this
    /// format.
    pub(super) fn ended(
        &self,
        output: Vec<Value>,
        reason: Option<FinishReason>,
        usage: Option<Usage>,
        details: &Details,
    ) -> Value {
        let at = now();
        let given = supplement::of(details, FORMAT);
        let incomplete = cut_off(reason).map(|reason| pause(details).unwrap_or(reason));
        let mut response = self.with(json!({
            "status": status(reason),
            "completed_at": incomplete.is_none().then_some(at),
            "error": null,
            "incomplete_details": incomplete.map(|reason| json!({ "reason": reason })),
            "output": output,
            "usage": usage.map(self::usage),
        }));
        if let Some(given) = given {
            // The service tier is the upstream's.
            if !given["service_tier"].is_null() {
                response["service_tier"] = Value::Null;
            }
            let mut given = given.clone();
            let items = |response: &Value| response["output"].as_array().map(Vec::len);
            // The streamed items are authoritative. The upstream's items only add fields to them,
            // and only if their number is the same.
            if items(&given) != items(&response) {
                given["output"] = Value::Null;
            }
            supplement(&mut response, &given);
        }
        if let Some(keeping) = &self.keeping
            && !keeping.keep(&response)
        {
            response["store"] = false.into();
        }
        response
    }

    /// The failed response, with the output before the failure.
    pub(super) fn failed(&self, output: Vec<Value>, error: &PredictError) -> Value {
        self.with(json!({
            "status": "failed",
            "completed_at": null,
            "error": { "code": error_code(error.code), "message": error.message },
            "incomplete_details": null,
            "output": output,
            "usage": null,
        }))
    }

    fn with(&self, more: Value) -> Value {
        let mut fields = self.fields.clone();
        if let Value::Object(more) = more {
            fields.extend(more);
        }
        Value::Object(fields)
    }
}

/// The reason for an incomplete response; `None` if it is complete.
fn cut_off(reason: Option<FinishReason>) -> Option<&'static str> {
    match reason {
        Some(FinishReason::Length) => Some("max_output_tokens"),
        Some(FinishReason::ContentFilter) => Some("content_filter"),
        Some(FinishReason::Stop | FinishReason::ToolCalls | FinishReason::Error) | None => None,
    }
}

pub(super) fn status(reason: Option<FinishReason>) -> &'static str {
    cut_off(reason).map_or("completed", |_| "incomplete")
}

/// Fields of a text besides its characters.
#[derive(Clone, Debug, Default)]
pub(super) struct TextExtras {
    pub(super) logprobs: Vec<Value>,
    pub(super) annotations: Vec<Value>,
    /// Whether the text is a refusal.
    pub(super) refusal: bool,
}

pub(super) fn message(id: &str, status: &str, text: &str, beside: TextExtras) -> Value {
    json!({
        "id": id, "type": "message", "role": "assistant", "status": status,
        "content": [text_part(text, beside)],
    })
}

pub(super) fn text_part(text: &str, beside: TextExtras) -> Value {
    if beside.refusal {
        return json!({ "type": "refusal", "refusal": text });
    }
    json!({
        "type": "output_text", "text": text, "annotations": beside.annotations,
        "logprobs": beside.logprobs,
    })
}

/// Fields of a reasoning item besides its text.
#[derive(Clone, Debug, Default)]
pub(super) struct Reasoning {
    /// Whether the text is a summary.
    pub(super) summary: bool,
    /// Signed or encrypted reasoning of the provider, which the next request must contain.
    pub(super) encrypted: Option<String>,
}

pub(super) fn reasoning(id: &str, text: &str, told: &Reasoning) -> Value {
    let mut item = json!({ "id": id, "type": "reasoning", "summary": [] });
    if told.summary && !text.is_empty() {
        item["summary"] = json!([{ "type": "summary_text", "text": text }]);
    } else if !text.is_empty() || told.encrypted.is_none() {
        item["content"] = json!([{ "type": "reasoning_text", "text": text }]);
    }
    if let Some(encrypted) = &told.encrypted {
        item["encrypted_content"] = encrypted.as_str().into();
    }
    item
}

/// A function call as an item.
pub(super) struct FunctionCall<'a> {
    pub(super) id: &'a str,
    pub(super) call_id: &'a str,
    pub(super) name: &'a str,
    pub(super) arguments: &'a str,
    pub(super) status: &'a str,
}

pub(super) fn function_call(call: &FunctionCall<'_>) -> Value {
    json!({
        "id": call.id, "type": "function_call", "status": call.status, "call_id": call.call_id,
        "name": call.name, "arguments": call.arguments,
    })
}

fn usage(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
        },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": { "reasoning_tokens": usage.reasoning_tokens },
        "total_tokens": u64::from(usage.prompt_tokens) + u64::from(usage.completion_tokens),
    })
}

/// Merges the fields of two objects.
pub(super) fn merged(one: Value, other: Value) -> Value {
    match (one, other) {
        (Value::Object(mut one), Value::Object(other)) => {
            one.extend(other);
            Value::Object(one)
        }
        (one, _) => one,
    }
}

/// Maps a code to one of those that OpenAI defines for the error of a response.
fn error_code(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::InvalidInput | ErrorCode::TooLarge => "invalid_prompt",
        ErrorCode::Overloaded => "rate_limit_exceeded",
        ErrorCode::Unauthenticated
        | ErrorCode::PermissionDenied
        | ErrorCode::NotFound
        | ErrorCode::NotDeployed
        | ErrorCode::Conflict
        | ErrorCode::Cancelled
        | ErrorCode::DeadlineExceeded
        | ErrorCode::Unavailable
        | ErrorCode::UpstreamFailed
        | ErrorCode::UpstreamTimeout
        | ErrorCode::UpstreamIncomplete
        | ErrorCode::Unimplemented
        | ErrorCode::Internal => "server_error",
    }
}
