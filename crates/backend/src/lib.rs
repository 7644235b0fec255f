//! Interface between a worker and its backends, and the two backends that are always compiled:
//! [`fake`] (scripted behaviours) and [`text`] (word-splitting).

pub mod fake;
pub mod items;
mod progress;
pub mod text;
mod wrapped;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use async_trait::async_trait;
use volley_types::registry::{Assignment, BackendName};
use volley_types::{Predict, PredictError};

pub use progress::LoadProgress;
pub use wrapped::WrappedBackend;

/// Keeps prepared files in place until it is dropped.
pub type Hold = Box<dyn Send + Sync>;

/// Completes with the error when a loaded model is lost, or with `None` once it is unloaded.
pub type LossFuture = Pin<Box<dyn Future<Output = Option<PredictError>> + Send>>;

/// A loaded replica of a model. Dropping the last reference unloads it; running streams hold
/// references.
pub trait Backend: Predict {
    /// Maximum number of concurrent streams; the worker enforces it.
    fn capacity(&self) -> usize;

    /// Memory of the loaded model in bytes, as far as known.
    fn memory_bytes(&self) -> u64 {
        0
    }

    /// For models that can be lost while loaded, such as those in separate processes: a future that
    /// completes when this model can no longer serve. It does not keep the model loaded. `None` if
    /// only unloading ends the model.
    fn lost(&self) -> Option<LossFuture> {
        None
    }
}

/// Loads models of one backend.
#[async_trait]
pub trait BackendLoader: Send + Sync + 'static {
    /// The name of the backend.
    fn name(&self) -> BackendName;

    /// Fetches the files that [`BackendLoader::load`] needs. This slow part runs before the memory
    /// estimate and without a load permit. The worker keeps the result until the load has ended.
    /// Cancel safe: dropping the future stops the fetch.
    ///
    /// # Errors
    /// As for `load`; and `Unavailable`, `UpstreamFailed` and `DeadlineExceeded` when the fetch
    /// fails.
    async fn prepare(
        &self,
        _assignment: &Assignment,
        _progress: &LoadProgress,
    ) -> Result<Option<Hold>, PredictError> {
        Ok(None)
    }

    /// Estimated memory of one loaded replica in bytes, from its files; 0 if it is negligible. The
    /// worker reserves this memory before the load.
    ///
    /// # Errors
    /// `InvalidInput` when the model cannot be loaded, as for [`load`](Self::load).
    async fn estimate(&self, _assignment: &Assignment) -> Result<u64, PredictError> {
        Ok(0)
    }

    /// Whether dropping the future of [`load`](Self::load) or [`estimate`](Self::estimate) ends its
    /// work on this model. If not, for example on a thread that cannot be stopped, abandoned work
    /// runs to its end, and the worker counts it until then.
    fn stops_when_dropped(&self, _assignment: &Assignment) -> bool {
        true
    }

    /// Whether input values may crash the process that runs this model, even if the model is valid.
    /// The worker then runs it in a separate process, where it would otherwise only probe it in
    /// one.
    ///
    /// # Errors
    /// As for [`load`](Self::load).
    async fn needs_process(&self, _assignment: &Assignment) -> Result<bool, PredictError> {
        Ok(false)
    }

    /// Loads one replica. Slow work runs on separate threads.
    ///
    /// # Errors
    /// `InvalidInput` when the model or its configuration is wrong, with the remedy.
    async fn load(&self, assignment: &Assignment) -> Result<Arc<dyn Backend>, PredictError>;
}
