//! `POST /api/embed`, and its predecessor `POST /api/embeddings`.

use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, StringArray};
use serde_json::{Map, Value, json};
use volley_http_edge::axum::Json;
use volley_types::signature::TEXT;
use volley_types::{Dialect, Input, ModelRef, PredictError, PredictRequest, Task};

use super::{FORMAT, Times, named};
use volley_dialect_kit::answer;
use volley_dialect_kit::row_details::{self, RowDetails};
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
        None | Some(Value::Null) => {}
        Some(truncate @ Value::Bool(_)) => {
            parameters.insert("truncate".to_owned(), truncate.clone());
        }
        Some(_) => {
            let message = "field 'truncate' must be true or false";
            return Err(PredictError::invalid(message).into());
        }
    }
    let work = vectors(&caller, &body, model, &texts, parameters, &context);
    let (vectors, details) = context.in_time(work).await?;
    let mut told = json!({ "model": name, "embeddings": vectors });
    times.write_into(None, &volley_types::Details::default(), &mut told);
    for name in ["prompt_eval_duration", "eval_duration"] {
        told.as_object_mut().map(|told| told.remove(name));
    }
    // An unknown count is left out.
    if let Some(tokens) = details.tokens {
        told["prompt_eval_count"] = tokens.into();
    }
    let others = details.fields(FORMAT).into_iter().flatten();
    for (field, value) in others.filter(|(field, _)| field.as_str() != "model") {
        told[field.as_str()] = value.clone();
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
    let (_, model) = named(&body)?;
    let prompt = body.text("prompt")?.unwrap_or_default();
    if prompt.is_empty() {
        return Ok(Json(json!({ "embedding": [] })));
    }
    let texts = [prompt];
    let work = vectors(&caller, &body, model, &texts, Map::new(), &context);
    let (mut vectors, _) = context.in_time(work).await?;
    Ok(Json(
        json!({ "embedding": vectors.pop().unwrap_or_default() }),
    ))
}

/// Fields for the server, which a local model has no use for.
const OF_SERVER: [&str; 2] = ["options", "keep_alive"];

/// Returns the vectors of the texts, and the details of the response.
async fn vectors(
    caller: &Caller,
    body: &Map<String, Value>,
    model: ModelRef,
    texts: &[&str],
    mut parameters: Map<String, Value>,
    context: &RequestContext,
) -> Result<(Vec<Vec<f32>>, RowDetails), PredictError> {
    let signature = caller.cluster.inference.signature(&model).await?;
    if signature.task != Task::Embed {
        let (name, _) = named(body)?;
        let message = format!("\"{name}\" does not support embeddings");
        return Err(PredictError::invalid(message));
    }
    if row_details::forwards(&signature) {
        let given = OF_SERVER
            .into_iter()
            .filter_map(|name| body.get_key_value(name));
        parameters.extend(given.map(|(name, value)| (name.clone(), value.clone())));
    }
    let texts = Arc::new(StringArray::from(texts.to_vec())) as ArrayRef;
    let rows = RecordBatch::try_from_iter([(TEXT, texts)])
        .map_err(|error| PredictError::internal("the request's rows cannot be built", error))?;
    let mut request = PredictRequest::new(model, Input::Batch(rows));
    request.request_id = context.request_id.clone();
    request.trace = context.trace;
    request.deadline = Some(context.deadline);
    request.dialect = Dialect::Ollama;
    request.parameters = volley_dialect_kit::parameters::from_json(&parameters)?;
    row_details::demand(&signature, &mut request)?;
    let batches = answer::collect(caller.cluster.inference.predict(request).await?).await?;
    let mut all = Vec::new();
    for batch in &batches {
        embeddings::vectors(batch, &mut all)?;
    }
    Ok((all, RowDetails::read(&batches)))
}
