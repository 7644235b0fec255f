//! The accept loop: what a framework's own server leaves out. A time limit on headers, a cap on
//! connections, small kernel buffers, a limit on stalled writes, and a drain with an end.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::ApiConfig;
use crate::stall::StallGuard;

/// What the kernel may hold for a client that does not read.
const SEND_BUFFER_BYTES: usize = 128 << 10;
const MAX_HEADER_BYTES: usize = 64 << 10;
const MAX_HEADERS: usize = 100;
const HTTP2_STREAMS: u32 = 256;
/// After a failed accept (no file descriptors, most likely).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

pub(crate) async fn run(
    router: Router,
    listener: TcpListener,
    config: ApiConfig,
    shutdown: CancellationToken,
) {
    let graceful = GracefulShutdown::new();
    let places = Arc::new(Semaphore::new(config.max_connections));
    let server = Arc::new(builder(&config));
    loop {
        let accept = async {
            // The place is taken before the connection: past the cap, clients wait outside.
            let place = places.clone().acquire_owned().await;
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            accepted = accept => accepted,
            () = shutdown.cancelled() => break,
        };
        let socket = match accepted {
            Ok((socket, _)) => socket,
            Err(error) => {
                tracing::warn!(error = %error, "accept failed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        prepare(&socket);
        let io = TokioIo::new(StallGuard::new(socket, config.write_stall));
        let service = TowerToHyperService::new(router.clone());
        let (server, watcher) = (server.clone(), graceful.watcher());
        tokio::spawn(async move {
            let connection = server.serve_connection(io, service).into_owned();
            if let Err(error) = watcher.watch(connection).await {
                tracing::debug!(error = %error, "connection ended");
            }
            drop(place);
        });
    }
    drop(listener);
    if tokio::time::timeout(config.drain_timeout, graceful.shutdown())
        .await
        .is_err()
    {
        tracing::warn!("streams were still running at the drain timeout");
    }
}

fn builder(config: &ApiConfig) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
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
        tracing::debug!(error = %error, "socket options not set");
    }
}
