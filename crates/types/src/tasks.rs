//! Background tasks, and the interface to the coordinators that keep their responses.

use async_trait::async_trait;
use bytes::Bytes;

use crate::error::PredictError;
use crate::registry::TaskRecord;

/// A task and its response, if known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredTask {
    /// Its id.
    pub id: String,
    /// The record with its state.
    pub record: TaskRecord,
    /// The response as JSON; only set by [`TaskSource::get`] for a completed task.
    pub response: Option<Bytes>,
}

/// Access to tasks of this coordinator or of another one. The edges check whether the caller may
/// see a task.
#[async_trait]
pub trait TaskSource: Send + Sync + 'static {
    /// Lists all tasks without their responses. Cancel safe.
    ///
    /// # Errors
    /// `NotFound` if the coordinator is gone; `Unavailable` if it does not respond.
    async fn list(&self) -> Result<Vec<StoredTask>, PredictError>;

    /// Returns one task with its response. Cancel safe.
    ///
    /// # Errors
    /// `NotFound` if the task does not exist or its coordinator has stopped; `Unavailable` if the
    /// coordinator does not respond.
    async fn get(&self, id: &str) -> Result<StoredTask, PredictError>;

    /// Cancels a task and its work.
    ///
    /// # Cancel safety
    /// Not cancel safe: after the future is dropped, the task may be cancelled without a record of
    /// it in the registry.
    ///
    /// # Errors
    /// `Conflict` if the task is not running; otherwise as for [`TaskSource::get`].
    async fn cancel(&self, id: &str) -> Result<(), PredictError>;

    /// Deletes a task that is not running, and its response. Idempotent, so a caller may repeat a
    /// dropped call.
    ///
    /// # Errors
    /// As for [`TaskSource::cancel`].
    async fn forget(&self, id: &str) -> Result<(), PredictError>;
}
