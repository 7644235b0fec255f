//! The process of one model, from inside.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream as Socket;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, Signal, getpid, kill_process, setrlimit};
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;
use volley_backend::{Backend, BackendLoader};
use volley_flight::local;
use volley_flight::server::FlightServerConfig;
use volley_types::PredictError;
use volley_types::registry::Assignment;

use crate::memory_guard;
use crate::message::{self, ChildCommand, LoadReport};
use crate::warmup;

/// Longer than the worker's own limit for slow readers, which therefore applies first.
const STALL_TIMEOUT: Duration = Duration::from_secs(600);

/// Higher than the worker's score, so that the kernel kills the child first when memory runs out.
const OOM_SCORE: &str = "600";

/// The load command for this process, and the socket to its worker.
#[derive(Debug)]
pub struct HostConfig {
    order: ChildCommand,
    socket: UnixStream,
}

/// Receives the worker's load command from standard input, and sets this process's limits. Must be
/// called inside a tokio runtime, and before any large allocation. Not cancel safe: dropping the
/// future may lose a partly received command.
///
/// # Errors
/// When standard input is not the socket of a worker, or a limit cannot be set.
pub async fn receive_config() -> io::Result<HostConfig> {
    let socket = Socket::from(io::stdin().as_fd().try_clone_to_owned()?);
    socket.set_nonblocking(true)?;
    let mut socket = UnixStream::from_std(socket)?;
    let order = ChildCommand::receive(&mut socket).await?;
    limit(order.settings.memory_limit)?;
    Ok(HostConfig { order, socket })
}

impl HostConfig {
    /// The worker's configuration of the loader, as `T`.
    ///
    /// # Errors
    /// When the configuration does not have the form of `T`.
    pub fn settings<T: DeserializeOwned>(&self) -> io::Result<T> {
        Ok(serde_json::from_value(self.order.settings.loader.clone())?)
    }

    /// Sequence number of this load on the worker, from 0.
    #[must_use]
    pub fn turn(&self) -> u64 {
        self.order.settings.turn
    }

    /// Loads the model, probes it, and serves it until the worker closes the socket. Then this
    /// process kills itself, because nothing else can stop a library's threads. Dropping the future
    /// ends the service and closes the socket.
    ///
    /// # Errors
    /// When the result of the load cannot be sent to the worker, or serving fails.
    pub async fn serve(mut self, loader: &dyn BackendLoader) -> io::Result<()> {
        let loaded = tokio::select! {
            () = closed(&self.socket) => vanish(),
            loaded = load(loader, &self.order.assignment) => loaded,
        };
        let told = loaded.as_ref().map(|backend| LoadReport {
            capacity: backend.capacity(),
            memory_bytes: backend.memory_bytes(),
        });
        message::answer(&told.map_err(PredictError::clone), &mut self.socket).await?;
        if let Ok(backend) = loaded {
            let config = FlightServerConfig {
                stall_timeout: STALL_TIMEOUT,
                ..FlightServerConfig::default()
            };
            let served = local::serve(backend, config, self.socket).await;
            served.map_err(io::Error::other)?;
        }
        vanish()
    }
}

/// Waits until the worker closes the socket. The worker sends nothing before it has the result, so
/// anything readable means the end.
async fn closed(socket: &UnixStream) {
    while socket.readable().await.is_ok() {
        match socket.try_read(&mut [0]) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Ok(_) | Err(_) => return,
        }
    }
}

async fn load(
    loader: &dyn BackendLoader,
    assignment: &Assignment,
) -> Result<Arc<dyn Backend>, PredictError> {
    let backend = loader.load(assignment).await?;
    warmup::run(&*backend, assignment).await?;
    Ok(backend)
}

/// Limits the resources of this process.
fn limit(memory: Option<u64>) -> io::Result<()> {
    let only = |bytes| Rlimit {
        current: Some(bytes),
        maximum: Some(bytes),
    };
    // A core dump of a model process is large and of no use.
    setrlimit(Resource::Core, only(0))?;
    if let Some(bytes) = memory {
        // The memory that allocators have already reserved counts towards the limit.
        let bytes = bytes.saturating_add(memory_guard::reserved()?);
        setrlimit(Resource::Data, only(bytes))?;
        memory_guard::start(bytes)?;
    }
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE) {
        tracing::debug!(%error, "OOM score of the model process not set");
    }
    Ok(())
}

/// Kills this process at once: a regular exit would wait for a library's threads, or crash in them.
fn vanish() -> ! {
    let killed = kill_process(getpid(), Signal::KILL);
    tracing::error!(?killed, "model process could not kill itself");
    #[expect(
        clippy::disallowed_methods,
        reason = "an orderly end would wait for threads of a library"
    )]
    std::process::exit(1)
}
