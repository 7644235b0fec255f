//! Predictions with the rights of a principal.

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use volley_types::{
    ChunkStream, ModelName, ModelRef, Predict, PredictError, PredictRequest, Resolved, Role,
    Signature,
};

use crate::Principal;
use crate::quota::QuotaTracker;

/// Models with the rights of a principal.
pub(crate) struct GuardedInference {
    inner: Arc<dyn Predict>,
    principal: Arc<Principal>,
    quotas: QuotaTracker,
}

impl GuardedInference {
    /// Restricts `inner` to the rights of `principal` and counts its usage in `quotas`.
    pub(crate) fn new(
        inner: Arc<dyn Predict>,
        principal: Arc<Principal>,
        quotas: QuotaTracker,
    ) -> Self {
        Self {
            inner,
            principal,
            quotas,
        }
    }
}

#[async_trait]
impl Predict for GuardedInference {
    async fn predict(&self, mut request: PredictRequest) -> Result<ChunkStream, PredictError> {
        self.principal.admit(&mut request)?;
        let metered = match self.principal.quota() {
            Some((key, quota)) => self.quotas.begin(key, quota, Instant::now())?,
            None => None,
        };
        let stream = self.inner.predict(request).await?;
        Ok(match metered {
            Some(metered) => metered.count(stream),
            None => stream,
        })
    }

    async fn signature(&self, model: &ModelRef) -> Result<Signature, PredictError> {
        Ok(self.resolve(model).await?.signature)
    }

    async fn resolve(&self, model: &ModelRef) -> Result<Resolved, PredictError> {
        self.principal.allow(Role::Viewer)?;
        self.principal.see(&model.name)?;
        self.inner.resolve(model).await
    }

    async fn models(&self) -> Vec<ModelName> {
        if self.principal.allow(Role::Viewer).is_err() {
            return Vec::new();
        }
        let mut models = self.inner.models().await;
        models.retain(|model| self.principal.models().contains(model));
        models
    }
}
