//! `POST /api/embed`, and its predecessor `POST /api/embeddings`.

use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, StringArray};
use serde_json::{Map, Value, json};
use volley_http_edge::axum::Json;
use volley_types::signature::TEXT;
use volley_types::{Input, ModelRef, Parameters, PredictError, PredictRequest, Task};

use super::{Times, named};
use volley_dialect_kit::answer;
use volley_dialect_kit::vectors as embeddings;
use volley_http_edge::body::{Fields, JsonObject};
use volley_http_edge::context::RequestContext;
use volley_http_edge::edge::Caller;
use volley_http_edge::error::ApiError;

/// Embeds texts.
pub(crate) async fn embed(
    caller: Caller,
    context: RequestContext,
    JsonObject(body): JsonObject,
) -> Result<Json<Value>, ApiError> {
    let known = [
        "model",
        "name",
        "input",
        "truncate",
        "options",
        "keep_alive",
        "dimensions",
    ];
    body.only("an embedding", &known)?;
    let times = Times::begin();
    let (name, model) = named(&body)?;
    let texts = match body.get("input") {
        Some(Value::String(text)) => Some(vec![text.as_str()]),
        Some(Value::Array(texts)) => texts.iter().map(Value::as_str).collect(),
        _ => None,
    };
    let texts = texts
        .ok_or_else(|| PredictError::invalid("field 'input' must be a text or a list of texts"))?;
    if texts.is_empty() {
        return Ok(Json(json!({ "model": name, "embeddings": [] })));
    }
    let mut parameters = Map::new();
    if let Some(dimensions) = body.count("dimensions")? {
        parameters.insert("dimensions".to_owned(), dimensions.into());
    }
    match body.get("truncate") {
        None | Some(Value::Null | Value::Bool(true)) => {}
        Some(Value::Bool(false)) => {
            parameters.insert("truncate".to_owned(), false.into());
        }
        Some(_) => {
            let message = "field 'truncate' must be true or false";
            return Err(PredictError::invalid(message).into());
        }
    }
    let parameters = volley_dialect_kit::parameters::from_json(&parameters)?;
    let work = vectors(&caller, &name, model, &texts, parameters, &context);
    let (vectors, tokens) = context.in_time(work).await?;
    let mut told = json!({ "model": name, "embeddings": vectors });
    times.write_into(
        Some(volley_types::Usage::default()),
        &volley_types::Details::default(),
        &mut told,
    );
    told["prompt_eval_count"] = tokens.into();
    for name in ["prompt_eval_duration", "eval_count", "eval_duration"] {
        told.as_object_mut().map(|told| told.remove(name));
    }
    Ok(Json(told))
}

/// Embeds one text, in the format of the predecessor.
pub(crate) async fn embeddings(
    caller: Caller,
    context: RequestContext,
    JsonObject(body): JsonObject,
) -> Result<Json<Value>, ApiError> {
    body.only(
        "an embedding",
        &["model", "name", "prompt", "options", "keep_alive"],
    )?;
    let (name, model) = named(&body)?;
    let prompt = body.text("prompt")?.unwrap_or_default();
    if prompt.is_empty() {
        return Ok(Json(json!({ "embedding": [] })));
    }
    let texts = [prompt];
    let work = vectors(
        &caller,
        &name,
        model,
        &texts,
        Parameters::default(),
        &context,
    );
    let (mut vectors, _) = context.in_time(work).await?;
    Ok(Json(
        json!({ "embedding": vectors.pop().unwrap_or_default() }),
    ))
}

/// Returns the vectors of the texts, and the number of tokens of all texts.
async fn vectors(
    caller: &Caller,
    name: &str,
    model: ModelRef,
    texts: &[&str],
    parameters: Parameters,
    context: &RequestContext,
) -> Result<(Vec<Vec<f32>>, u64), PredictError> {
    let signature = caller.cluster.inference.signature(&model).await?;
    if signature.task != Task::Embed {
        let message = format!("\"{name}\" does not support embeddings");
        return Err(PredictError::invalid(message));
    }
    let texts = Arc::new(StringArray::from(texts.to_vec())) as ArrayRef;
    let rows = RecordBatch::try_from_iter([(TEXT, texts)])
        .map_err(|error| PredictError::internal("the request's rows cannot be built", error))?;
    let mut request = PredictRequest::new(model, Input::Batch(rows));
    request.request_id = context.request_id.clone();
    request.trace = context.trace;
    request.deadline = Some(context.deadline);
    request.parameters = parameters;
    let batches = answer::collect(caller.cluster.inference.predict(request).await?).await?;
    let (mut all, mut tokens) = (Vec::new(), 0);
    for batch in &batches {
        tokens += embeddings::count(batch);
        embeddings::vectors(batch, &mut all)?;
    }
    Ok((all, tokens))
}
