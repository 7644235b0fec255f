//! The routes.

use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::{MethodRouter, get, post};
use volley_types::Control;

use crate::opensearch::{connectors, models, predict, tasks};
use crate::{ApiConfig, EncodeMetrics, anthropic, context, oip, openai, ops};

/// What handlers share.
pub(crate) struct App {
    pub(crate) control: Arc<dyn Control>,
    pub(crate) metrics: EncodeMetrics,
    pub(crate) config: ApiConfig,
}

/// The public interface of a coordinator.
pub(crate) fn coordinator(
    control: Arc<dyn Control>,
    metrics: EncodeMetrics,
    config: ApiConfig,
) -> Router {
    let ml = Router::new()
        .route("/connectors/_create", post(connectors::create))
        .route(
            "/connectors/_search",
            get(connectors::search).post(connectors::search),
        )
        .route(
            "/connectors/{id}",
            get(connectors::get).delete(connectors::delete),
        )
        .route("/models/_register", post(models::register))
        .route("/models/_search", get(models::search).post(models::search))
        .route("/models/{id}", get(models::get).delete(models::delete))
        .route("/models/{id}/_deploy", post(models::deploy))
        .route("/models/{id}/_undeploy", post(models::undeploy))
        .route("/models/{id}/_predict", post(predict::predict))
        .route("/models/{id}/_predict/stream", post(predict::stream))
        .route("/tasks/{id}", get(tasks::get));
    let v1 = Router::new()
        .route("/chat/completions", post(openai::chat::complete))
        .route("/responses", post(openai::responses::create))
        .route("/completions", post(openai::completions::complete))
        .route("/embeddings", post(openai::embeddings::embed))
        .route("/rerank", post(openai::rerank::rerank))
        .route("/messages", post(anthropic::create))
        .route("/messages/count_tokens", post(anthropic::count_tokens))
        .route("/models", get(openai::models::list))
        .route("/models/{id}", get(openai::models::get));
    let versioned = |path: &str, handler: MethodRouter<Arc<App>>| {
        let router = Router::new().route(&format!("/models/{{model}}{path}"), handler.clone());
        let path = format!("/models/{{model}}/versions/{{version}}{path}");
        router.route(&path, handler)
    };
    let v2 = Router::new()
        .route("/", get(oip::models::server))
        .route("/health/live", get(oip::models::live))
        .route("/health/ready", get(oip::models::ready))
        .route("/repository/index", post(oip::models::index))
        .route("/repository/models/{model}/load", post(oip::models::load))
        .route(
            "/repository/models/{model}/unload",
            post(oip::models::unload),
        )
        .merge(versioned("", get(oip::models::metadata)))
        .merge(versioned("/ready", get(oip::models::model_ready)))
        .merge(versioned("/infer", post(oip::infer::infer)))
        .merge(versioned("/generate", post(oip::generate::generate)))
        .merge(versioned("/generate_stream", post(oip::generate::stream)));
    let volley = Router::new()
        .route("/status", get(ops::status))
        .route("/health/live", get(ops::live))
        .route("/health/ready", get(ops::ready))
        .route("/nodes/join", post(ops::join))
        .route("/nodes/{id}/leave", post(ops::leave));
    let app = Arc::new(App {
        control,
        metrics,
        config,
    });
    Router::new()
        .nest("/_plugins/_ml", ml)
        .nest("/v1", v1)
        .nest("/v2", v2)
        .nest("/_volley", volley)
        .route("/metrics", get(ops::metrics))
        .route("/", get(ops::about))
        .fallback(context::no_route)
        .method_not_allowed_fallback(context::no_method)
        .layer(from_fn_with_state(Arc::new(config), context::middleware))
        .with_state(app)
}

/// Health and metrics alone.
pub(crate) fn node(metrics: EncodeMetrics, ready: Arc<dyn Fn() -> bool + Send + Sync>) -> Router {
    let ready = move || async move { ops::readiness(ready()) };
    Router::new()
        .route(
            "/metrics",
            get(move || async move { ops::open_metrics(metrics()) }),
        )
        .route("/_volley/health/live", get(ops::live))
        .route("/_volley/health/ready", get(ready))
        .fallback(context::no_route)
        .method_not_allowed_fallback(context::no_method)
        .layer(from_fn_with_state(
            Arc::new(ApiConfig::default()),
            context::middleware,
        ))
}
