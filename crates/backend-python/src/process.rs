//! Start of a model's process, and the end of it with all processes that it started.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as Socket;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::LazyLock;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process_group, prlimit};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::sync::oneshot;

use crate::log::ModelLog;

/// Variables of the worker's environment that a model's process gets. All others stay with the
/// worker: they may hold keys.
const INHERITED: [&str; 8] = [
    "PATH",
    "HOME",
    "TMPDIR",
    "LANG",
    "LC_ALL",
    "LD_LIBRARY_PATH",
    "TZ",
    "VOLLEY_ONNXRUNTIME",
];
/// Prefixes of further variables.
const INHERITED_PREFIXES: [&str; 6] = ["CUDA_", "NVIDIA_", "OMP_", "MKL_", "OPENBLAS_", "HF_"];
/// Files that a process may open, unless the worker's own limit is lower.
const MAX_FILES: u64 = 4_096;

/// A process with its children. Killing it again has no effect.
#[derive(Debug)]
pub(crate) struct ProcessGroup(Option<Pid>);

impl ProcessGroup {
    fn of(process: &Child) -> Self {
        let id = process.id().and_then(|id| i32::try_from(id).ok());
        Self(id.and_then(Pid::from_raw))
    }

    /// Kills every process of the group.
    pub(crate) fn kill(&self) {
        if let Some(group) = self.0
            && let Err(error) = kill_process_group(group, Signal::KILL)
        {
            // The usual case: all of them have ended.
            tracing::debug!(%error, "process group of the model not killed");
        }
    }
}

impl ProcessGroup {
    /// Kills the group after `grace`, in which the model is unloaded.
    pub(crate) fn kill_after(&mut self, grace: Duration) {
        let group = Self(self.0.take());
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                tokio::time::sleep(grace).await;
                drop(group);
            });
        }
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A process with its socket.
#[derive(Debug)]
pub(crate) struct ModelProcess {
    pub(crate) process: Child,
    pub(crate) group: ProcessGroup,
    pub(crate) socket: UnixStream,
}

/// How a process is started.
#[derive(Clone, Debug)]
pub(crate) struct Start {
    pub(crate) interpreter: PathBuf,
    /// Directory of the host program.
    pub(crate) host: PathBuf,
    /// Directory of the model.
    pub(crate) directory: PathBuf,
    /// Memory of the process in bytes.
    pub(crate) memory_limit: Option<u64>,
}

/// The work of the thread that starts processes.
type Job = Box<dyn FnOnce() + Send>;

/// A thread that never ends. The kernel kills a model's process when the thread that started it
/// ends, and threads of the runtime may.
static STARTER: LazyLock<Option<SyncSender<Job>>> = LazyLock::new(|| {
    let (jobs, waiting) = sync_channel::<Job>(64);
    let thread = std::thread::Builder::new().name("python-starter".to_owned());
    let thread = thread.spawn(move || waiting.into_iter().for_each(|job| job()));
    thread.is_ok().then_some(jobs)
});

/// Starts a process as `start` says. Its standard input is the socket; its output goes to the
/// model's log. Cancel safe: a process that nobody waits for is killed.
///
/// # Errors
/// When the interpreter cannot be started.
pub(crate) async fn start(start: Start, log: ModelLog) -> std::io::Result<ModelProcess> {
    let (sender, started) = oneshot::channel();
    let runtime = tokio::runtime::Handle::current();
    let job: Job = Box::new(move || {
        let _inside = runtime.enter();
        // Dropping the process, where nobody waits any more, kills it.
        drop(sender.send(spawn(&start, &log)));
    });
    let jobs = STARTER.as_ref();
    let is_sent = jobs.is_some_and(|jobs| jobs.try_send(job).is_ok());
    match is_sent {
        true => started.await.map_err(std::io::Error::other)?,
        false => Err(std::io::Error::other("too many processes start at once")),
    }
}

fn spawn(start: &Start, log: &ModelLog) -> std::io::Result<ModelProcess> {
    let (ours, theirs) = Socket::pair()?;
    ours.set_nonblocking(true)?;
    let mut command = Command::new(&start.interpreter);
    command
        .args(["-I", "-B", "-u"])
        .arg(&start.host)
        .current_dir(&start.directory)
        .env_clear()
        .envs(inherited())
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // `ProcessGroup` ends it, with its children.
        .process_group(0);
    let mut process = command.spawn()?;
    // The command holds the other end of the socket.
    drop(command);
    let group = ProcessGroup::of(&process);
    limit(&group, start.memory_limit);
    if let Some(output) = process.stdout.take() {
        log.copy("stdout", output);
    }
    if let Some(output) = process.stderr.take() {
        log.copy("stderr", output);
    }
    Ok(ModelProcess {
        process,
        group,
        socket: UnixStream::from_std(ours)?,
    })
}

fn inherited() -> impl Iterator<Item = (OsString, OsString)> {
    std::env::vars_os().filter(|(name, _)| {
        let name = name.to_str().unwrap_or_default();
        let prefixed = INHERITED_PREFIXES
            .iter()
            .any(|prefix| name.starts_with(prefix));
        INHERITED.contains(&name) || prefixed
    })
}

/// Sets the limits of a process before it has read its first message.
fn limit(group: &ProcessGroup, memory_limit: Option<u64>) {
    let set = |resource, bytes| {
        let limit = Rlimit {
            current: Some(bytes),
            maximum: Some(bytes),
        };
        if let Err(error) = prlimit(group.0, resource, limit) {
            tracing::warn!(%error, ?resource, "limit of the model process not set");
        }
    };
    set(Resource::Core, 0);
    let files = rustix::process::getrlimit(Resource::Nofile).maximum;
    set(
        Resource::Nofile,
        files.map_or(MAX_FILES, |files| files.min(MAX_FILES)),
    );
    if let Some(bytes) = memory_limit {
        set(Resource::Data, bytes);
    }
}
