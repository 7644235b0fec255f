//! Predictions of one HTTP request. The model is resolved once: a dialect reads its signature to
//! convert the body, and the prediction reuses the result of that lookup.
//!
//! The two headers of aliases are also handled here: the request header that keeps a client on one
//! model (`sticky_header`), and the response header with the model that served the request. Both
//! apply to every dialect.

use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use http::{HeaderMap, HeaderName, HeaderValue};
use parking_lot::Mutex;
use volley_types::registry::{RegistryState, choice_hash};
use volley_types::{
    ChunkStream, ModelName, ModelRef, Predict, PredictError, PredictRequest, Resolved, Signature,
};

/// Response header with the model that served a request.
pub const MODEL: HeaderName = HeaderName::from_static("x-volley-model");

/// The model that served a request, once it is known.
#[derive(Clone, Debug, Default)]
pub struct ServedModel(Arc<OnceLock<ModelRef>>);

impl ServedModel {
    /// Sets [`MODEL`] in the headers of a response.
    pub fn insert_header(&self, headers: &mut HeaderMap) {
        let model = self.0.get().map(ToString::to_string);
        if let Some(Ok(model)) = model.map(HeaderValue::try_from) {
            headers.insert(MODEL, model);
        }
    }
}

/// The predictions of one request.
pub struct RequestInference {
    inner: Arc<dyn Predict>,
    /// The registry as applied by this node, without the caller's restrictions.
    registry: Arc<RegistryState>,
    headers: HeaderMap,
    served: ServedModel,
    /// The model that was resolved last.
    resolved: Mutex<Option<Resolved>>,
}

impl RequestInference {
    /// `inner` for the request with these headers; `registry` is the cluster's own.
    pub fn new(
        inner: Arc<dyn Predict>,
        registry: Arc<RegistryState>,
        headers: &HeaderMap,
        served: ServedModel,
    ) -> Self {
        // Clusters without aliases need no copy of the headers.
        let headers = match registry.aliases.is_empty() {
            true => HeaderMap::new(),
            false => headers.clone(),
        };
        Self {
            inner,
            registry,
            headers,
            served,
            resolved: Mutex::default(),
        }
    }

    /// The lookup of `model` for one prediction. Each prediction of a longer session has its own
    /// lookup, because rollouts change the result.
    fn take_resolved(&self, model: &ModelRef) -> Option<Resolved> {
        let mut resolved = self.resolved.lock();
        resolved.take_if(|resolved| resolved.model == *model)
    }

    fn affinity(&self, model: &ModelName) -> Option<u64> {
        let alias = self.registry.aliases.get(model)?;
        let header = alias.spec.sticky_header.as_deref()?;
        let value = self.headers.get(header)?;
        Some(choice_hash(value.as_bytes()))
    }
}

#[async_trait]
impl Predict for RequestInference {
    async fn predict(&self, mut request: PredictRequest) -> Result<ChunkStream, PredictError> {
        request.affinity = request
            .affinity
            .or_else(|| self.affinity(&request.model.name));
        request.resolved = self.take_resolved(&request.model);
        let chunks = self.inner.predict(request).await?;
        if let Some(model) = chunks.answered_by() {
            // The first of several predictions counts.
            let _ = self.served.0.set(model.clone());
        }
        Ok(chunks)
    }

    async fn signature(&self, model: &ModelRef) -> Result<Signature, PredictError> {
        Ok(self.resolve(model).await?.signature)
    }

    async fn resolve(&self, model: &ModelRef) -> Result<Resolved, PredictError> {
        let resolved = self.inner.resolve(model).await?;
        *self.resolved.lock() = Some(resolved.clone());
        Ok(resolved)
    }

    async fn models(&self) -> Vec<ModelName> {
        self.inner.models().await
    }
}
