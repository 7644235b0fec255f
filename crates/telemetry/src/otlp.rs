//! Traces and generative-AI metrics for an OpenTelemetry collector, over OTLP.
//!
//! Nothing here waits on the way of a request: a span that ends goes into a bounded queue, or is
//! dropped and counted when that is full. One task per node sends what has gathered.

mod exporter;
mod gen_ai;
mod span;
mod traced;
mod wire;

use std::path::PathBuf;

use crate::Metrics;

pub use exporter::Exporter;
pub(crate) use gen_ai::Outcome;
pub use span::{ActiveSpan, SpanKind, Tracer};
pub use traced::Traced;

/// Where telemetry goes, and how much of it.
#[derive(Clone, Debug, PartialEq)]
pub struct OtlpConfig {
    /// The collector's gRPC address, `http://host:4317` or `https://…`.
    pub endpoint: String,
    /// The authority that an `https` collector's certificate is checked by, in PEM.
    pub authority: Option<PathBuf>,
    /// The share of traces that begin here that is recorded, from 0 to 1. Traces of callers
    /// that record theirs are always recorded.
    pub sample_ratio: f64,
}

impl OtlpConfig {
    /// Everything, to one address.
    #[must_use]
    pub fn new(endpoint: impl Into<String>) -> Self {
        Self {
            endpoint: endpoint.into(),
            authority: None,
            sample_ratio: 1.0,
        }
    }
}

/// Who tells: an instance of a service, in OpenTelemetry's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// `volley-coordinator` or `volley-worker`.
    pub service: &'static str,
    /// The node's id.
    pub instance: String,
}

impl Metrics {
    /// From now on, streams that are [followed](crate::StreamRecord::traced) have spans, and are
    /// counted by the conventions for generative AI. The first tracer stays.
    pub fn trace_with(&self, tracer: Tracer) {
        // Whoever was first is the node itself.
        let _ = self.families().tracer.set(tracer);
    }
}
