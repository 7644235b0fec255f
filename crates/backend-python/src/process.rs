//! Start of a model's process, and the end of it with all processes that it started.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as Socket;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::LazyLock;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::sync::oneshot;

use crate::config::KeeperProgram;
use crate::keeper::Order;
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

/// A process with all that it started. Killing it again has no effect.
#[derive(Debug)]
pub(crate) struct ProcessTree(Option<OwnedFd>);

impl ProcessTree {
    /// The tree of a keeper that this process has just started.
    fn of(keeper: &Child) -> std::io::Result<Self> {
        let id = keeper.id().and_then(|id| i32::try_from(id).ok());
        let id = id.and_then(Pid::from_raw);
        let id = id.ok_or_else(|| std::io::Error::other("the process has no id"))?;
        Ok(Self(Some(pidfd_open(id, PidfdFlags::empty())?)))
    }

    /// Has the keeper kill every process below it.
    pub(crate) fn kill(&self) {
        // A stopped keeper does not see the first signal before the second.
        for signal in [Signal::TERM, Signal::CONT] {
            if let Some(keeper) = &self.0
                && let Err(error) = pidfd_send_signal(keeper, signal)
            {
                // The usual case: it has ended.
                tracing::debug!(%error, "processes of the model not killed");
            }
        }
    }

    /// Kills the processes after `grace`, in which the model is unloaded.
    pub(crate) fn kill_after(&mut self, grace: Duration) {
        let tree = Self(self.0.take());
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                tokio::time::sleep(grace).await;
                drop(tree);
            });
        }
    }
}

impl Drop for ProcessTree {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A process with its socket.
#[derive(Debug)]
pub(crate) struct ModelProcess {
    pub(crate) process: Child,
    pub(crate) tree: ProcessTree,
    pub(crate) socket: UnixStream,
}

/// How a process is started.
#[derive(Clone, Debug)]
pub(crate) struct Start {
    /// The keeper's program.
    pub(crate) program: KeeperProgram,
    /// What the keeper starts.
    pub(crate) order: Order,
    /// Directory of the model.
    pub(crate) directory: PathBuf,
    /// Variables that replace those of the worker.
    pub(crate) variables: Vec<(&'static str, String)>,
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
    let mut command = Command::new(&start.program.path);
    command
        .args(&start.program.arguments)
        .arg("keep")
        .arg(serde_json::to_string(&start.order)?)
        .current_dir(&start.directory)
        .env_clear()
        .envs(inherited())
        .envs(start.variables.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // A signal of the terminal is for the worker.
        .process_group(0);
    let mut process = command.spawn()?;
    // The command holds the other end of the socket.
    drop(command);
    let tree = ProcessTree::of(&process)?;
    if let Some(output) = process.stdout.take() {
        log.copy("stdout", output);
    }
    if let Some(output) = process.stderr.take() {
        log.copy("stderr", output);
    }
    Ok(ModelProcess {
        process,
        tree,
        socket: UnixStream::from_std(ours)?,
    })
}

/// The variables of the worker that other programs get.
pub(crate) fn inherited() -> impl Iterator<Item = (OsString, OsString)> {
    std::env::vars_os().filter(|(name, _)| {
        let name = name.to_str().unwrap_or_default();
        let prefixed = INHERITED_PREFIXES
            .iter()
            .any(|prefix| name.starts_with(prefix));
        INHERITED.contains(&name) || prefixed
    })
}
