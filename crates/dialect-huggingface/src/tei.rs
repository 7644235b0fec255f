//! Text Embeddings Inference: vectors, scores and labels of texts.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Float32Type;
use arrow_array::{Array, ArrayRef, RecordBatch, StringArray};
use serde_json::{Map, Value, json};
use volley_http_edge::axum::Json;
use volley_types::signature::{INPUT_TYPE, QUERY, TEXT, TEXT_PAIR};
use volley_types::{PredictError, Task};

use super::error::HuggingFaceErrors;
use super::{Body, in_dialect};
use crate::tokens;
use volley_dialect_kit::answer;
use volley_dialect_kit::catalogue;
use volley_dialect_kit::inputs::Inputs;
use volley_dialect_kit::openai_error::OpenAiErrors;
use volley_dialect_kit::ranking;
use volley_dialect_kit::requests::{ResolvedModel, RouteModel, choose, request};
use volley_dialect_kit::vectors as embeddings;
use volley_http_edge::body::{Fields, JsonObject, take_flag};
use volley_http_edge::context::RequestContext;
use volley_http_edge::edge::Caller;
use volley_http_edge::error::{ApiError, DialectError, ErrorFormat};

/// Embeds texts.
pub(crate) async fn embed(
    caller: Caller,
    context: RequestContext,
    named: RouteModel,
    JsonObject(mut body): JsonObject,
) -> Result<Json<Value>, ApiError> {
    let work = async {
        let chosen = choose(&caller, named, &mut body, &[Task::Embed], "embed").await?;
        embed_value(&caller, &context, chosen, body).await
    };
    Ok(Json(context.in_time(work).await?))
}

pub(super) async fn embed_value(
    caller: &Caller,
    context: &RequestContext,
    chosen: ResolvedModel,
    mut body: Body,
) -> Result<Value, PredictError> {
    let known = [
        "inputs",
        "truncate",
        "truncation_direction",
        "prompt_name",
        "normalize",
        "dimensions",
    ];
    body.only("an embedding", &known)?;
    let inputs = Inputs::take(&mut body, "inputs")?;
    let vectors = vectors(caller, context, &chosen, inputs, &mut body).await?;
    Ok(vectors.into_iter().map(Value::from).collect())
}

/// The vectors of `inputs`, with the options in `body`.
async fn vectors(
    caller: &Caller,
    context: &RequestContext,
    chosen: &ResolvedModel,
    inputs: Inputs,
    body: &mut Body,
) -> Result<Vec<Vec<f32>>, PredictError> {
    let mut parameters = Map::new();
    take_truncation(caller, chosen, body, &mut parameters)?;
    let normalize = match body.remove("normalize") {
        None | Some(Value::Null) => true,
        Some(Value::Bool(normalize)) => normalize,
        Some(_) => {
            return Err(PredictError::invalid(
                "field 'normalize' must be true or false",
            ));
        }
    };
    if !normalize {
        parameters.insert("normalize".to_owned(), false.into());
    }
    if let Some(dimensions) = body.count("dimensions")? {
        parameters.insert("dimensions".to_owned(), dimensions.into());
    }
    let columns = embedded(inputs, body, &mut parameters)?;
    let batches = answered(caller, context, chosen, columns, &parameters).await?;
    let mut vectors = Vec::new();
    for batch in &batches {
        embeddings::vectors(batch, &mut vectors)?;
    }
    if normalize {
        vectors.iter_mut().for_each(|vector| to_length_one(vector));
    }
    Ok(vectors)
}

/// The input columns of an embedding model, with the kind of text in `body`.
pub(super) fn embedded(
    inputs: Inputs,
    body: &mut Body,
    parameters: &mut Body,
) -> Result<Vec<(&'static str, ArrayRef)>, PredictError> {
    let kind = body.text("prompt_name")?.map(str::to_owned);
    let texts = inputs.into_texts(parameters);
    let kinds = kind.map(|kind| StringArray::from(vec![kind; texts.len()]));
    let mut columns = vec![(TEXT, Arc::new(StringArray::from(texts)) as ArrayRef)];
    columns.extend(kinds.map(|kinds| (INPUT_TYPE, Arc::new(kinds) as ArrayRef)));
    Ok(columns)
}

fn to_length_one(vector: &mut [f32]) {
    let length = vector.iter().map(|value| value * value).sum::<f32>().sqrt();
    if f32::EPSILON < length && (length - 1.0).abs() > 1e-6 {
        vector.iter_mut().for_each(|value| *value /= length);
    }
}

