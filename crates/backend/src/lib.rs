//! The seam between a worker and the kinds of executors, and the two backends that are always
//! compiled: [`fake`] (scripted behaviours) and [`text`] (word-splitting).

pub mod fake;
pub mod items;
pub mod text;

use std::sync::Arc;

use async_trait::async_trait;
use volley_types::registry::{Assignment, BackendKind};
use volley_types::{Predict, PredictError};

/// One loaded copy of a model. Dropping the last reference unloads it; running streams hold
/// their own.
pub trait Backend: Predict {
    /// How many streams may run at once; the worker admits no more.
    fn capacity(&self) -> usize;

    /// Memory that the loaded model takes, in bytes, as far as the backend knows.
    fn memory_bytes(&self) -> u64 {
        0
    }
}

/// Loads models of one kind.
#[async_trait]
pub trait BackendLoader: Send + Sync + 'static {
    /// The kind that this loads.
    fn kind(&self) -> BackendKind;

    /// Loads one replica. Slow work runs on blocking threads.
    ///
    /// # Errors
    /// `InvalidInput` when the model or its configuration is wrong, with what to do about it.
    async fn load(&self, assignment: &Assignment) -> Result<Arc<dyn Backend>, PredictError>;
}
