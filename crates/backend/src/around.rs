//! A backend with something around it.

use std::sync::Arc;

use async_trait::async_trait;
use volley_types::Signature;
use volley_types::{ChunkStream, ModelName, ModelRef, Predict, PredictError, PredictRequest};

use crate::{Backend, Lost};

/// The same backend, whose predictions go another way round, or that holds something for as long
/// as it is loaded.
pub struct Around<H = ()> {
    backend: Arc<dyn Backend>,
    predict: Arc<dyn Predict>,
    _held: H,
}

impl<H> Around<H> {
    /// Holds `held` until the backend is dropped.
    pub fn holding(backend: Arc<dyn Backend>, held: H) -> Self {
        Self {
            predict: backend.clone(),
            backend,
            _held: held,
        }
    }
}

impl Around {
    /// Sends predictions through `predict`, which ends at the same backend.
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
impl<H: Send + Sync + 'static> Predict for Around<H> {
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

impl<H: Send + Sync + 'static> Backend for Around<H> {
    fn capacity(&self) -> usize {
        self.backend.capacity()
    }

    fn memory_bytes(&self) -> u64 {
        self.backend.memory_bytes()
    }

    fn lost(&self) -> Option<Lost> {
        self.backend.lost()
    }
}
