//! What the stories of real clients have in common: a model that is there to be asked, a program
//! that asks it, and nothing left behind.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tokio::process::{Child, Command};
use volley_client::Client;

use crate::http::exchange;
use crate::until;

/// How long a client may take for all of its steps.
const JUDGEMENT: Duration = Duration::from_secs(300);

/// The checkout.
#[must_use]
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A program of the checkout, in an environment of `target/` that `script` makes.
///
/// # Panics
/// When the environment is not there.
#[must_use]
pub fn python(environment: &str, script: &str, program: &str) -> Command {
    let python = root().join("target").join(environment).join("bin/python");
    assert!(
        python.exists(),
        "run scripts/{script}.sh before the tests: {environment} is not there"
    );
    let mut command = Command::new(python);
    command.arg(root().join(program));
    command
}

/// Runs a program; what it printed.
///
/// # Panics
/// When it fails, with all that it said, and when it does not end.
pub async fn printed(command: &mut Command) -> String {
    let run = command.stdin(Stdio::null()).kill_on_drop(true).output();
    let output = tokio::time::timeout(JUDGEMENT, run).await;
    let output = output
        .expect("the client ends in time")
        .expect("the client runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}{errors}");
    text
}

/// Waits until another server answers: some import a great deal before they listen.
///
/// # Panics
/// When it ends, or does not answer in time.
pub async fn serves(server: &mut Child, answers: impl AsyncFn() -> bool) {
    let waited = tokio::time::timeout(JUDGEMENT, async {
        while !answers().await {
            let ended = server.try_wait().expect("it can be looked at");
            assert!(ended.is_none(), "the server ended: {ended:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    waited.await.expect("the server answers in time");
}

/// Runs a program that prints one line a step; how many lines there were.
///
/// # Panics
/// As [`printed`].
pub async fn steps(command: &mut Command) -> usize {
    printed(command).await.lines().count()
}

/// Registers a model and deploys it once; waits until it serves.
///
/// # Panics
/// When it does not.
pub async fn deploy(client: &Client, body: &Value) {
    let model = client.register(body).await.expect("a model").model_id;
    client.deploy(&model, 1).await.expect("a deployment");
    until("the model is deployed", || async {
        let found = client.model(&model).await.ok()?;
        (found.model_state == "DEPLOYED").then_some(())
    })
    .await;
}

/// Waits until no stream of a model runs: who left in the middle left nothing behind.
///
/// # Panics
/// When one goes on.
pub async fn nothing_runs(rest: &str, model: &str) {
    until("no stream runs", || async {
        let request = "GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        let (_, metrics) = exchange(rest, request).await;
        let idle = format!("volley_active_streams{{model=\"{model}\"}} 0");
        metrics.contains(&idle).then_some(())
    })
    .await;
}
