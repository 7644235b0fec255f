//! The accept loop. It adds features that the framework's server lacks: a time limit for headers,
//! connection limits, small kernel buffers, timeouts for stalled writes and idle connections, and a
//! bounded drain.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::response::Response;
use futures::FutureExt;
use http::{HeaderValue, Request, StatusCode, Version, header};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;
use volley_security::tls::EdgeTls;

use crate::config::EdgeConfig;
use crate::connection_limits::{
    ConnectionLimiter, ConnectionPermit, ConnectionRejector, PendingRequest, RapidResetGuard,
};
use crate::idle::{Idle, RunningRequest};
use crate::stall::StallGuard;
use crate::watch::BodyWatchdogs;

/// Kernel buffer for a client that does not read; the kernel doubles this value.
const SEND_BUFFER_BYTES: usize = 64 << 10;
const MAX_HEADER_BYTES: usize = 64 << 10;
const MAX_HEADERS: usize = 100;
const HTTP2_STREAMS: u32 = 256;
/// HTTP/2 window of one upload.
const STREAM_WINDOW_BYTES: u32 = 256 << 10;
/// HTTP/2's maximum: uploads that wait must not stop the others of their connection.
const CONNECTION_WINDOW_BYTES: u32 = (1 << 31) - 1;
/// How long a shutdown waits for the first request of a connection.
const FIRST_REQUEST: Duration = Duration::from_secs(1);
/// Pause after a failed accept, for example without free file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Shutdown signal for requests that clients might keep open forever.
#[derive(Clone, Default)]
pub struct ServerShutdown(pub CancellationToken);

/// Peer address of a request's connection.
#[derive(Clone, Copy, Debug)]
pub struct PeerAddress(pub IpAddr);

/// Handle for requests that take over their connection, such as WebSockets.
#[derive(Clone)]
pub struct Upgrades {
    tracker: TaskTracker,
    end: CancellationToken,
    peer: PeerAddress,
    /// The connection's permit.
    place: Arc<ConnectionPermit>,
}

impl Upgrades {
    /// Runs `serve` for the connection, which keeps its permit and ends with the server.
    pub fn begin(self, serve: impl Future<Output = ()> + Send + 'static) {
        let Self {
            tracker,
            end,
            place,
            peer: _,
        } = self;
        tracker.spawn(async move {
            end.run_until_cancelled(serve).await;
            drop(place);
        });
    }
}

/// Serves until `shutdown`, and then until the last request has ended or the drain timeout has
/// passed. No task outlives the returned future, even if it is dropped.
pub async fn run(
    router: Router,
    listener: TcpListener,
    config: EdgeConfig,
    tls: Option<EdgeTls>,
    shutdown: CancellationToken,
    stays: KeepAlivePolicy,
) {
    let places = ConnectionLimiter::new(config.max_connections, config.max_connections_per_address);
    let rejector = ConnectionRejector::new();
    let tasks = Tasks {
        tracker: TaskTracker::new(),
        connections: TaskTracker::new(),
        upgraded: TaskTracker::new(),
        end: CancellationToken::new(),
        draining: ServerShutdown(shutdown.clone()),
        stays,
    };
    let _end = tasks.end.clone().drop_guard();
    let welcome = |socket: TcpStream, address: SocketAddr| {
        let peer = PeerAddress(address.ip());
        let place = match places.take(peer.0) {
            Ok(place) => place,
            Err(full) => {
                let end = tasks.end.clone();
                return rejector.reject(socket, full, tls.is_none(), &tasks.tracker, end);
            }
        };
        let (router, config, tls) = (router.clone(), config, tls.clone());
        let (upgrades, counted) = (tasks.upgrades(place, peer), tasks.connections.token());
        let child = tasks.child();
        tasks.tracker.spawn(async move {
            greet(socket, tls, router, config, child, upgrades).await;
            drop(counted);
        });
    };
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = shutdown.cancelled() => break,
        };
        match accepted {
            Ok((socket, address)) => welcome(socket, address),
            Err(error) => {
                tracing::warn!(error = %error, "accept failed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    // Closing the listener resets connections that only the kernel has accepted.
    while let Some(Ok((socket, address))) = listener.accept().now_or_never() {
        welcome(socket, address);
    }
    drop(listener);
    tasks.drain(config.drain_timeout).await;
}

/// Performs the TLS handshake, if any, and serves the connection.
async fn greet(
    socket: TcpStream,
    tls: Option<EdgeTls>,
    router: Router,
    config: EdgeConfig,
    tasks: Tasks,
    upgrades: Upgrades,
) {
    prepare(&socket);
    let socket = StallGuard::new(socket, config.write_stall);
    let Some(tls) = tls else {
        return connection(socket, router, config, tasks, upgrades).await;
    };
    match tasks.end.run_until_cancelled(tls.accept(socket)).await {
        Some(Ok(socket)) => connection(socket, router, config, tasks, upgrades).await,
        Some(Err(error)) => tracing::debug!(error = %error, "TLS handshake failed"),
        None => {}
    }
}

async fn connection<IO>(
    socket: IO,
    router: Router,
    config: EdgeConfig,
    tasks: Tasks,
    upgrades: Upgrades,
) where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (end, draining) = (tasks.end.clone(), tasks.draining.clone());
    let stays = tasks.stays.clone();
    // The connection's HTTP/2 streams end with it.
    let _end = end.clone().drop_guard();
    let (watches, asked) = (BodyWatchdogs::default(), CancellationToken::new());
    let patience = RapidResetGuard::new(end.clone());
    let idle = Idle::since(Instant::now());
    let leaving = leaving(&draining, &asked);
    let service = service_fn(|mut request: Request<Incoming>| {
        asked.cancel();
        request.extensions_mut().insert(watches.clone());
        request.extensions_mut().insert(draining.clone());
        request.extensions_mut().insert(upgrades.peer);
        request.extensions_mut().insert(upgrades.clone());
        let asked = (patience.asked(), idle.asked());
        answer(router.clone(), request, stays.clone(), asked)
    });
    let io = TokioIo::new(socket);
    let builder = builder(&config, tasks);
    let mut served = pin!(builder.serve_connection_with_upgrades(io, service));
    let (mut leaving, mut leaves) = (pin!(leaving), false);
    // The HTTP library starts its header timeout only after it has detected the version.
    let mut silence = pin!(tokio::time::sleep(config.header_timeout));
    let mut greeted = false;
    let mut check = tokio::time::interval((config.write_stall / 4).max(Duration::from_millis(1)));
    loop {
        tokio::select! {
            ended = &mut served => {
                if let Err(error) = ended {
                    tracing::debug!(error = %error, "connection ended");
                }
                return;
            }
            () = &mut silence, if !greeted => {
                greeted = asked.is_cancelled();
                if !greeted {
                    tracing::debug!("connection closed: no request before the header timeout");
                    return;
                }
            }
            () = &mut leaving, if !leaves => {
                leaves = true;
                served.as_mut().graceful_shutdown();
            }
            _ = check.tick() => {
                watches.abort_stalled(Instant::now(), config.write_stall);
                if !leaves && idle.is_over(Instant::now(), config.idle_timeout) {
                    leaves = true;
                    served.as_mut().graceful_shutdown();
                }
            }
            () = end.cancelled() => return,
        }
    }
}

/// Completes when the server shuts down and the connection must end after its running requests. A
/// client without a request yet gets a moment, because its first request may be on the way.
fn leaving(
    draining: &ServerShutdown,
    asked: &CancellationToken,
) -> impl Future<Output = ()> + use<> {
    let (draining, asked) = (draining.0.clone(), asked.clone());
    async move {
        draining.cancelled().await;
        let _ = tokio::time::timeout(FIRST_REQUEST, asked.cancelled()).await;
    }
}

/// Answers a request. A node that is about to leave closes HTTP/1 connections, so that clients
/// reconnect to another node.
async fn answer(
    router: Router,
    request: Request<Incoming>,
    stays: KeepAlivePolicy,
    (unanswered, running): (PendingRequest, RunningRequest),
) -> Result<Response, Infallible> {
    let is_http1 = request.version() <= Version::HTTP_11;
    let mut response = router.oneshot(request).await?;
    unanswered.answered();
    // Browsers must not interpret caller-controlled content as a script or a page.
    let nosniff = HeaderValue::from_static("nosniff");
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, nosniff);
    let goes_on = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    if is_http1 && !goes_on && !stays() {
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(header::CONNECTION, close);
    }
    Ok(running.until_sent(response))
}

