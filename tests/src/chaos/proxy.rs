//! A way to one node that can be made slow, and that can break: every connection through it is
//! delayed, or reset, on demand.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// A running proxy.
#[derive(Debug)]
pub struct Proxy {
    /// Where it listens.
    pub address: SocketAddr,
    delay_ms: Arc<AtomicU64>,
    reset: watch::Sender<u64>,
    task: JoinHandle<()>,
}

impl Proxy {
    /// Starts one at `listen` that leads to `target`.
    ///
    /// # Errors
    /// When it cannot listen.
    pub async fn start(listen: SocketAddr, target: SocketAddr) -> std::io::Result<Self> {
        let listener = TcpListener::bind(listen).await?;
        let address = listener.local_addr()?;
        let delay_ms = Arc::new(AtomicU64::new(0));
        let (reset, resets) = watch::channel(0);
        let delay = delay_ms.clone();
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                while connections.try_join_next().is_some() {}
                connections.spawn(carry(socket, target, delay.clone(), resets.clone()));
            }
        });
        Ok(Self {
            address,
            delay_ms,
            reset,
            task,
        })
    }

    /// From now on every piece of data waits so long, each way.
    pub fn delay(&self, delay: Duration) {
        let ms = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        self.delay_ms.store(ms, Ordering::Relaxed);
    }

    /// Resets every connection that there is.
    pub fn reset(&self) {
        self.reset.send_modify(|count| *count += 1);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn carry(
    near: TcpStream,
    target: SocketAddr,
    delay: Arc<AtomicU64>,
    mut resets: watch::Receiver<u64>,
) {
    resets.mark_unchanged();
    let Ok(far) = TcpStream::connect(target).await else {
        return;
    };
    // Closed with data under way, a socket without linger sends a reset.
    for socket in [&near, &far] {
        let _ = socket.set_zero_linger();
        let _ = socket.set_nodelay(true);
    }
    let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
    tokio::select! {
        () = pump(near_in, far_out, &delay) => {}
        () = pump(far_in, near_out, &delay) => {}
        _ = resets.changed() => {}
    }
}

async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, delay: &AtomicU64) {
    let mut piece = vec![0; 64 << 10];
    while let Ok(length @ 1..) = from.read(&mut piece).await {
        let ms = delay.load(Ordering::Relaxed);
        if ms != 0 {
            tokio::time::sleep(Duration::from_millis(ms)).await;
        }
        if to.write_all(&piece[..length]).await.is_err() {
            return;
        }
    }
}
