//! Remote models: one replica holds no model but the way to one, a connector.
//!
//! Reading order: [`RemoteLoader`], `predict` (one request), `servers` (who is called for an item
//! of it, and again), `call` (one call), `rows` (models that embed or rerank), `reading` and `answer` (what comes back), `merge` (the
//! answers as one stream), `provider` (a wire format each), `sse` and `frames` (the events),
//! `upstream` (failures into errors), `egress` (where calls may go).

mod account;
mod answer;
mod budget;
mod call;
mod check;
mod config;
#[cfg(test)]
mod cost;
mod credential;
mod egress;
mod expect;
mod fault;
mod frames;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod limits;
mod merge;
mod naming;
mod paths;
mod predict;
mod provider;
mod reading;
mod refusal;
mod reserved;
mod rows;
mod schema;
mod servers;
mod sight;
mod signing;
mod sse;
mod template;
mod tries;
mod upstream;
mod wish;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use url::Url;
use volley_backend::{Backend, BackendLoader};
use volley_telemetry::Metrics;
use volley_types::PredictError;
use volley_types::registry::{Assignment, BackendKind, OpenSecret};

use crate::account::Account;
pub use crate::config::RemoteConfig;
use crate::credential::Opener;
use crate::predict::RemoteModel;
use crate::rows::RemoteRows;
use crate::servers::{AllServers, Servers};

/// One client speaks HTTP/2 over one connection for each host, which carries some hundred
/// streams; several spread the load.
const CLIENTS: usize = 16;
/// Shorter than what servers and balancers in between allow an idle connection.
const POOL_IDLE: Duration = Duration::from_secs(4);

/// A stream whose caller reads slowly must not stop the others on its connection: each may
/// hold this much, in bytes, and the connection as much as all of them.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = i32::MAX as u32;

/// Loads remote models.
#[derive(Clone, Debug)]
pub struct RemoteLoader {
    clients: Arc<Clients>,
    /// Why servers cannot be called over TLS, where that is so.
    no_tls: Option<PredictError>,
    /// What is known of servers is shared by all replicas of a connector.
    servers: Arc<AllServers>,
    metrics: Metrics,
    opener: Opener,
    config: RemoteConfig,
}

impl RemoteLoader {
    /// A loader with its HTTP clients. The process must have a crypto provider installed.
    ///
    /// A machine without the certificates of any authority can still call `http://` servers;
    /// a model behind `https://` fails to load there, with what to do about it.
    ///
    /// # Errors
    /// `Internal` when a client cannot be set up.
    pub fn new(config: RemoteConfig) -> Result<Self, PredictError> {
        let (clients, no_tls) = match Clients::build(&config, |builder| builder) {
            Ok(clients) => (clients, None),
            Err(failure) => {
                let plain = Clients::build(&config, |builder| builder.tls_certs_only([]));
                let plain = plain.map_err(|error| {
                    let message = "the HTTP client of remote models cannot be set up";
                    PredictError::internal(message, error)
                })?;
                let message = "this worker has no certificates to check servers by; install \
                               the system's CA certificates, or use an http:// URL";
                let no_tls = PredictError::invalid(message).with_source(failure);
                (plain, Some(no_tls))
            }
        };
        Ok(Self {
            clients: Arc::new(clients),
            no_tls,
            servers: Arc::default(),
            metrics: Metrics::default(),
            opener: Opener::default(),
            config,
        })
    }

    /// The same, which counts its calls in `metrics`.
    #[must_use]
    pub fn counted_by(self, metrics: Metrics) -> Self {
        Self { metrics, ..self }
    }

    /// The same, opening with `secrets` the credentials that come sealed.
    #[must_use]
    pub fn opening(mut self, secrets: Arc<dyn OpenSecret>) -> Self {
        self.opener = Opener(Some(secrets));
        self
    }

    /// A URL that may be called.
    ///
    /// # Errors
    /// `InvalidInput` that says why it may not.
    fn checked(&self, url: &str) -> Result<Url, PredictError> {
        let url = self.config.egress().check("the connector's URL", url)?;
        match (&self.no_tls, url.scheme()) {
            (Some(error), "https") => Err(error.clone()),
            _ => Ok(url),
        }
    }
}

