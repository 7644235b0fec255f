//! The HTTP edge: bytes into [`volley_types::PredictRequest`]s, chunks into events. It knows
//! the cluster only as a [`Control`], and nothing of workers. The only crate that names `axum`.
//!
//! Reading order: [`ApiServer`], `app` (the routes), `auth` (who may call them), `context` (what every request carries),
//! `opensearch` (the dialect), `sse` (the stream), `tensors` (JSON ⇄ Arrow), `serve` (sockets).

mod answer;
mod anthropic;
mod app;
mod auth;
mod body;
mod chat;
mod config;
mod context;
mod error;
mod extract;
mod keys;
mod oip;
mod openai;
mod opensearch;
mod ops;
mod parameters;
mod serve;
mod sse;
mod stall;
pub mod tensors;
mod watch;

use std::sync::Arc;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use volley_security::Gatekeeper;
use volley_types::Control;

use crate::auth::Sealed;
pub use crate::config::ApiConfig;

/// Encodes the node's metrics in the OpenMetrics text format.
pub type EncodeMetrics = Arc<dyn Fn() -> String + Send + Sync>;

/// The public interface of a coordinator.
#[derive(Clone)]
pub struct ApiServer {
    router: axum::Router,
    config: ApiConfig,
}

impl ApiServer {
    /// An interface to `control` for those whom `gate` lets in.
    #[must_use]
    pub fn new(
        control: Arc<dyn Control>,
        metrics: EncodeMetrics,
        config: ApiConfig,
        gate: Arc<Gatekeeper>,
    ) -> Self {
        Self {
            router: app::coordinator(Sealed::new(control, metrics, config, gate)),
            config,
        }
    }

    /// Serves until `shutdown`; then takes no new connections, and returns once every request
    /// has ended, or at the drain timeout.
    pub async fn serve(self, listener: TcpListener, shutdown: CancellationToken) {
        serve::run(self.router, listener, self.config, shutdown).await;
    }
}

/// Serves health and metrics of a node without a REST interface of its own, as
/// [`ApiServer::serve`] does.
pub async fn serve_node(
    listener: TcpListener,
    metrics: EncodeMetrics,
    ready: Arc<dyn Fn() -> bool + Send + Sync>,
    config: ApiConfig,
    gate: Arc<Gatekeeper>,
    shutdown: CancellationToken,
) {
    let router = app::node(metrics, ready, gate);
    serve::run(router, listener, config, shutdown).await;
}
