//! What an alias needs of the edge: what a request sticks by, which stands in a header, and which
//! model answered, which goes into one. It wraps the cluster that a handler sees, so that every
//! dialect has both.

use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use http::{HeaderMap, HeaderName, HeaderValue};
use volley_types::control::{ClusterStatus, ModelStatus};
use volley_types::registry::{
    ConnectorSpec, CoordinatorMember, RegistryCommand, RegistryReply, RegistryState, choice_hash,
};
use volley_types::{
    ChunkStream, ConnectorCheck, Control, ModelName, ModelRef, NodeId, Predict, PredictError,
    PredictRequest, Signature,
};

/// Says which model answered.
pub const MODEL: HeaderName = HeaderName::from_static("x-volley-model");

/// Which model answered a request, once that is known.
#[derive(Clone, Debug, Default)]
pub struct ServedModel(Arc<OnceLock<ModelRef>>);

impl ServedModel {
    /// Puts it among the headers of an answer.
    pub fn tell(&self, headers: &mut HeaderMap) {
        let model = self.0.get().map(ToString::to_string);
        if let Some(Ok(model)) = model.map(HeaderValue::try_from) {
            headers.insert(MODEL, model);
        }
    }
}

/// A cluster as one request meets it.
pub struct AliasResolver {
    inner: Arc<dyn Control>,
    /// As this node has applied it, whatever the caller may see.
    registry: Arc<RegistryState>,
    headers: HeaderMap,
    answered_by: ServedModel,
}

impl AliasResolver {
    /// `inner` for the request with these headers; `registry` is the cluster's own.
    pub fn new(
        inner: Arc<dyn Control>,
        registry: Arc<RegistryState>,
        headers: &HeaderMap,
        answered_by: ServedModel,
    ) -> Self {
        // Most clusters have no alias, and most requests nothing to look at.
        let headers = match registry.aliases.is_empty() {
            true => HeaderMap::new(),
            false => headers.clone(),
        };
        Self {
            inner,
            registry,
            headers,
            answered_by,
        }
    }

    fn affinity(&self, model: &ModelName) -> Option<u64> {
        let alias = self.registry.aliases.get(model)?;
        let header = alias.spec.sticky_header.as_deref()?;
        let value = self.headers.get(header)?;
        Some(choice_hash(value.as_bytes()))
    }
}

#[async_trait]
impl Predict for AliasResolver {
    async fn predict(&self, mut request: PredictRequest) -> Result<ChunkStream, PredictError> {
        request.affinity = request
            .affinity
            .or_else(|| self.affinity(&request.model.name));
        let answer = self.inner.predict(request).await?;
        if let Some(model) = answer.answered_by() {
            // A call of several predictions tells the first.
            let _ = self.answered_by.0.set(model.clone());
        }
        Ok(answer)
    }

    async fn signature(&self, model: &ModelRef) -> Result<Signature, PredictError> {
        self.inner.signature(model).await
    }

    async fn models(&self) -> Vec<ModelName> {
        self.inner.models().await
    }
}

#[async_trait]
impl Control for AliasResolver {
    fn registry(&self) -> Arc<RegistryState> {
        self.inner.registry()
    }

    async fn write(&self, command: RegistryCommand) -> Result<RegistryReply, PredictError> {
        self.inner.write(command).await
    }

    async fn check_connector(
        &self,
        connector: &ConnectorSpec,
        test: bool,
    ) -> Result<Vec<ConnectorCheck>, PredictError> {
        self.inner.check_connector(connector, test).await
    }

    fn model_status(&self, model: &ModelName) -> Option<ModelStatus> {
        self.inner.model_status(model)
    }

    fn status(&self) -> ClusterStatus {
        self.inner.status()
    }

    async fn join(
        &self,
        node: NodeId,
        address: String,
    ) -> Result<Vec<CoordinatorMember>, PredictError> {
        self.inner.join(node, address).await
    }

    async fn leave(&self, node: NodeId) -> Result<Vec<CoordinatorMember>, PredictError> {
        self.inner.leave(node).await
    }

    async fn replace(
        &self,
        old: NodeId,
        node: NodeId,
        address: String,
    ) -> Result<Vec<CoordinatorMember>, PredictError> {
        self.inner.replace(old, node, address).await
    }

    async fn hand_over(&self, to: Option<NodeId>) -> Result<NodeId, PredictError> {
        self.inner.hand_over(to).await
    }

    async fn backup(&self) -> Result<Vec<u8>, PredictError> {
        self.inner.backup().await
    }

    fn ready(&self) -> bool {
        self.inner.ready()
    }
}
