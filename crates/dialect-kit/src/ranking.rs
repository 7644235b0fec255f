//! Reranking of documents: `POST /v1/rerank` and `POST /v2/rerank`, Cohere's two versions. Jina
//! uses the first.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Float32Type;
use arrow_array::{ArrayRef, RecordBatch, StringArray};
use serde_json::{Map, Value, json};
use volley_http_edge::axum::Json;
use volley_types::signature::{QUERY, SCORE, TEXT};
use volley_types::{Dialect, PredictError, Task};

use crate::answer;
use crate::requests::{ResolvedModel, model_for, request};
use crate::row_details::{self, RowDetails};
use crate::vectors::malformed;
use volley_http_edge::body::{Fields, JsonObject, take_flag};
use volley_http_edge::context::RequestContext;
use volley_http_edge::edge::Caller;
use volley_http_edge::error::ApiError;

/// Fields of a response that do not come from a remote model's server.
const OWN: [&str; 3] = ["id", "model", "results"];

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
    let ResolvedModel {
        name,
        model,
        signature,
    } = chosen;
    let documents = take_documents(&mut body)?;
    let query = body.required("query")?.to_owned();
    body.remove("query");
    let top_n = body.count("top_n")?;
    body.remove("top_n");
    refuse_fields(&mut body, row_details::forwards(&signature))?;
    let with_documents = take_flag(&mut body, "return_documents")?;
    let rows = rows(&query, &documents)?;
    let mut request = request(model, rows, &body, context)?;
    request.dialect = Dialect::Cohere;
    row_details::demand(&signature, &mut request)?;
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
            result["document"] = documents[*index].whole.clone();
        }
        result
    });
    let mut whole = json!({
        "id": context.request_id.as_str(),
        "model": name,
        "results": results.collect::<Vec<_>>(),
    });
    tell_usage(&mut whole, &RowDetails::read(&batches));
    Ok(whole)
}

/// Adds the usage, and the other fields of a remote model's server. An unknown number of tokens is
/// left out.
fn tell_usage(whole: &mut Value, details: &RowDetails) {
    whole["usage"] = Value::Null;
    if let Some(tokens) = details.tokens {
        whole["usage"] = json!({ "prompt_tokens": tokens, "total_tokens": tokens });
        whole["meta"] = json!({ "tokens": { "input_tokens": tokens, "output_tokens": 0 } });
    }
    let others = details.fields("cohere").into_iter().flatten();
    for (field, value) in others.filter(|(field, _)| !OWN.contains(&field.as_str())) {
        whole[field.as_str()] = value.clone();
    }
}

/// Removes fields that only apply to servers, unless the model `forwards` them to its server, and
/// rejects ranking by other fields.
fn refuse_fields(body: &mut Map<String, Value>, forwards: bool) -> Result<(), PredictError> {
    if !forwards {
        for unused in ["max_tokens_per_doc", "max_chunks_per_doc", "priority"] {
            body.remove(unused);
        }
    }
    match body.remove("rank_fields") {
        None | Some(Value::Null) => Ok(()),
        Some(fields) if fields == json!(["text"]) => Ok(()),
        Some(_) => Err(PredictError::invalid(
            "field 'rank_fields' must be [\"text\"]: documents are ranked by their text",
        )),
    }
}

/// A document to rank.
struct Document {
    text: String,
    /// The document as the caller sent it; a text becomes an object.
    whole: Value,
}

/// Documents are texts, or objects with a text.
fn take_documents(body: &mut Map<String, Value>) -> Result<Vec<Document>, PredictError> {
    let wrong = || {
        PredictError::invalid(
            "field 'documents' must be a list of texts, or of objects with a 'text'",
        )
    };
    let documents = match body.remove("documents") {
        Some(Value::Array(documents)) if !documents.is_empty() => documents,
        _ => return Err(wrong()),
    };
    let documents = documents.into_iter().map(|document| {
        let whole = match document {
            Value::String(text) => json!({ "text": text }),
            other => other,
        };
        let text = whole.get("text")?.as_str()?.to_owned();
        Some(Document { text, whole })
    });
    documents.collect::<Option<_>>().ok_or_else(wrong)
}

fn rows(query: &str, documents: &[Document]) -> Result<RecordBatch, PredictError> {
    let queries = StringArray::from_iter_values(std::iter::repeat_n(query, documents.len()));
    let texts = documents.iter().map(|document| document.text.as_str());
    let texts = StringArray::from_iter_values(texts);
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
