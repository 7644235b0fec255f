//! The Python client of the checkout, as a wheel, against clusters of its own.

use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use volley_tests::judges::root;
use volley_tests::process::binary;

/// How long the tests of a few files may take: they start clusters, freeze and kill nodes.
const PATIENCE: Duration = Duration::from_secs(480);

/// Runs files of `clients/python/tests`; all their tests pass.
async fn pass(files: &[&str]) {
    let python = root().join("target/venv-client/bin/python");
    assert!(
        python.exists(),
        "run scripts/get-python-client.sh before the tests: venv-client is not there"
    );
    let mut command = Command::new(python);
    command.args(["-m", "pytest", "-q"]).args(files);
    command.current_dir(root().join("clients/python"));
    command.env("VOLLEY_BINARY", binary());
    let run = command.stdin(Stdio::null()).kill_on_drop(true).output();
    let output = tokio::time::timeout(PATIENCE, run).await;
    let output = output
        .expect("the tests end in time")
        .expect("the tests run");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    assert!(!said.contains("skipped"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_python_client_sends_rows_and_generates_over_both_transports() {
    pass(&["tests/test_rows.py", "tests/test_generate.py"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_python_client_answers_each_row_once_when_nodes_are_lost() {
    pass(&["tests/test_failures.py"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_python_client_works_with_asyncio_duckdb_and_polars_and_manages() {
    let files = [
        "tests/test_asyncio.py",
        "tests/test_scale_out.py",
        "tests/test_engines.py",
        "tests/test_management.py",
    ];
    pass(&files).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_wheel_of_the_python_client_is_typed_shows_progress_and_uses_tls() {
    let files = [
        "tests/test_docs.py",
        "tests/test_memory.py",
        "tests/test_parts.py",
        "tests/test_wheel.py",
        "tests/test_progress.py",
        "tests/test_tls.py",
    ];
    pass(&files).await;
}
