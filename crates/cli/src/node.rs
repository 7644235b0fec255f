//! The node roles. Each role wires crates together, serves, and drains in order.

pub(crate) mod coordinator;
pub(crate) mod dev;
pub(crate) mod failures;
mod gate;
pub(crate) mod model_host;
pub(crate) mod up;
mod uploads;
pub(crate) mod worker;

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use tokio::net::{TcpListener, TcpSocket, lookup_host};
use tokio_util::sync::CancellationToken;
use tonic::transport::server::Router;
use volley_security::nodes::{Callers, incoming};
use volley_security::tls::NodeTls;
use volley_telemetry::otlp::{Exporter, OtlpConfig, Resource, Tracer};

use crate::args::Command;

/// How long internal connections may stay open after the drain.
const INTERNAL_GRACE: Duration = Duration::from_millis(500);

/// Interval between checks of a condition.
const LOOK: Duration = Duration::from_millis(20);

/// Backlog of pending connections, so that a burst of this size loses none. The kernel limits it to
/// `net.core.somaxconn`.
const BACKLOG: u32 = 1_024;

/// Binds a listener. The error names the setting.
///
/// # Errors
/// When the address is in use or malformed.
pub(crate) async fn bind(what: &str, address: &str) -> anyhow::Result<TcpListener> {
    listen(address).await.with_context(|| {
        format!(
            "{what}: listening on {address} failed; is the port in use, or is it not an address \
             of this machine?"
        )
    })
}

/// Listens on the first usable address that the name resolves to.
async fn listen(address: &str) -> io::Result<TcpListener> {
    let mut failed = None;
    for address in lookup_host(address).await? {
        match listen_at(address) {
            Ok(listener) => return Ok(listener),
            Err(error) => failed = Some(error),
        }
    }
    Err(failed.unwrap_or_else(|| io::ErrorKind::AddrNotAvailable.into()))
}

fn listen_at(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    // Allows a restarted node to bind its port while old connections are in TIME_WAIT.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Starts the OTLP exporter, if a collector is configured.
///
/// # Errors
/// When the configuration is not usable.
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
        traces = config.traces.as_ref().map(|to| &to.endpoint),
        metrics = config.metrics.as_ref().map(|to| &to.endpoint),
        "OTLP export started"
    );
    Ok((tracer, Some(exporter)))
}

/// Serves gRPC until `stop`; open connections then have `INTERNAL_GRACE` to finish.
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

/// Nodes log their activity; client commands log only problems.
pub(crate) fn default_filter(command: &Command) -> String {
    match command {
        Command::Coordinator { .. } | Command::Worker { .. } | Command::ModelHost => {
            "info,openraft=warn"
        }
        Command::Up(_) => "warn,openraft=off",
        Command::Dev(_) => "error,openraft=off,volley_backend_python::log=info",
        _ => "error",
    }
    .to_owned()
}
