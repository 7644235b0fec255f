//! Remote models: one replica holds no model but the way to one, a connector.
//!
//! Reading order: [`RemoteLoader`], `predict` (one request), `provider` (a wire format each),
//! `sse` (the events), `upstream` (statuses into errors), `egress` (where calls may go).

mod config;
mod credential;
mod egress;
mod predict;
mod provider;
mod sse;
mod template;
mod upstream;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use url::Url;
use volley_backend::{Backend, BackendLoader};
use volley_types::PredictError;
use volley_types::registry::{Assignment, BackendKind};

pub use crate::config::RemoteConfig;
use crate::predict::RemoteModel;

/// One client speaks HTTP/2 over one connection for each host, which carries some hundred
/// streams; several spread the load.
const CLIENTS: usize = 8;
/// Shorter than what servers and balancers in between allow an idle connection.
const POOL_IDLE: Duration = Duration::from_secs(4);

/// Loads remote models.
#[derive(Clone, Debug)]
pub struct RemoteLoader {
    clients: Arc<Clients>,
    config: RemoteConfig,
}

/// HTTP clients, taken in turns.
#[derive(Debug)]
pub(crate) struct Clients {
    clients: Vec<reqwest::Client>,
    turn: AtomicUsize,
}

impl Clients {
    pub(crate) fn next(&self) -> &reqwest::Client {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        &self.clients[turn % self.clients.len()]
    }
}

impl RemoteLoader {
    /// A loader with its HTTP clients. The process must have a crypto provider installed.
    ///
    /// # Errors
    /// `Internal` when a client cannot be set up.
    pub fn new(config: RemoteConfig) -> Result<Self, PredictError> {
        let build = || {
            reqwest::Client::builder()
                .connect_timeout(config.connect_timeout)
                .pool_idle_timeout(POOL_IDLE)
                .tcp_nodelay(true)
                .redirect(reqwest::redirect::Policy::none())
                .no_proxy()
                .dns_resolver(Arc::new(egress::CheckedResolver::new(config.allow_private)))
                .build()
        };
        let clients = (0..CLIENTS).map(|_| build()).collect::<Result<Vec<_>, _>>();
        let clients = clients.map_err(|error| {
            PredictError::internal("the HTTP client of remote models cannot be set up", error)
        })?;
        let clients = Clients {
            clients,
            turn: AtomicUsize::new(0),
        };
        Ok(Self {
            clients: Arc::new(clients),
            config,
        })
    }
}

#[async_trait]
impl BackendLoader for RemoteLoader {
    fn kind(&self) -> BackendKind {
        BackendKind::Remote
    }

    async fn load(&self, assignment: &Assignment) -> Result<Arc<dyn Backend>, PredictError> {
        let connector = assignment.connector.clone().ok_or_else(|| {
            PredictError::invalid("a remote model needs a connector; it may have been deleted")
        })?;
        let url = Url::parse(&connector.url)
            .map_err(|_| PredictError::invalid("the connector's URL is malformed"))?;
        egress::check_url(&url, &self.config)?;
        Ok(Arc::new(RemoteModel::new(
            assignment.model.clone(),
            connector,
            assignment.spec.parameters.clone(),
            url,
            self.clients.clone(),
            self.config.clone(),
        )))
    }
}
