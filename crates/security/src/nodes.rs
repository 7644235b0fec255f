//! Connections between nodes: plain, or with TLS and an identity on both sides.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::{AbortHandle, BoxFuture, abortable};
use futures::stream::FuturesUnordered;
use futures::{Stream, StreamExt};
use http::Uri;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};
use tonic::transport::server::Connected;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};
use volley_types::NodeIdentity;

use crate::tls::{HANDSHAKE_TIMEOUT, NodeTls, identity_of};

/// Maximum number of concurrent handshakes; a further one aborts the oldest, which is most likely
/// abandoned.
const MAX_HANDSHAKES: usize = 256;
/// Maximum number of connections without a node's certificate. Nodes have no such limit, so that
/// other clients cannot block them.
const MAX_STRANGERS: usize = 8_192;
/// TLS server name of every node. Nodes are verified by the identity in the certificate instead.
const ANY_NODE: &str = "node.volley.internal";
/// Pause after a failed accept, which usually means that no file descriptors are left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The kind of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeKind {
    /// A coordinator.
    Coordinator,
    /// A worker.
    Worker,
}

impl NodeKind {
    fn is_of(self, identity: &NodeIdentity) -> bool {
        identity.is_coordinator() == (self == Self::Coordinator)
    }
}

/// Whether the certificate of a node is currently accepted. Called for each request.
pub type IsValid = Arc<dyn Fn(&NodeIdentity) -> bool + Send + Sync>;

/// The remote end of a connection. Every gRPC request has it as an extension.
#[derive(Clone, Debug)]
pub struct Peer {
    /// The remote address.
    pub address: Option<SocketAddr>,
    /// The identity that the client's certificate proves, if any.
    pub identity: Option<NodeIdentity>,
}

/// The clients that may open a TLS connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Callers {
    /// Only nodes of the cluster.
    Nodes,
    /// Nodes, and clients without a certificate, which must send a key with each call.
    NodesAndKeys,
}

/// An accepted connection.
#[derive(Debug)]
pub enum NodeStream {
    /// A connection without TLS, with its permit.
    Plain(TcpStream, OwnedSemaphorePermit),
    /// A TLS connection, with a permit if the client is not a node.
    Tls(Box<TlsStream<TcpStream>>, Option<OwnedSemaphorePermit>),
}

impl Connected for NodeStream {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        match self {
            Self::Plain(stream, _) => Peer {
                address: stream.peer_addr().ok(),
                identity: None,
            },
            Self::Tls(stream, _) => {
                let (tcp, session) = stream.get_ref();
                let certificate = session.peer_certificates().and_then(<[_]>::first);
                Peer {
                    address: tcp.peer_addr().ok(),
                    identity: certificate.and_then(identity_of),
                }
            }
        }
    }
}

impl AsyncRead for NodeStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream, _) => Pin::new(stream).poll_read(cx, buffer),
            Self::Tls(stream, _) => Pin::new(stream.as_mut()).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for NodeStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream, _) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls(stream, _) => Pin::new(stream.as_mut()).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream, _) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream, _) => Pin::new(stream.as_mut()).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream, _) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream, _) => Pin::new(stream.as_mut()).poll_shutdown(cx),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream, _) => Pin::new(stream).poll_write_vectored(cx, slices),
            Self::Tls(stream, _) => Pin::new(stream.as_mut()).poll_write_vectored(cx, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream, _) => stream.is_write_vectored(),
            Self::Tls(stream, _) => stream.is_write_vectored(),
        }
    }
}

/// The connections of `listener` without Nagle's delay, with TLS if `tls` is set. Clients with slow
/// handshakes do not delay others. The stream does not end. Dropping it closes the listener and
/// aborts handshakes.
pub fn incoming(
    listener: TcpListener,
    tls: Option<(NodeTls, Callers)>,
) -> impl Stream<Item = io::Result<NodeStream>> + Send {
    let policy = Arc::new(ListenerPolicy {
        tls,
        strangers: Arc::new(Semaphore::new(MAX_STRANGERS)),
    });
    let state = (listener, policy, Handshakes::default());
    futures::stream::unfold(state, |(listener, policy, mut handshakes)| async move {
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((socket, _)) => handshakes.begin(policy.clone().shake_hands(socket)),
                    Err(error) => {
                        tracing::warn!(error = %error, "accept failed");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
                Some(stream) = handshakes.next() => match stream {
                    Ok(stream) => return Some((Ok(stream), (listener, policy, handshakes))),
                    Err(error) => tracing::debug!(error = %error, "connection rejected"),
                },
            }
        }
    })
}

/// The handshakes in progress.
#[derive(Default)]
struct Handshakes {
    running: FuturesUnordered<BoxFuture<'static, (u64, io::Result<NodeStream>)>>,
    /// Aborts a handshake, by its number. The lowest number is the oldest handshake.
    ends: BTreeMap<u64, AbortHandle>,
    begun: u64,
}

impl Handshakes {
    fn begin(&mut self, handshake: impl Future<Output = io::Result<NodeStream>> + Send + 'static) {
        if MAX_HANDSHAKES <= self.ends.len()
            && let Some((_, end)) = self.ends.pop_first()
        {
            end.abort();
        }
        let number = self.begun;
        self.begun += 1;
        let (handshake, end) = abortable(handshake);
        self.ends.insert(number, end);
        self.running.push(Box::pin(async move {
            let ended = || Err(io::Error::new(io::ErrorKind::TimedOut, "too slow"));
            (number, handshake.await.unwrap_or_else(|_| ended()))
        }));
    }

    /// The next handshake to finish; `None` if none is in progress.
    async fn next(&mut self) -> Option<io::Result<NodeStream>> {
        let (number, stream) = self.running.next().await?;
        self.ends.remove(&number);
        Some(stream)
    }
}

