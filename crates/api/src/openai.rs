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
    Details, Dialect, ErrorCode, FinishReason, Input, ModelRef, PredictError, PredictRequest,
    Signature, Task, Usage,
};

use crate::app::App;
use crate::body::{Fields, take_flag};
use crate::catalogue;
use crate::context::RequestContext;
use crate::parameters;

/// The model that a body names, and what it does.
pub(crate) async fn model(
    app: &App,
    body: &mut Map<String, Value>,
) -> Result<(String, ModelRef, Signature), PredictError> {
    let name = body.required("model")?.to_owned();
    body.remove("model");
    let model = reference(&name)?;
    let signature = app.control.signature(&model).await?;
    Ok((name, model, signature))
}

/// As [`model`], of a body that may name none where only one that is ready does this task, as at
/// servers of one model.
pub(crate) async fn model_for(
    app: &App,
    body: &mut Map<String, Value>,
    task: Task,
) -> Result<(String, ModelRef, Signature), PredictError> {
    if body.text("model")?.is_some_and(|name| !name.is_empty()) {
        let (name, model, signature) = model(app, body).await?;
        expect(&name, &signature, task)?;
        return Ok((name, model, signature));
    }
    body.remove("model");
    let only = catalogue::only(app, &[task], task.as_str()).await;
    let (model, signature) = only.map_err(|error| {
        PredictError::invalid(format!("field 'model' is missing, and {}", error.message))
    })?;
    Ok((model.to_string(), model, signature))
}

/// The model of a name that a client has written. What is none has no model: clients look for
/// that one error, whatever they have called theirs.
///
/// # Errors
/// `NotFound` for what is no name of a model.
pub(crate) fn reference(name: &str) -> Result<ModelRef, PredictError> {
    name.parse().map_err(|error: PredictError| {
        let written: String = name.chars().filter(|c| !c.is_control()).take(200).collect();
        let message = format!("no model '{written}' exists: {}", error.message);
        PredictError::new(ErrorCode::NotFound, message)
    })
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
    request.dialect = Dialect::OpenAi;
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
    let usage = take_flag(&mut options, "include_usage")?;
    for name in ["continuous_usage_stats", "include_obfuscation"] {
        if take_flag(&mut options, name)? {
            return Err(unsupported(&format!("field 'stream_options.{name}'")));
        }
    }
    options.only("the field 'stream_options'", &["include_usage"])?;
    Ok((stream, usage))
}

/// Which build answers: all answers of one server say the same.
pub(crate) const FINGERPRINT: &str = concat!("volley-", env!("CARGO_PKG_VERSION"));

/// Seconds since 1970.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// The tokens of an answer, with what its server told beside where that is of this form.
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

/// What an upstream says of a refusal beside its text.
fn explanation(details: &Details) -> Option<&str> {
    let told = details.stop_details.as_ref()?;
    told["explanation"].as_str().filter(|text| !text.is_empty())
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
