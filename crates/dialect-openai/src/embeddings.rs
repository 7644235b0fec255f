//! `POST /v1/embeddings`.

use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, StringArray};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Map, Value, json};
use volley_http_edge::axum::Json;
use volley_types::signature::{INPUT_TYPE, TEXT};
use volley_types::{ModelRef, PredictError, Task};

use volley_dialect_kit::answer;
use volley_dialect_kit::catalogue;
use volley_dialect_kit::inputs::Inputs;
use volley_dialect_kit::requests::{model_for, request};
use volley_dialect_kit::row_details::{self, RowDetails};
use volley_dialect_kit::vectors::vectors;
use volley_http_edge::body::{Fields, JsonObject};
use volley_http_edge::context::RequestContext;
use volley_http_edge::edge::Caller;
use volley_http_edge::error::ApiError;

/// Fields of a response that do not come from a remote model's server.
const OWN: [&str; 3] = ["object", "data", "model"];

/// Embeds texts.
pub(crate) async fn embed(
    caller: Caller,
    context: RequestContext,
    JsonObject(mut body): JsonObject,
) -> Result<Json<Value>, ApiError> {
    let work = async {
        let (name, model, signature) = model_for(&caller, &mut body, Task::Embed).await?;
        let base64 = take_format(&mut body)?;
        // A remote model's server has its own rule for long texts.
        if !row_details::forwards(&signature) {
            take_truncation(&caller, &model, &mut body)?;
        }
        let rows = rows(&mut body)?;
        let mut request = request(model, rows, &body, &context)?;
        row_details::demand(&signature, &mut request)?;
        let batches = answer::collect(caller.cluster.inference.predict(request).await?).await?;
        let mut data = Vec::new();
        for batch in &batches {
            append(batch, base64, &mut data)?;
        }
        let details = RowDetails::read(&batches);
        // Null is an unknown number: clients have a field for it, and 0 would be a count.
        let usage = details.tokens;
        let usage = usage.map(|tokens| json!({ "prompt_tokens": tokens, "total_tokens": tokens }));
        let mut list = json!({
            "object": "list",
            "data": null,
            "model": name,
            "usage": usage,
        });
        let others = details.fields("openai").into_iter().flatten();
        for (field, value) in others.filter(|(field, _)| !OWN.contains(&field.as_str())) {
            list[field.as_str()] = value.clone();
        }
        answer::put(&mut list, "data", data);
        Ok(list)
    };
    Ok(Json(context.in_time(work).await?))
}

/// Removes `encoding_format`. Returns whether the vectors are requested in base64.
fn take_format(body: &mut Map<String, Value>) -> Result<bool, PredictError> {
    let format = body.text("encoding_format")?.unwrap_or("float");
    let base64 = match format {
        "float" => false,
        "base64" => true,
        _ => {
            return Err(PredictError::invalid(
                "field 'encoding_format' must be 'float' or 'base64'",
            ));
        }
    };
    body.remove("encoding_format");
    Ok(base64)
}

/// Rejects long texts unless the caller permits truncation with `truncate_prompt_tokens` of -1, as
/// vLLM does.
fn take_truncation(
    caller: &Caller,
    model: &ModelRef,
    body: &mut Map<String, Value>,
) -> Result<(), PredictError> {
    let truncate = match body.remove("truncate_prompt_tokens") {
        None | Some(Value::Null) => false,
        Some(whole) if whole == json!(-1) => true,
        Some(_) => {
            return Err(PredictError::invalid(
                "field 'truncate_prompt_tokens' must be -1: the model's own length",
            ));
        }
    };
    if truncate || catalogue::runs_here(caller, model) {
        body.entry("truncate").or_insert(truncate.into());
    }
    Ok(())
}

fn rows(body: &mut Map<String, Value>) -> Result<RecordBatch, PredictError> {
    let texts = Inputs::take(body, "input")?.into_texts(body);
    // `input_type` is not part of OpenAI's interface; other servers accept it under this name.
    let kind = body.text("input_type")?.map(str::to_owned);
    body.remove("input_type");
    let kinds = kind.map(|kind| StringArray::from(vec![kind; texts.len()]));
    let mut columns = vec![(TEXT, Arc::new(StringArray::from(texts)) as ArrayRef)];
    columns.extend(kinds.map(|kinds| (INPUT_TYPE, Arc::new(kinds) as ArrayRef)));
    RecordBatch::try_from_iter(columns)
        .map_err(|error| PredictError::internal("the request's rows cannot be built", error))
}

fn append(batch: &RecordBatch, base64: bool, data: &mut Vec<Value>) -> Result<(), PredictError> {
    let mut rows = Vec::new();
    vectors(batch, &mut rows)?;
    for vector in rows {
        let embedding = if base64 {
            let bytes: Vec<u8> = vector
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect();
            Value::from(BASE64_STANDARD.encode(bytes))
        } else {
            Value::from(vector)
        };
        let index = data.len();
        let mut told = json!({ "object": "embedding", "index": index, "embedding": null });
        answer::put(&mut told, "embedding", embedding);
        data.push(told);
    }
    Ok(())
}
