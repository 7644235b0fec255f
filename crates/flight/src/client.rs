//! The Flight client: a remote node as a [`Predict`].

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use arrow_flight::flight_service_client::FlightServiceClient;
use async_trait::async_trait;
use tonic::transport::Channel;
use volley_security::nodes::{Dialer, NodeKind};
use volley_types::{
    ChunkStream, ModelName, ModelRef, Predict, PredictError, PredictRequest, Signature,
};

mod discovery;
mod exchange;
mod input;

use crate::{MAX_MESSAGE_BYTES, transport};

/// Limits of a [`FlightClient`].
#[derive(Clone, Debug)]
pub struct FlightClientConfig {
    /// Connections to the node, opened when first used. Streams go round them in turn.
    pub connections: usize,
    /// How long one connection attempt may take.
    pub connect_timeout: Duration,
    /// How long the node may take to accept a call, the connection attempt included.
    pub accept_timeout: Duration,
    /// How the node, a worker, is called.
    pub dialer: Dialer,
}

impl Default for FlightClientConfig {
    fn default() -> Self {
        Self {
            connections: 2,
            connect_timeout: Duration::from_secs(2),
            accept_timeout: Duration::from_secs(5),
            dialer: Dialer::plain(),
        }
    }
}

/// A node that serves the Flight contract. Cheap to clone; clones share the connections, which
/// recover by themselves after the node comes back.
#[derive(Clone, Debug)]
pub struct FlightClient {
    channels: Arc<[Channel]>,
    turn: Arc<AtomicUsize>,
    accept_timeout: Duration,
}

impl FlightClient {
    /// A client of the node at `address` (`host:port`). Connects when first used. Must be
    /// called inside a tokio runtime.
    ///
    /// # Errors
    /// `InvalidInput` when the address is malformed.
    pub fn new(address: &str, config: FlightClientConfig) -> Result<Self, PredictError> {
        let endpoint = transport::endpoint(address, config.connect_timeout)?;
        Ok(Self {
            channels: (0..config.connections.max(1))
                .map(|_| config.dialer.lazy(&endpoint, NodeKind::Worker))
                .collect(),
            turn: Arc::default(),
            accept_timeout: config.accept_timeout,
        })
    }

    fn service(&self) -> FlightServiceClient<Channel> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        FlightServiceClient::new(self.channels[turn % self.channels.len()].clone())
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES)
    }

    /// By when the node must have accepted a call.
    fn accept_by(&self, now: Instant) -> Instant {
        now + self.accept_timeout
    }
}

#[async_trait]
impl Predict for FlightClient {
    /// Sends the command and waits until the node has named the response's schema; refusals
    /// after that (a full queue, bad rows) come as the stream's first item.
    async fn predict(&self, request: PredictRequest) -> Result<ChunkStream, PredictError> {
        let now = Instant::now();
        exchange::open(self.service(), request, now, self.accept_by(now)).await
    }

    async fn signature(&self, model: &ModelRef) -> Result<Signature, PredictError> {
        discovery::signature(self.service(), model, self.accept_by(Instant::now())).await
    }

    /// Empty when the node cannot be reached.
    async fn models(&self) -> Vec<ModelName> {
        discovery::models(self.service(), self.accept_by(Instant::now()))
            .await
            .unwrap_or_else(|error| {
                tracing::warn!(error = %error.chain(), "listing the models of a node failed");
                Vec::new()
            })
    }
}