/// Connection policy of a listener.
struct ListenerPolicy {
    tls: Option<(NodeTls, Callers)>,
    strangers: Arc<Semaphore>,
}

impl ListenerPolicy {
    async fn shake_hands(self: Arc<Self>, socket: TcpStream) -> io::Result<NodeStream> {
        socket.set_nodelay(true)?;
        let Some((tls, callers)) = &self.tls else {
            return Ok(NodeStream::Plain(socket, self.place()?));
        };
        let stream = greet(socket, tls, *callers).await?;
        let certificate = stream.get_ref().1.peer_certificates();
        let node = certificate.and_then(<[_]>::first).and_then(identity_of);
        let place = match node {
            Some(_) => None,
            None => Some(self.place()?),
        };
        Ok(NodeStream::Tls(Box::new(stream), place))
    }

    fn place(&self) -> io::Result<OwnedSemaphorePermit> {
        let full = |_| io::Error::new(io::ErrorKind::QuotaExceeded, "too many strangers");
        self.strangers.clone().try_acquire_owned().map_err(full)
    }
}

async fn greet(
    socket: TcpStream,
    tls: &NodeTls,
    callers: Callers,
) -> io::Result<TlsStream<TcpStream>> {
    let configs = tls.0.current();
    let config = match callers {
        Callers::Nodes => configs.strict.clone(),
        Callers::NodesAndKeys => configs.lenient.clone(),
    };
    let accept = TlsAcceptor::from(config).accept(socket);
    let stream = tokio::time::timeout(HANDSHAKE_TIMEOUT, accept).await??;
    Ok(stream.into())
}

/// An interceptor that rejects calls over TLS unless they come from a node of `kind` with a valid
/// certificate (`is_valid`). It checks every call, also on existing connections. Calls without TLS
/// have no identity and are not checked.
pub fn only(
    kind: NodeKind,
    tls: bool,
    is_valid: IsValid,
) -> impl Fn(Request<()>) -> Result<Request<()>, Status> + Clone {
    move |request| {
        if !tls {
            return Ok(request);
        }
        let peer = request.extensions().get::<Peer>();
        match peer.and_then(|peer| peer.identity.as_ref()) {
            Some(identity) if kind.is_of(identity) && is_valid(identity) => Ok(request),
            Some(identity) if kind.is_of(identity) => Err(revoked(identity)),
            Some(_) => Err(Status::permission_denied(
                "this service does not accept nodes of this kind",
            )),
            None => Err(Status::unauthenticated(
                "this service requires the certificate of a node of the cluster",
            )),
        }
    }
}

fn revoked(identity: &NodeIdentity) -> Status {
    Status::permission_denied(format!(
        "the certificate of {identity} is not valid for calls: the node is not in the cluster"
    ))
}

/// Opens connections to other nodes, with or without TLS. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Dialer(Option<NodeTls>);

impl Dialer {
    /// A dialer without TLS.
    #[must_use]
    pub fn plain() -> Self {
        Self(None)
    }

    /// A dialer that presents the certificate of this node.
    #[must_use]
    pub fn tls(tls: NodeTls) -> Self {
        Self(Some(tls))
    }

    /// A channel to a node of `kind` that connects on first use. Must be called in a Tokio runtime.
    #[must_use]
    pub fn lazy(&self, endpoint: &Endpoint, kind: NodeKind) -> Channel {
        match &self.0 {
            None => endpoint.connect_lazy(),
            Some(tls) => endpoint.connect_with_connector_lazy(connector(tls.clone(), kind)),
        }
    }

    /// A connected channel to a node of `kind`. Cancel safe: dropping the future closes the
    /// connection.
    ///
    /// # Errors
    /// When the node cannot be reached, or when it is not of `kind`.
    pub async fn connect(
        &self,
        endpoint: &Endpoint,
        kind: NodeKind,
    ) -> Result<Channel, tonic::transport::Error> {
        match &self.0 {
            None => endpoint.connect().await,
            Some(tls) => {
                let connector = connector(tls.clone(), kind);
                endpoint.connect_with_connector(connector).await
            }
        }
    }
}

impl PartialEq for Dialer {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (None, None) => true,
            (Some(left), Some(right)) => Arc::ptr_eq(&left.0, &right.0),
            _ => false,
        }
    }
}

impl Eq for Dialer {}

type TlsIo = TokioIo<tokio_rustls::client::TlsStream<TcpStream>>;

fn connector(
    tls: NodeTls,
    kind: NodeKind,
) -> impl tower::Service<
    Uri,
    Response = TlsIo,
    Error = io::Error,
    Future = impl Future<Output = io::Result<TlsIo>> + Send,
> + Send
+ 'static {
    tower::service_fn(move |uri: Uri| dial(tls.clone(), kind, uri))
}

async fn dial(tls: NodeTls, kind: NodeKind, uri: Uri) -> io::Result<TlsIo> {
    let host = uri.host().unwrap_or_default();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let port = uri.port_u16().unwrap_or(0);
    let socket = TcpStream::connect((host, port)).await?;
    socket.set_nodelay(true)?;
    let name = ServerName::try_from(ANY_NODE).map_err(io::Error::other)?;
    let connector = TlsConnector::from(tls.0.current().client.clone());
    let connected = tokio::time::timeout(HANDSHAKE_TIMEOUT, connector.connect(name, socket));
    let stream = connected.await??;
    let certificate = stream.get_ref().1.peer_certificates();
    let identity = certificate.and_then(<[_]>::first).and_then(identity_of);
    match identity {
        Some(identity) if kind.is_of(&identity) => Ok(TokioIo::new(stream)),
        _ => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "the called node is not of the expected kind",
        )),
    }
}
