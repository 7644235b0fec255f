//! The routes of the protocol.

use super::{config, generate, infer, infer_stream, models, repository, statistics};
use crate::auth::{
    MODEL_ADMIN, Methods, PREDICT, PUBLIC, Routes, Sealed, VIEWER, get, post, post_stream,
};

/// All routes under `/v2`.
pub(crate) fn routes(sealed: &Sealed) -> Routes<Sealed> {
    Routes::new()
        .route("/", get(VIEWER, models::server))
        .route("/health/live", get(PUBLIC, models::live))
        .route("/health/ready", get(PUBLIC, models::ready))
        .route("/models/stats", get(VIEWER, statistics::all))
        .route("/repository/index", post(VIEWER, repository::index))
        .route(
            "/repository/models/{model}/load",
            post(MODEL_ADMIN, repository::load),
        )
        .route(
            "/repository/models/{model}/unload",
            post(MODEL_ADMIN, repository::unload),
        )
        .merge(versioned("", get(VIEWER, models::metadata)))
        .merge(versioned("/ready", get(VIEWER, models::model_ready)))
        .merge(versioned("/config", get(VIEWER, config::config)))
        .merge(versioned("/stats", get(VIEWER, statistics::model)))
        .merge(versioned("/infer", post(PREDICT, infer::infer)))
        .merge(versioned("/generate", post(PREDICT, generate::generate)))
        .merge(versioned(
            "/infer_stream",
            post_stream(PREDICT, sealed, infer_stream::infer_stream),
        ))
        .merge(versioned(
            "/generate_stream",
            post_stream(PREDICT, sealed, generate::stream),
        ))
}

/// A route of a model, with and without a version.
fn versioned(path: &str, handler: Methods<Sealed>) -> Routes<Sealed> {
    let router = Routes::new().route(&format!("/models/{{model}}{path}"), handler.clone());
    let path = format!("/models/{{model}}/versions/{{version}}{path}");
    router.route(&path, handler)
}
