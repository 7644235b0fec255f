//! Routes, operations and error format of the Open Inference Protocol over REST.

use super::error::OipErrors;
use super::operations::OPERATIONS;
use super::shared_memory_routes as regions;
use super::state::Oip;
use super::{config, generate, index, infer, infer_stream, models, repository, statistics_routes};
use volley_http_edge::auth::{CLUSTER_ADMIN, MODEL_ADMIN, PREDICT, PUBLIC, VIEWER};
use volley_http_edge::dialect::Dialect;
use volley_http_edge::edge::Edge;
use volley_http_edge::error::ErrorFormat;
use volley_http_edge::operation::Operation;
use volley_http_edge::routes::{GuardedMethods, Routes, get, post, post_stream};

impl Dialect for Oip {
    fn errors(&self) -> Option<&'static dyn ErrorFormat> {
        Some(&OipErrors)
    }

    fn operations(&self) -> &'static [Operation] {
        OPERATIONS
    }

    fn routes(&self) -> Routes<()> {
        // aiohttp clients of this protocol accept compressed responses, but they can only read
        // compressed predictions.
        let routes = management()
            .uncompressed()
            .merge(predictions(self.as_ref()));
        Routes::new().nest("/v2", routes).with_state(self.clone())
    }
}

fn management() -> Routes<Oip> {
    Routes::new()
        .route("/", get(VIEWER, models::server))
        .route("/health/live", get(PUBLIC, models::live))
        .route("/health/ready", get(PUBLIC, models::ready))
        .route("/models/stats", get(VIEWER, statistics_routes::all))
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
        .merge(versioned("/stats", get(VIEWER, statistics_routes::model)))
}

fn predictions(edge: &Edge) -> Routes<Oip> {
    Routes::new()
        .merge(versioned("/infer", post(PREDICT, infer::infer)))
        .merge(versioned("/generate", post(PREDICT, generate::generate)))
        .merge(versioned(
            "/infer_stream",
            post_stream(PREDICT, edge, infer_stream::infer_stream),
        ))
        .merge(versioned(
            "/generate_stream",
            post_stream(PREDICT, edge, generate::stream),
        ))
}

/// Routes of shared-memory regions. They need the cluster-administrator role, because the node
/// reads memory of other processes on the machine for the caller.
fn shared_memory() -> Routes<Oip> {
    let each = |kind: &str, what: &str, handler: GuardedMethods<Oip>| {
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

/// A route of a model, without and with a version.
fn versioned(path: &str, handler: GuardedMethods<Oip>) -> Routes<Oip> {
    let router = Routes::new().route(&format!("/models/{{model}}{path}"), handler.clone());
    let path = format!("/models/{{model}}/versions/{{version}}{path}");
    router.route(&path, handler)
}
