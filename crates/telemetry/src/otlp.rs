//! Traces and generative-AI metrics for an OpenTelemetry collector, over OTLP.
//!
//! Exporting never delays a request. A finished span enters a bounded queue; when the queue is
//! full, the span is dropped and counted. One task per node sends the queued spans.

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

/// The collectors and the volume of telemetry. The defaults are those of OpenTelemetry's
/// environment variables, except for the intervals, which are shorter.
#[derive(Clone, Debug, PartialEq)]
pub struct OtlpConfig {
    /// The collector of spans; `None` exports none.
    pub traces: Option<Collector>,
    /// The collector of metrics; `None` exports none.
    pub metrics: Option<Collector>,
    /// Which new traces are recorded.
    pub sampler: Sampler,
    /// The service name; the default is that of the node.
    pub service_name: Option<String>,
    /// Additional attributes of the resource.
    pub attributes: Vec<(String, String)>,
    /// The capacity of the queue of spans. Further spans are dropped and counted.
    pub span_queue: usize,
    /// The maximum number of spans in one message.
    pub span_batch: usize,
    /// The interval between messages of spans.
    pub span_interval: Duration,
    /// The interval between messages of metrics.
    pub metric_interval: Duration,
}

impl OtlpConfig {
    /// Sends traces and metrics to one collector.
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

/// An OTLP collector, called over gRPC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collector {
    /// The address: `http://host:4317` or `https://…`.
    pub endpoint: String,
    /// PEM file of the CA that verifies the certificate of an `https` collector.
    pub authority: Option<PathBuf>,
    /// PEM files of this node's client certificate and key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// Headers of every call, such as an access token.
    pub headers: Vec<(String, String)>,
    /// The timeout of one call.
    pub timeout: Duration,
}

impl Collector {
    /// A collector at `endpoint`, with the defaults.
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
    /// The fraction of traces started on this node that is recorded, from 0 to 1.
    pub ratio: f64,
    /// Whether a trace that the caller records is also recorded here, regardless of `ratio`.
    pub parent_based: bool,
}

impl Default for Sampler {
    /// Records every trace.
    fn default() -> Self {
        Self {
            ratio: 1.0,
            parent_based: true,
        }
    }
}

/// The source of telemetry: an instance of a service, in OpenTelemetry's terms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// `volley-coordinator` or `volley-worker`.
    pub service: &'static str,
    /// The node's id.
    pub instance: String,
}

impl Metrics {
    /// Enables spans and generative-AI metrics for [traced](crate::StreamRecord::traced) streams.
    /// Only the first call has an effect.
    pub fn trace_with(&self, tracer: Tracer) {
        // An error means that a tracer is already set.
        let _ = self.families().tracer.set(tracer);
    }
}
