//! Administration as a dialect of the gateway: the cluster, its nodes, named objects and keys.

use crate::admin;
use crate::admin_operations::OPERATIONS;
use crate::admin_state::Admin;
use crate::aliases;
use crate::drains;
use crate::keys;
use crate::ops;
use crate::pipelines;
use crate::secrets;
use volley_http_edge::auth::{CLUSTER_ADMIN, MODEL_ADMIN, PUBLIC, VIEWER};
use volley_http_edge::dialect::Dialect;
use volley_http_edge::operation::Operation;
use volley_http_edge::routes::{Routes, delete, get, post, put};

impl Dialect for Admin {
    fn operations(&self) -> &'static [Operation] {
        OPERATIONS
    }

    fn routes(&self) -> Routes<()> {
        Routes::new()
            .nest("/_volley", named(operations()))
            .route("/metrics", get(VIEWER, ops::metrics).compressed())
            .route("/", get(VIEWER, ops::about))
            .with_state(self.clone())
    }
}

/// Routes of the cluster: its state, its nodes and its keys.
fn operations() -> Routes<Admin> {
    Routes::new()
        .route("/status", get(VIEWER, ops::status))
        .route("/scale", get(VIEWER, ops::scale))
        .route("/metrics", get(VIEWER, ops::own_metrics).compressed())
        .route("/health/live", get(PUBLIC, ops::live))
        .route("/health/ready", get(PUBLIC, ops::ready))
        .route("/nodes/join", post(CLUSTER_ADMIN, admin::join))
        .route("/nodes/{id}/leave", post(CLUSTER_ADMIN, admin::leave))
        .route("/nodes/{id}/replace", post(CLUSTER_ADMIN, admin::replace))
        .route("/nodes/{id}/drain", post(CLUSTER_ADMIN, drains::drain))
        .route("/nodes/{id}/undrain", post(CLUSTER_ADMIN, drains::undrain))
        .route(
            "/leader/transfer",
            post(CLUSTER_ADMIN, admin::transfer_leadership),
        )
        .route("/backup", get(CLUSTER_ADMIN, admin::backup))
        .route("/whoami", get(VIEWER, keys::whoami))
        .route(
            "/keys",
            get(CLUSTER_ADMIN, keys::list).and(post(CLUSTER_ADMIN, keys::create)),
        )
        .route(
            "/keys/{id}",
            get(CLUSTER_ADMIN, keys::get).and(delete(CLUSTER_ADMIN, keys::revoke)),
        )
        .route("/keys/{id}/_limit", post(CLUSTER_ADMIN, keys::limits))
        .route("/keys/{id}/_rotate", post(CLUSTER_ADMIN, keys::rotate))
}

/// Routes of named objects: secrets, aliases and pipelines.
fn named(routes: Routes<Admin>) -> Routes<Admin> {
    routes
        .route("/secrets", get(MODEL_ADMIN, secrets::list))
        .route(
            "/secrets/{name}",
            post(MODEL_ADMIN, secrets::put).and(delete(MODEL_ADMIN, secrets::delete)),
        )
        .route("/secrets/_rewrap", post(MODEL_ADMIN, secrets::rewrap))
        .route(
            "/aliases",
            get(VIEWER, aliases::list).and(post(MODEL_ADMIN, aliases::create)),
        )
        .route(
            "/aliases/{name}",
            get(VIEWER, aliases::get)
                .and(put(MODEL_ADMIN, aliases::replace))
                .and(delete(MODEL_ADMIN, aliases::delete)),
        )
        .route(
            "/pipelines",
            get(VIEWER, pipelines::list).and(post(MODEL_ADMIN, pipelines::create)),
        )
        .route(
            "/pipelines/{name}",
            get(VIEWER, pipelines::get)
                .and(put(MODEL_ADMIN, pipelines::replace))
                .and(delete(MODEL_ADMIN, pipelines::delete)),
        )
}
