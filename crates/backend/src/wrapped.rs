//! A decorated backend.

use std::sync::Arc;

use async_trait::async_trait;
use volley_types::Signature;
use volley_types::{ChunkStream, ModelName, ModelRef, Predict, PredictError, PredictRequest};

use crate::{Backend, LossFuture};

/// A backend with redirected predictions, or with a value that lives as long as the backend is
/// loaded.
pub struct WrappedBackend<H = ()> {
    backend: Arc<dyn Backend>,
    predict: Arc<dyn Predict>,
    _held: H,
}

impl<H> WrappedBackend<H> {
    /// Holds `held` until the backend is dropped.
    pub fn holding(backend: Arc<dyn Backend>, held: H) -> Self {
        Self {
            predict: backend.clone(),
            backend,
            _held: held,
        }
    }
}

impl WrappedBackend {
    /// Sends predictions through `predict`, which must forward them to the same backend.
    #[must_use]
    pub fn through(backend: Arc<dyn Backend>, predict: Arc<dyn Predict>) -> Self {
        Self {
            backend,
            predict,
            _held: (),
        }
    }
}

#[async_trait]
impl<H: Send + Sync + 'static> Predict for WrappedBackend<H> {
    async fn predict(&self, request: PredictRequest) -> Result<ChunkStream, PredictError> {
        self.predict.predict(request).await
    }

    async fn signature(&self, model: &ModelRef) -> Result<Signature, PredictError> {
        self.backend.signature(model).await
    }

    async fn models(&self) -> Vec<ModelName> {
        self.backend.models().await
    }
}

impl<H: Send + Sync + 'static> Backend for WrappedBackend<H> {
    fn capacity(&self) -> usize {
        self.backend.capacity()
    }

    fn memory_bytes(&self) -> u64 {
        self.backend.memory_bytes()
    }

    fn lost(&self) -> Option<LossFuture> {
        self.backend.lost()
    }
}
