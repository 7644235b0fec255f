//! The contract between two processes of one machine over a shared socket pair: no other process
//! can connect, and the end of either process ends the connection.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::{StreamExt, stream};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::transport::server::Connected;
use tonic::transport::{Endpoint, Server};
use volley_types::{Predict, PredictError};

use crate::client::FlightClient;
use crate::server::{FlightServer, FlightServerConfig};
use crate::transport::{CONNECTION_WINDOW_BYTES, KEEPALIVE_INTERVAL, KEEPALIVE_TIMEOUT};

/// Bytes that one stream may have in flight: more than over a network, so that a large tensor waits
/// less often for its reader.
const STREAM_WINDOW_BYTES: u32 = 256 << 10;

/// Time limit for the other process to accept a call.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(60);

/// A client over `socket`, and a token that is cancelled when the connection ends: the other
/// process has ended or hangs, or all users of the client were dropped. Must be called inside a
/// tokio runtime.
#[must_use]
pub fn client(socket: UnixStream) -> (FlightClient, CancellationToken) {
    let gone = CancellationToken::new();
    let tied = WatchedSocket {
        socket,
        _gone: gone.clone().drop_guard(),
    };
    let only = Arc::new(Mutex::new(Some(tied)));
    let connector = tower::service_fn(move |_| {
        let taken = only.lock().take().map(TokioIo::new);
        let lost = || io::Error::new(io::ErrorKind::BrokenPipe, "the connection has ended");
        std::future::ready(taken.ok_or_else(lost))
    });
    let channel = Endpoint::from_static("http://model-host.invalid")
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .connect_with_connector_lazy(connector);
    (FlightClient::over(channel, ACCEPT_TIMEOUT), gone)
}

/// Serves `predict` over `socket` until the other process closes it.
///
/// # Errors
/// `Internal` when the server fails.
pub async fn serve(
    predict: Arc<dyn Predict>,
    config: FlightServerConfig,
    socket: UnixStream,
) -> Result<(), PredictError> {
    let gone = CancellationToken::new();
    let tied = WatchedSocket {
        socket,
        _gone: gone.clone().drop_guard(),
    };
    let incoming = stream::iter([Ok::<_, io::Error>(tied)]).chain(stream::pending());
    let server = Server::builder()
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_concurrent_streams(u32::try_from(config.max_exchanges).unwrap_or(u32::MAX))
        .add_service(FlightServer::new(predict, config).into_service())
        .serve_with_incoming(incoming);
    tokio::select! {
        served = server => {
            let failed = |error| PredictError::internal("the local connection failed", error);
            served.map_err(failed)
        }
        () = gone.cancelled() => Ok(()),
    }
}

/// A socket that cancels a token when it is dropped.
struct WatchedSocket {
    socket: UnixStream,
    _gone: DropGuard,
}

impl Connected for WatchedSocket {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for WatchedSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(cx, buffer)
    }
}

impl AsyncWrite for WatchedSocket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests;
