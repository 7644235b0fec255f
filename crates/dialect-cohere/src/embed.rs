//! `POST /v2/embed`, and `POST /v1/embed` of Cohere's version 1.

use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, StringArray};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Map, Value, json};
use volley_http_edge::axum::Json;
use volley_types::signature::{INPUT_TYPE, TEXT};
use volley_types::{Dialect, PredictError, Task};

use volley_dialect_kit::answer;
use volley_dialect_kit::requests;
use volley_dialect_kit::row_details::{self, RowDetails};
use volley_dialect_kit::vectors as embeddings;
use volley_http_edge::body::{Fields, JsonObject};
use volley_http_edge::context::RequestContext;
use volley_http_edge::edge::Caller;
use volley_http_edge::error::ApiError;

/// Fields of a response that do not come from a remote model's server.
const OWN: [&str; 4] = ["id", "response_type", "embeddings", "texts"];

/// Version of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    First,
    Second,
}

/// Encoding of the vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Float,
    Base64,
}

/// Embeds texts with version 1. Without `embedding_types`, the response is a plain list of vectors.
pub(crate) async fn first(
    caller: Caller,
    context: RequestContext,
    body: JsonObject,
) -> Result<Json<Value>, ApiError> {
    embed(caller, context, body, Version::First).await
}

/// Embeds texts with version 2, whose response groups the vectors by type.
pub(crate) async fn second(
    caller: Caller,
    context: RequestContext,
    body: JsonObject,
) -> Result<Json<Value>, ApiError> {
    embed(caller, context, body, Version::Second).await
}

async fn embed(
    caller: Caller,
    context: RequestContext,
    JsonObject(mut body): JsonObject,
    version: Version,
) -> Result<Json<Value>, ApiError> {
    let work = async {
        let (name, model, signature) = requests::model(&caller, &mut body).await?;
        requests::expect(&name, &signature, Task::Embed)?;
        let kinds = take_kinds(&mut body)?;
        let texts = take_texts(&mut body)?;
        let rows = rows(&texts, &mut body)?;
        take_rest(&mut body, row_details::forwards(&signature))?;
        let mut request = requests::request(model, rows, &body, &context)?;
        request.dialect = Dialect::Cohere;
        row_details::demand(&signature, &mut request)?;
        let batches = answer::collect(caller.cluster.inference.predict(request).await?).await?;
        let mut vectors = Vec::with_capacity(texts.len());
        for batch in &batches {
            embeddings::vectors(batch, &mut vectors)?;
        }
        let (form, told) = match (version, kinds.as_slice()) {
            (Version::First, []) => ("embeddings_floats", json!(vectors)),
            (Version::Second, []) => ("embeddings_by_type", by_type(&vectors, &[Kind::Float])),
            (_, kinds) => ("embeddings_by_type", by_type(&vectors, kinds)),
        };
        let details = RowDetails::read(&batches);
        let mut whole = json!({
            "id": context.request_id.as_str(),
            "response_type": form,
            "embeddings": told,
            "texts": texts,
            "meta": meta(version, details.tokens),
        });
        let others = details.fields("cohere").into_iter().flatten();
        for (field, value) in others.filter(|(field, _)| !OWN.contains(&field.as_str())) {
            whole[field.as_str()] = value.clone();
        }
        Ok(whole)
    };
    Ok(Json(context.in_time(work).await?))
}

/// Metadata of a response. An unknown number of tokens is left out.
fn meta(version: Version, tokens: Option<u64>) -> Value {
    let api = match version {
        Version::First => "1",
        Version::Second => "2",
    };
    let mut meta = json!({ "api_version": { "version": api } });
    if let Some(tokens) = tokens {
        let counts = json!({ "input_tokens": tokens });
        // Version 1 clients add up the billed units.
        meta["billed_units"] = counts.clone();
        meta["tokens"] = counts;
    }
    meta
}

fn by_type(vectors: &[Vec<f32>], kinds: &[Kind]) -> Value {
    let told = kinds.iter().map(|kind| match kind {
        Kind::Float => ("float".to_owned(), json!(vectors)),
        Kind::Base64 => {
            let texts = vectors.iter().map(|vector| {
                let bytes: Vec<u8> = vector.iter().flat_map(|it| it.to_le_bytes()).collect();
                Value::from(BASE64_STANDARD.encode(bytes))
            });
            ("base64".to_owned(), texts.collect())
        }
    });
    Value::Object(told.collect())
}

fn take_kinds(body: &mut Map<String, Value>) -> Result<Vec<Kind>, PredictError> {
    let wrong = || {
        PredictError::invalid(
            "field 'embedding_types' must be a list of 'float' and 'base64': vectors are not \
             quantized here",
        )
    };
    let kinds = match body.remove("embedding_types") {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(kinds)) => kinds,
        Some(_) => return Err(wrong()),
    };
    let kinds = kinds.iter().map(|kind| match kind.as_str() {
        Some("float") => Some(Kind::Float),
        Some("base64") => Some(Kind::Base64),
        _ => None,
    });
    kinds.collect::<Option<_>>().ok_or_else(wrong)
}

