//! Tasks that a coordinator runs while nobody waits, and the seam to whoever holds their answers.

use async_trait::async_trait;
use bytes::Bytes;

use crate::error::PredictError;
use crate::registry::TaskRecord;

/// A task, and its answer where it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredTask {
    /// Its id.
    pub id: String,
    /// What it is about, and how far.
    pub record: TaskRecord,
    /// The answer as JSON, of one that is completed and was asked for by itself.
    pub response: Option<Bytes>,
}

/// Whoever holds tasks: a coordinator's own edge, or the way to another coordinator's. It is asked
/// by edges, which know whether their caller may see the task.
#[async_trait]
pub trait TaskSource: Send + Sync + 'static {
    /// All of them, without their answers.
    ///
    /// # Errors
    /// `NotFound` when the coordinator is gone, `Unavailable` when it does not answer.
    async fn list(&self) -> Result<Vec<StoredTask>, PredictError>;

    /// One, with its answer.
    ///
    /// # Errors
    /// `NotFound` when there is none (any more) or its coordinator is gone; `Unavailable` when
    /// that does not answer.
    async fn get(&self, id: &str) -> Result<StoredTask, PredictError>;

    /// Ends one, and the work behind it.
    ///
    /// # Errors
    /// `Conflict` when it does not run; else as for [`TaskSource::get`].
    async fn cancel(&self, id: &str) -> Result<(), PredictError>;

    /// Forgets one that does not run, and its answer. No error when there is none.
    ///
    /// # Errors
    /// As for [`TaskSource::cancel`].
    async fn forget(&self, id: &str) -> Result<(), PredictError>;
}
