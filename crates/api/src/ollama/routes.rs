//! The routes of the dialect, under `/api`.

use super::{embed, generate, models};
use crate::auth::{PREDICT, Routes, Sealed, VIEWER, get, post};

pub(crate) fn routes() -> Routes<Sealed> {
    Routes::new()
        .route("/chat", post(PREDICT, generate::chat).streamed())
        .route("/generate", post(PREDICT, generate::generate).streamed())
        .route("/embed", post(PREDICT, embed::embed))
        .route("/embeddings", post(PREDICT, embed::embeddings))
        .route("/tags", get(VIEWER, models::tags))
        .route("/ps", get(VIEWER, models::running))
        .route("/show", post(VIEWER, models::show))
        .route("/pull", post(VIEWER, models::pull))
        .route("/version", get(VIEWER, models::version))
}
