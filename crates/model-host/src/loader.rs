//! The loader of a worker that loads models in child processes.

use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use volley_backend::{Backend, BackendLoader, Hold, LoadProgress};
use volley_flight::local;
use volley_telemetry::Metrics;
use volley_types::PredictError;
use volley_types::registry::{Assignment, BackendName, ModelSource};

use crate::process::{LoadedProcess, Program};
use crate::supervisor::{HostedModel, Launch, Launched, Restarts, Supervisor};

/// Memory in bytes that a process needs besides its model: the binary, the library and its threads.
/// Measured, plus a reserve.
const OVERHEAD_BYTES: u64 = 48 << 20;

/// The use of child processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// A model is loaded and probed in a child process, which then ends, and is loaded again in
    /// this process. A model that [needs a process](BackendLoader::needs_process) stays in the
    /// child.
    Probe,
    /// A model stays in its child process.
    Serve,
}

/// Loads models in child processes.
pub struct HostedLoader {
    inner: Arc<dyn BackendLoader>,
    program: Arc<Program>,
    what_for: Use,
    restarts: Restarts,
    metrics: Metrics,
    loads: AtomicU64,
}

impl HostedLoader {
    /// Creates a loader that starts `program` for each model. `inner`, the loader of this process,
    /// prepares and estimates models.
    #[must_use]
    pub fn new(
        inner: Arc<dyn BackendLoader>,
        program: Program,
        what_for: Use,
        metrics: Metrics,
    ) -> Self {
        Self {
            inner,
            program: Arc::new(program),
            what_for,
            restarts: Restarts::default(),
            metrics,
            loads: AtomicU64::new(0),
        }
    }

    /// Whether the model stays in a child process.
    async fn serves(&self, assignment: &Assignment) -> Result<bool, PredictError> {
        match self.what_for {
            Use::Probe => self.inner.needs_process(assignment).await,
            Use::Serve => Ok(true),
        }
    }

    /// Sets the restart policy.
    #[must_use]
    pub fn with_restarts(mut self, restarts: Restarts) -> Self {
        self.restarts = restarts;
        self
    }
}

#[async_trait]
impl BackendLoader for HostedLoader {
    fn name(&self) -> BackendName {
        self.inner.name()
    }

    async fn prepare(
        &self,
        assignment: &Assignment,
        progress: &LoadProgress,
    ) -> Result<Option<Hold>, PredictError> {
        self.inner.prepare(assignment, progress).await
    }

    async fn estimate(&self, assignment: &Assignment) -> Result<u64, PredictError> {
        let bytes = self.inner.estimate(assignment).await?;
        Ok(match self.serves(assignment).await? {
            false => bytes,
            true => bytes.saturating_add(OVERHEAD_BYTES),
        })
    }

    fn stops_when_dropped(&self, assignment: &Assignment) -> bool {
        match self.what_for {
            Use::Probe => self.inner.stops_when_dropped(assignment),
            Use::Serve => true,
        }
    }

    async fn load(&self, assignment: &Assignment) -> Result<Arc<dyn Backend>, PredictError> {
        let turn = self.loads.fetch_add(1, Ordering::Relaxed);
        let stays = self.serves(assignment).await?;
        let mut loaded = self.program.load(assignment, turn).await?;
        if !stays {
            // Frees the child's memory before the model is loaded here.
            if let Err(error) = loaded.process.kill().await {
                tracing::debug!(%error, "probe process had already ended");
            }
            return self.inner.load(assignment).await;
        }
        let supervisor = Supervisor {
            launcher: Box::new(HostLauncher {
                program: self.program.clone(),
                assignment: assignment.clone(),
                turn,
            }),
            assignment: assignment.clone(),
            restarts: self.restarts,
            metrics: self.metrics.clone(),
        };
        let model = HostedModel::new(supervisor, connected(loaded), OVERHEAD_BYTES);
        Ok(Arc::new(model.await?))
    }
}

/// Starts this binary as the process of a model.
struct HostLauncher {
    program: Arc<Program>,
    assignment: Assignment,
    turn: u64,
}

#[async_trait]
impl Launch for HostLauncher {
    async fn launch(&self) -> Result<Launched, PredictError> {
        let loaded = self.program.load(&self.assignment, self.turn).await?;
        Ok(connected(loaded))
    }
}

/// A process whose socket carries Flight from now on.
fn connected(loaded: LoadedProcess) -> Launched {
    let (client, gone) = local::client(loaded.socket);
    Launched {
        process: loaded.process,
        client: Arc::new(client),
        gone,
        report: loaded.told,
    }
}

/// The models that need no child process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrustedModels {
    /// All models on this machine.
    Local,
    /// Models below this directory; only trusted users may write to it.
    Below(PathBuf),
}

impl TrustedModels {
    fn holds(&self, source: &ModelSource) -> bool {
        let path = match source {
            ModelSource::Url { .. } => return false,
            ModelSource::None | ModelSource::Connector(_) => return true,
            ModelSource::Path(path) => Path::new(path),
        };
        // A path with `..` may leave the directory.
        let climbs = path.components().any(|part| part == Component::ParentDir);
        match self {
            Self::Local => true,
            Self::Below(directory) => !climbs && path.starts_with(directory),
        }
    }
}

/// Two loaders of one backend: one for trusted models, one for all other models.
pub struct BySource {
    /// The trusted models.
    pub trusted: TrustedModels,
    /// The loader of trusted models.
    pub own: Arc<dyn BackendLoader>,
    /// The loader of all other models.
    pub others: Arc<dyn BackendLoader>,
}

impl BySource {
    fn of(&self, assignment: &Assignment) -> &dyn BackendLoader {
        if self.trusted.holds(&assignment.spec.source) {
            &*self.own
        } else {
            &*self.others
        }
    }
}

#[async_trait]
impl BackendLoader for BySource {
    fn name(&self) -> BackendName {
        self.own.name()
    }

    async fn prepare(
        &self,
        assignment: &Assignment,
        progress: &LoadProgress,
    ) -> Result<Option<Hold>, PredictError> {
        self.of(assignment).prepare(assignment, progress).await
    }

    async fn estimate(&self, assignment: &Assignment) -> Result<u64, PredictError> {
        self.of(assignment).estimate(assignment).await
    }

    fn stops_when_dropped(&self, assignment: &Assignment) -> bool {
        self.of(assignment).stops_when_dropped(assignment)
    }

    async fn load(&self, assignment: &Assignment) -> Result<Arc<dyn Backend>, PredictError> {
        self.of(assignment).load(assignment).await
    }
}

#[cfg(test)]
mod tests {
    use volley_types::registry::ModelUrl;

    use super::*;

    #[test]
    fn a_path_is_trusted_where_it_surely_is_below_the_directory() {
        let path = |path: &str| ModelSource::Path(path.to_owned());
        let below = TrustedModels::Below(PathBuf::from("/data/models"));
        assert!(below.holds(&path("/data/models/storyteller-1")));
        for other in [
            "/data/modelsx/a",
            "/data/models/../evil",
            "/else",
            "models/a",
        ] {
            assert!(!below.holds(&path(other)), "{other}");
            assert!(TrustedModels::Local.holds(&path(other)), "{other}");
        }
        let url = ModelSource::Url {
            url: ModelUrl::parse("https://models.example.com/a.onnx").unwrap(),
            sha256: None,
        };
        for trusted in [below, TrustedModels::Local] {
            assert!(!trusted.holds(&url));
        }
    }
}
