//! The backends of this binary. [`BACKENDS`] has a line for each; nothing else lists them.
//!
//! A coordinator takes the names and sources of models from [`list`]; a worker loads models with
//! [`loaders`].

mod onnx;

use std::sync::Arc;

use volley_artifacts::{ArtifactConfig, Artifacts, FetchingLoader};
use volley_backend::BackendLoader;
use volley_backend::{fake, text};
use volley_backend_python::{PythonConfig, PythonLoader};
use volley_backend_remote::{RemoteConfig, RemoteLoader};
use volley_telemetry::Metrics;
use volley_types::registry::{BackendInfo, BackendList, OpenSecret};
use volley_types::{CheckConnector, PredictError};

pub use onnx::{HostSettings, Isolation, OnnxPlan, host_loader, runtime};

/// A backend: its description for the cluster, and the constructor of its loader.
pub struct Entry {
    /// Its name and the source of its models.
    pub info: &'static BackendInfo,
    loader: MakeLoader,
}

type MakeLoader = fn(&Setup) -> Result<Arc<dyn BackendLoader>, PredictError>;

/// Every backend of this binary, in the order in which help texts list them.
pub static BACKENDS: &[Entry] = &[
    entry(&volley_backend_onnx::INFO, onnx::loader),
    entry(&volley_backend_remote::INFO, |setup| {
        Ok(setup.remote.clone())
    }),
    entry(&volley_backend_python::INFO, |setup| {
        let loader = PythonLoader::new(setup.python.clone(), setup.metrics.clone());
        Ok(setup.fetching(Arc::new(loader)))
    }),
    entry(&text::INFO, |_| Ok(Arc::new(text::TextLoader))),
    entry(&fake::INFO, |setup| Ok(setup.fake())),
];

const fn entry(info: &'static BackendInfo, loader: MakeLoader) -> Entry {
    Entry { info, loader }
}

/// Descriptions of the backends for coordinators.
#[must_use]
pub fn list() -> BackendList {
    BackendList::new(BACKENDS.iter().map(|entry| entry.info))
}

/// Configuration of a worker's backends.
#[derive(Default)]
pub struct BackendsConfig {
    /// ONNX models and their processes.
    pub onnx: OnnxPlan,
    /// Python models and their environments.
    pub python: PythonConfig,
    /// The client of remote models.
    pub remote: RemoteConfig,
    /// Download and cache of model files.
    pub artifacts: ArtifactConfig,
    /// Opens the sealed credentials of connectors.
    pub secrets: Option<Arc<dyn OpenSecret>>,
    /// Whether models of the backend `fake` may be loaded.
    pub allow_fake: bool,
}

/// Input of the loaders' constructors.
pub struct Setup {
    onnx: OnnxPlan,
    python: PythonConfig,
    remote: Arc<RemoteLoader>,
    artifacts: Artifacts,
    allow_fake: bool,
    metrics: Metrics,
}

impl Setup {
    /// Wraps `inner` with the download of its models' files.
    pub fn fetching(&self, inner: Arc<dyn BackendLoader>) -> Arc<dyn BackendLoader> {
        Arc::new(FetchingLoader::new(inner, self.artifacts.clone()))
    }

    fn fake(&self) -> Arc<dyn BackendLoader> {
        match self.allow_fake {
            true => Arc::new(fake::FakeLoader::default()),
            false => Arc::new(fake::DisallowedFake),
        }
    }
}

/// The loaders of a worker.
pub struct Loaders {
    /// One for each entry of [`BACKENDS`].
    pub loaders: Vec<Arc<dyn BackendLoader>>,
    /// Checks a connector before it is registered.
    pub connectors: Arc<dyn CheckConnector>,
}

/// A loader for each backend. A worker without ONNX Runtime's library still serves everything
/// else; an ONNX model then fails to load, with a reason that names the remedy.
///
/// # Errors
/// `InvalidInput` when the configuration of artifacts is wrong; `Unavailable` when the HTTP client
/// of remote models cannot be built.
pub fn loaders(config: BackendsConfig, metrics: &Metrics) -> Result<Loaders, PredictError> {
    let remote = RemoteLoader::new(config.remote)?.counted_by(metrics.clone());
    let remote = Arc::new(match config.secrets {
        Some(secrets) => remote.opening(secrets),
        None => remote,
    });
    let setup = Setup {
        onnx: config.onnx,
        python: config.python,
        remote: remote.clone(),
        artifacts: Artifacts::new(config.artifacts, metrics.clone())?,
        allow_fake: config.allow_fake,
        metrics: metrics.clone(),
    };
    let loaders = BACKENDS.iter().map(|entry| (entry.loader)(&setup));
    Ok(Loaders {
        loaders: loaders.collect::<Result<_, _>>()?,
        connectors: remote,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_makes_a_loader_of_its_name() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let made = loaders(BackendsConfig::default(), &Metrics::new());
        let made = made.unwrap().loaders;
        assert_eq!(made.len(), BACKENDS.len());
        for (entry, loader) in BACKENDS.iter().zip(made) {
            assert_eq!(entry.info.name, loader.name());
            assert!(!entry.info.summary.is_empty());
            assert_eq!(list().find(entry.info.name.as_str()).unwrap(), entry.info);
        }
    }
}
