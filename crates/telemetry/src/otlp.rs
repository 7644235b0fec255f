//! Traces and generative-AI metrics for an OpenTelemetry collector, over OTLP.
//!
//! Nothing here waits on the way of a request: a span that ends goes into a bounded queue, or is
//! dropped and counted when that is full. One task per node sends what has gathered.

mod attributes;
mod clock;
mod exporter;
mod gen_ai;
mod span;
mod traced;

use std::path::PathBuf;
use std::time::Duration;

use crate::Metrics;

pub use exporter::Exporter;
pub(crate) use gen_ai::RequestOutcome;
pub use span::{ActiveSpan, SpanKind, Tracer};
pub use traced::TracedPredict;

/// Where telemetry goes, and how much of it. The defaults are those of OpenTelemetry's
/// specification of environment variables, except for the intervals, which are shorter.
#[derive(Clone, Debug, PartialEq)]
pub struct OtlpConfig {
    /// Where spans go; `None` exports none.
    pub traces: Option<Collector>,
    /// Where metrics go; `None` exports none.
    pub metrics: Option<Collector>,
    /// Which new traces are recorded.
    pub sampler: Sampler,
    /// The service's name, in place of the node's own.
    pub service_name: Option<String>,
    /// Further attributes of the resource.
    pub attributes: Vec<(String, String)>,
    /// Spans that wait to be sent; more are dropped and counted.
    pub span_queue: usize,
    /// The most spans of one message.
    pub span_batch: usize,
    /// How often spans are sent.
    pub span_interval: Duration,
    /// How often metrics are sent.
    pub metric_interval: Duration,
}

impl OtlpConfig {
    /// Everything, to one collector.
    #[must_use]
    pub fn new(collector: Collector) -> Self {
        Self {
            traces: Some(collector.clone()),
            metrics: Some(collector),
            sampler: Sampler::default(),
            service_name: None,
            attributes: Vec::new(),
            span_queue: 8_192,
            span_batch: 512,
            span_interval: Duration::from_secs(1),
            metric_interval: Duration::from_secs(10),
        }
    }
}

/// A collector, called over gRPC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collector {
    /// Its address, `http://host:4317` or `https://…`.
    pub endpoint: String,
    /// The authority that verifies the certificate of an `https` collector, in PEM.
    pub authority: Option<PathBuf>,
    /// This node's certificate and key for the collector, in PEM.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// Headers of every call, such as an access token.
    pub headers: Vec<(String, String)>,
    /// How long one call may take.
    pub timeout: Duration,
}

impl Collector {
    /// One at this address.
    #[must_use]
    pub fn new(endpoint: impl Into<String>) -> Self {
        Self {
            endpoint: endpoint.into(),
            authority: None,
            identity: None,
            headers: Vec::new(),
            timeout: Duration::from_secs(5),
        }
    }
}

/// Which traces are recorded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampler {
    /// The share of traces that begin here that is recorded, from 0 to 1.
    pub ratio: f64,
    /// Whether a trace that the caller records is recorded here too, whatever the ratio.
    pub parent_based: bool,
}

impl Default for Sampler {
    /// Everything.
    fn default() -> Self {
        Self {
            ratio: 1.0,
            parent_based: true,
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
