//! The numbers of one prediction stream.

use std::time::Instant;

use async_stream::stream;
use futures::{Stream, StreamExt, pin_mut};
use volley_types::chunk::{BatchResult, ends_generation};
use volley_types::{ErrorCode, ModelName, PredictError, RequestId};

use crate::metrics::{Metrics, ModelLabel, OutcomeLabel};

/// Follows one stream: counted as active while it lives, and as one request with its outcome
/// when it is dropped. Keep it inside the stream.
#[derive(Debug)]
pub struct StreamRecord {
    metrics: Metrics,
    label: ModelLabel,
    started: Instant,
    first_seen: bool,
    outcome: Option<&'static str>,
    chunks: prometheus_client::metrics::counter::Counter,
}

impl StreamRecord {
    /// Begins at `now`, when the request is accepted.
    #[must_use]
    pub fn begin(metrics: &Metrics, model: &ModelName, now: Instant) -> Self {
        let label = ModelLabel {
            model: model.to_string(),
        };
        metrics.families().active.get_or_create(&label).inc();
        let chunks = metrics.families().chunks.get_or_create(&label).clone();
        let metrics = metrics.clone();
        Self {
            metrics,
            label,
            started: now,
            first_seen: false,
            outcome: None,
            chunks,
        }
    }

    /// A batch of `rows` response rows passed at `now`.
    pub fn batch(&mut self, rows: usize, now: Instant) {
        let families = self.metrics.families();
        if !self.first_seen {
            self.first_seen = true;
            let waited = now.saturating_duration_since(self.started).as_secs_f64();
            families
                .first_chunk
                .get_or_create(&self.label)
                .observe(waited);
        }
        families
            .batch_rows
            .get_or_create(&self.label)
            .observe(rows as f64);
        self.chunks.inc_by(rows as u64);
    }

    /// The stream ended by itself. Without this call, a drop counts as `cancelled`.
    pub fn end(&mut self, error: Option<ErrorCode>) {
        self.outcome = Some(error.map_or("ok", ErrorCode::as_str));
    }
}

/// Passes `batches` on and counts them in `record`; an error ends them. Errors that are no
/// caller's fault are logged, once on their way: by who classified them.
pub fn recorded(
    mut record: StreamRecord,
    request: RequestId,
    batches: impl Stream<Item = BatchResult> + Send,
) -> impl Stream<Item = BatchResult> + Send {
    stream! {
        pin_mut!(batches);
        while let Some(item) = batches.next().await {
            let item = item.map_err(|error| told(error, &request));
            match &item {
                Ok(batch) => {
                    record.batch(batch.num_rows(), Instant::now());
                    // A reader need not ask for more after the last row.
                    if ends_generation(batch) {
                        record.end(None);
                    }
                }
                Err(error) => {
                    record.end(Some(error.code));
                    yield item;
                    return;
                }
            }
            yield item;
        }
        record.end(None);
    }
}

/// Logs an error that no log tells of yet.
fn told(error: PredictError, request: &RequestId) -> PredictError {
    if error.code.http_status() < 500 {
        return error;
    }
    let (code, chain) = (error.code, error.chain());
    if error.is_logged() {
        tracing::debug!(request_id = %request, %code, error = chain, "prediction failed");
        return error;
    }
    tracing::warn!(request_id = %request, %code, error = chain, "prediction failed");
    error.logged()
}

impl Drop for StreamRecord {
    fn drop(&mut self) {
        let families = self.metrics.families();
        families.active.get_or_create(&self.label).dec();
        families
            .duration
            .get_or_create(&self.label)
            .observe(self.started.elapsed().as_secs_f64());
        let code = self.outcome.unwrap_or(ErrorCode::Cancelled.as_str());
        let outcome = OutcomeLabel {
            model: self.label.model.clone(),
            code,
        };
        families.requests.get_or_create(&outcome).inc();
    }
}

#[cfg(test)]
mod tests {
    use volley_types::{GenerationChunk, GenerationChunks};

    use super::*;

    #[tokio::test]
    async fn a_reader_who_stops_after_the_last_row_has_not_cancelled() {
        let metrics = Metrics::new();
        let model = ModelName::new("m").unwrap();
        for last in [true, false] {
            let row = GenerationChunks::single(&GenerationChunk {
                last,
                ..GenerationChunk::default()
            });
            let record = StreamRecord::begin(&metrics, &model, Instant::now());
            let batches = recorded(
                record,
                RequestId::random(),
                futures::stream::iter([Ok(row.clone()), Ok(row)]),
            );
            pin_mut!(batches);
            batches.next().await.unwrap().unwrap();
        }
        let text = metrics.encode();
        for code in ["ok", "cancelled"] {
            let line = format!("volley_requests_total{{model=\"m\",code=\"{code}\"}} 1");
            assert!(text.contains(&line), "{line} is missing in\n{text}");
        }
    }

    #[test]
    fn a_stream_counts_once_with_its_outcome() {
        let metrics = Metrics::new();
        let model = ModelName::new("m").unwrap();
        let mut finished = StreamRecord::begin(&metrics, &model, Instant::now());
        let left = StreamRecord::begin(&metrics, &model, Instant::now());
        finished.batch(3, Instant::now());
        finished.end(None);
        assert!(
            metrics
                .encode()
                .contains("volley_active_streams{model=\"m\"} 2")
        );
        drop((finished, left));
        let text = metrics.encode();
        for line in [
            "volley_active_streams{model=\"m\"} 0",
            "volley_requests_total{model=\"m\",code=\"ok\"} 1",
            "volley_requests_total{model=\"m\",code=\"cancelled\"} 1",
            "volley_chunks_total{model=\"m\"} 3",
            "volley_time_to_first_chunk_seconds_count{model=\"m\"} 1",
        ] {
            assert!(text.contains(line), "{line} is missing in\n{text}");
        }
    }
}
