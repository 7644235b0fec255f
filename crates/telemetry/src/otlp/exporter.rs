//! The task that exports spans and metrics.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::metrics::v1::{ResourceMetrics, ScopeMetrics};
use opentelemetry_proto::tonic::resource::v1::Resource as ResourceMessage;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::{MetadataKey, MetadataMap, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use volley_types::{ErrorCode, PredictError};

use super::span::{Shared, Tracer};
use super::{Collector, OtlpConfig, Resource, Sampler, attributes};

/// Time limit of the last export when a node stops.
const LAST_TIMEOUT: Duration = Duration::from_secs(2);
/// Minimum time between two log messages about a failing collector.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

const TRACES: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
const METRICS: &str = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export";

/// Exports the spans and metrics that tracers record, until [`Exporter::shutdown`].
pub struct Exporter {
    task: tokio::task::JoinHandle<()>,
    stop: CancellationToken,
}

impl Exporter {
    /// Starts the task and returns the tracer that feeds it. The collector need not be running yet.
    /// Must be called in a Tokio runtime.
    ///
    /// # Errors
    /// `InvalidInput` when the endpoint, a header, the authority or the identity is not usable.
    pub fn start(config: &OtlpConfig, resource: &Resource) -> Result<(Tracer, Self), PredictError> {
        let traces = config.traces.as_ref().map(Target::new).transpose()?;
        let metrics = config.metrics.as_ref().map(Target::new).transpose()?;
        let (queue, spans) = mpsc::channel(config.span_queue.max(1));
        let none = Sampler {
            ratio: 0.0,
            parent_based: false,
        };
        let sampler = traces.as_ref().map_or(none, |_| config.sampler);
        let (tracer, shared) = Tracer::new(queue, sampler);
        let stop = CancellationToken::new();
        let sender = Sender {
            traces,
            metrics,
            resource: resource.message(config),
            shared,
            span_batch: config.span_batch.max(1),
            intervals: [config.span_interval, config.metric_interval],
        };
        let task = tokio::spawn(sender.run(spans, stop.clone()));
        Ok((tracer, Self { task, stop }))
    }

    /// Exports the remaining telemetry, for at most two seconds. If the future is dropped, the task
    /// continues in the background.
    pub async fn shutdown(self) {
        self.stop.cancel();
        let abort = self.task.abort_handle();
        if tokio::time::timeout(LAST_TIMEOUT, self.task).await.is_err() {
            abort.abort();
        }
    }
}

impl Resource {
    fn message(&self, config: &OtlpConfig) -> ResourceMessage {
        let service = config.service_name.as_deref().unwrap_or(self.service);
        let own = [
            attributes::text("service.name", service),
            attributes::text("service.instance.id", self.instance.clone()),
            attributes::text("service.version", env!("CARGO_PKG_VERSION")),
        ];
        let further = config.attributes.iter();
        let further = further.filter(|(key, _)| own.iter().all(|pair| pair.key != *key));
        let further: Vec<_> = further
            .map(|(key, value)| attributes::text(key, value.clone()))
            .collect();
        ResourceMessage {
            attributes: own.into_iter().chain(further).collect(),
            ..ResourceMessage::default()
        }
    }
}

/// The collector of one signal (traces or metrics).
struct Target {
    grpc: Grpc<Channel>,
    headers: MetadataMap,
    timeout: Duration,
    /// When a failure was last logged.
    logged: Option<Instant>,
}

impl Target {
    fn new(collector: &Collector) -> Result<Self, PredictError> {
        let mut headers = MetadataMap::new();
        for (name, value) in &collector.headers {
            let wrong = || {
                PredictError::invalid(format!(
                    "the header '{name}' for the OTLP collector is malformed"
                ))
            };
            let key = MetadataKey::from_bytes(name.as_bytes()).map_err(|_| wrong())?;
            let mut value = MetadataValue::try_from(value.as_str()).map_err(|_| wrong())?;
            value.set_sensitive(true);
            headers.insert(key, value);
        }
        Ok(Self {
            grpc: Grpc::new(endpoint(collector)?.connect_lazy()),
            headers,
            timeout: collector.timeout,
            logged: None,
        })
    }

    /// Sends one message. Returns whether the collector accepted it.
    async fn send<M: prost::Message + 'static>(
        &mut self,
        path: &'static str,
        message: M,
        shared: &Shared,
    ) -> bool {
        let call = async {
            self.grpc.ready().await.map_err(|error| error.to_string())?;
            // The response is not decoded: a partial rejection is visible at the collector.
            let codec = tonic_prost::ProstCodec::<M, ()>::default();
            let mut request = tonic::Request::new(message);
            *request.metadata_mut() = self.headers.clone();
            let path = PathAndQuery::from_static(path);
            let sent = self.grpc.unary(request, path, codec).await;
            sent.map_err(|status| status.message().to_owned())
        };
        let cause = match tokio::time::timeout(self.timeout, call).await {
            Ok(Ok(_)) => return true,
            Ok(Err(cause)) => cause,
            Err(_) => "no response before the timeout".to_owned(),
        };
        let is_due = |when: Instant| LOG_INTERVAL < when.elapsed();
        if self.logged.is_none_or(is_due) {
            self.logged = Some(Instant::now());
            let dropped = shared.dropped.load(Ordering::Relaxed);
            tracing::warn!(cause, dropped, "OTLP collector rejected telemetry");
        }
        false
    }
}

