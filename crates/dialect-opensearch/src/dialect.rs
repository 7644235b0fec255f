//! Routes, operations and error format of OpenSearch's dialect, under `/_plugins/_ml`.

use super::{batch, connectors, deployment, groups, models, predict, settings, stats, tasks};
use crate::operations::OPERATIONS;
use crate::rows;
use crate::state::OpenSearch;
use volley_http_edge::auth::{CLUSTER_ADMIN, MODEL_ADMIN, PREDICT, VIEWER};
use volley_http_edge::dialect::Dialect;
use volley_http_edge::edge::Edge;
use volley_http_edge::operation::Operation;
use volley_http_edge::routes::{Routes, delete, get, post, post_stream, put};

/// Both methods of a search.
macro_rules! search {
    ($handler:path) => {
        get(VIEWER, $handler).and(post(VIEWER, $handler))
    };
}

impl Dialect for OpenSearch {
    fn operations(&self) -> &'static [Operation] {
        OPERATIONS
    }

    fn routes(&self) -> Routes<()> {
        Routes::new()
            .nest("/_plugins/_ml", plugin(self.as_ref()))
            .route(
                "/_cluster/settings",
                get(VIEWER, settings::get).and(put(CLUSTER_ADMIN, settings::change)),
            )
            .with_state(self.clone())
    }
}

fn plugin(edge: &Edge) -> Routes<OpenSearch> {
    let routes = Routes::new()
        .route("/connectors/_create", post(MODEL_ADMIN, connectors::create))
        .route("/connectors/_search", search!(connectors::search))
        .route(
            "/connectors/{id}",
            get(VIEWER, connectors::get)
                .and(put(MODEL_ADMIN, connectors::update))
                .and(delete(MODEL_ADMIN, connectors::delete)),
        )
        .route(
            "/model_groups/_register",
            post(MODEL_ADMIN, groups::register),
        )
        .route("/model_groups/_search", search!(groups::search))
        .route(
            "/model_groups/{id}",
            get(VIEWER, groups::get)
                .and(put(MODEL_ADMIN, groups::update))
                .and(delete(MODEL_ADMIN, groups::delete)),
        )
        .route("/tasks/_search", search!(tasks::search))
        .route(
            "/tasks/{id}",
            get(VIEWER, tasks::get).and(delete(MODEL_ADMIN, tasks::delete)),
        )
        .route("/tasks/{id}/_cancel", post(PREDICT, batch::cancel))
        .route("/tasks/{id}/_cancel_batch", post(PREDICT, batch::cancel));
    figures(of_models(routes, edge))
}

fn of_models(routes: Routes<OpenSearch>, edge: &Edge) -> Routes<OpenSearch> {
    let stream = || post_stream(PREDICT, edge, rows::stream_any);
    routes
        .route("/models/_register", post(MODEL_ADMIN, models::register))
        .route("/models/_search", search!(models::search))
        .route(
            "/models/_undeploy",
            post(MODEL_ADMIN, models::undeploy_many),
        )
        .route(
            "/models/{id}",
            get(VIEWER, models::get)
                .and(put(MODEL_ADMIN, models::update))
                .and(delete(MODEL_ADMIN, models::delete)),
        )
        .route("/models/{id}/_deploy", post(MODEL_ADMIN, models::deploy))
        .route("/models/{id}/_load", post(MODEL_ADMIN, models::deploy))
        .route(
            "/models/{id}/_undeploy",
            post(MODEL_ADMIN, models::undeploy),
        )
        .route("/models/{id}/_unload", post(MODEL_ADMIN, models::undeploy))
        .route("/models/{id}/_pause", post(MODEL_ADMIN, deployment::pause))
        .route(
            "/models/{id}/_resume",
            post(MODEL_ADMIN, deployment::resume),
        )
        .route(
            "/models/{id}/_rollback",
            post(MODEL_ADMIN, deployment::roll_back),
        )
        .route("/models/{id}/_predict", post(PREDICT, predict::predict))
        .route("/models/{id}/_batch_predict", post(PREDICT, batch::predict))
        .route("/models/{id}/_predict/stream", stream())
        .route(
            "/_predict/{algorithm}/{id}",
            post(PREDICT, predict::predict_as),
        )
}

fn figures(routes: Routes<OpenSearch>) -> Routes<OpenSearch> {
    routes
        .route("/stats", get(VIEWER, stats::all))
        .route("/stats/{stat}", get(VIEWER, stats::some))
        .route("/{node}/stats", get(VIEWER, stats::some))
        .route("/{node}/stats/{stat}", get(VIEWER, stats::some))
        .route("/profile", get(VIEWER, stats::profile))
        .route("/profile/models", get(VIEWER, stats::profile_models))
        .route("/profile/models/{id}", get(VIEWER, stats::profile_model))
        .route("/profile/tasks", get(VIEWER, stats::profile_tasks))
        .route("/profile/tasks/{id}", get(VIEWER, stats::profile_task))
}
