//! The Flight client: a remote node as a [`Predict`].

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use arrow_flight::flight_service_client::FlightServiceClient;
use async_trait::async_trait;
use tonic::metadata::{AsciiMetadataValue, MetadataMap};
use tonic::transport::Channel;
use volley_security::nodes::{Dialer, NodeKind};
use volley_types::{
    ChunkStream, ModelName, ModelRef, Predict, PredictError, PredictRequest, Signature,
};

mod connector;
mod discovery;
mod exchange;
mod function;
mod input;

pub use self::function::{FunctionModel, FunctionType};
pub(crate) use self::input::Messages;

use self::exchange::ExchangeRequest;
use crate::{MAX_MESSAGE_BYTES, transport};

/// Limits of a [`FlightClient`].
#[derive(Clone, Debug)]
pub struct FlightClientConfig {
    /// Number of connections to the node, opened on first use. Streams use them round-robin.
    pub connections: usize,
    /// Time limit of one connection attempt.
    pub connect_timeout: Duration,
    /// Time limit for the node to accept a call, including the connection attempt.
    pub accept_timeout: Duration,
    /// Dialer for the node.
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
/// reconnect after a restart of the node.
#[derive(Clone, Debug)]
pub struct FlightClient {
    channels: Arc<[Channel]>,
    turn: Arc<AtomicUsize>,
    accept_timeout: Duration,
    key: Option<AsciiMetadataValue>,
}

/// Credentials of a caller outside the cluster, and the authority that verifies the node.
#[derive(Clone, Default)]
pub struct Access {
    /// The API key of every call.
    pub key: Option<String>,
    /// CA certificates (PEM) that verify the coordinator's certificate; without them the connection
    /// does not use TLS.
    pub authority: Option<Vec<u8>>,
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Access")
            .field("key", &self.key.is_some())
            .field("tls", &self.authority.is_some())
            .finish()
    }
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
            key: None,
        })
    }

    /// A client from outside the cluster, of the coordinator at `address` (`host:port`).
    /// Connects when first used. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// `InvalidInput` when the address or the key is malformed, or the authority is no PEM.
    pub fn outside(
        address: &str,
        config: FlightClientConfig,
        access: Access,
    ) -> Result<Self, PredictError> {
        let endpoint = match &access.authority {
            None => transport::endpoint(address, config.connect_timeout)?,
            Some(pem) => transport::tls_endpoint(address, config.connect_timeout, pem)?,
        };
        let key = access.key.map(|key| {
            let mut header = AsciiMetadataValue::try_from(format!("Bearer {key}"))
                .map_err(|_| PredictError::invalid("the API key is malformed"))?;
            header.set_sensitive(true);
            Ok(header)
        });
        let connections = config.connections.max(1);
        Ok(Self {
            channels: (0..connections).map(|_| endpoint.connect_lazy()).collect(),
            turn: Arc::default(),
            accept_timeout: config.accept_timeout,
            key: key.transpose()?,
        })
    }

    /// The headers of every call.
    fn headers(&self) -> MetadataMap {
        let mut headers = MetadataMap::new();
        if let Some(key) = &self.key {
            headers.insert("authorization", key.clone());
        }
        headers
    }

    /// A client over an existing channel.
    pub(crate) fn over(channel: Channel, accept_timeout: Duration) -> Self {
        Self {
            channels: Arc::from([channel]),
            turn: Arc::default(),
            accept_timeout,
            key: None,
        }
    }

    /// The next connection.
    fn channel(&self) -> Channel {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        self.channels[turn % self.channels.len()].clone()
    }

    fn service(&self) -> FlightServiceClient<Channel> {
        FlightServiceClient::new(self.channel())
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES)
    }

    /// Deadline for the node to accept a call.
    fn accept_by(&self, now: Instant) -> Instant {
        now + self.accept_timeout
    }
}

#[async_trait]
impl Predict for FlightClient {
    /// Sends the command and waits for the response's schema. Later rejections (a full queue,
    /// invalid rows) are the first item of the stream.
    async fn predict(&self, request: PredictRequest) -> Result<ChunkStream, PredictError> {
        let now = Instant::now();
        let opening = ExchangeRequest::of(request, now, self.headers());
        exchange::open(self.channel(), opening, now, self.accept_by(now)).await
    }

    async fn signature(&self, model: &ModelRef) -> Result<Signature, PredictError> {
        let by = self.accept_by(Instant::now());
        discovery::signature(self.service(), model, self.headers(), by).await
    }

    /// Returns an empty list when the node cannot be reached.
    async fn models(&self) -> Vec<ModelName> {
        discovery::models(
            self.service(),
            self.headers(),
            self.accept_by(Instant::now()),
        )
        .await
        .unwrap_or_else(|error| {
            tracing::warn!(error = %error.chain(), "model list request to a node failed");
            Vec::new()
        })
    }
}
