//! The interface between all hops.

use async_trait::async_trait;

use crate::chunk::ChunkStream;
use crate::error::PredictError;
use crate::ids::{ModelName, ModelRef};
use crate::request::PredictRequest;
use crate::resolved::Resolved;
use crate::signature::Signature;

/// Runs predictions. The coordinator's router, the Flight client, the worker, each backend and the
/// test fake implement this trait. Tests of a hop replace the next hop.
#[async_trait]
pub trait Predict: Send + Sync + 'static {
    /// Starts one prediction.
    ///
    /// Returns as soon as the request is accepted, with a stream whose schema is known; it never
    /// waits for request rows, a permit or the first chunk. These waits, and errors after
    /// acceptance, are inside the stream.
    ///
    /// # Cancel safety
    /// Dropping the future or the stream cancels the work behind it.
    ///
    /// # Errors
    /// Errors that are known immediately, such as `NotFound` for an unknown model, `InvalidInput`
    /// for a wrong schema, or `Overloaded` for a full queue.
    async fn predict(&self, request: PredictRequest) -> Result<ChunkStream, PredictError>;

    /// The input and output schemas of a model.
    ///
    /// # Errors
    /// `NotFound` or `NotDeployed`.
    async fn signature(&self, model: &ModelRef) -> Result<Signature, PredictError>;

    /// A model's signature together with the result of its lookup. A request whose `resolved` is
    /// set to it is not resolved again. Implementations that wrap another one forward this call.
    ///
    /// # Errors
    /// As [`Predict::signature`].
    async fn resolve(&self, model: &ModelRef) -> Result<Resolved, PredictError> {
        let signature = self.signature(model).await?;
        Ok(Resolved::new(model.clone(), signature))
    }

    /// The models that can be called here.
    async fn models(&self) -> Vec<ModelName>;
}
