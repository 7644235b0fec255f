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

use crate::message::{self, ChildCommand, LoadReport};
use crate::warmup;

/// Longer than the worker's own patience with those who do not read, which then has the word.
const STALL_TIMEOUT: Duration = Duration::from_secs(600);

/// Above the worker, whose child then goes first when memory runs out.
const OOM_SCORE: &str = "600";

/// What this process is to load, and the socket of the worker that wants it.
#[derive(Debug)]
pub struct HostConfig {
    order: ChildCommand,
    socket: UnixStream,
}

/// Takes the worker's order from standard input, and sets this process' limits. Must be called
/// inside a tokio runtime, and before anything large is allocated.
///
/// # Errors
/// When standard input is not the socket of a worker.
pub async fn receive_config() -> io::Result<HostConfig> {
    let socket = Socket::from(io::stdin().as_fd().try_clone_to_owned()?);
    socket.set_nonblocking(true)?;
    let mut socket = UnixStream::from_std(socket)?;
    let order = ChildCommand::receive(&mut socket).await?;
    limit(order.settings.memory_limit)?;
    Ok(HostConfig { order, socket })
}

impl HostConfig {
    /// What the worker says of the loader to make.
    ///
    /// # Errors
    /// When it is of another form.
    pub fn settings<T: DeserializeOwned>(&self) -> io::Result<T> {
        Ok(serde_json::from_value(self.order.settings.loader.clone())?)
    }

    /// Which of the worker's loads this is, from 0.
    #[must_use]
    pub fn turn(&self) -> u64 {
        self.order.settings.turn
    }

    /// Loads the model, tries it, and serves it until the worker closes the socket. Then this
    /// process ends, whatever still runs in it: nothing can stop a library's threads.
    ///
    /// # Errors
    /// When the worker cannot be told.
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

/// Waits for the worker's end. It says nothing before it has its answer, so anything that comes
/// is that.
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

/// Limits what this process may take. Best effort where the system has no such limits.
fn limit(memory: Option<u64>) -> io::Result<()> {
    let only = |bytes| Rlimit {
        current: Some(bytes),
        maximum: Some(bytes),
    };
    // What a broken model leaves behind is large and of no use.
    setrlimit(Resource::Core, only(0))?;
    if let Some(bytes) = memory {
        // What allocators have reserved before they need it counts too.
        let bytes = bytes.saturating_add(data_bytes());
        setrlimit(Resource::Data, only(bytes))?;
    }
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE) {
        tracing::debug!(%error, "OOM score of the model process not set");
    }
    Ok(())
}

/// What this process has reserved of its own.
fn data_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmData:"));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse().ok());
    kibibytes.map_or(0, |kibibytes: u64| kibibytes.saturating_mul(1_024))
}

/// Ends this process at once: an orderly end would wait for, or crash in, a library's threads.
fn vanish() -> ! {
    let killed = kill_process(getpid(), Signal::KILL);
    tracing::error!(?killed, "model process could not kill itself");
    #[expect(
        clippy::disallowed_methods,
        reason = "an orderly end would wait for threads of a library"
    )]
    std::process::exit(1)
}
