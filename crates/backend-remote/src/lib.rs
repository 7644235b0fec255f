//! Remote models: the backend whose replicas call a server through a connector.
//!
//! Four crates make a call. Each uses only those above it:
//!
//! | crate | contents | restrictions |
//! |---|---|---|
//! | `volley-provider-kit` | common parts of providers: parameters, events, tool calls, citations, error classes, rows | no I/O; refers to no provider |
//! | `volley-providers` | a module for each provider, and their list | no I/O |
//! | `volley-remote-http` | clients, egress, credentials, signatures, limits, retries, events of a body | refers to no provider |
//! | this crate | selection of servers, answers as rows | uses no HTTP client directly |
//!
//! Reading order: [`RemoteLoader`], `predict` (one request), `servers` (selection of a server,
//! retries), `server` (one server), `call` (one call), `rows` (embedding and reranking models),
//! `answer_stream` and `answer` (answers), `merge` (all answers as one stream).

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

/// Description of this backend.
pub static INFO: BackendInfo = BackendInfo {
    name: BackendName::REMOTE,
    summary: "calls a server through a connector",
    source: SourceKind::Connector,
    takes_model_config: false,
};

/// Loads remote models. Clones share their clients and the state of servers.
#[derive(Clone, Debug)]
pub struct RemoteLoader {
    clients: Arc<Clients>,
    /// The error for `https` URLs, if the machine has no CA certificates.
    no_tls: Option<PredictError>,
    /// Replicas with the same connector share the state of its servers.
    servers: Arc<AllServers>,
    metrics: Metrics,
    opener: Opener,
    config: RemoteConfig,
}

impl RemoteLoader {
    /// Creates a loader and its HTTP clients. The process must have a crypto provider installed.
    ///
    /// Without CA certificates, `http://` servers work, and a model behind `https://` fails to load
    /// with `InvalidInput` and the next step.
    ///
    /// # Errors
    /// `Internal` if a client cannot be created.
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

    /// Sets the metrics of calls.
    #[must_use]
    pub fn counted_by(self, metrics: Metrics) -> Self {
        Self { metrics, ..self }
    }

    /// Sets the opener of sealed credentials.
    #[must_use]
    pub fn opening(mut self, secrets: Arc<dyn OpenSecret>) -> Self {
        self.opener = Opener(Some(secrets));
        self
    }

    /// Parses a URL and checks the egress policy.
    ///
    /// # Errors
    /// `InvalidInput` with the reason if the URL is not allowed.
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
