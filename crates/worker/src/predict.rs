//! One request on a worker: find the replica, take a place in its queue, run.

use std::panic::AssertUnwindSafe;
use std::time::Instant;

use async_stream::try_stream;
use async_trait::async_trait;
use futures::StreamExt;
use volley_telemetry::{StreamRecord, recorded};
use volley_types::{
    ChunkStream, ErrorCode, ErrorOrigin, ModelName, ModelRef, Predict, PredictError,
    PredictRequest, Signature,
};

use crate::Worker;
use crate::replica::Loaded;

#[async_trait]
impl Predict for Worker {
    /// Refuses at once what cannot be queued; the wait for a place, and for the caller's rows,
    /// is inside the stream, which holds the permit. The deadline is the Flight server's to
    /// keep: it covers the wait too.
    async fn predict(&self, request: PredictRequest) -> Result<ChunkStream, PredictError> {
        let model = request.model.name.clone();
        let entered = self.find(&request.model).and_then(|loaded| {
            loaded.signature.check_input(&request.input.schema())?;
            let ticket = loaded.admission.enter(request.priority)?;
            Ok((loaded, ticket))
        });
        let (loaded, ticket) = entered.inspect_err(|error| {
            self.0.metrics.refused(None, error.code);
        })?;
        let record = StreamRecord::begin(&self.0.metrics, &model, Instant::now());
        let metrics = self.0.metrics.clone();
        let schema = loaded.signature.output.clone();
        let waiting_since = Instant::now();
        let run = try_stream! {
            let permit = ticket.await;
            metrics.queue_wait(&model, waiting_since.elapsed());
            let mut chunks = loaded.backend.predict(request).await?.holding(permit);
            while let Some(batch) = chunks.next().await {
                yield batch?;
            }
        };
        let fenced = AssertUnwindSafe(run).catch_unwind();
        let batches = fenced.map(|item| item.unwrap_or_else(|_| Err(panicked())));
        Ok(ChunkStream::new(schema, recorded(record, batches)))
    }

    async fn signature(&self, model: &ModelRef) -> Result<Signature, PredictError> {
        self.find(model).map(|loaded| loaded.signature)
    }

    async fn models(&self) -> Vec<ModelName> {
        let replicas = self.0.replicas.read();
        let ready = replicas.iter().filter(|replica| replica.ready().is_some());
        let mut names: Vec<_> = ready
            .map(|replica| replica.assignment.model.clone())
            .collect();
        names.sort();
        names.dedup();
        names
    }
}

impl Worker {
    /// The replica for a model: of the version that is asked for, or of the newest.
    fn find(&self, model: &ModelRef) -> Result<Loaded, PredictError> {
        let replicas = self.0.replicas.read();
        let fits = replicas.iter().filter(|replica| {
            let version = replica.assignment.spec.version;
            replica.assignment.model == model.name
                && model.version.is_none_or(|asked| asked == version)
        });
        let ready =
            fits.filter_map(|replica| Some((replica.assignment.spec.version, replica.ready()?)));
        let newest = ready.max_by_key(|(version, _)| *version);
        newest.map(|(_, loaded)| loaded).ok_or_else(|| {
            // The caller's view of this worker is a moment old; another replica can serve.
            let message = format!("this worker holds no ready replica of model '{model}'");
            PredictError::new(ErrorCode::Unavailable, message).with_origin(ErrorOrigin::Worker)
        })
    }
}

fn panicked() -> PredictError {
    PredictError::new(
        ErrorCode::Internal,
        "the model's backend failed unexpectedly",
    )
    .with_origin(ErrorOrigin::Worker)
}