fn endpoint(collector: &Collector) -> Result<Endpoint, PredictError> {
    let wrong = |cause: String| {
        PredictError::invalid(
            "the OTLP endpoint must be the gRPC address of a collector, as http://host:4317",
        )
        .with_source(std::io::Error::other(cause))
    };
    let endpoint = Endpoint::from_shared(collector.endpoint.clone())
        .map_err(|error| wrong(error.to_string()))?
        .connect_timeout(collector.timeout)
        .timeout(collector.timeout);
    let scheme = endpoint.uri().scheme_str().unwrap_or_default();
    let Some(authority) = &collector.authority else {
        return match scheme {
            "http" => Ok(endpoint),
            "https" => Err(PredictError::invalid(
                "an https collector needs the certificate of its authority: set 'otlp.authority' \
                 or OTEL_EXPORTER_OTLP_CERTIFICATE",
            )),
            other => Err(wrong(format!("unknown scheme {other}"))),
        };
    };
    let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(authority)?));
    if let Some((certificate, key)) = &collector.identity {
        tls = tls.identity(Identity::from_pem(read(certificate)?, read(key)?));
    }
    endpoint
        .tls_config(tls)
        .map_err(|error| wrong(error.to_string()))
}

fn read(file: &Path) -> Result<Vec<u8>, PredictError> {
    std::fs::read(file).map_err(|error| {
        PredictError::new(
            ErrorCode::InvalidInput,
            "a certificate or key for the OTLP collector cannot be read",
        )
        .with_source(error)
    })
}

struct Sender {
    traces: Option<Target>,
    metrics: Option<Target>,
    resource: ResourceMessage,
    shared: Arc<Shared>,
    span_batch: usize,
    /// The intervals between messages of spans and of metrics.
    intervals: [Duration; 2],
}

impl Sender {
    async fn run(mut self, mut spans: mpsc::Receiver<Span>, stop: CancellationToken) {
        let [mut send_spans, mut send_metrics] = self.intervals.map(tokio::time::interval);
        send_spans.set_missed_tick_behavior(MissedTickBehavior::Delay);
        send_metrics.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = send_spans.tick() => self.drain(&mut spans).await,
                _ = send_metrics.tick() => self.send_metrics().await,
                () = stop.cancelled() => {
                    self.drain(&mut spans).await;
                    self.send_metrics().await;
                    return;
                }
            }
        }
    }

    /// Sends the queued spans. Spans that the collector does not accept are dropped and counted.
    async fn drain(&mut self, spans: &mut mpsc::Receiver<Span>) {
        loop {
            let mut batch = Vec::new();
            while batch.len() < self.span_batch
                && let Ok(span) = spans.try_recv()
            {
                batch.push(span);
            }
            let (false, Some(target)) = (batch.is_empty(), &mut self.traces) else {
                return;
            };
            let count = batch.len() as u64;
            let message = ExportTraceServiceRequest {
                resource_spans: vec![ResourceSpans {
                    resource: Some(self.resource.clone()),
                    scope_spans: vec![ScopeSpans {
                        scope: Some(scope()),
                        spans: batch,
                        ..ScopeSpans::default()
                    }],
                    ..ResourceSpans::default()
                }],
            };
            if !target.send(TRACES, message, &self.shared).await {
                self.shared.dropped.fetch_add(count, Ordering::Relaxed);
                return;
            }
        }
    }

    async fn send_metrics(&mut self) {
        let metrics = self.shared.gen_ai.metrics();
        let (false, Some(target)) = (metrics.is_empty(), &mut self.metrics) else {
            return;
        };
        let message = ExportMetricsServiceRequest {
            resource_metrics: vec![ResourceMetrics {
                resource: Some(self.resource.clone()),
                scope_metrics: vec![ScopeMetrics {
                    scope: Some(scope()),
                    metrics,
                    ..ScopeMetrics::default()
                }],
                ..ResourceMetrics::default()
            }],
        };
        target.send(METRICS, message, &self.shared).await;
    }
}

fn scope() -> InstrumentationScope {
    InstrumentationScope {
        name: "volley".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    }
}
