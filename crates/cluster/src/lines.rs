//! Connections to other coordinators, independent of the transport.

use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http;
use tonic::transport::{Channel, Endpoint};
use tower::util::{BoxCloneSyncService, ServiceExt};
use volley_proto::raft::v1::membership_service_client::MembershipServiceClient;
use volley_security::nodes::{Dialer, NodeKind};

/// Maximum size of a message between coordinators in bytes.
pub(crate) const MAX_MESSAGE_BYTES: usize = 64 << 20;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// A connection to one other coordinator. Clones share it.
pub(crate) type Line = BoxCloneSyncService<http::Request<Body>, http::Response<Body>, Status>;

/// Connects to other coordinators by address (`host:port`).
pub(crate) trait Lines: std::fmt::Debug + Send + Sync {
    /// Returns a line that connects on its first call.
    ///
    /// # Errors
    /// If the address is malformed.
    fn lazy(&self, address: &str) -> Result<Line, tonic::transport::Error>;

    /// Returns a connected line, or `None` if the connection fails.
    fn connect<'a>(&'a self, address: &'a str) -> BoxFuture<'a, Option<Line>>;
}

impl Lines for Dialer {
    fn lazy(&self, address: &str) -> Result<Line, tonic::transport::Error> {
        let channel = Self::lazy(self, &endpoint(address)?, NodeKind::Coordinator);
        Ok(line(channel))
    }

    fn connect<'a>(&'a self, address: &'a str) -> BoxFuture<'a, Option<Line>> {
        let connect = async move {
            let endpoint = endpoint(address).ok()?;
            let channel = Self::connect(self, &endpoint, NodeKind::Coordinator).await;
            channel.ok().map(line)
        };
        connect.boxed()
    }
}

fn line(channel: Channel) -> Line {
    BoxCloneSyncService::new(channel.map_err(|error| Status::from_error(error.into())))
}

/// Returns the endpoint of the coordinator at `address` (`host:port`).
fn endpoint(address: &str) -> Result<Endpoint, tonic::transport::Error> {
    Ok(Endpoint::from_shared(format!("http://{address}"))?
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(Duration::from_secs(10))
        .keep_alive_timeout(Duration::from_secs(5))
        .keep_alive_while_idle(true))
}

/// Returns a client of the membership service at the other end of `line`.
pub(crate) fn membership_client(line: Line) -> MembershipServiceClient<Line> {
    MembershipServiceClient::new(line)
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES)
}

/// Returns whether a call failed before it was sent, because there was no connection.
pub(crate) fn was_not_sent(status: &tonic::Status) -> bool {
    let mut cause = std::error::Error::source(status);
    while let Some(error) = cause {
        if error.is::<tonic::ConnectError>() {
            return true;
        }
        cause = error.source();
    }
    false
}