/// Runs one prediction and collects the rows of its response.
pub(super) async fn answered(
    caller: &Caller,
    context: &RequestContext,
    chosen: &ResolvedModel,
    columns: Vec<(&str, ArrayRef)>,
    parameters: &Body,
) -> Result<Vec<RecordBatch>, PredictError> {
    let rows = RecordBatch::try_from_iter(columns)
        .map_err(|error| PredictError::internal("the request's rows cannot be built", error))?;
    let request = request(chosen.model.clone(), rows, parameters, context)?;
    answer::collect(caller.cluster.inference.predict(request).await?).await
}

/// Rejects long texts unless `truncate` is true, as Text Embeddings Inference does. Remote models
/// apply their server's rule.
pub(super) fn take_truncation(
    caller: &Caller,
    chosen: &ResolvedModel,
    body: &mut Body,
    parameters: &mut Body,
) -> Result<(), PredictError> {
    let given = body.contains_key("truncate");
    let truncate = take_flag(body, "truncate")?;
    let side = body.text("truncation_direction")?;
    if side.is_some_and(|side| !side.eq_ignore_ascii_case("right")) {
        return Err(PredictError::invalid(
            "field 'truncation_direction' must be 'Right': texts are truncated at their end",
        ));
    }
    if given || catalogue::runs_here(caller, &chosen.model) {
        parameters.insert("truncate".to_owned(), truncate.into());
    }
    Ok(())
}

/// Returns the weighted terms of each text.
pub(crate) async fn embed_sparse(
    caller: Caller,
    context: RequestContext,
    named: RouteModel,
    JsonObject(mut body): JsonObject,
) -> Result<Json<Value>, ApiError> {
    let work = async {
        let tasks = [Task::EncodeSparse];
        let chosen = choose(&caller, named, &mut body, &tasks, "embed sparsely").await?;
        sparse_value(&caller, &context, chosen, body).await
    };
    Ok(Json(context.in_time(work).await?))
}

pub(super) async fn sparse_value(
    caller: &Caller,
    context: &RequestContext,
    chosen: ResolvedModel,
    mut body: Body,
) -> Result<Value, PredictError> {
    let known = ["inputs", "truncate", "truncation_direction", "prompt_name"];
    body.only("a sparse embedding", &known)?;
    if body.text("prompt_name")?.is_some() {
        return Err(PredictError::invalid(
            "field 'prompt_name' is not supported by sparse encoders",
        ));
    }
    let texts = texts(&mut body, "inputs")?;
    let mut parameters = Map::new();
    take_truncation(caller, &chosen, &mut body, &mut parameters)?;
    parameters.insert("term_ids".to_owned(), true.into());
    let columns = vec![(TEXT, Arc::new(StringArray::from(texts)) as ArrayRef)];
    let batches = answered(caller, context, &chosen, columns, &parameters).await?;
    let mut rows = Vec::new();
    for batch in &batches {
        for pairs in pairs(batch, "terms", "weights")? {
            let row = pairs.into_iter().map(|(id, value)| {
                let index: Option<u32> = id.parse().ok();
                let index =
                    index.ok_or_else(|| embeddings::malformed("a term is not a token id"))?;
                Ok(json!({ "index": index, "value": value }))
            });
            rows.push(Value::Array(row.collect::<Result<_, PredictError>>()?));
        }
    }
    Ok(Value::Array(rows))
}

/// Removes a field that must be a list of texts.
fn texts(body: &mut Body, name: &str) -> Result<Vec<String>, PredictError> {
    match Inputs::take(body, name)? {
        Inputs::Texts(texts) => Ok(texts),
        Inputs::Tokens(_) => Err(PredictError::invalid(format!(
            "field '{name}' must be a text or a list of texts here"
        ))),
    }
}

/// Pairs of a name and a number, for each row.
fn pairs(
    batch: &RecordBatch,
    names: &str,
    numbers: &str,
) -> Result<Vec<Vec<(String, f32)>>, PredictError> {
    let missing = || embeddings::malformed("a column is missing");
    let list = |name: &str| batch.column_by_name(name)?.as_list_opt::<i32>();
    let (names, numbers) = (
        list(names).ok_or_else(missing)?,
        list(numbers).ok_or_else(missing)?,
    );
    let row = |row: usize| {
        let (names, numbers) = (names.value(row), numbers.value(row));
        let names = names.as_string_opt::<i32>().ok_or_else(missing)?;
        let numbers = numbers.as_primitive_opt::<Float32Type>();
        let numbers = numbers.ok_or_else(missing)?;
        let names = names.iter().flatten().map(str::to_owned);
        Ok(names.zip(numbers.values().iter().copied()).collect())
    };
    (0..names.len()).map(row).collect()
}

