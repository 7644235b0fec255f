//! The routes of Hugging Face's two servers, each of which serves one model: Text Embeddings
//! Inference (`tei`) and Text Generation Inference (`tgi`).
//!
//! The model of a request ([`choose`]) is named in the path (`/tei/NAME/embed`), the query
//! (`?model=`) or the body (`model`). Otherwise it is the only ready model that supports the route.

pub mod dialect;
mod embed_all;
pub mod error;
mod events;
pub(crate) mod operations;
mod options;
mod tei;
mod tgi;
pub(crate) mod tokens;

use serde_json::{Map, Value};
use volley_http_edge::axum::Json;
use volley_http_edge::axum::response::{IntoResponse, Response};
use volley_types::{PredictError, Task};

pub(crate) use self::embed_all::embed_all;
pub(crate) use self::tei::{decode, embed, embed_sparse, predict, rerank, similarity};
pub(crate) use self::tgi::{chat_tokenize, generate, generate_stream, info};
use volley_dialect_kit::requests::{ResolvedModel, RouteModel, choose};
use volley_http_edge::body::JsonObject;
use volley_http_edge::context::RequestContext;
use volley_http_edge::edge::Caller;
use volley_http_edge::error::{ApiError, DialectError};

use self::error::HuggingFaceErrors;

/// Handles `POST /`, which performs the task of the model.
pub(crate) async fn at_root(
    caller: Caller,
    context: RequestContext,
    named: RouteModel,
    JsonObject(mut body): JsonObject,
) -> Result<Response, DialectError> {
    let done = async {
        let tasks = [
            Task::Generate,
            Task::Embed,
            Task::Rerank,
            Task::Classify,
            Task::EncodeSparse,
        ];
        let chosen = choose(&caller, named, &mut body, &tasks, "answer").await?;
        match chosen.signature.task {
            Task::Generate => {
                let stream = volley_http_edge::body::take_flag(&mut body, "stream")?;
                if stream {
                    return Ok(GenerateOutput::Stream(chosen));
                }
                let answer =
                    tgi::whole(&caller, &context, chosen, std::mem::take(&mut body)).await?;
                Ok(GenerateOutput::Whole(Value::Array(vec![answer])))
            }
            Task::Rerank => tei::rerank_value(&caller, &context, chosen, std::mem::take(&mut body))
                .await
                .map(GenerateOutput::Whole),
            Task::Classify => {
                tei::predict_value(&caller, &context, chosen, std::mem::take(&mut body))
                    .await
                    .map(GenerateOutput::Whole)
            }
            Task::EncodeSparse => {
                tei::sparse_value(&caller, &context, chosen, std::mem::take(&mut body))
                    .await
                    .map(GenerateOutput::Whole)
            }
            _ => tei::embed_value(&caller, &context, chosen, std::mem::take(&mut body))
                .await
                .map(GenerateOutput::Whole),
        }
    };
    match context.in_time(done).await.map_err(in_dialect)? {
        GenerateOutput::Whole(value) => Ok(Json(value).into_response()),
        GenerateOutput::Stream(chosen) => tgi::streamed(&caller, &context, chosen, body)
            .await
            .map_err(|ApiError(error)| in_dialect(error)),
    }
}

enum GenerateOutput {
    Whole(Value),
    Stream(ResolvedModel),
}

/// An error at a path that other dialects also have.
pub(crate) fn in_dialect(error: PredictError) -> DialectError {
    DialectError(&HuggingFaceErrors, error)
}

type Body = Map<String, Value>;

/// Name of the provider whose format Text Generation Inference's routes use.
const FORMAT: &str = "tgi";
