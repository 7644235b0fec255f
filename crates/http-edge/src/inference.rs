//! Predictions of one HTTP request. The model is resolved once: a dialect reads its signature to
//! convert the body, and the prediction reuses the result of that lookup.
//!
//! The two headers of aliases are also handled here: the request header that keeps a client on one
//! model (`sticky_header`), and the response header with the model that served the request. So is
//! the header with a warning about the translation of the request. All apply to every dialect.

use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use futures::StreamExt;
use http::{HeaderMap, HeaderName, HeaderValue};
use parking_lot::Mutex;
use volley_types::registry::{RegistryState, choice_hash};
use volley_types::{
    ChunkStream, GenerationRow, ModelName, ModelRef, Predict, PredictError, PredictRequest,
    Resolved, Signature,
};

/// Response header with the model that served a request.
pub const MODEL: HeaderName = HeaderName::from_static("x-volley-model");

/// Response header with a warning about the translation of the request for a remote model.
pub const WARNING: HeaderName = HeaderName::from_static("x-volley-warning");

/// The response headers that depend on the answer, once they are known.
#[derive(Clone, Debug, Default)]
pub struct AnswerHeaders(Arc<AnswerFacts>);

#[derive(Debug, Default)]
struct AnswerFacts {
    /// The model that served the request.
    model: OnceLock<ModelRef>,
    warning: OnceLock<String>,
}

impl AnswerHeaders {
    /// Sets [`MODEL`] and [`WARNING`] in the headers of a response.
    pub fn insert(&self, headers: &mut HeaderMap) {
        let model = self.0.model.get().map(ToString::to_string);
        let values = [(MODEL, model), (WARNING, self.0.warning.get().cloned())];
        for (name, value) in values {
            if let Some(Ok(value)) = value.map(HeaderValue::try_from) {
                headers.insert(name, value);
            }
        }
    }

    /// Passes `chunks` on, and records the warning in their first rows. Responses have a status
    /// and headers only after the first chunk.
    fn watch(&self, chunks: ChunkStream) -> ChunkStream {
        let facts = self.0.clone();
        let mut begun = false;
        let record = move |batch: &Result<_, _>| {
            let Ok(batch) = batch else {
                return;
            };
            let Ok(mut rows) = GenerationRow::rows(batch) else {
                return;
            };
            if begun || rows.len() == 0 {
                return;
            }
            begun = true;
            if let Some(warning) = rows.find_map(|row| row.warning()) {
                // The first of several predictions counts.
                let _ = facts.warning.set(warning);
            }
        };
        chunks.map_batches(|batches| batches.inspect(record))
    }
}

/// The predictions of one request.
pub struct RequestInference {
    inner: Arc<dyn Predict>,
    /// The registry as applied by this node, without the caller's restrictions.
    registry: Arc<RegistryState>,
    headers: HeaderMap,
    answer_headers: AnswerHeaders,
    /// The model that was resolved last.
    resolved: Mutex<Option<Resolved>>,
}

impl RequestInference {
    /// `inner` for the request with these headers; `registry` is the cluster's own.
    pub fn new(
        inner: Arc<dyn Predict>,
        registry: Arc<RegistryState>,
        headers: &HeaderMap,
        answer_headers: AnswerHeaders,
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
            answer_headers,
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
            let _ = self.answer_headers.0.model.set(model.clone());
        }
        // Only remote models have warnings.
        Ok(match self.registry.connectors.is_empty() {
            true => chunks,
            false => self.answer_headers.watch(chunks),
        })
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

#[cfg(test)]
mod tests {
    use volley_types::registry::{ConnectorPolicy, ConnectorSpec, ProviderName};
    use volley_types::{ConnectorId, GenerationChunk, GenerationChunks, Input, Parameters};

    use super::*;

    /// Answers with two rows with these details.
    struct Details([Option<&'static str>; 2]);

    #[async_trait]
    impl Predict for Details {
        async fn predict(&self, _: PredictRequest) -> Result<ChunkStream, PredictError> {
            let batches = self.0.map(|details| {
                let chunk = GenerationChunk {
                    text: Some("a".to_owned()),
                    details: details.map(str::to_owned),
                    ..GenerationChunk::default()
                };
                GenerationChunks::single(&chunk)
            });
            let schema = batches[0].schema();
            let batches = futures::stream::iter(batches.map(Ok));
            Ok(ChunkStream::new(schema, batches))
        }

        async fn signature(&self, _: &ModelRef) -> Result<Signature, PredictError> {
            Ok(Signature::generation())
        }

        async fn models(&self) -> Vec<ModelName> {
            Vec::new()
        }
    }

    fn registry() -> RegistryState {
        let id = ConnectorId::new("c").unwrap();
        let connector = ConnectorSpec {
            id: id.clone(),
            name: "c".to_owned(),
            provider: ProviderName::from_static("gemini"),
            url: "https://example.com".to_owned(),
            model: "m".to_owned(),
            credential: None,
            headers: std::collections::BTreeMap::new(),
            parameters: Parameters::default(),
            request_body: None,
            policy: ConnectorPolicy::default(),
        };
        let mut registry = RegistryState::default();
        registry.connectors.insert(id, connector);
        registry
    }

    /// The header after the first rows.
    async fn warning(details: [Option<&'static str>; 2]) -> Option<HeaderValue> {
        let answer = AnswerHeaders::default();
        let inner = Arc::new(Details(details));
        let registry = Arc::new(registry());
        let inference = RequestInference::new(inner, registry, &HeaderMap::new(), answer.clone());
        let schema = GenerationChunks::default().finish();
        let request = PredictRequest::new("m".parse().unwrap(), Input::Batch(schema));
        let mut chunks = inference.predict(request).await.unwrap();
        chunks.next().await.unwrap().unwrap();
        let mut headers = HeaderMap::new();
        answer.insert(&mut headers);
        headers.remove(WARNING)
    }

    #[tokio::test]
    async fn a_warning_in_the_first_row_is_a_header() {
        let warned = r#"{"fields":{"volley-warning":"moved"}}"#;
        assert_eq!(warning([Some(warned), None]).await.unwrap(), "moved");
        assert_eq!(warning([Some("{}"), None]).await, None);
        assert_eq!(warning([None, None]).await, None);
    }
}
