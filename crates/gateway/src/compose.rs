//! The dialects of a coordinator, one line for each.

use std::sync::Arc;

use volley_http_edge::axum::Router;
use volley_security::Authenticator;
use volley_types::arrow_messages::OpenArrow;

use crate::listing::ModelList;
use crate::resume::{Resume, ResumeLayer};
use crate::ws::Sockets;
use volley_admin_api::admin_state::{Admin, EncodeMetrics, ReadEnsemble};
use volley_admin_api::openapi;
use volley_admin_api::ops;
use volley_dialect_anthropic::dialect::Anthropic;
use volley_dialect_cohere::dialect::Cohere;
use volley_dialect_huggingface::dialect::HuggingFace;
use volley_dialect_kit::peers::PeerStreams;
use volley_dialect_model_routes::ModelRoutes;
use volley_dialect_oip::grpc::{self, GrpcFlavor};
use volley_dialect_oip::state::{Oip, OipNode};
use volley_dialect_oip::{dataplane, ensemble};
use volley_dialect_ollama::dialect::Ollama;
use volley_dialect_openai::responses::store::Responses;
use volley_dialect_openai::state::OpenAi;
use volley_dialect_opensearch::batch::ClusterBatches;
use volley_dialect_opensearch::state::OpenSearch;
use volley_http_edge::auth::{PUBLIC, VIEWER};
use volley_http_edge::config::EdgeConfig;
use volley_http_edge::dialect::Dialect;
use volley_http_edge::edge::Edge;
use volley_http_edge::error::ErrorFormats;
use volley_http_edge::paths;
use volley_http_edge::routes::{RouteInfo, Routes, get};

/// Shared parts of a node's dialects.
#[derive(Clone)]
pub(crate) struct Parts {
    pub(crate) edge: Edge,
    pub(crate) metrics: EncodeMetrics,
    pub(crate) keeper: ResumeLayer,
    pub(crate) responses: Responses,
    pub(crate) peers: PeerStreams,
    pub(crate) batches: ClusterBatches,
    pub(crate) arrow: Option<OpenArrow>,
    pub(crate) oip: OipNode,
}

/// All dialects, in the order in which they claim the errors of a request.
pub(crate) fn dialects(parts: &Parts) -> Vec<Box<dyn Dialect>> {
    let (edge, metrics) = (&parts.edge, &parts.metrics);
    let (responses, peers) = (parts.responses.clone(), parts.peers.clone());
    let (batches, arrow) = (parts.batches.clone(), parts.arrow.clone());
    vec![
        Box::new(Anthropic::new(edge)),
        Box::new(Cohere::new(edge)),
        Box::new(Ollama::new(edge)),
        Box::new(Oip::new(edge, parts.oip.clone())),
        Box::new(HuggingFace::new(edge)),
        Box::new(OpenAi::new(edge, responses, peers)),
        Box::new(OpenSearch::new(edge, metrics.clone(), batches, arrow)),
        Box::new(ModelRoutes::new(edge)),
        Box::new(ModelList(edge.clone())),
        Box::new(Resume::new(edge, parts.keeper.clone())),
        Box::new(Sockets(edge.clone())),
        Box::new(Admin::new(edge, metrics.clone(), ensembles())),
    ]
}

/// The error formats of all dialects.
pub(crate) fn errors(dialects: &[Box<dyn Dialect>]) -> ErrorFormats {
    ErrorFormats::new(dialects.iter().filter_map(|dialect| dialect.errors()))
}

/// The public interface of a coordinator, and its error formats.
pub(crate) fn coordinator(parts: &Parts) -> (Router, ErrorFormats) {
    let edge = &parts.edge;
    let dialects = dialects(parts);
    let errors = errors(&dialects);
    let routes = documented(parts, &dialects, &errors);
    let templates = paths::Templates::new(routes.listed().iter().map(|it| it.path.as_str()));
    let router = routes.finish(edge.gate(), *edge.config(), errors.clone());
    let router = paths::joined(router, templates);
    let router = match edge.origins().layer() {
        Some(layer) => router.layer(layer),
        None => router,
    };
    let oip = Oip::new(edge, parts.oip.clone());
    (router.merge(grpc::routes(&oip, GrpcFlavor::Triton)), errors)
}

/// The routes of all dialects.
pub(crate) fn routes(dialects: &[Box<dyn Dialect>]) -> Routes<()> {
    let all = dialects.iter().map(|dialect| dialect.routes());
    all.fold(Routes::new(), Routes::merge)
}

/// The routes of all dialects, and those of the documents that describe them.
fn documented(parts: &Parts, dialects: &[Box<dyn Dialect>], errors: &ErrorFormats) -> Routes<()> {
    let routes = routes(dialects).merge(openapi::page_routes());
    let mut listed = routes.listed().to_vec();
    listed.extend(dataplane::listed());
    listed.push(RouteInfo::public(openapi::PATH));
    let operations = dialects.iter().flat_map(|dialect| dialect.operations());
    let document = openapi::document(&listed, &operations.collect::<Vec<_>>(), errors);
    let oip = Oip::new(&parts.edge, parts.oip.clone());
    let routes = routes.merge(dataplane::routes(&oip, &document));
    routes.merge(openapi::document_routes(&document))
}

/// Converts ensembles in Triton's configuration format to pipelines.
fn ensembles() -> ReadEnsemble {
    Arc::new(|caller, name, config| {
        Box::pin(async move { ensemble::pipeline(&caller, name, &config).await })
    })
}

/// Health and metrics only.
pub(crate) fn node(
    metrics: EncodeMetrics,
    ready: Arc<dyn Fn() -> bool + Send + Sync>,
    gate: Arc<Authenticator>,
) -> Router {
    let ready = move || async move { ops::readiness(ready()) };
    let metrics = move || async move { ops::open_metrics(metrics()) };
    Routes::new()
        .route("/metrics", get(VIEWER, metrics).compressed())
        .route("/_volley/health/live", get(PUBLIC, ops::live))
        .route("/_volley/health/ready", get(PUBLIC, ready))
        .with_state(())
        .finish(gate, EdgeConfig::default(), ErrorFormats::default())
}
