//! The seam between a worker and the kinds of executors, and the two backends that are always
//! compiled: [`fake`] (scripted behaviours) and [`text`] (word-splitting).

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

/// Keeps what was prepared where it is, until it is dropped.
pub type Hold = Box<dyn Send + Sync>;

/// Waits until a loaded model is lost, and tells why; `None` once it is unloaded.
pub type LossFuture = Pin<Box<dyn Future<Output = Option<PredictError>> + Send>>;

/// One loaded copy of a model. Dropping the last reference unloads it; running streams hold
/// their own.
pub trait Backend: Predict {
    /// How many streams may run at once; the worker admits no more.
    fn capacity(&self) -> usize;

    /// Memory that the loaded model takes, in bytes, as far as the backend knows.
    fn memory_bytes(&self) -> u64 {
        0
    }

    /// For models that can be lost while they are loaded, as those in a process of their own:
    /// waits until this one cannot serve any more, and does not keep it loaded. `None` where only
    /// unloading ends a model.
    fn lost(&self) -> Option<LossFuture> {
        None
    }
}

/// Loads models of one kind.
#[async_trait]
pub trait BackendLoader: Send + Sync + 'static {
    /// The kind that this loads.
    fn name(&self) -> BackendName;

    /// Brings here what [`BackendLoader::load`] needs of a model and this worker lacks: the slow
    /// part, before memory is told and a turn is taken. What it gives is held until the load has
    /// ended. Dropping the future ends it.
    ///
    /// # Errors
    /// As for `load`; and `Unavailable`, `UpstreamFailed` and `DeadlineExceeded` when it cannot be
    /// brought now.
    async fn prepare(
        &self,
        _assignment: &Assignment,
        _progress: &LoadProgress,
    ) -> Result<Option<Hold>, PredictError> {
        Ok(None)
    }

    /// Memory that one replica will take once it is loaded, in bytes, as its files tell it; 0
    /// where nothing worth counting is held. The worker makes room for as much before it loads.
    ///
    /// # Errors
    /// `InvalidInput` when the model cannot be loaded anyway, as [`load`](Self::load).
    async fn estimate(&self, _assignment: &Assignment) -> Result<u64, PredictError> {
        Ok(0)
    }

    /// Whether dropping the future of [`load`](Self::load) or [`estimate`](Self::estimate) ends
    /// its work on this model. Where it does not, as on a thread that nothing can stop, the worker
    /// lets work that it has given up run to its end, and counts it until then.
    fn stops_when_dropped(&self, _assignment: &Assignment) -> bool {
        true
    }

    /// Whether a request's values may end the process that runs this model, however sound the model
    /// is. The worker then has it in a process of its own, where it would otherwise only try it in
    /// one.
    ///
    /// # Errors
    /// As for [`load`](Self::load).
    async fn needs_process(&self, _assignment: &Assignment) -> Result<bool, PredictError> {
        Ok(false)
    }

    /// Loads one replica. Slow work runs on threads of its own.
    ///
    /// # Errors
    /// `InvalidInput` when the model or its configuration is wrong, with what to do about it.
    async fn load(&self, assignment: &Assignment) -> Result<Arc<dyn Backend>, PredictError>;
}
