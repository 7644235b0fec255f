//! One `volley` process.

use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::process::{Child, Command};

use crate::PATIENCE;
pub use crate::ports::free_port;

/// How long a client command may take: it may wait for what the cluster does.
const COMMAND: Duration = Duration::from_secs(120);
/// A proxy that nobody serves.
const NO_PROXY_THERE: &str = "http://127.0.0.1:9";

/// One process; killed when dropped. Its output is shown when the story fails.
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

/// How a process is other than most.
#[derive(Clone, Debug, Default)]
pub struct Setting {
    /// Another binary than the one under test.
    pub program: Option<PathBuf>,
    /// Variables of its environment.
    pub env: Vec<(&'static str, String)>,
}

impl Setting {
    /// Its clock is off by `skew`, as `faketime` has it (`+1h`). Time that passes is what it is.
    ///
    /// # Errors
    /// When the library is not installed.
    pub fn skewed(skew: &str) -> Result<Self, String> {
        let library = faketime()?.to_string_lossy().into_owned();
        let env = vec![
            ("LD_PRELOAD", library),
            ("FAKETIME", skew.to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ];
        Ok(Self { program: None, env })
    }
}

/// The library of `faketime` for processes with threads, wherever the distribution has it.
///
/// # Errors
/// What to install, when it is not there.
pub fn faketime() -> Result<PathBuf, String> {
    let folders = std::fs::read_dir("/usr/lib").map_err(|error| error.to_string())?;
    let mut places = folders
        .flatten()
        .map(|folder| folder.path().join("faketime/libfaketimeMT.so.1"));
    places
        .find(|place| place.exists())
        .ok_or_else(|| "libfaketimeMT.so.1 was not found: install 'faketime'".to_owned())
}

/// The binary under test.
///
/// # Panics
/// When it has not been built.
#[must_use]
pub fn binary() -> PathBuf {
    let own = std::env::current_exe().expect("this program's own path");
    // A test is in target/<profile>/deps, a program in the folder above.
    let folders = own.ancestors().skip(1).take(2);
    folders
        .map(|folder| folder.join("volley"))
        .find(|binary| binary.is_file())
        .expect("build the binary first: `cargo build`, or `cargo test --workspace`")
}

impl Process {
    /// Starts `volley` with `arguments`, its output going to a file in `folder`.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn start(name: &str, arguments: &[&str], folder: &Path) -> Self {
        Self::start_as(name, arguments, folder, &Setting::default())
    }

    /// The same in this setting.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn start_as(name: &str, arguments: &[&str], folder: &Path, setting: &Setting) -> Self {
        let log = folder.join(format!("{name}.log"));
        let options = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log);
        let out = options.expect("a log file");
        let child = Command::new(setting.program.clone().unwrap_or_else(binary))
            .args(arguments)
            // Stories script their models.
            .env("VOLLEY_ALLOW_FAKE_BACKEND", "true")
            .envs(setting.env.iter().cloned())
            .env("VOLLEY_LOG", "info,openraft=warn,ort=warn")
            .env("VOLLEY_TEST_KEY", "sk-volley-test")
            // No node ever looks at these: whoever did would reach nothing.
            .env("http_proxy", NO_PROXY_THERE)
            .env("https_proxy", NO_PROXY_THERE)
            .env("all_proxy", NO_PROXY_THERE)
            .stdin(Stdio::null())
            .stdout(out.try_clone().expect("a second handle"))
            .stderr(out)
            .kill_on_drop(true)
            .spawn()
            .expect("the binary starts");
        Self {
            name: name.to_owned(),
            child,
            log,
        }
    }

    /// Its id; `None` when it has ended.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Everything that it has written.
    #[must_use]
    pub fn output(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// SIGKILL.
    ///
    /// # Panics
    /// When it cannot be killed.
    pub async fn kill(mut self) {
        self.child.kill().await.expect("it can be killed");
    }

    /// Sends SIGTERM.
    ///
    /// # Panics
    /// When it has ended already.
    pub fn terminate(&self) {
        self.signal("-TERM");
    }

    /// Sends a signal, by the name that `kill` knows.
    ///
    /// # Panics
    /// When it has ended already.
    pub fn signal(&self, signal: &str) {
        let pid = self.child.id().expect("it runs").to_string();
        let sent = std::process::Command::new("kill")
            .args([signal, &pid])
            .status();
        assert!(sent.expect("kill runs").success());
    }

    /// Waits until it has ended by itself.
    ///
    /// # Panics
    /// When it does not.
    pub async fn ended(&mut self) -> ExitStatus {
        let ended = tokio::time::timeout(PATIENCE, self.child.wait()).await;
        ended
            .expect("it ends in time")
            .expect("it can be waited for")
    }

    /// Whether it still runs.
    pub fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let output = self.output();
            let lines: Vec<_> = output.lines().rev().take(25).collect();
            let lines: Vec<_> = lines.into_iter().rev().collect();
            let text = format!("--- {} ---\n{}\n", self.name, lines.join("\n"));
            // Shown with the failed story; nothing else may hear of it.
            let _ = std::io::Write::write_all(&mut std::io::stderr(), text.as_bytes());
        }
    }
}

/// Runs a client command of the binary to its end: what it printed, and whether it succeeded.
///
/// # Panics
/// When it does not end in time.
pub async fn run(arguments: &[&str]) -> (String, bool) {
    run_with(arguments, Vec::new()).await
}

/// The same, with more in its environment.
///
/// # Panics
/// When it does not end in time.
pub async fn run_with(
    arguments: &[&str],
    environment: Vec<(&'static str, String)>,
) -> (String, bool) {
    let command = Command::new(binary())
        .args(arguments)
        .envs(environment)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(COMMAND, command).await;
    let output = output.expect("the command ends").expect("the command runs");
    let text = [output.stdout, output.stderr].concat();
    (
        String::from_utf8_lossy(&text).into_owned(),
        output.status.success(),
    )
}
