//! `/embed_all` of Text Embeddings Inference: one vector for each token.

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::UInt32Type;
use serde_json::{Map, Value};
use volley_http_edge::axum::Json;
use volley_types::params::TOKEN_VECTORS;
use volley_types::signature::TOKENS;
use volley_types::{PredictError, Task};

use super::tei::{answered, embedded, take_truncation};
use volley_dialect_kit::inputs::Inputs;
use volley_dialect_kit::requests::{RouteModel, choose};
use volley_dialect_kit::vectors as embeddings;
use volley_http_edge::body::{Fields, JsonObject};
use volley_http_edge::context::RequestContext;
use volley_http_edge::edge::Caller;
use volley_http_edge::error::ApiError;

/// Returns a vector for each token of each text, without pooling.
pub(crate) async fn embed_all(
    caller: Caller,
    context: RequestContext,
    named: RouteModel,
    JsonObject(mut body): JsonObject,
) -> Result<Json<Value>, ApiError> {
    let work = async {
        let chosen = choose(&caller, named, &mut body, &[Task::Embed], "embed").await?;
        let known = ["inputs", "truncate", "truncation_direction", "prompt_name"];
        body.only("an embedding of tokens", &known)?;
        let inputs = Inputs::take(&mut body, "inputs")?;
        let mut parameters = Map::new();
        take_truncation(&caller, &chosen, &mut body, &mut parameters)?;
        parameters.insert(TOKEN_VECTORS.to_owned(), true.into());
        let columns = embedded(inputs, &mut body, &mut parameters)?;
        let batches = answered(&caller, &context, &chosen, columns, &parameters).await?;
        let rows = batches.iter().map(of_tokens);
        Ok(rows.collect::<Result<Vec<_>, _>>()?.concat())
    };
    Ok(Json(context.in_time(work).await.map(Value::Array)?))
}

/// Splits each row into the vectors of its tokens, which the column stores concatenated.
fn of_tokens(batch: &RecordBatch) -> Result<Vec<Value>, PredictError> {
    let mut rows = Vec::new();
    embeddings::vectors(batch, &mut rows)?;
    let tokens = batch.column_by_name(TOKENS);
    let tokens = tokens.and_then(|tokens| tokens.as_primitive_opt::<UInt32Type>());
    let tokens =
        tokens.ok_or_else(|| embeddings::malformed("the model returned no token counts"))?;
    let rows = rows.into_iter().zip(tokens.values());
    let rows = rows.map(|(numbers, tokens)| {
        let tokens = usize::try_from(*tokens).unwrap_or(usize::MAX);
        if tokens == 0 || numbers.is_empty() || !numbers.len().is_multiple_of(tokens) {
            return Err(embeddings::malformed("a row has no vector for each token"));
        }
        let vectors = numbers.chunks(numbers.len() / tokens);
        Ok(vectors.map(Value::from).collect())
    });
    rows.collect()
}
