//! OpenAI's dialect (`/v1`): chat and plain completions, responses, embeddings,
//! models; and reranking as
//! Cohere and Jina have it, which stands beside them in most servers.

pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod embeddings;
pub(crate) mod events;
pub(crate) mod models;
pub(crate) mod rerank;
pub(crate) mod responses;

use std::time::{SystemTime, UNIX_EPOCH};

use arrow_array::RecordBatch;
use serde_json::{Map, Value, json};
use volley_types::{
    ErrorCode, FinishReason, Input, ModelRef, PredictError, PredictRequest, Signature, Task, Usage,
};

use crate::app::App;
use crate::body::{Fields, take_flag};
use crate::context::RequestContext;
use crate::parameters;

/// The model that a body names, and what it does.
pub(crate) async fn model(
    app: &App,
    body: &mut Map<String, Value>,
) -> Result<(String, ModelRef, Signature), PredictError> {
    let name = body.required("model")?.to_owned();
    body.remove("model");
    let model: ModelRef = name.parse()?;
    let signature = app.control.signature(&model).await?;
    Ok((name, model, signature))
}

/// Refuses a model that does something else.
pub(crate) fn expect(name: &str, signature: &Signature, wanted: Task) -> Result<(), PredictError> {
    if signature.task == wanted {
        return Ok(());
    }
    Err(PredictError::invalid(format!(
        "model '{name}' has the task '{}', and this route needs '{}'",
        signature.task.as_str(),
        wanted.as_str()
    )))
}

/// A request whose parameters are what is left of the body. Null is the same as not given.
pub(crate) fn request(
    model: ModelRef,
    rows: RecordBatch,
    left: &Map<String, Value>,
    context: &RequestContext,
) -> Result<PredictRequest, PredictError> {
    let mut request = PredictRequest::new(model, Input::Batch(rows));
    request.request_id = context.request_id.clone();
    request.trace = context.trace;
    request.session = context.session.clone();
    request.deadline = Some(context.deadline);
    request.parameters = parameters::from_json(left)?;
    Ok(request)
}

/// Takes `stream` and `stream_options`: whether to stream, and whether usage comes with it.
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
    Ok((stream, take_flag(&mut options, "include_usage")?))
}

/// Takes texts: one, or a list of them.
fn take_texts(body: &mut Map<String, Value>, name: &str) -> Result<Vec<String>, PredictError> {
    let wrong = || {
        PredictError::invalid(format!(
            "field '{name}' must be a text or a list of texts; tokens are not taken"
        ))
    };
    let texts = match body.remove(name) {
        Some(Value::String(text)) => vec![text],
        Some(Value::Array(texts)) if !texts.is_empty() => {
            let texts = texts.into_iter().map(|text| match text {
                Value::String(text) => Some(text),
                _ => None,
            });
            texts.collect::<Option<_>>().ok_or_else(wrong)?
        }
        None | Some(Value::Null) => {
            return Err(PredictError::invalid(format!("field '{name}' is missing")));
        }
        Some(_) => return Err(wrong()),
    };
    Ok(texts)
}

/// Seconds since 1970.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

fn usage(usage: Usage) -> Value {
    let mut told = json!({
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": u64::from(usage.prompt_tokens) + u64::from(usage.completion_tokens),
    });
    if usage.cached_tokens != 0 {
        told["prompt_tokens_details"] = json!({ "cached_tokens": usage.cached_tokens });
    }
    told
}

/// Why an answer ended, in OpenAI's words. A failed item fails the whole answer before.
fn finish_reason(reason: Option<FinishReason>) -> &'static str {
    reason.unwrap_or(FinishReason::Stop).as_str()
}

/// The probabilities of tokens as chat completions have them; null without any.
fn logprobs(tokens: Vec<Value>) -> Value {
    if tokens.is_empty() {
        return Value::Null;
    }
    json!({ "content": tokens, "refusal": null })
}

/// Something that is no part of this interface.
fn unsupported(what: &str) -> PredictError {
    PredictError::new(ErrorCode::InvalidInput, format!("{what} is not supported"))
}
