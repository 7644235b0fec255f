//! The binary as a process, and waiting with a deadline.

use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use tokio::process::{Child, Command};
use tokio::time::Instant;

/// How long a test waits for an expected event.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// The binary with `arguments` and a clean environment.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_volley"));
    command.args(arguments).kill_on_drop(true);
    command.env("VOLLEY_ALLOW_FAKE_BACKEND", "true");
    for name in [
        "VOLLEY_URL",
        "VOLLEY_LOG",
        "VOLLEY_LOG_FORMAT",
        "VOLLEY_DATA_DIR",
        "VOLLEY_API_KEY",
        "VOLLEY_BOOTSTRAP_KEY",
    ] {
        command.env_remove(name);
    }
    command
}

/// Runs a command to completion.
pub(crate) async fn volley(arguments: &[&str]) -> Output {
    let output = command(arguments).output();
    tokio::time::timeout(SOON, output).await.unwrap().unwrap()
}

/// The standard output of a command that must have succeeded.
#[track_caller]
pub(crate) fn text(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The error output of a command that must have failed with `code`.
#[track_caller]
pub(crate) fn complaint(output: &Output, code: i32) -> String {
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// A running node with its output in a file. Killed when dropped.
pub(crate) struct Node {
    pub(crate) child: Child,
    log: std::path::PathBuf,
}

impl Node {
    pub(crate) fn start(arguments: &[&str], log: &Path) -> Self {
        let file = std::fs::File::create(log).unwrap();
        let child = command(arguments)
            .stdout(Stdio::from(file.try_clone().unwrap()))
            .stderr(file)
            .spawn()
            .unwrap();
        let log = log.to_path_buf();
        Self { child, log }
    }

    pub(crate) fn output(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// Sends `signal`, for example `TERM`.
    pub(crate) async fn signal(&self, signal: &str) {
        let pid = self.child.id().expect("it still runs").to_string();
        let sent = Command::new("kill").args(["-s", signal, &pid]).status();
        assert!(sent.await.unwrap().success());
    }

    /// Waits for the process to exit, and returns the exit status.
    pub(crate) async fn ended(&mut self) -> Option<i32> {
        let ended = tokio::time::timeout(SOON, self.child.wait()).await;
        ended
            .unwrap_or_else(|_| panic!("it still runs: {}", self.output()))
            .unwrap()
            .code()
    }
}

/// Waits until `condition` returns a value.
pub(crate) async fn until<T>(what: &str, mut condition: impl AsyncFnMut() -> Option<T>) -> T {
    let by = Instant::now() + SOON;
    loop {
        if let Some(value) = condition().await {
            return value;
        }
        assert!(Instant::now() < by, "{what}: not in time");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Free ports, each returned only once over all test processes. Outgoing connections do not use
/// these ports.
pub(crate) fn free_ports<const N: usize>() -> [u16; N] {
    [(); N].map(|()| volley_tests::ports::free_port())
}
