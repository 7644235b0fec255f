//! The roles: each wires crates together, serves, and drains in order.

pub(crate) mod coordinator;
pub(crate) mod model_host;
pub(crate) mod up;
pub(crate) mod worker;

use std::time::Duration;

use anyhow::Context;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::Router;
use volley_security::nodes::{Callers, incoming};
use volley_security::tls::NodeTls;
use volley_telemetry::otlp::{Exporter, OtlpConfig, Resource, Tracer};

/// What is left of internal connections once everything has drained.
const INTERNAL_GRACE: Duration = Duration::from_millis(500);

/// Between two looks at something that is waited for.
const LOOK: Duration = Duration::from_millis(20);

/// Binds a listener, with an error that says which setting is concerned.
///
/// # Errors
/// When the address is taken or malformed.
pub(crate) async fn bind(what: &str, address: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| {
        format!("{what}: {address} cannot be listened on; is it in use, or not of this machine?")
    })
}

/// Starts what sends telemetry, where a collector is configured.
///
/// # Errors
/// When the configuration cannot be used.
pub(crate) fn export(
    config: Option<&OtlpConfig>,
    service: &'static str,
    instance: String,
) -> anyhow::Result<(Tracer, Option<Exporter>)> {
    let Some(config) = config else {
        return Ok((Tracer::off(), None));
    };
    let resource = Resource { service, instance };
    let started = Exporter::start(config, &resource);
    let (tracer, exporter) = started.map_err(|error| anyhow::anyhow!("{}", error.chain()))?;
    tracing::info!(
        endpoint = config.endpoint,
        "sending traces and metrics over OTLP"
    );
    Ok((tracer, Some(exporter)))
}

/// Serves gRPC until `stop`; connections that are open then get a moment.
pub(crate) async fn serve_internal(
    router: Router,
    listener: TcpListener,
    tls: Option<(NodeTls, Callers)>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let stopped = stop.clone();
    let server = router.serve_with_incoming_shutdown(incoming(listener, tls), async move {
        stopped.cancelled().await;
    });
    let late = async {
        stop.cancelled().await;
        tokio::time::sleep(INTERNAL_GRACE).await;
    };
    tokio::select! {
        served = server => served.context("the internal listener failed"),
        () = late => Ok(()),
    }
}
