//! The routes of Hugging Face's two servers, of which each serves one model: Text Embeddings
//! Inference ([`tei`]) and Text Generation Inference ([`tgi`]).
//!
//! Which model is meant ([`choice`]): the one that the path names (`/tei/NAME/embed`), or the query
//! (`?model=`), or the body (`model`); else the only one that is ready and can do it.

mod choice;
mod embed_all;
mod events;
mod options;
mod tei;
mod tgi;

use axum::Json;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value};
use volley_types::{PredictError, Task};

pub(crate) use self::choice::{Chosen, Named, choose};
pub(crate) use self::embed_all::embed_all;
pub(crate) use self::tei::{decode, embed, embed_sparse, predict, rerank, similarity};
pub(crate) use self::tgi::{chat_tokenize, generate, generate_stream, info};
use crate::app::App;
use crate::auth::{PREDICT, Routes, Sealed, VIEWER, get, post, post_stream};
use crate::body::JsonObject;
use crate::context::RequestContext;
use crate::error::{ApiError, House, HouseError};
use crate::extract::State;
use crate::{ops, tokens};

/// The routes below `/tei/{model}`.
pub(crate) fn tei_routes() -> Routes<Sealed> {
    Routes::new()
        .route("/", post(PREDICT, at_root))
        .route("/embed", post(PREDICT, embed))
        .route("/embed_all", post(PREDICT, embed_all))
        .route("/embed_sparse", post(PREDICT, embed_sparse))
        .route("/rerank", post(PREDICT, rerank))
        .route("/predict", post(PREDICT, predict))
        .route("/similarity", post(PREDICT, similarity))
        .route("/tokenize", post(PREDICT, tokens::tokenize))
        .route("/decode", post(PREDICT, decode))
        .route("/info", get(VIEWER, info))
        .route("/health", get(crate::auth::PUBLIC, ops::health))
}

/// The routes below `/tgi/{model}`.
pub(crate) fn tgi_routes(sealed: &Sealed) -> Routes<Sealed> {
    Routes::new()
        .route("/", post_stream(PREDICT, sealed, at_root))
        .route("/generate", post(PREDICT, generate))
        .route(
            "/generate_stream",
            post_stream(PREDICT, sealed, generate_stream),
        )
        .route("/tokenize", post(PREDICT, tokens::tokenize))
        .route("/chat_tokenize", post(PREDICT, chat_tokenize))
        .route("/info", get(VIEWER, info))
        .route("/health", get(crate::auth::PUBLIC, ops::health))
}

/// `POST /`: what the model does.
pub(crate) async fn at_root(
    State(app): State<std::sync::Arc<App>>,
    context: RequestContext,
    named: Named,
    JsonObject(mut body): JsonObject,
) -> Result<Response, HouseError> {
    let done = async {
        let tasks = [
            Task::Generate,
            Task::Embed,
            Task::Rerank,
            Task::Classify,
            Task::EncodeSparse,
        ];
        let chosen = choose(&app, named, &mut body, &tasks, "answer").await?;
        match chosen.signature.task {
            Task::Generate => {
                let stream = crate::body::take_flag(&mut body, "stream")?;
                if stream {
                    return Ok(Done::Stream(chosen));
                }
                let answer = tgi::whole(&app, &context, chosen, std::mem::take(&mut body)).await?;
                Ok(Done::Whole(Value::Array(vec![answer])))
            }
            Task::Rerank => tei::rerank_value(&app, &context, chosen, std::mem::take(&mut body))
                .await
                .map(Done::Whole),
            Task::Classify => tei::predict_value(&app, &context, chosen, std::mem::take(&mut body))
                .await
                .map(Done::Whole),
            Task::EncodeSparse => {
                tei::sparse_value(&app, &context, chosen, std::mem::take(&mut body))
                    .await
                    .map(Done::Whole)
            }
            _ => tei::embed_value(&app, &context, chosen, std::mem::take(&mut body))
                .await
                .map(Done::Whole),
        }
    };
    match context.in_time(done).await.map_err(in_house)? {
        Done::Whole(value) => Ok(Json(value).into_response()),
        Done::Stream(chosen) => tgi::streamed(&app, &context, chosen, body)
            .await
            .map_err(|ApiError(error)| in_house(error)),
    }
}

enum Done {
    Whole(Value),
    Stream(Chosen),
}

/// An error at a path that other houses share.
pub(crate) fn in_house(error: PredictError) -> HouseError {
    HouseError(House::HuggingFace, error)
}

type Body = Map<String, Value>;
