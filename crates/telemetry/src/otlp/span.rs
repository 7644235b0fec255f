//! Spans, from their start until they are queued for export.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::trace::v1::span::Event;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{Span, Status};
use tokio::sync::mpsc;
use volley_types::{PredictError, TraceContext};

use super::clock::now;
use super::gen_ai::GenAi;
use super::{Sampler, attributes};

/// The maximum number of attributes and of events in one span.
const MOST: usize = 32;

/// The side of a call that a span describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// Neither side: work within a node.
    Internal = 1,
    /// The called side.
    Server = 2,
    /// The calling side.
    Client = 3,
}

/// Creates spans, or nothing if nothing is exported. Clones share their state.
#[derive(Clone, Default)]
pub struct Tracer(Option<Arc<Shared>>);

pub(super) struct Shared {
    pub(super) queue: mpsc::Sender<Span>,
    pub(super) dropped: AtomicU64,
    /// Traces are recorded if the lower half of their id is below this value.
    threshold: u64,
    /// Whether traces that the caller records are also recorded.
    parent_based: bool,
    pub(super) gen_ai: GenAi,
}

impl Tracer {
    /// A tracer that records nothing, at no cost.
    #[must_use]
    pub fn off() -> Self {
        Self(None)
    }

    pub(super) fn new(queue: mpsc::Sender<Span>, sampler: Sampler) -> (Self, Arc<Shared>) {
        let shared = Arc::new(Shared {
            queue,
            dropped: AtomicU64::new(0),
            // Saturates: a ratio of 1 records all but one in 2^64.
            threshold: (sampler.ratio.clamp(0.0, 1.0) * u64::MAX as f64) as u64,
            parent_based: sampler.parent_based,
            gen_ai: GenAi::default(),
        });
        (Self(Some(shared.clone())), shared)
    }

    /// Whether spans are recorded and exported.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Starts the span `context` with the parent `parent` (0 for none). `None` if its trace is not
    /// recorded. The decision depends only on the caller's flag and the trace id, so all nodes
    /// decide alike.
    #[must_use]
    pub fn begin(
        &self,
        name: &str,
        kind: SpanKind,
        context: &TraceContext,
        parent: u64,
    ) -> Option<ActiveSpan> {
        let shared = self.0.as_ref()?;
        let chosen = (context.trace_id as u64) <= shared.threshold && 0 < shared.threshold;
        let recorded = context.sampled && shared.parent_based;
        if !recorded && !chosen {
            return None;
        }
        let parent = if parent == 0 {
            Vec::new()
        } else {
            parent.to_be_bytes().to_vec()
        };
        Some(ActiveSpan {
            shared: shared.clone(),
            span: Span {
                trace_id: context.trace_id.to_be_bytes().to_vec(),
                span_id: context.span_id.to_be_bytes().to_vec(),
                parent_span_id: parent,
                name: name.to_owned(),
                kind: kind as i32,
                start_time_unix_nano: now(),
                ..Span::default()
            },
        })
    }

    pub(crate) fn gen_ai(&self) -> Option<&GenAi> {
        self.0.as_ref().map(|shared| &shared.gen_ai)
    }
}

/// A running span; it ends when dropped.
pub struct ActiveSpan {
    shared: Arc<Shared>,
    span: Span,
}

impl ActiveSpan {
    /// Adds a text attribute. Never pass a prompt or a key.
    pub fn text(&mut self, key: &str, value: impl Into<String>) {
        self.keep(attributes::text(key, value));
    }

    /// Adds an integer attribute.
    pub fn number(&mut self, key: &str, value: u64) {
        self.keep(attributes::number(key, value));
    }

    /// Adds an event with the current time.
    pub fn event(&mut self, name: &str) {
        if self.span.events.len() < MOST {
            self.span.events.push(Event {
                time_unix_nano: now(),
                name: name.to_owned(),
                ..Event::default()
            });
        }
    }

    /// Marks the span as failed with `error`.
    pub fn fail(&mut self, error: &PredictError) {
        self.text("error.type", error.code.as_str());
        self.span.status = Some(Status {
            message: error.message.clone(),
            code: StatusCode::Error.into(),
        });
    }

    fn keep(&mut self, pair: KeyValue) {
        if self.span.attributes.len() < MOST {
            self.span.attributes.push(pair);
        }
    }
}

impl Drop for ActiveSpan {
    fn drop(&mut self) {
        let mut span = std::mem::take(&mut self.span);
        span.end_time_unix_nano = now();
        if self.shared.queue.try_send(span).is_err() {
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}
