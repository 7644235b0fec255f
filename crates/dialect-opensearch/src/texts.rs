//! Text encoders in the format of the plugin's local models: `text_docs` in, and one inference
//! result for each of them out.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, UInt32Type};
use arrow_array::{Array, ArrayRef, RecordBatch, StringArray};
use serde_json::{Map, Value, json};
use volley_types::signature::{EMBEDDING, INPUT_TYPE, QUERY, SCORE, TEXT};
use volley_types::{PredictError, Signature, Task};

use crate::prediction::{Json, Prediction};
use volley_dialect_kit::answer;
use volley_dialect_kit::tensors;
use volley_http_edge::body::Fields;

/// Default name of an embedding in the response.
const EMBEDDING_NAME: &str = "sentence_embedding";

/// The rows of a request: `text_docs`, with `query_text` for each if the model ranks; or `inputs`,
/// which has columns by name.
///
/// # Errors
/// `InvalidInput` naming the field.
pub(crate) fn rows(
    body: &Prediction,
    parameters: &mut Map<String, Value>,
    signature: &Signature,
) -> Result<RecordBatch, PredictError> {
    if body.fields.get("return_bytes") == Some(&Value::Bool(true)) {
        return Err(PredictError::invalid(
            "field 'return_bytes' must be false: responses contain numbers; use Arrow Flight for \
             bytes",
        ));
    }
    parameters.remove("inputs");
    let documents = match (body.documents(), body.inputs()?) {
        (Some(documents), None) => texts(documents)?,
        (None, Some(inputs)) => return columns(inputs, signature),
        (Some(_), Some(_)) => {
            return Err(PredictError::invalid(
                "give either 'text_docs' or 'inputs', not both",
            ));
        }
        (None, None) => {
            return Err(PredictError::invalid(
                "field 'text_docs' is missing: a list of texts (or 'inputs': an object with one \
                 array for each input of the model)",
            ));
        }
    };
    let count = documents.len();
    let mut columns: Vec<(&str, ArrayRef)> = vec![(TEXT, documents)];
    if signature.task == Task::Rerank {
        let query = body.fields.required("query_text")?;
        let queries = StringArray::from(vec![query; count]);
        columns.push((QUERY, Arc::new(queries)));
    }
    if signature.task == Task::Embed
        && let Some(kind) = parameters.remove("content_type")
    {
        let kind = kind.as_str().ok_or_else(|| {
            PredictError::invalid("'parameters.content_type' must be 'query' or 'passage'")
        })?;
        let kinds = StringArray::from(vec![kind; count]);
        columns.push((INPUT_TYPE, Arc::new(kinds)));
    }
    RecordBatch::try_from_iter(columns)
        .map_err(|error| PredictError::internal("the request's rows cannot be built", error))
}

fn texts(documents: Json<'_>) -> Result<ArrayRef, PredictError> {
    let read = match documents {
        Json::Text(list) => tensors::texts(list),
        Json::Tree(list) => list.as_array().and_then(|list| {
            let texts: Option<Vec<_>> = list.iter().map(Value::as_str).collect();
            Some(Arc::new(StringArray::from(texts?)) as ArrayRef)
        }),
    };
    let read = read.filter(|texts| !texts.is_empty());
    read.ok_or_else(|| PredictError::invalid("field 'text_docs' must be a list of texts"))
}

/// Formats one inference result for each row.
///
/// # Errors
/// `Internal` if the columns do not match the task.
pub(crate) fn results(task: Task, batches: &[RecordBatch]) -> Result<Vec<Value>, PredictError> {
    let mut results = Vec::new();
    for batch in batches {
        for row in 0..batch.num_rows() {
            let output = output(task, batch, row).ok_or_else(|| {
                let cause = format!("{:?}", batch.schema_ref());
                PredictError::internal("the model's answer is malformed", cause)
            })?;
            let mut result = json!({ "output": null, "status_code": 200 });
            answer::put(&mut result, "output", vec![output]);
            results.push(result);
        }
    }
    Ok(results)
}

fn output(task: Task, batch: &RecordBatch, row: usize) -> Option<Value> {
    match task {
        Task::Embed => {
            let data = floats(batch, EMBEDDING, row)?;
            let shape = [data.len()];
            Some(tensor(EMBEDDING_NAME, &shape, data))
        }
        Task::Rerank => {
            let scores = batch.column_by_name(SCORE)?;
            let scores = scores.as_primitive_opt::<Float32Type>()?;
            Some(tensor("similarity", &[1], vec![scores.value(row)]))
        }
        Task::EncodeSparse => {
            let terms = strings(batch, "terms", row)?;
            let weights = floats(batch, "weights", row)?;
            let weights: Map<_, _> = terms
                .into_iter()
                .zip(weights.into_iter().map(Value::from))
                .collect();
            Some(map("output", json!({ "response": [weights] })))
        }
        Task::Classify => {
            let labels = strings(batch, "labels", row)?;
            let scores = floats(batch, "scores", row)?;
            Some(map(
                "classification",
                json!({ "labels": labels, "scores": scores }),
            ))
        }
        Task::ClassifyTokens => {
            let entities = entities(batch, row)?;
            Some(map("entities", json!({ "entities": entities })))
        }
        Task::Generate | Task::Tensors | Task::Events => None,
    }
}

fn tensor(name: &str, shape: &[usize], data: Vec<f32>) -> Value {
    json!({ "name": name, "data_type": "FLOAT32", "shape": shape, "data": data })
}

fn map(name: &str, map: Value) -> Value {
    json!({ "name": name, "dataAsMap": map })
}

fn list(batch: &RecordBatch, name: &str, row: usize) -> Option<ArrayRef> {
    let lists = batch.column_by_name(name)?.as_list_opt::<i32>()?;
    Some(lists.value(row))
}

fn floats(batch: &RecordBatch, name: &str, row: usize) -> Option<Vec<f32>> {
    let list = list(batch, name, row)?;
    Some(list.as_primitive_opt::<Float32Type>()?.values().to_vec())
}

fn strings(batch: &RecordBatch, name: &str, row: usize) -> Option<Vec<String>> {
    let list = list(batch, name, row)?;
    let texts = list.as_string_opt::<i32>()?.iter();
    texts.map(|text| text.map(str::to_owned)).collect()
}

fn entities(batch: &RecordBatch, row: usize) -> Option<Vec<Value>> {
    let list = list(batch, "entities", row)?;
    let entities = list.as_struct_opt()?;
    let text = |name| entities.column_by_name(name)?.as_string_opt::<i32>();
    let place = |name| {
        entities
            .column_by_name(name)?
            .as_primitive_opt::<UInt32Type>()
    };
    let (labels, texts) = (text("label")?, text("text")?);
    let (starts, ends) = (place("start")?, place("end")?);
    let scores = entities.column_by_name("score")?;
    let scores = scores.as_primitive_opt::<Float32Type>()?;
    let entity = |index| {
        json!({
            "label": labels.value(index),
            "score": scores.value(index),
            "text": texts.value(index),
            "start": starts.value(index),
            "end": ends.value(index),
        })
    };
    Some((0..entities.len()).map(entity).collect())
}

/// Parses the rows in `inputs`.
///
/// # Errors
/// `InvalidInput` naming the input and the row.
pub(crate) fn columns(
    inputs: Json<'_>,
    signature: &Signature,
) -> Result<RecordBatch, PredictError> {
    match inputs {
        Json::Tree(inputs) => tensors::from_json(inputs, &signature.input),
        Json::Text(inputs) => tensors::from_text(inputs, &signature.input),
    }
}