/// Classifies a text, a pair of texts, or a list of either.
pub(crate) async fn predict(
    caller: Caller,
    context: RequestContext,
    named: RouteModel,
    JsonObject(mut body): JsonObject,
) -> Result<Json<Value>, ApiError> {
    let work = async {
        let chosen = choose(&caller, named, &mut body, &[Task::Classify], "classify").await?;
        predict_value(&caller, &context, chosen, body).await
    };
    Ok(Json(context.in_time(work).await?))
}

pub(super) async fn predict_value(
    caller: &Caller,
    context: &RequestContext,
    chosen: ResolvedModel,
    mut body: Body,
) -> Result<Value, PredictError> {
    let known = ["inputs", "truncate", "truncation_direction", "raw_scores"];
    body.only("a classification", &known)?;
    let (sequences, is_batch) = body.remove("inputs").and_then(sequences).ok_or_else(|| {
        PredictError::invalid(
            "field 'inputs' must be a text, a pair of texts, or a list of lists of one or two texts",
        )
    })?;
    let mut parameters = Map::new();
    take_truncation(caller, &chosen, &mut body, &mut parameters)?;
    if take_flag(&mut body, "raw_scores")? {
        parameters.insert("raw_scores".to_owned(), true.into());
    }
    let (texts, second): (Vec<_>, Vec<_>) = sequences.into_iter().unzip();
    let mut columns = vec![(TEXT, Arc::new(StringArray::from(texts)) as ArrayRef)];
    if second.iter().any(Option::is_some) {
        columns.push((TEXT_PAIR, Arc::new(StringArray::from(second))));
    }
    let batches = answered(caller, context, &chosen, columns, &parameters).await?;
    let mut rows = Vec::new();
    for batch in &batches {
        for pairs in pairs(batch, "labels", "scores")? {
            let row = pairs.into_iter();
            let row = row.map(|(label, score)| json!({ "score": score, "label": label }));
            rows.push(row.collect::<Value>());
        }
    }
    Ok(match is_batch {
        true => Value::Array(rows),
        false => rows.pop().unwrap_or_default(),
    })
}

type Sequence = (String, Option<String>);

/// Parses one sequence of one or two texts, or a list of sequences, each of which must be a list.
/// The flag is true for a list of sequences.
fn sequences(value: Value) -> Option<(Vec<Sequence>, bool)> {
    let items = match value {
        Value::String(text) => return Some((vec![(text, None)], false)),
        Value::Array(items) => items,
        _ => return None,
    };
    if items.first()?.is_string() {
        return Some((vec![sequence(items)?], false));
    }
    let sequences = items.into_iter().map(|item| match item {
        Value::Array(items) => sequence(items),
        _ => None,
    });
    Some((sequences.collect::<Option<_>>()?, true))
}

fn sequence(items: Vec<Value>) -> Option<Sequence> {
    let texts = items.into_iter().map(|item| match item {
        Value::String(text) => Some(text),
        _ => None,
    });
    let texts: Vec<_> = texts.collect::<Option<_>>()?;
    match <[String; 2]>::try_from(texts) {
        Ok([text, second]) => Some((text, Some(second))),
        Err(mut texts) if texts.len() == 1 => Some((texts.pop()?, None)),
        Err(_) => None,
    }
}

/// Ranks texts by their relevance to a query, in this format or, if the body has `documents`, in
/// the format of Cohere and Jina.
pub(crate) async fn rerank(
    caller: Caller,
    context: RequestContext,
    named: RouteModel,
    JsonObject(mut body): JsonObject,
) -> Result<Json<Value>, DialectError> {
    let ours = body.contains_key("texts");
    let work = async {
        let chosen = choose(&caller, named, &mut body, &[Task::Rerank], "rerank").await?;
        match ours {
            true => rerank_value(&caller, &context, chosen, body).await,
            false => ranking::ranked(&caller, &context, chosen, body).await,
        }
    };
    let format: &'static dyn ErrorFormat = match ours {
        true => &HuggingFaceErrors,
        false => &OpenAiErrors,
    };
    let done = context.in_time(work).await;
    done.map(Json).map_err(|error| DialectError(format, error))
}

