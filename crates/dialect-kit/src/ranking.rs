//! Reranking of documents: `POST /v1/rerank` and `POST /v2/rerank`, Cohere's two versions. Jina
//! uses the first.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Float32Type;
use arrow_array::{ArrayRef, RecordBatch, StringArray};
use serde_json::{Map, Value, json};
use volley_http_edge::axum::Json;
use volley_types::signature::{QUERY, SCORE, TEXT};
use volley_types::{PredictError, Task};

use crate::answer;
use crate::requests::{ResolvedModel, model_for, request};
use crate::vectors::{count, malformed};
use volley_http_edge::body::{Fields, JsonObject, take_flag};
use volley_http_edge::context::RequestContext;
use volley_http_edge::edge::Caller;
use volley_http_edge::error::ApiError;

/// Orders documents by their relevance to a query, best first.
pub async fn rerank(
    caller: Caller,
    context: RequestContext,
    JsonObject(mut body): JsonObject,
) -> Result<Json<Value>, ApiError> {
    let work = async {
        let (name, model, signature) = model_for(&caller, &mut body, Task::Rerank).await?;
        let chosen = ResolvedModel {
            name,
            model,
            signature,
        };
        ranked(&caller, &context, chosen, body).await
    };
    Ok(Json(context.in_time(work).await?))
}

/// Documents with relevance scores of the selected model.
///
/// # Errors
/// `InvalidInput` naming a field; the errors of the model.
pub async fn ranked(
    caller: &Caller,
    context: &RequestContext,
    chosen: ResolvedModel,
    mut body: Map<String, Value>,
) -> Result<Value, PredictError> {
    let ResolvedModel { name, model, .. } = chosen;
    let documents = take_documents(&mut body)?;
    let query = body.required("query")?.to_owned();
    body.remove("query");
    let top_n = body.count("top_n")?;
    body.remove("top_n");
    refuse_fields(&mut body)?;
    let with_documents = take_flag(&mut body, "return_documents")?;
    let rows = rows(&query, &documents)?;
    let request = request(model, rows, &body, context)?;
    let batches = answer::collect(caller.cluster.inference.predict(request).await?).await?;
    let mut ranked = scores(&batches)?;
    if ranked.len() != documents.len() {
        return Err(malformed(
            "the number of scores differs from the number of documents",
        ));
    }
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
    let wanted = top_n.map_or(ranked.len(), |top_n| {
        usize::try_from(top_n).unwrap_or(usize::MAX)
    });
    let results = ranked.iter().take(wanted).map(|(index, score)| {
        let mut result = json!({ "index": index, "relevance_score": score });
        if with_documents {
            result["document"] = json!({ "text": documents[*index] });
        }
        result
    });
    let tokens: u64 = batches.iter().map(count).sum();
    Ok(json!({
        "id": context.request_id.as_str(),
        "model": name,
        "results": results.collect::<Vec<_>>(),
        "usage": { "prompt_tokens": tokens, "total_tokens": tokens },
        "meta": { "tokens": { "input_tokens": tokens, "output_tokens": 0 } },
    }))
}

/// Removes fields that only apply to Cohere's servers, and rejects ranking by other fields.
fn refuse_fields(body: &mut Map<String, Value>) -> Result<(), PredictError> {
    for unused in ["max_tokens_per_doc", "max_chunks_per_doc", "priority"] {
        body.remove(unused);
    }
    match body.remove("rank_fields") {
        None | Some(Value::Null) => Ok(()),
        Some(fields) if fields == json!(["text"]) => Ok(()),
        Some(_) => Err(PredictError::invalid(
            "field 'rank_fields' must be [\"text\"]: documents are ranked by their text",
        )),
    }
}

/// Documents are texts, or objects with a text.
fn take_documents(body: &mut Map<String, Value>) -> Result<Vec<String>, PredictError> {
    let wrong = || {
        PredictError::invalid(
            "field 'documents' must be a list of texts, or of objects with a 'text'",
        )
    };
    let documents = match body.remove("documents") {
        Some(Value::Array(documents)) if !documents.is_empty() => documents,
        _ => return Err(wrong()),
    };
    let texts = documents.into_iter().map(|document| match document {
        Value::String(text) => Some(text),
        Value::Object(mut document) => match document.remove("text") {
            Some(Value::String(text)) => Some(text),
            _ => None,
        },
        _ => None,
    });
    texts.collect::<Option<_>>().ok_or_else(wrong)
}

fn rows(query: &str, documents: &[String]) -> Result<RecordBatch, PredictError> {
    let queries = StringArray::from_iter_values(std::iter::repeat_n(query, documents.len()));
    let texts = StringArray::from_iter_values(documents);
    let columns: [(&str, ArrayRef); 2] = [(QUERY, Arc::new(queries)), (TEXT, Arc::new(texts))];
    RecordBatch::try_from_iter(columns)
        .map_err(|error| PredictError::internal("the request's rows cannot be built", error))
}

/// The score of each row, with its index.
pub fn scores(batches: &[RecordBatch]) -> Result<Vec<(usize, f32)>, PredictError> {
    let mut scores = Vec::new();
    for batch in batches {
        let column = batch.column_by_name(SCORE);
        let column = column.and_then(|column| column.as_primitive_opt::<Float32Type>());
        let column = column.ok_or_else(|| malformed("no scores"))?;
        for score in column.values() {
            scores.push((scores.len(), *score));
        }
    }
    Ok(scores)
}
