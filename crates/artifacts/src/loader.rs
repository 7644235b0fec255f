//! Adds URLs to loaders of model directories.

use std::sync::Arc;

use async_trait::async_trait;
use volley_backend::{Backend, BackendLoader, Hold, LoadProgress, WrappedBackend};
use volley_types::PredictError;
use volley_types::registry::{Assignment, BackendName, ModelSource};

use crate::{ArtifactRequest, Artifacts, Lease};

/// Fetches models from URLs before it passes their directory to another loader.
pub struct FetchingLoader {
    inner: Arc<dyn BackendLoader>,
    artifacts: Artifacts,
}

impl FetchingLoader {
    /// Creates a loader that fetches models with `artifacts` for `inner`.
    #[must_use]
    pub fn new(inner: Arc<dyn BackendLoader>, artifacts: Artifacts) -> Self {
        Self { inner, artifacts }
    }
}

#[async_trait]
impl BackendLoader for FetchingLoader {
    fn name(&self) -> BackendName {
        self.inner.name()
    }

    async fn prepare(
        &self,
        assignment: &Assignment,
        progress: &LoadProgress,
    ) -> Result<Option<Hold>, PredictError> {
        let Some(wanted) = wanted(assignment) else {
            return self.inner.prepare(assignment, progress).await;
        };
        let lease = self.artifacts.fetch(&wanted, progress).await?;
        Ok(Some(Box::new(lease)))
    }

    async fn estimate(&self, assignment: &Assignment) -> Result<u64, PredictError> {
        let (local, _lease) = self.local(assignment).await?;
        self.inner.estimate(&local).await
    }

    fn stops_when_dropped(&self, assignment: &Assignment) -> bool {
        self.inner.stops_when_dropped(assignment)
    }

    async fn load(&self, assignment: &Assignment) -> Result<Arc<dyn Backend>, PredictError> {
        let (local, lease) = self.local(assignment).await?;
        let backend = self.inner.load(&local).await?;
        match lease {
            // The lease keeps the files while the model is loaded.
            Some(lease) => Ok(Arc::new(WrappedBackend::holding(backend, lease))),
            None => Ok(backend),
        }
    }
}

impl FetchingLoader {
    /// Returns the assignment with a local directory instead of a URL. The lease keeps the
    /// directory.
    async fn local(
        &self,
        assignment: &Assignment,
    ) -> Result<(Assignment, Option<Lease>), PredictError> {
        let mut local = assignment.clone();
        let Some(wanted) = wanted(assignment) else {
            return Ok((local, None));
        };
        let progress = LoadProgress::default();
        let lease = self.artifacts.fetch(&wanted, &progress).await?;
        let path = lease.path().to_str().ok_or_else(|| {
            PredictError::invalid("the path of this worker's artifacts.cache_dir is not UTF-8")
        })?;
        local.spec.source = ModelSource::Path(path.to_owned());
        Ok((local, Some(lease)))
    }
}

/// The fetch that an assignment needs, if it has a URL.
fn wanted(assignment: &Assignment) -> Option<ArtifactRequest> {
    let spec = &assignment.spec;
    let ModelSource::Url { url, sha256 } = &spec.source else {
        return None;
    };
    Some(ArtifactRequest {
        url: url.clone(),
        sha256: *sha256,
        // The creation time distinguishes a version that was deleted and registered again.
        identity: format!("{}:{}@{}", assignment.model, spec.version, spec.created_ms),
    })
}
