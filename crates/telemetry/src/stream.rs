//! The metrics of one prediction stream.

use std::time::{Duration, Instant};

use volley_types::chunk::{BatchResult, Usage, ends_generation, usage_of};
use volley_types::{Deadline, ErrorCode, ModelName, PredictError, RequestId, TraceContext};

use crate::metrics::{Metrics, ModelLabel, OutcomeLabel};
use crate::otlp::{ActiveSpan, RequestOutcome, SpanKind};

/// Measures one stream: active while the record lives, and one request with its outcome when it is
/// dropped. Keep it inside the stream.
pub struct StreamRecord {
    metrics: Metrics,
    label: ModelLabel,
    started: Instant,
    deadline: Option<Deadline>,
    first_seen: bool,
    outcome: Option<&'static str>,
    chunks: prometheus_client::metrics::counter::Counter,
    edge: Option<Edge>,
}

/// What is exported over OTLP about a stream at the edge of the cluster.
struct Edge {
    span: Option<ActiveSpan>,
    first_chunk: Option<Duration>,
    rows: u64,
    usage: Option<Usage>,
}

impl StreamRecord {
    /// Starts the record at `now`, when the request is accepted.
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
            deadline: None,
            first_seen: false,
            outcome: None,
            chunks,
            edge: None,
        }
    }

    /// Sets the deadline of the request. A stream that is dropped after its deadline counts as
    /// `deadline_exceeded`.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Option<Deadline>) -> Self {
        self.deadline = deadline;
        self
    }

    /// Adds the span `trace`, with which the request [entered](TraceContext::entered) this node.
    /// Has no effect if nothing is exported.
    #[must_use]
    pub fn traced(mut self, trace: &TraceContext) -> Self {
        let Some(tracer) = self.metrics.families().tracer.get() else {
            return self;
        };
        if tracer.is_on() {
            let parent = trace.parent_id.unwrap_or_default();
            let mut span = tracer.begin("predict", SpanKind::Server, trace, parent);
            if let Some(span) = &mut span {
                span.text("gen_ai.operation.name", "predict");
                span.text("gen_ai.provider.name", "volley");
                span.text("gen_ai.request.model", self.label.model.clone());
            }
            self.edge = Some(Edge {
                span,
                first_chunk: None,
                rows: 0,
                usage: None,
            });
        }
        self
    }

    /// Records a batch of `rows` response rows at `now`.
    pub fn batch(&mut self, rows: usize, now: Instant) {
        if let Some(edge) = &mut self.edge {
            edge.batch(rows, now.saturating_duration_since(self.started));
        }
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

    /// Records that the stream ended with `error`.
    pub fn fail(&mut self, error: &PredictError) {
        if let Some(span) = self.edge.as_mut().and_then(|edge| edge.span.as_mut()) {
            span.fail(error);
        }
        self.end(Some(error.code));
    }

    /// Records the end of the stream. Without this call, a dropped stream counts as `cancelled`, or
    /// as `deadline_exceeded` after its deadline.
    pub fn end(&mut self, error: Option<ErrorCode>) {
        self.outcome = Some(error.map_or("ok", ErrorCode::as_str));
    }
}

impl StreamRecord {
    /// Records the next item of the stream; `None` is its end. Logs an error with a 5xx status,
    /// unless it was already logged, and marks it as logged.
    #[must_use]
    pub fn observe(
        &mut self,
        item: Option<BatchResult>,
        request: &RequestId,
        now: Instant,
    ) -> Option<BatchResult> {
        match item {
            Some(Ok(batch)) => {
                self.batch(batch.num_rows(), now);
                // The usage is in the last row of each output.
                if let Some(edge) = &mut self.edge
                    && let Some(usage) = usage_of(&batch)
                {
                    *edge.usage.get_or_insert_default() += usage;
                }
                // A client may stop reading after the last row.
                if ends_generation(&batch) {
                    self.end(None);
                }
                Some(Ok(batch))
            }
            Some(Err(error)) => {
                let error = log_once(error, request);
                self.fail(&error);
                Some(Err(error))
            }
            None => {
                self.end(None);
                None
            }
        }
    }
}

/// Logs an error that has not been logged yet.
fn log_once(error: PredictError, request: &RequestId) -> PredictError {
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

impl Edge {
    fn batch(&mut self, rows: usize, since: Duration) {
        if self.rows == 0 && 0 < rows {
            self.first_chunk = Some(since);
            if let Some(span) = &mut self.span {
                span.event("first chunk");
            }
        }
        self.rows += rows as u64;
    }

    fn end(mut self, metrics: &Metrics, model: &str, code: &'static str, duration: Duration) {
        if let Some(span) = &mut self.span {
            span.number("volley.rows", self.rows);
            span.text("volley.outcome", code);
            if let Some(usage) = self.usage {
                span.number("gen_ai.usage.input_tokens", usage.prompt_tokens.into());
                span.number("gen_ai.usage.output_tokens", usage.completion_tokens.into());
            }
        }
        let tracer = metrics.families().tracer.get();
        if let Some(gen_ai) = tracer.and_then(|tracer| tracer.gen_ai()) {
            gen_ai.observe(RequestOutcome {
                model,
                error: (code != "ok").then_some(code),
                duration,
                first_chunk: self.first_chunk,
                chunks: self.rows,
                usage: self.usage,
            });
        }
    }
}

impl Drop for StreamRecord {
    fn drop(&mut self) {
        let families = self.metrics.families();
        families.active.get_or_create(&self.label).dec();
        families
            .duration
            .get_or_create(&self.label)
            .observe(self.started.elapsed().as_secs_f64());
        let now = Instant::now();
        let is_late = |deadline: Deadline| deadline.remaining(now).is_zero();
        let dropped = match self.deadline.is_some_and(is_late) {
            true => ErrorCode::DeadlineExceeded,
            false => ErrorCode::Cancelled,
        };
        let code = self.outcome.unwrap_or(dropped.as_str());
        let outcome = OutcomeLabel {
            model: self.label.model.clone(),
            code,
        };
        families.requests.get_or_create(&outcome).inc();
        if let Some(edge) = self.edge.take() {
            let elapsed = self.started.elapsed();
            edge.end(&self.metrics, &self.label.model, code, elapsed);
        }
    }
}

#[cfg(test)]
mod tests {
    use volley_types::{GenerationChunk, GenerationChunks};

    use super::*;

    #[test]
    fn a_reader_who_stops_after_the_last_row_has_not_cancelled() {
        let metrics = Metrics::new();
        let model = ModelName::new("m").unwrap();
        for last in [true, false] {
            let row = GenerationChunks::single(&GenerationChunk {
                last,
                ..GenerationChunk::default()
            });
            let mut record = StreamRecord::begin(&metrics, &model, Instant::now());
            let item = record.observe(Some(Ok(row)), &RequestId::random(), Instant::now());
            item.unwrap().unwrap();
        }
        let text = metrics.encode();
        for code in ["ok", "cancelled"] {
            let line = format!("volley_requests_total{{model=\"m\",code=\"{code}\"}} 1");
            assert!(text.contains(&line), "{line} is missing in\n{text}");
        }
    }

    #[test]
    fn a_stream_that_is_dropped_after_its_deadline_was_late() {
        let metrics = Metrics::new();
        let model = ModelName::new("m").unwrap();
        let deadline = Deadline::after(Instant::now(), Duration::ZERO);
        drop(StreamRecord::begin(&metrics, &model, Instant::now()).with_deadline(Some(deadline)));
        let line = "volley_requests_total{model=\"m\",code=\"deadline_exceeded\"} 1";
        assert!(metrics.encode().contains(line));
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
