//! The routes.

use std::sync::Arc;

use axum::Router;
use volley_security::Gatekeeper;

use crate::auth::{
    CLUSTER_ADMIN, MODEL_ADMIN, Methods, PREDICT, PUBLIC, Routes, Sealed, VIEWER, delete, get,
    post, post_stream, put,
};
use crate::openai::responses::stored;
use crate::{
    ApiConfig, EncodeMetrics, GrpcSkin, admin, aliases, anthropic, cohere, drains, huggingface,
    keys, oip, ollama, openai, openapi, opensearch, ops, paths, pipelines, resume, secrets, tokens,
    ws,
};

/// The public interface of a coordinator.
pub(crate) fn coordinator(sealed: Sealed) -> Router {
    let (gate, config) = (sealed.gate(), *sealed.config());
    let grpc = oip::grpc::routes(&sealed, GrpcSkin::Triton);
    let browsers = sealed.origins().layer();
    let routes = openapi::served(routes(&sealed));
    let templates = paths::Templates::new(routes.listed().iter().map(|it| it.path.as_str()));
    let router = paths::joined(routes.finish(sealed, gate, config), templates);
    let router = match browsers {
        Some(layer) => router.layer(layer),
        None => router,
    };
    router.merge(grpc)
}

/// Its routes, but for gRPC's.
pub(crate) fn routes(sealed: &Sealed) -> Routes<Sealed> {
    let streams = get(PREDICT, resume::get).streamed();
    let streams = streams.and(delete(PREDICT, resume::delete));
    let ml = opensearch::routes(sealed, streams.clone())
        .route("/models/{id}/_predict/ws", get(PREDICT, ws::open));
    Routes::new()
        .nest("/_plugins/_ml", ml)
        .nest("/v1", v1(sealed, streams))
        .nest("/api", ollama::routes())
        .nest("/v2", oip::routes(sealed))
        .route("/v2/rerank", post(PREDICT, openai::rerank::rerank))
        .route("/v2/chat", post_stream(PREDICT, sealed, cohere::chat))
        .route("/v2/embed", post(PREDICT, cohere::embed::second))
        .nest("/_volley", named(operations()))
        .route("/_cluster/settings", opensearch::cluster_settings())
        .route("/metrics", get(VIEWER, ops::metrics))
        .route(
            "/",
            get(VIEWER, ops::about).and(post_stream(PREDICT, sealed, huggingface::at_root)),
        )
        .merge(single(sealed))
        .nest("/tei/{model}", huggingface::tei_routes())
        .nest("/tgi/{model}", huggingface::tgi_routes(sealed))
        .route("/docs", get(PUBLIC, openapi::page))
}

/// The routes of OpenAI, of Anthropic and of Cohere's first version, and of held streams.
fn v1(sealed: &Sealed, streams: Methods<Sealed>) -> Routes<Sealed> {
    Routes::new()
        .route(
            "/chat/completions",
            post_stream(PREDICT, sealed, openai::chat::complete),
        )
        .route(
            "/responses",
            post_stream(PREDICT, sealed, openai::responses::create),
        )
        .route(
            "/responses/input_tokens",
            post(PREDICT, openai::responses::count),
        )
        .route(
            "/responses/{id}",
            get(PREDICT, stored::get).and(delete(PREDICT, stored::delete)),
        )
        .route(
            "/responses/{id}/input_items",
            get(PREDICT, stored::input_items),
        )
        .route(
            "/completions",
            post_stream(PREDICT, sealed, openai::completions::complete),
        )
        .route("/embeddings", post(PREDICT, openai::embeddings::embed))
        .route("/embed", post(PREDICT, cohere::embed::first))
        .route("/rerank", post(PREDICT, openai::rerank::rerank))
        .route("/messages", post_stream(PREDICT, sealed, anthropic::create))
        .route(
            "/messages/count_tokens",
            post(PREDICT, anthropic::count_tokens),
        )
        .route("/streams/{id}", streams)
        .route("/models", get(VIEWER, openai::models::list))
        .route("/models/{id}", get(VIEWER, openai::models::get))
}

/// The routes of servers that serve one model, at their root: vLLM's, llama.cpp's, and Hugging
/// Face's.
fn single(sealed: &Sealed) -> Routes<Sealed> {
    Routes::new()
        .route("/health", get(PUBLIC, ops::health))
        .route(
            "/ping",
            get(PUBLIC, ops::health).and(post(PUBLIC, ops::health)),
        )
        .route("/version", get(VIEWER, ops::version))
        .route("/tokenize", post(PREDICT, tokens::tokenize))
        .route("/detokenize", post(PREDICT, tokens::detokenize))
        .route("/rerank", post(PREDICT, huggingface::rerank))
        .route("/embed", post(PREDICT, huggingface::embed))
        .route("/embed_all", post(PREDICT, huggingface::embed_all))
        .route("/embed_sparse", post(PREDICT, huggingface::embed_sparse))
        .route("/predict", post(PREDICT, huggingface::predict))
        .route("/similarity", post(PREDICT, huggingface::similarity))
        .route("/decode", post(PREDICT, huggingface::decode))
        .route("/info", get(VIEWER, huggingface::info))
        .route("/generate", post(PREDICT, huggingface::generate))
        .route(
            "/generate_stream",
            post_stream(PREDICT, sealed, huggingface::generate_stream),
        )
        .route("/chat_tokenize", post(PREDICT, huggingface::chat_tokenize))
}

/// The cluster itself: its state, its nodes and who may call it.
fn operations() -> Routes<Sealed> {
    Routes::new()
        .route("/status", get(VIEWER, ops::status))
        .route("/scale", get(VIEWER, ops::scale))
        .route("/metrics", get(VIEWER, ops::own_metrics))
        .route("/health/live", get(PUBLIC, ops::live))
        .route("/health/ready", get(PUBLIC, ops::ready))
        .route("/nodes/join", post(CLUSTER_ADMIN, admin::join))
        .route("/nodes/{id}/leave", post(CLUSTER_ADMIN, admin::leave))
        .route("/nodes/{id}/replace", post(CLUSTER_ADMIN, admin::replace))
        .route("/nodes/{id}/drain", post(CLUSTER_ADMIN, drains::drain))
        .route("/nodes/{id}/undrain", post(CLUSTER_ADMIN, drains::undrain))
        .route("/leader/hand_over", post(CLUSTER_ADMIN, admin::hand_over))
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

/// What callers name: secrets, aliases and pipelines.
fn named(routes: Routes<Sealed>) -> Routes<Sealed> {
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

/// Health and metrics alone.
pub(crate) fn node(
    metrics: EncodeMetrics,
    ready: Arc<dyn Fn() -> bool + Send + Sync>,
    gate: Arc<Gatekeeper>,
) -> Router {
    let ready = move || async move { ops::readiness(ready()) };
    let metrics = move || async move { ops::open_metrics(metrics()) };
    Routes::new()
        .route("/metrics", get(VIEWER, metrics))
        .route("/_volley/health/live", get(PUBLIC, ops::live))
        .route("/_volley/health/ready", get(PUBLIC, ready))
        .finish((), gate, ApiConfig::default())
}
