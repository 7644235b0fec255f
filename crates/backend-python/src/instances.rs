//! The processes of one replica, as one backend.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use futures::future::select_all;
use volley_backend::{Backend, LossFuture};
use volley_model_host::HostedModel;
use volley_types::{
    ChunkStream, ModelName, ModelRef, Predict, PredictError, PredictRequest, Signature,
};

/// Processes that share the requests of a replica.
pub(crate) struct Instances(Vec<Instance>);

struct Instance {
    backend: Arc<HostedModel>,
    running: Arc<AtomicUsize>,
}

/// Counts a running request.
struct Running(Arc<AtomicUsize>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Instances {
    /// Shares the requests between `backends`, of which there is at least one.
    pub(crate) fn new(backends: Vec<Arc<HostedModel>>) -> Self {
        let instances = backends.into_iter().map(|backend| Instance {
            backend,
            running: Arc::default(),
        });
        Self(instances.collect())
    }

    /// The instance with the fewest running requests, among those whose process runs if there are
    /// any.
    fn least_busy(&self) -> Result<&Instance, PredictError> {
        let busy = |instance: &&Instance| {
            let running = instance.running.load(Ordering::Relaxed);
            (!instance.backend.is_running(), running)
        };
        self.0
            .iter()
            .min_by_key(busy)
            .ok_or_else(|| PredictError::invalid("a Python model has no instances"))
    }
}

impl Backend for Instances {
    fn capacity(&self) -> usize {
        self.0
            .iter()
            .map(|instance| instance.backend.capacity())
            .sum()
    }

    fn memory_bytes(&self) -> u64 {
        self.0
            .iter()
            .map(|instance| instance.backend.memory_bytes())
            .sum()
    }

    /// The loss of any instance: the replica is loaded again as a whole.
    fn lost(&self) -> Option<LossFuture> {
        let losses: Vec<_> = self.0.iter().filter_map(|it| it.backend.lost()).collect();
        if losses.is_empty() {
            return None;
        }
        Some(Box::pin(async move { select_all(losses).await.0 }))
    }
}

#[async_trait]
impl Predict for Instances {
    async fn predict(&self, request: PredictRequest) -> Result<ChunkStream, PredictError> {
        let instance = self.least_busy()?;
        instance.running.fetch_add(1, Ordering::Relaxed);
        let running = Running(instance.running.clone());
        let stream = instance.backend.predict(request).await?;
        Ok(stream.holding(running))
    }

    async fn signature(&self, model: &ModelRef) -> Result<Signature, PredictError> {
        self.least_busy()?.backend.signature(model).await
    }

    async fn models(&self) -> Vec<ModelName> {
        match self.0.first() {
            Some(instance) => instance.backend.models().await,
            None => Vec::new(),
        }
    }
}
