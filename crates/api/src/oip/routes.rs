//! The routes of the protocol.

use super::shared_memory_routes as regions;
use super::{config, generate, index, infer, infer_stream, models, repository, statistics};
use crate::auth::{
    CLUSTER_ADMIN, MODEL_ADMIN, Methods, PREDICT, PUBLIC, Routes, Sealed, VIEWER, get, post,
    post_stream,
};

/// All routes under `/v2`.
pub(crate) fn routes(sealed: &Sealed) -> Routes<Sealed> {
    Routes::new()
        .route("/", get(VIEWER, models::server))
        .route("/health/live", get(PUBLIC, models::live))
        .route("/health/ready", get(PUBLIC, models::ready))
        .route("/models/stats", get(VIEWER, statistics::all))
        .route("/repository/index", post(VIEWER, index::index))
        .route(
            "/repository/models/{model}/load",
            post(MODEL_ADMIN, repository::load),
        )
        .route(
            "/repository/models/{model}/unload",
            post(MODEL_ADMIN, repository::unload),
        )
        .merge(shared_memory())
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

/// Regions of memory, which are this node's own. Whoever registers one has the node read what
/// others on the machine have.
fn shared_memory() -> Routes<Sealed> {
    let each = |kind: &str, what: &str, handler: Methods<Sealed>| {
        let all = Routes::new().route(&format!("/{kind}sharedmemory/{what}"), handler.clone());
        let one = format!("/{kind}sharedmemory/region/{{region}}/{what}");
        all.route(&one, handler)
    };
    Routes::new()
        .merge(each(
            "system",
            "status",
            get(CLUSTER_ADMIN, regions::status),
        ))
        .merge(each(
            "system",
            "unregister",
            post(CLUSTER_ADMIN, regions::unregister),
        ))
        .route(
            "/systemsharedmemory/region/{region}/register",
            post(CLUSTER_ADMIN, regions::register),
        )
        .merge(each(
            "cuda",
            "status",
            get(CLUSTER_ADMIN, regions::no_cuda_regions),
        ))
        .merge(each(
            "cuda",
            "unregister",
            post(CLUSTER_ADMIN, regions::unregister_cuda),
        ))
        .route(
            "/cudasharedmemory/region/{region}/register",
            post(CLUSTER_ADMIN, regions::register_cuda),
        )
}

/// A route of a model, with and without a version.
fn versioned(path: &str, handler: Methods<Sealed>) -> Routes<Sealed> {
    let router = Routes::new().route(&format!("/models/{{model}}{path}"), handler.clone());
    let path = format!("/models/{{model}}/versions/{{version}}{path}");
    router.route(&path, handler)
}
