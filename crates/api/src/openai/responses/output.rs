//! Answers as a response and its items.

use serde_json::{Map, Value, json};
use volley_types::{ErrorCode, FinishReason, PredictError, Usage};

use crate::answer::Choice;
use crate::citations;

/// A response whose output is not there yet.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    /// The id of its request, of which all ids are made.
    id: String,
    fields: Map<String, Value>,
}

impl Draft {
    pub(super) fn new(id: &str, model: &str, created: u64, echo: Map<String, Value>) -> Self {
        let mut fields = echo;
        let known = json!({
            "id": format!("resp_{id}"),
            "object": "response",
            "created_at": created,
            "model": model,
            "background": false,
            "max_tool_calls": null,
            "previous_response_id": null,
            "service_tier": "default",
            "store": false,
            "truncation": "disabled",
        });
        if let Value::Object(known) = known {
            fields.extend(known);
        }
        Self {
            id: id.to_owned(),
            fields,
        }
    }

    /// The id of the item at a place of the output.
    pub(super) fn item_id(&self, kind: &str, place: usize) -> String {
        format!("{kind}_{}_{place}", self.id)
    }

    /// The id of a call that its model gave none.
    pub(super) fn call_id(&self, place: usize) -> String {
        format!("call_{}_{place}", self.id)
    }

    /// The response while it is made.
    pub(super) fn begun(&self) -> Value {
        let more = json!({
            "status": "in_progress", "completed_at": null, "error": null,
            "incomplete_details": null, "output": [], "usage": null,
        });
        self.with(more)
    }

    /// The response that ended in this way.
    pub(super) fn ended(
        &self,
        output: Vec<Value>,
        reason: Option<FinishReason>,
        usage: Usage,
        at: u64,
    ) -> Value {
        let incomplete = cut_off(reason);
        self.with(json!({
            "status": status(reason),
            "completed_at": incomplete.is_none().then_some(at),
            "error": null,
            "incomplete_details": incomplete.map(|reason| json!({ "reason": reason })),
            "output": output,
            "usage": self::usage(usage),
        }))
    }

    /// The response that failed after this much output.
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

    /// The response of a whole answer.
    pub(super) fn whole(&self, choice: Choice, at: u64) -> Value {
        let mut output = Vec::new();
        let status = status(choice.finish_reason);
        if !choice.thinking.is_empty() {
            let id = self.item_id("rs", 0);
            output.push(reasoning(&id, &choice.thinking));
        }
        if !choice.text.is_empty() || choice.tool_calls.is_empty() {
            let id = self.item_id("msg", output.len());
            let annotations = choice.citations.iter();
            let annotations = annotations.map(|cited| citations::of_response(cited, 0));
            let beside = Beside {
                annotations: annotations.collect(),
                logprobs: choice.tokens,
            };
            output.push(message(&id, status, &choice.text, beside));
        }
        for call in &choice.tool_calls {
            let text = |path| call.pointer(path).and_then(Value::as_str);
            let place = output.len();
            let given = text("/id").map(str::to_owned);
            output.push(function_call(&FunctionCall {
                id: &self.item_id("fc", place),
                call_id: &given.unwrap_or_else(|| self.call_id(place)),
                name: text("/function/name").unwrap_or_default(),
                arguments: text("/function/arguments").unwrap_or_default(),
                status,
            }));
        }
        let usage = choice.usage.unwrap_or_default();
        self.ended(output, choice.finish_reason, usage, at)
    }

    fn with(&self, more: Value) -> Value {
        let mut fields = self.fields.clone();
        if let Value::Object(more) = more {
            fields.extend(more);
        }
        Value::Object(fields)
    }
}

/// Why a response is not whole; `None` when it is.
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

/// What is told beside a text.
#[derive(Clone, Debug, Default)]
pub(super) struct Beside {
    pub(super) logprobs: Vec<Value>,
    pub(super) annotations: Vec<Value>,
}

pub(super) fn message(id: &str, status: &str, text: &str, beside: Beside) -> Value {
    json!({
        "id": id, "type": "message", "role": "assistant", "status": status,
        "content": [text_part(text, beside)],
    })
}

pub(super) fn text_part(text: &str, beside: Beside) -> Value {
    json!({
        "type": "output_text", "text": text, "annotations": beside.annotations,
        "logprobs": beside.logprobs,
    })
}

pub(super) fn reasoning(id: &str, text: &str) -> Value {
    json!({
        "id": id, "type": "reasoning", "summary": [],
        "content": [{ "type": "reasoning_text", "text": text }],
    })
}

/// A call of a function as an item.
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
            "cached_tokens": usage.cached_tokens, "cache_write_tokens": 0,
        },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": { "reasoning_tokens": 0 },
        "total_tokens": u64::from(usage.prompt_tokens) + u64::from(usage.completion_tokens),
    })
}

/// The codes that a response's error may have are theirs.
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
