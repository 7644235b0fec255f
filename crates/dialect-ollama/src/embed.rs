//! `POST /api/embed`, and its predecessor `POST /api/embeddings`.

use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, StringArray};
use serde_json::{Map, Value, json};
use volley_http_edge::axum::Json;
use volley_types::signature::TEXT;
use volley_types::{Dialect, Input, ModelRef, PredictError, PredictRequest, Task};

use super::request::READ_OVER;
use super::{FORMAT, Times, named};
use volley_dialect_kit::answer;
use volley_dialect_kit::catalogue;
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

/// The fields for the server. A local model has no use for them. Servers of other providers have
/// none for `keep_alive` and for options that set how Ollama loads a model; those that remain are
/// rejected by name there.
fn of_server(body: &Map<String, Value>, is_foreign: bool) -> Map<String, Value> {
    let given = ["options", "keep_alive"].map(|name| body.get_key_value(name));
    let given = given.into_iter().flatten();
    let mut fields: Map<_, _> = given
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    if is_foreign {
        fields.remove("keep_alive");
        if let Some(Value::Object(options)) = fields.get_mut("options") {
            options.retain(|name, value| !value.is_null() && !READ_OVER.contains(&name.as_str()));
            if options.is_empty() {
                fields.remove("options");
            }
        }
    }
    fields
}

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
        let is_foreign = catalogue::runs_at_others(caller, &model, FORMAT);
        parameters.extend(of_server(body, is_foreign));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_that_only_ollama_has_reach_it_alone() {
        let sent = |body: Value, is_foreign: bool| {
            Value::Object(of_server(body.as_object().unwrap(), is_foreign))
        };
        let load = json!({ "input": "a", "keep_alive": "1m", "options": { "num_ctx": 5 } });
        assert_eq!(
            sent(load.clone(), false),
            json!({ "keep_alive": "1m", "options": { "num_ctx": 5 } })
        );
        assert_eq!(sent(load, true), json!({}));
        assert_eq!(sent(json!({ "options": {} }), true), json!({}));
        let others = json!({ "options": { "num_ctx": 5, "seed": 1 } });
        assert_eq!(sent(others, true), json!({ "options": { "seed": 1 } }));
        assert_eq!(sent(json!({ "options": 1 }), true), json!({ "options": 1 }));
    }
}
