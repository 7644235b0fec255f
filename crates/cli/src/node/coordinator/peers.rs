//! Connections of a coordinator to other nodes.

use std::sync::Arc;

use async_trait::async_trait;
use volley_coordinator::streams::OpenChannel;
use volley_coordinator::{Connect, Coordinator};
use volley_flight::client::{FlightClient, FlightClientConfig};
use volley_flight::transport;
use volley_gateway::{PeerStreams, PeerTasks};
use volley_security::nodes::{Dialer, NodeKind};
use volley_telemetry::otlp::{SpanKind, TracedPredict, Tracer};
use volley_types::{
    ChunkStream, ErrorCode, ModelName, ModelRef, Predict, PredictError, PredictRequest, Signature,
};

/// Opens channels to other coordinators.
pub(super) fn open_channel(dialer: Dialer) -> OpenChannel {
    Arc::new(move |address: &str| {
        let endpoint = transport::endpoint(address, FlightClientConfig::default().connect_timeout)?;
        Ok(dialer.lazy(&endpoint, NodeKind::Coordinator))
    })
}

/// Clients for streams that other coordinators hold.
pub(super) fn peer_streams(coordinator: Coordinator, dialer: Dialer) -> PeerStreams {
    let open = open_channel(dialer);
    Arc::new(move |node| coordinator.streams_of(node, &open))
}

/// Clients for tasks that other coordinators run.
pub(super) fn peer_tasks(coordinator: Coordinator, dialer: Dialer) -> PeerTasks {
    let open = open_channel(dialer);
    Arc::new(move |node| coordinator.tasks_of(node, &open))
}

/// Creates the Flight clients of workers.
pub(super) fn connect(dialer: Dialer, tracer: Tracer) -> Connect {
    let config = FlightClientConfig {
        dialer,
        ..FlightClientConfig::default()
    };
    Arc::new(
        move |address: &str| match FlightClient::new(address, config.clone()) {
            Ok(client) => {
                let told = vec![("server.address", address.to_owned())];
                let name = "call worker";
                TracedPredict::around(Arc::new(client), &tracer, name, SpanKind::Client, told)
            }
            Err(error) => {
                tracing::error!(error = error.chain(), "worker address is not usable");
                Arc::new(Unreachable)
            }
        },
    )
}

/// Stands in for a worker with a malformed address; rejects every call.
struct Unreachable;

fn unreachable() -> PredictError {
    PredictError::new(
        ErrorCode::Unavailable,
        "the worker's advertised address is malformed",
    )
}

#[async_trait]
impl Predict for Unreachable {
    async fn predict(&self, _: PredictRequest) -> Result<ChunkStream, PredictError> {
        Err(unreachable())
    }

    async fn signature(&self, _: &ModelRef) -> Result<Signature, PredictError> {
        Err(unreachable())
    }

    async fn models(&self) -> Vec<ModelName> {
        Vec::new()
    }
}
