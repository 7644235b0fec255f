//! One child process with one model, from outside.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as Socket;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::process::{Child as Process, Command};
use volley_types::registry::Assignment;
use volley_types::{ErrorCode, ErrorOrigin, PredictError};

use crate::memory_guard;
use crate::message::{self, ChildCommand, LoadReport, WorkerSettings};

/// Time limit between the end of a child's socket and the end of its process.
const LAST_BREATH: Duration = Duration::from_secs(5);

/// Environment variables that a child inherits. All others are removed, because they may contain
/// keys.
const PASSED_ON: [&str; 9] = [
    "PATH",
    "HOME",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "VOLLEY_ONNXRUNTIME",
    "VOLLEY_LOG",
    "VOLLEY_LOG_FORMAT",
    "RUST_BACKTRACE",
    "TZ",
];
/// Prefixes of further variables that a child inherits.
const PREFIXES_PASSED_ON: [&str; 5] = ["CUDA_", "NVIDIA_", "ORT_", "OMP_", "MALLOC_"];

/// The program that is run for each model, and its limits.
#[derive(Clone, Debug)]
pub struct Program {
    /// The executable. It must call [`runtime::receive_config`](crate::runtime::receive_config).
    pub path: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Maximum bytes of private memory of each process; mapped files do not count. `None` means no
    /// limit.
    pub memory_limit: Option<u64>,
    /// Configuration of the loader in the process.
    pub loader: serde_json::Value,
}

impl Program {
    /// This executable with these arguments, even if its file has been replaced since the start.
    #[must_use]
    pub fn this(arguments: &[&str], loader: serde_json::Value) -> Self {
        let itself = PathBuf::from("/proc/self/exe");
        let path = if itself.exists() {
            itself
        } else {
            std::env::current_exe().unwrap_or(itself)
        };
        Self {
            path,
            arguments: arguments.iter().map(OsString::from).collect(),
            memory_limit: None,
            loader,
        }
    }

    /// Starts a process and loads a model in it.
    ///
    /// # Cancel safety
    /// Dropping the future kills the process.
    ///
    /// # Errors
    /// The loader's own; `InvalidInput` when the process ended during the load; `Internal` when the
    /// process cannot be started.
    pub(crate) async fn load(
        &self,
        assignment: &Assignment,
        turn: u64,
    ) -> Result<LoadedProcess, PredictError> {
        let failed = |error| PredictError::internal("a process for the model cannot start", error);
        let (mut process, mut socket) = self.spawn().map_err(failed)?;
        let order = ChildCommand {
            settings: WorkerSettings {
                memory_limit: self.memory_limit,
                turn,
                loader: self.loader.clone(),
            },
            assignment: assignment.clone(),
        };
        let talk = async {
            order.send(&mut socket).await?;
            message::outcome(&mut socket).await
        };
        match talk.await {
            Ok(Ok(told)) => Ok(LoadedProcess {
                process,
                socket,
                told,
            }),
            Ok(Err(error)) => Err(error),
            Err(error) => {
                let how = ProcessEnd::of(&mut process).await;
                let message = format!(
                    "the model's process {how} while the model was loaded and probed; its files \
                     may be damaged or malicious"
                );
                let error = PredictError::invalid(message).with_source(error);
                Err(error.with_origin(ErrorOrigin::Model))
            }
        }
    }

    fn spawn(&self) -> std::io::Result<(Process, UnixStream)> {
        let (ours, theirs) = Socket::pair()?;
        ours.set_nonblocking(true)?;
        let passed_on = |name: &str| {
            PASSED_ON.contains(&name) || PREFIXES_PASSED_ON.iter().any(|it| name.starts_with(it))
        };
        let environment = std::env::vars_os();
        let environment = environment.filter(|(name, _)| name.to_str().is_some_and(passed_on));
        let process = Command::new(&self.path)
            .args(&self.arguments)
            .env_clear()
            .envs(environment)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        Ok((process, UnixStream::from_std(ours)?))
    }
}

/// A process that has loaded its model and waits for requests.
#[derive(Debug)]
pub(crate) struct LoadedProcess {
    pub(crate) process: Process,
    pub(crate) socket: UnixStream,
    pub(crate) told: LoadReport,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessEnd {
    /// This signal ended it.
    Signal(i32),
    /// It ended with this code.
    Exit(i32),
    /// It stopped responding and was killed.
    Stuck,
    /// It ended because it took more memory than it may.
    Memory,
}

impl ProcessEnd {
    /// Waits for the end of a process whose socket is closed or broken. Kills the process if it
    /// does not end within five seconds. Cancel safe.
    pub async fn of(process: &mut Process) -> Self {
        match tokio::time::timeout(LAST_BREATH, process.wait()).await {
            Ok(Ok(status)) => Self::from(status),
            Ok(Err(_)) | Err(_) => {
                // An error means that the process has already ended.
                let _ = process.kill().await;
                Self::Stuck
            }
        }
    }
}

impl From<ExitStatus> for ProcessEnd {
    fn from(status: ExitStatus) -> Self {
        match (status.signal(), status.code()) {
            (Some(signal), _) if signal == memory_guard::END.as_raw() => Self::Memory,
            (Some(signal), _) => Self::Signal(signal),
            // The dynamic linker ends a process so that has no memory for its threads' data.
            (None, Some(127)) => Self::Memory,
            (None, code) => Self::Exit(code.unwrap_or(-1)),
        }
    }
}

impl std::fmt::Display for ProcessEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (signal, name) = match self {
            Self::Exit(code) => return write!(f, "ended with code {code}"),
            Self::Stuck => return f.write_str("stopped responding and was killed"),
            Self::Memory => return f.write_str("took more memory than it may and was ended"),
            Self::Signal(signal) => match signal {
                4 => (4, "illegal instruction"),
                6 => (6, "abort; perhaps it ran out of memory"),
                7 => (7, "bus error"),
                8 => (8, "arithmetic error"),
                9 => (9, "killed; perhaps it ran out of memory"),
                11 => (11, "segmentation fault"),
                other => return write!(f, "was ended by signal {other}"),
            },
        };
        write!(f, "was ended by signal {signal} ({name})")
    }
}

/// The error of a request whose process ended. If the answer had `begun`, another replica may
/// continue it. Otherwise the request is never retried, because it may have crashed the process.
pub(crate) fn broke(how: ProcessEnd, begun: bool) -> PredictError {
    if how == ProcessEnd::Memory && !begun {
        let message = "the model's process took more memory than it may and was ended; send fewer \
                       rows or smaller tensors, or raise 'models.memory_budget'";
        return PredictError::new(ErrorCode::TooLarge, message).with_origin(ErrorOrigin::Model);
    }
    let message =
        format!("the model's process {how} while it ran this request; the process is restarting");
    PredictError::new(code_of(begun), message).with_origin(ErrorOrigin::Model)
}

/// The error code of a request whose process ended.
pub(crate) fn code_of(begun: bool) -> ErrorCode {
    match begun {
        true => ErrorCode::Unavailable,
        false => ErrorCode::Internal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn ends_are_told_in_words() {
        for (script, told) in [
            ("kill -SEGV $$", "signal 11 (segmentation fault)"),
            ("kill -ABRT $$", "signal 6 (abort"),
            ("kill -USR1 $$", "took more memory than it may"),
            ("exit 127", "took more memory than it may"),
            ("exit 3", "ended with code 3"),
        ] {
            let mut shell = Command::new("sh");
            let mut process = shell.args(["-c", script]).spawn().unwrap();
            let how = ProcessEnd::of(&mut process).await.to_string();
            assert!(how.contains(told), "{how}");
        }
    }
}
