//! Spans around the runs of backends, the last hop of a trace.

use std::sync::Arc;

use async_trait::async_trait;
use volley_backend::{Backend, BackendLoader, Hold, LoadProgress, WrappedBackend};
use volley_telemetry::otlp::{SpanKind, TracedPredict, Tracer};
use volley_types::registry::{Assignment, BackendName};
use volley_types::{Predict, PredictError};

/// Wraps loaders so that each prediction of their replicas has a span. Returns them unchanged if
/// nothing is exported.
pub(crate) fn loaders(
    loaders: Vec<Arc<dyn BackendLoader>>,
    tracer: &Tracer,
) -> Vec<Arc<dyn BackendLoader>> {
    if !tracer.is_on() {
        return loaders;
    }
    let traced = loaders.into_iter().map(|inner| {
        Arc::new(TracedLoader {
            inner,
            tracer: tracer.clone(),
        }) as Arc<dyn BackendLoader>
    });
    traced.collect()
}

struct TracedLoader {
    inner: Arc<dyn BackendLoader>,
    tracer: Tracer,
}

#[async_trait]
impl BackendLoader for TracedLoader {
    fn name(&self) -> BackendName {
        self.inner.name()
    }

    async fn prepare(
        &self,
        assignment: &Assignment,
        progress: &LoadProgress,
    ) -> Result<Option<Hold>, PredictError> {
        self.inner.prepare(assignment, progress).await
    }

    async fn estimate(&self, assignment: &Assignment) -> Result<u64, PredictError> {
        self.inner.estimate(assignment).await
    }

    fn stops_when_dropped(&self, assignment: &Assignment) -> bool {
        self.inner.stops_when_dropped(assignment)
    }

    async fn load(&self, assignment: &Assignment) -> Result<Arc<dyn Backend>, PredictError> {
        let backend = self.inner.load(assignment).await?;
        let told = vec![("volley.backend", self.name().as_str().to_owned())];
        let predict: Arc<dyn Predict> = backend.clone();
        let traced = TracedPredict::around(predict, &self.tracer, "run", SpanKind::Internal, told);
        Ok(Arc::new(WrappedBackend::through(backend, traced)))
    }
}