/// Whether clients should keep their connections to this node.
pub type KeepAlivePolicy = Arc<dyn Fn() -> bool + Send + Sync>;

/// Tasks of connections, which end with the server.
#[derive(Clone)]
struct Tasks {
    tracker: TaskTracker,
    /// Counts connections until they have ended or were taken over.
    connections: TaskTracker,
    /// Tasks of connections that were taken over.
    upgraded: TaskTracker,
    end: CancellationToken,
    draining: ServerShutdown,
    stays: KeepAlivePolicy,
}

impl Tasks {
    fn upgrades(&self, place: ConnectionPermit, peer: PeerAddress) -> Upgrades {
        Upgrades {
            tracker: self.upgraded.clone(),
            end: self.end.clone(),
            peer,
            place: Arc::new(place),
        }
    }

    fn child(&self) -> Self {
        Self {
            tracker: self.tracker.clone(),
            connections: self.connections.clone(),
            upgraded: self.upgraded.clone(),
            end: self.end.child_token(),
            draining: self.draining.clone(),
            stays: self.stays.clone(),
        }
    }

    /// Lets connections end until the timeout, and then ends those that are left.
    async fn drain(&self, timeout: Duration) {
        let drained = async {
            self.connections.close();
            self.connections.wait().await;
            self.upgraded.close();
            self.upgraded.wait().await;
        };
        if tokio::time::timeout(timeout, drained).await.is_err() {
            tracing::warn!("drain timeout reached with streams running");
        }
        self.end.cancel();
        self.tracker.close();
        self.tracker.wait().await;
        self.upgraded.close();
        self.upgraded.wait().await;
    }
}

impl<F> hyper::rt::Executor<F> for Tasks
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn execute(&self, task: F) {
        let end = self.end.clone();
        self.tracker
            .spawn(async move { end.run_until_cancelled(task).await.is_some() });
    }
}

fn builder(config: &EdgeConfig, tasks: Tasks) -> Builder<Tasks> {
    let mut builder = Builder::new(tasks);
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(config.header_timeout)
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_HEADER_BYTES);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(HTTP2_STREAMS)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_header_list_size(MAX_HEADER_BYTES as u32)
        .keep_alive_interval(Duration::from_secs(20))
        .keep_alive_timeout(Duration::from_secs(10));
    builder
}

fn prepare(socket: &TcpStream) {
    let tuned = socket
        .set_nodelay(true)
        .and_then(|()| socket2::SockRef::from(socket).set_send_buffer_size(SEND_BUFFER_BYTES));
    if let Err(error) = tuned {
        tracing::debug!(error = %error, "socket options not applied");
    }
}
