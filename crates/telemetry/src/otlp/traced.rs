//! Spans around predictions.

use std::sync::Arc;

use async_stream::stream;
use async_trait::async_trait;
use futures::{Stream, StreamExt};
use volley_types::chunk::BatchResult;
use volley_types::{
    ChunkStream, ModelName, ModelRef, Predict, PredictError, PredictRequest, Resolved, Signature,
};

use super::span::{ActiveSpan, SpanKind, Tracer};

/// Adds a span to each prediction of `inner`. The span is a child of the request's span and the
/// parent of further calls.
pub struct TracedPredict {
    inner: Arc<dyn Predict>,
    tracer: Tracer,
    name: &'static str,
    kind: SpanKind,
    /// Attributes of every span.
    told: Vec<(&'static str, String)>,
}

impl TracedPredict {
    /// Wraps `inner` with spans called `name`. Returns `inner` unchanged if nothing is exported.
    pub fn around(
        inner: Arc<dyn Predict>,
        tracer: &Tracer,
        name: &'static str,
        kind: SpanKind,
        told: Vec<(&'static str, String)>,
    ) -> Arc<dyn Predict> {
        if !tracer.is_on() {
            return inner;
        }
        Arc::new(Self {
            inner,
            tracer: tracer.clone(),
            name,
            kind,
            told,
        })
    }
}

#[async_trait]
impl Predict for TracedPredict {
    async fn predict(&self, mut request: PredictRequest) -> Result<ChunkStream, PredictError> {
        let own = match self.kind {
            // The router creates a context for each attempt.
            SpanKind::Server | SpanKind::Client => request.trace.entered(),
            SpanKind::Internal => request.trace.child(),
        };
        let parent = own.parent_id.unwrap_or_default();
        let Some(mut span) = self.tracer.begin(self.name, self.kind, &own, parent) else {
            return self.inner.predict(request).await;
        };
        span.text("volley.model", request.model.to_string());
        span.text("volley.request_id", request.request_id.to_string());
        for (key, value) in &self.told {
            span.text(key, value);
        }
        request.trace = own;
        match self.inner.predict(request).await {
            Ok(stream) => Ok(stream.map_batches(|batches| followed(span, batches))),
            Err(error) => {
                span.fail(&error);
                Err(error)
            }
        }
    }

    async fn signature(&self, model: &ModelRef) -> Result<Signature, PredictError> {
        self.inner.signature(model).await
    }

    async fn resolve(&self, model: &ModelRef) -> Result<Resolved, PredictError> {
        self.inner.resolve(model).await
    }

    async fn models(&self) -> Vec<ModelName> {
        self.inner.models().await
    }
}

/// Forwards batches and records the first batch, errors and the number of rows in `span`. The span
/// ends when the stream ends or is dropped.
fn followed(
    span: ActiveSpan,
    batches: impl Stream<Item = BatchResult> + Send + Unpin,
) -> impl Stream<Item = BatchResult> + Send {
    let mut record = Record { span, rows: 0 };
    stream! {
        let mut batches = batches;
        while let Some(item) = batches.next().await {
            match &item {
                Ok(batch) => {
                    if record.rows == 0 && 0 < batch.num_rows() {
                        record.span.event("first chunk");
                    }
                    record.rows += batch.num_rows() as u64;
                }
                Err(error) => record.span.fail(error),
            }
            yield item;
        }
    }
}

/// Records the number of rows when dropped, so that every end of the stream is covered.
struct Record {
    span: ActiveSpan,
    rows: u64,
}

impl Drop for Record {
    fn drop(&mut self) {
        self.span.number("volley.rows", self.rows);
    }
}