/// HTTP clients, taken in turns.
#[derive(Debug)]
pub(crate) struct Clients {
    clients: Vec<reqwest::Client>,
    turn: AtomicUsize,
}

impl Clients {
    fn build(
        config: &RemoteConfig,
        trust: impl Fn(reqwest::ClientBuilder) -> reqwest::ClientBuilder,
    ) -> Result<Self, reqwest::Error> {
        let resolver = Arc::new(egress::CheckedResolver::new(config.allow_private));
        let build = || {
            let builder = reqwest::Client::builder()
                .connect_timeout(config.connect_timeout)
                .pool_idle_timeout(POOL_IDLE)
                .tcp_nodelay(true)
                .http2_initial_stream_window_size(STREAM_WINDOW)
                .http2_initial_connection_window_size(CONNECTION_WINDOW)
                .redirect(reqwest::redirect::Policy::none())
                .no_proxy()
                .user_agent(concat!("volley/", env!("CARGO_PKG_VERSION")))
                .dns_resolver(resolver.clone());
            trust(builder).build()
        };
        Ok(Self {
            clients: (0..CLIENTS).map(|_| build()).collect::<Result<_, _>>()?,
            turn: AtomicUsize::new(0),
        })
    }

    pub(crate) fn next(&self) -> &reqwest::Client {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        &self.clients[turn % self.clients.len()]
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
        let defaults = assignment
            .spec
            .parameters
            .clone()
            .or_defaults(&connector.parameters);
        let account = Account::of(&connector, self.metrics.clone())?;
        let make = || Servers::new(&connector, account, &self.opener, |url| self.checked(url));
        let servers = self.servers.of(&connector, make)?;
        if let Some(task) = servers.task() {
            return Ok(Arc::new(RemoteRows::new(
                assignment.model.clone(),
                servers,
                task,
                defaults,
                self.clients.clone(),
                self.config.clone(),
            )?));
        }
        Ok(Arc::new(RemoteModel::new(
            assignment.model.clone(),
            servers,
            defaults,
            self.clients.clone(),
            self.config.clone(),
        )))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;

    use volley_types::registry::{
        ConnectorPolicy, ConnectorSpec, ModelSource, ModelVersionSpec, ProviderKind,
    };
    use volley_types::{ConnectorId, ErrorCode, ModelName, ModelVersion, Parameters};

    use super::*;

    pub(crate) fn assignment(url: &str) -> Assignment {
        let id = ConnectorId::new("c").unwrap();
        Assignment {
            model: ModelName::new("m").unwrap(),
            spec: ModelVersionSpec {
                version: ModelVersion(1),
                backend: BackendKind::Remote,
                source: ModelSource::Connector(id.clone()),
                parameters: Parameters::default(),
                description: String::new(),
                created_ms: 0,
            },
            connector: Some(ConnectorSpec {
                id,
                name: "c".to_owned(),
                provider: ProviderKind::OpenAi,
                url: url.to_owned(),
                model: "m".to_owned(),
                credential: None,
                headers: BTreeMap::new(),
                parameters: Parameters::default(),
                request_body: None,
                policy: ConnectorPolicy::default(),
            }),
        }
    }

    #[tokio::test]
    async fn without_certificates_only_plain_servers_can_be_called() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let config = RemoteConfig::default();
        let clients = Clients::build(&config, |builder| builder.tls_certs_only([])).unwrap();
        let loader = RemoteLoader {
            clients: Arc::new(clients),
            no_tls: Some(PredictError::invalid("no certificates")),
            servers: Arc::default(),
            metrics: Metrics::default(),
            opener: Opener::default(),
            config,
        };
        let plain = assignment("http://127.0.0.1:1/v1/chat/completions");
        assert!(loader.load(&plain).await.is_ok());
        let secure = assignment("https://llm.example/v1/chat/completions");
        let error = loader.load(&secure).await.err().unwrap();
        assert_eq!(error.message, "no certificates");
        let mut orphan = plain;
        orphan.connector = None;
        let error = loader.load(&orphan).await.err().unwrap();
        assert_eq!(error.code, ErrorCode::InvalidInput);
    }
}
