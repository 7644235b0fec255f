//! The processes under test, with their resource usage from Linux's `/proc`.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tokio::process::{Child, Command};

/// A child process; killed when dropped.
pub(crate) struct Process {
    child: Child,
    /// The process id.
    pub(crate) pid: u32,
}

impl Process {
    /// Starts `program` with its output in `log`.
    pub(crate) fn start(program: &Path, arguments: &[&str], log: &Path) -> anyhow::Result<Self> {
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(log)?;
        let child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("starting {}", program.display()))?;
        let pid = child.id().context("the process ended at once")?;
        Ok(Self { child, pid })
    }

    /// Sends SIGKILL, and waits for the process to exit.
    pub(crate) async fn kill(mut self) -> anyhow::Result<()> {
        self.child.kill().await.context("killing")
    }

    /// CPU time of all threads since the start, user and system.
    pub(crate) fn cpu(&self) -> anyhow::Result<Duration> {
        cpu_of(self.pid)
    }

    /// Resident memory in bytes.
    pub(crate) fn rss(&self) -> anyhow::Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib: u64 = line
            .and_then(|line| line.split_whitespace().next())
            .context("no VmRSS")?
            .parse()?;
        Ok(kib * 1024)
    }
}

/// CPU time of a process. `/proc/PID/task/*/schedstat` has nanosecond resolution but covers only
/// live threads. The runtimes of the measured processes keep their threads.
pub(crate) fn cpu_of(pid: u32) -> anyhow::Result<Duration> {
    let mut total = 0_u64;
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may end between the listing and the read.
        let Ok(text) = std::fs::read_to_string(task?.path().join("schedstat")) else {
            continue;
        };
        let nanos = text.split_whitespace().next().context("empty schedstat")?;
        total += nanos.parse::<u64>()?;
    }
    Ok(Duration::from_nanos(total))
}

/// Polls `condition` every 5 ms until it returns a value, for at most `limit`.
pub(crate) async fn until<T, F>(
    what: &str,
    limit: Duration,
    mut condition: impl FnMut() -> F,
) -> anyhow::Result<T>
where
    F: Future<Output = Option<T>>,
{
    let started = Instant::now();
    loop {
        if let Some(value) = condition().await {
            return Ok(value);
        }
        if limit < started.elapsed() {
            bail!("{what}: not within {limit:?}");
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A port that was free a moment ago.
pub(crate) fn free_port() -> anyhow::Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?
        .local_addr()?
        .port())
}