/// Removes `texts`, or `inputs` whose contents are all text.
fn take_texts(body: &mut Map<String, Value>) -> Result<Vec<String>, PredictError> {
    let wrong = || {
        PredictError::invalid(
            "give 'texts', a list of texts, or 'inputs', a list of objects whose 'content' is a \
             list of parts of the type 'text'; images are not supported",
        )
    };
    let (texts, inputs) = (body.remove("texts"), body.remove("inputs"));
    if body
        .remove("images")
        .is_some_and(|images| !images.is_null())
    {
        return Err(PredictError::invalid(
            "field 'images' is not supported: texts are embedded; leave it out",
        ));
    }
    let texts: Option<Vec<String>> = match (texts, inputs) {
        (Some(Value::Array(texts)), None | Some(Value::Null)) => texts
            .into_iter()
            .map(|text| text.as_str().map(str::to_owned))
            .collect(),
        (None | Some(Value::Null), Some(Value::Array(inputs))) => {
            inputs.iter().map(input).collect()
        }
        _ => None,
    };
    texts.filter(|texts| !texts.is_empty()).ok_or_else(wrong)
}

fn input(input: &Value) -> Option<String> {
    let parts = input.get("content")?.as_array()?.iter();
    let texts = parts.map(|part| match part.get("type")?.as_str()? {
        "text" => part.get("text")?.as_str(),
        _ => None,
    });
    texts.collect()
}

fn rows(texts: &[String], body: &mut Map<String, Value>) -> Result<RecordBatch, PredictError> {
    let kind = body.text(INPUT_TYPE)?.map(str::to_owned);
    body.remove(INPUT_TYPE);
    let kinds = kind.map(|kind| StringArray::from(vec![kind; texts.len()]));
    let texts = StringArray::from_iter_values(texts);
    let mut columns = vec![(TEXT, Arc::new(texts) as ArrayRef)];
    columns.extend(kinds.map(|kinds| (INPUT_TYPE, Arc::new(kinds) as ArrayRef)));
    RecordBatch::try_from_iter(columns)
        .map_err(|error| PredictError::internal("the request's rows cannot be built", error))
}

/// Converts the remaining fields. A text that is too long is truncated at its end, unless `truncate`
/// is `NONE`. If the model `forwards` fields to its server, all of them stay.
fn take_rest(body: &mut Map<String, Value>, forwards: bool) -> Result<(), PredictError> {
    if !forwards {
        // A local model has no such priority.
        body.remove("priority");
    }
    let truncate = body.text("truncate")?.map(str::to_ascii_uppercase);
    body.remove("truncate");
    match truncate.as_deref() {
        Some("END") if forwards => _ = body.insert("truncate".to_owned(), true.into()),
        Some("START") if forwards => _ = body.insert("truncate".to_owned(), "START".into()),
        None | Some("END") => {}
        Some("NONE") => {
            body.insert("truncate".to_owned(), false.into());
        }
        Some(_) => {
            return Err(PredictError::invalid(
                "field 'truncate' must be 'END' or 'NONE': texts are not cut at their start",
            ));
        }
    }
    if !forwards && body.count("max_tokens")?.is_some() {
        return Err(PredictError::invalid(
            "field 'max_tokens' is not supported: the model sets the maximum length of a text",
        ));
    }
    if let Some(dimensions) = body.count("output_dimension")? {
        body.insert("dimensions".to_owned(), dimensions.into());
    }
    body.remove("output_dimension");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(body: Value) -> Map<String, Value> {
        body.as_object().unwrap().clone()
    }

    #[test]
    fn texts_come_in_two_forms_and_images_in_none() {
        let text = |text: &str| json!({ "content": [{ "type": "text", "text": text }] });
        for good in [
            json!({ "texts": ["a", "b"] }),
            json!({ "inputs": [text("a"), text("b")], "texts": null }),
        ] {
            assert_eq!(take_texts(&mut fields(good)).unwrap(), ["a", "b"]);
        }
        for bad in [
            json!({}),
            json!({ "texts": [] }),
            json!({ "texts": "a" }),
            json!({ "texts": [1] }),
            json!({ "texts": ["a"], "images": ["b"] }),
            json!({ "texts": ["a"], "inputs": [text("a")] }),
            json!({ "inputs": [{ "content": [{ "type": "image_url" }] }] }),
        ] {
            assert!(take_texts(&mut fields(bad.clone())).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_remote_server_hears_of_every_field_and_a_local_model_of_those_it_has() {
        let taken = |body: Value, forwards: bool| {
            let mut body = fields(body);
            take_rest(&mut body, forwards).map(|()| Value::Object(body))
        };
        let all = json!({ "priority": 1, "truncate": "NONE", "output_dimension": 256, "foo": 1 });
        let kept = json!({ "truncate": false, "dimensions": 256, "foo": 1 });
        assert_eq!(taken(all.clone(), false).unwrap(), kept);
        let mut sent = kept;
        sent["priority"] = 1.into();
        assert_eq!(taken(all, true).unwrap(), sent);
        for remote in [json!({ "truncate": "START" }), json!({ "max_tokens": 3 })] {
            assert_eq!(taken(remote.clone(), true).unwrap(), remote);
            assert!(taken(remote, false).is_err());
        }
        let end = taken(json!({ "truncate": "END" }), true).unwrap();
        assert_eq!(end, json!({ "truncate": true }));
        assert_eq!(
            meta(Version::Second, None),
            json!({ "api_version": { "version": "2" } })
        );
    }

    #[test]
    fn types_are_told_and_coarse_ones_refused() {
        let kinds = |kinds: Value| take_kinds(&mut fields(json!({ "embedding_types": kinds })));
        assert_eq!(kinds(Value::Null).unwrap(), []);
        let both = kinds(json!(["base64", "float"])).unwrap();
        let told = by_type(&[vec![1.0]], &both);
        assert_eq!(told, json!({ "float": [[1.0]], "base64": ["AACAPw=="] }));
        assert!(kinds(json!(["int8"])).is_err() && kinds(json!("float")).is_err());
    }
}