pub(crate) async fn rerank_value(
    caller: &Caller,
    context: &RequestContext,
    chosen: ResolvedModel,
    mut body: Body,
) -> Result<Value, PredictError> {
    let known = [
        "query",
        "texts",
        "truncate",
        "truncation_direction",
        "raw_scores",
        "return_text",
        "top_n",
    ];
    body.only("a ranking", &known)?;
    let query = body.required("query")?.to_owned();
    let texts = texts(&mut body, "texts")?;
    let mut parameters = Map::new();
    take_truncation(caller, &chosen, &mut body, &mut parameters)?;
    let raw = take_flag(&mut body, "raw_scores")?;
    if raw || catalogue::runs_here(caller, &chosen.model) {
        parameters.insert("raw_scores".to_owned(), raw.into());
    }
    let with_texts = take_flag(&mut body, "return_text")?;
    let most = body.count("top_n")?;
    let queries = StringArray::from(vec![query; texts.len()]);
    let columns = vec![
        (QUERY, Arc::new(queries) as ArrayRef),
        (TEXT, Arc::new(StringArray::from(texts.clone()))),
    ];
    let batches = answered(caller, context, &chosen, columns, &parameters).await?;
    let mut scores = ranking::scores(&batches)?;
    if scores.len() != texts.len() {
        return Err(embeddings::malformed(
            "the number of scores differs from the number of texts",
        ));
    }
    scores.sort_by(|a, b| b.1.total_cmp(&a.1));
    let most = most.and_then(|most| usize::try_from(most).ok());
    let ranks = scores.into_iter().take(most.unwrap_or(usize::MAX));
    let ranks = ranks.map(|(index, score)| {
        let mut rank = json!({ "index": index, "score": score });
        if with_texts {
            rank["text"] = texts[index].as_str().into();
        }
        rank
    });
    Ok(ranks.collect())
}

/// Returns the similarity of sentences to a source sentence.
pub(crate) async fn similarity(
    caller: Caller,
    context: RequestContext,
    named: RouteModel,
    JsonObject(mut body): JsonObject,
) -> Result<Json<Value>, ApiError> {
    let work = async {
        let chosen = choose(&caller, named, &mut body, &[Task::Embed], "embed").await?;
        body.only("a comparison", &["inputs", "parameters"])?;
        let inputs = body.object("inputs")?.cloned().unwrap_or_default();
        let (mut inputs, mut more) = (
            inputs,
            body.object("parameters")?.cloned().unwrap_or_default(),
        );
        inputs.only("the inputs", &["source_sentence", "sentences"])?;
        let known = ["truncate", "truncation_direction", "prompt_name"];
        more.only("the parameters", &known)?;
        let mut all = vec![inputs.required("source_sentence")?.to_owned()];
        all.extend(texts(&mut inputs, "sentences")?);
        let inputs = Inputs::Texts(all);
        let vectors = vectors(&caller, &context, &chosen, inputs, &mut more).await?;
        let (source, others) = vectors
            .split_first()
            .ok_or_else(|| embeddings::malformed("no vectors"))?;
        let product = |other: &Vec<f32>| source.iter().zip(other).map(|(a, b)| a * b).sum::<f32>();
        Ok(others.iter().map(product).map(Value::from).collect())
    };
    Ok(Json(context.in_time(work).await?))
}

/// Converts lists of tokens to texts.
pub(crate) async fn decode(
    caller: Caller,
    context: RequestContext,
    named: RouteModel,
    JsonObject(mut body): JsonObject,
) -> Result<Json<Value>, DialectError> {
    let work = async {
        let chosen = tokens::choose_tokenizer(&caller, named, &mut body, "decode tokens").await?;
        body.only("a decoding", &["ids", "skip_special_tokens"])?;
        let skip = match body.get("skip_special_tokens") {
            None | Some(Value::Null) => true,
            Some(Value::Bool(skip)) => *skip,
            Some(_) => {
                return Err(PredictError::invalid(
                    "field 'skip_special_tokens' must be true or false",
                ));
            }
        };
        let Inputs::Tokens(lists) = Inputs::take(&mut body, "ids")? else {
            return Err(PredictError::invalid(
                "field 'ids' must be a list of token ids, or a list of such lists",
            ));
        };
        let texts = tokens::decoded(&caller, &context, &chosen, lists, skip).await?;
        Ok(Value::from(texts))
    };
    context.in_time(work).await.map(Json).map_err(in_dialect)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_is_one_sequence_and_lists_are_several() {
        let one = |value: Value| sequences(value).map(|(all, batch)| (all.len(), batch));
        assert_eq!(one(json!("a")), Some((1, false)));
        assert_eq!(one(json!(["a", "b"])), Some((1, false)));
        assert_eq!(one(json!([["a"], ["b", "c"]])), Some((2, true)));
        for bad in [
            json!([]),
            json!(["a", "b", "c"]),
            json!([["a"], "b"]),
            json!([[]]),
            json!(["a", 1]),
            json!(1),
        ] {
            assert_eq!(one(bad.clone()), None, "{bad}");
        }
    }
}
