//! The task that sends.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use volley_types::{ErrorCode, PredictError};

use super::span::{Shared, Tracer};
use super::{OtlpConfig, Resource, wire};

/// Spans that wait to be sent; more are dropped.
const QUEUE: usize = 8_192;
/// Spans in one message.
const BATCH: usize = 512;
const SPANS_EVERY: Duration = Duration::from_secs(1);
const METRICS_EVERY: Duration = Duration::from_secs(10);
const SEND_TIMEOUT: Duration = Duration::from_secs(5);
/// For what is left when a node stops.
const LAST_TIMEOUT: Duration = Duration::from_secs(2);
/// A collector that is away is told of this often.
const COMPLAIN_EVERY: Duration = Duration::from_secs(60);

const TRACES: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
const METRICS: &str = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export";

/// Sends what tracers record, until it is stopped.
pub struct Exporter {
    task: tokio::task::JoinHandle<()>,
    stop: CancellationToken,
}

impl Exporter {
    /// Starts the task, and gives the tracer that feeds it. The collector need not be there yet.
    ///
    /// # Errors
    /// `InvalidInput` when the endpoint or the authority cannot be used.
    pub fn start(config: &OtlpConfig, resource: &Resource) -> Result<(Tracer, Self), PredictError> {
        let channel = endpoint(config)?.connect_lazy();
        let (queue, spans) = mpsc::channel(QUEUE);
        let (tracer, shared) = Tracer::new(queue, config.sample_ratio);
        let stop = CancellationToken::new();
        let sender = Sender {
            grpc: Grpc::new(channel),
            resource: wire::Resource {
                attributes: vec![
                    wire::text("service.name", resource.service),
                    wire::text("service.instance.id", resource.instance.clone()),
                    wire::text("service.version", env!("CARGO_PKG_VERSION")),
                ],
            },
            shared,
            complained: None,
        };
        let task = tokio::spawn(sender.run(spans, stop.clone()));
        Ok((tracer, Self { task, stop }))
    }

    /// Sends what is left, for two seconds at most.
    pub async fn shutdown(self) {
        self.stop.cancel();
        let abort = self.task.abort_handle();
        if tokio::time::timeout(LAST_TIMEOUT, self.task).await.is_err() {
            abort.abort();
        }
    }
}

fn endpoint(config: &OtlpConfig) -> Result<Endpoint, PredictError> {
    let wrong = |cause: String| {
        PredictError::invalid(
            "'otlp.endpoint' must be the gRPC address of a collector, as http://host:4317",
        )
        .with_source(std::io::Error::other(cause))
    };
    let endpoint = Endpoint::from_shared(config.endpoint.clone())
        .map_err(|error| wrong(error.to_string()))?
        .connect_timeout(SEND_TIMEOUT)
        .timeout(SEND_TIMEOUT);
    let scheme = endpoint.uri().scheme_str().unwrap_or_default();
    let Some(authority) = &config.authority else {
        return match scheme {
            "http" => Ok(endpoint),
            "https" => Err(PredictError::invalid(
                "'otlp.authority' is missing: an https collector is checked by it",
            )),
            other => Err(wrong(format!("unknown scheme {other}"))),
        };
    };
    let pem = std::fs::read(authority).map_err(|error| {
        PredictError::new(ErrorCode::InvalidInput, "'otlp.authority' cannot be read")
            .with_source(error)
    })?;
    let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem));
    endpoint
        .tls_config(tls)
        .map_err(|error| wrong(error.to_string()))
}

struct Sender {
    grpc: Grpc<Channel>,
    resource: wire::Resource,
    shared: Arc<Shared>,
    complained: Option<Instant>,
}

impl Sender {
    async fn run(mut self, mut spans: mpsc::Receiver<wire::Span>, stop: CancellationToken) {
        let mut send_spans = tokio::time::interval(SPANS_EVERY);
        let mut send_metrics = tokio::time::interval(METRICS_EVERY);
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

    /// Sends what has gathered. What a collector does not take is dropped: spans are no ledger.
    async fn drain(&mut self, spans: &mut mpsc::Receiver<wire::Span>) {
        loop {
            let mut batch = Vec::new();
            while batch.len() < BATCH
                && let Ok(span) = spans.try_recv()
            {
                batch.push(span);
            }
            if batch.is_empty() {
                return;
            }
            let count = batch.len() as u64;
            let message = wire::ExportTraces {
                resource_spans: vec![wire::ResourceSpans {
                    resource: Some(self.resource.clone()),
                    scope_spans: vec![wire::ScopeSpans {
                        scope: Some(scope()),
                        spans: batch,
                    }],
                }],
            };
            if !self.send(TRACES, message).await {
                self.shared.dropped.fetch_add(count, Ordering::Relaxed);
                return;
            }
        }
    }

    async fn send_metrics(&mut self) {
        let metrics = self.shared.gen_ai.metrics();
        if metrics.is_empty() {
            return;
        }
        let message = wire::ExportMetrics {
            resource_metrics: vec![wire::ResourceMetrics {
                resource: Some(self.resource.clone()),
                scope_metrics: vec![wire::ScopeMetrics {
                    scope: Some(scope()),
                    metrics,
                }],
            }],
        };
        self.send(METRICS, message).await;
    }

    async fn send<M: prost::Message + 'static>(&mut self, path: &'static str, message: M) -> bool {
        let call = async {
            self.grpc.ready().await.map_err(|error| error.to_string())?;
            let codec = tonic_prost::ProstCodec::<M, wire::Exported>::default();
            let request = tonic::Request::new(message);
            let path = PathAndQuery::from_static(path);
            let sent = self.grpc.unary(request, path, codec).await;
            sent.map_err(|status| status.message().to_owned())
        };
        let sent = tokio::time::timeout(SEND_TIMEOUT, call).await;
        let cause = match sent {
            Ok(Ok(_)) => return true,
            Ok(Err(cause)) => cause,
            Err(_) => "no answer in time".to_owned(),
        };
        if self
            .complained
            .is_none_or(|when| COMPLAIN_EVERY < when.elapsed())
        {
            self.complained = Some(Instant::now());
            let dropped = self.shared.dropped.load(Ordering::Relaxed);
            tracing::warn!(cause, dropped, "the collector takes no telemetry");
        }
        false
    }
}

fn scope() -> wire::Scope {
    wire::Scope {
        name: "volley".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    }
}
