//! Remote models: one replica holds no model but the way to one, a connector.
//!
//! Four crates make a call, and each uses only those above it:
//!
//! | crate | what it has | what it may not do |
//! |---|---|---|
//! | `volley-provider-kit` | what providers share: parameters, events, tool calls, citations, words of errors, rows | I/O; it knows no provider by name |
//! | `volley-providers` | a file for each provider, and the list of them | I/O |
//! | `volley-remote-http` | clients, egress, credentials, signatures, limits, retries, events of a body | it knows no provider by name |
//! | this one | who is called for an item, and what is made of the answer | name an HTTP client |
//!
//! Reading order: [`RemoteLoader`], `predict` (one request), `servers` (who is called for an item
//! of it, and again), `server` (one of them), `call` (one call), `rows` (models that embed or
//! rerank), `answer_stream` and `answer` (what comes back), `merge` (the answers as one stream).

mod account;
mod answer;
mod answer_check;
mod answer_stream;
mod call;
mod check;
#[cfg(test)]
mod cost;
mod delta_template;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod merge;
mod predict;
mod rows;
mod schema;
mod server;
mod servers;

use std::sync::Arc;

use async_trait::async_trait;
use url::Url;
use volley_backend::{Backend, BackendLoader};
use volley_remote_http::client::Clients;
pub use volley_remote_http::config::RemoteConfig;
use volley_remote_http::credential::Opener;
use volley_telemetry::Metrics;
use volley_types::PredictError;
use volley_types::registry::{Assignment, BackendInfo, BackendName, OpenSecret, SourceKind};

use crate::account::Account;
use crate::predict::RemoteModel;
use crate::rows::RemoteRows;
use crate::servers::{AllServers, Servers};

/// This backend.
pub static INFO: BackendInfo = BackendInfo {
    name: BackendName::REMOTE,
    summary: "calls a server through a connector",
    source: SourceKind::Connector,
    takes_model_config: false,
};

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
        let (clients, no_tls) = match Clients::new(&config) {
            Ok(clients) => (clients, None),
            Err(failure) => {
                let plain = Clients::without_tls(&config);
                let plain = plain.map_err(|error| {
                    let message = "the HTTP client of remote models cannot be set up";
                    PredictError::internal(message, error)
                })?;
                let message = "this worker has no CA certificates to verify servers with; install \
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

#[async_trait]
impl BackendLoader for RemoteLoader {
    fn name(&self) -> BackendName {
        BackendName::REMOTE
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
        ConnectorPolicy, ConnectorSpec, ModelSource, ModelVersionSpec, ProviderName,
    };
    use volley_types::{
        CheckConnector, ConnectorId, ErrorCode, ModelName, ModelVersion, Parameters,
    };

    use super::*;

    pub(crate) fn provider(name: &str) -> &'static volley_providers::Provider {
        volley_providers::named(name).unwrap()
    }

    pub(crate) fn assignment(url: &str) -> Assignment {
        let id = ConnectorId::new("c").unwrap();
        Assignment {
            model: ModelName::new("m").unwrap(),
            spec: ModelVersionSpec {
                version: ModelVersion(1),
                backend: BackendName::REMOTE,
                source: ModelSource::Connector(id.clone()),
                parameters: Parameters::default(),
                description: String::new(),
                created_ms: 0,
            },
            connector: Some(ConnectorSpec {
                id,
                name: "c".to_owned(),
                provider: ProviderName::from_static("openai"),
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
    async fn a_provider_that_this_version_lacks_is_named_and_nothing_is_called() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let loader = RemoteLoader::new(RemoteConfig::default()).unwrap();
        let mut later = assignment("http://127.0.0.1:1/v1/chat/completions");
        let connector = later.connector.as_mut().unwrap();
        connector.provider = ProviderName::from_static("of_a_later_version");
        let refused = loader.check_connector(connector, false).await.unwrap_err();
        let failed = loader.load(&later).await.err().unwrap();
        for error in [refused, failed] {
            assert_eq!(error.code, ErrorCode::InvalidInput);
            assert!(error.message.contains("'of_a_later_version'"), "{error}");
            assert!(error.message.contains("upgrade the worker"), "{error}");
        }
    }

    #[tokio::test]
    async fn without_certificates_only_plain_servers_can_be_called() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let config = RemoteConfig::default();
        let clients = Clients::without_tls(&config).unwrap();
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
