//! The official clients of OpenSearch and Ollama against `volley up`.

use std::process::Stdio;
use std::time::Duration;

use serde_json::json;
use tokio::process::Command;
use volley_tests::http::exchange;
use volley_tests::process::binary;
use volley_tests::until;

use super::clients::{Up, caller, root, steps};

fn python(program: &str) -> Command {
    let python = root().join("target/venv-sdks/bin/python");
    assert!(python.exists(), "run scripts/get-sdks.sh before the tests");
    let mut command = Command::new(python);
    command.arg(root().join("examples/sdks").join(program));
    command
}

/// Who left in the middle left nothing behind.
async fn nothing_runs(up: &Up, model: &str) {
    until("no stream runs", || async {
        let request = "GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        let (_, metrics) = exchange(&up.rest, request).await;
        let idle = format!("volley_active_streams{{model=\"{model}\"}} 0");
        metrics.contains(&idle).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_route_answers_as_its_document_says() {
    let fetched = root().join("target/venv-schemathesis").exists();
    assert!(
        fetched,
        "run scripts/schemathesis.sh --fetch before the tests"
    );
    let run = Command::new(root().join("scripts/schemathesis.sh"))
        .arg(binary())
        .arg("90")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(Duration::from_secs(300), run).await;
    let output = output.unwrap().unwrap();
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{told}{errors}");
}

#[tokio::test(flavor = "multi_thread")]
async fn opensearchs_own_client_lives_through_local_and_remote_models() {
    let up = Up::start().await;
    let mut command = python("opensearch_client.py");
    command
        .args(["--url", &format!("http://{}", up.rest), "--path"])
        .arg(root().join("crates/backend-onnx/tests/models/text-embed"));
    assert_eq!(steps(&mut command).await, 13);
    nothing_runs(&up, "storyteller").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ollamas_own_client_chats_embeds_and_leaves() {
    let up = Up::start().await;
    let client = up.client();
    let encoder = root().join("crates/backend-onnx/tests/models/text-embed");
    for (name, path) in [
        ("text-embed", encoder),
        ("caller", caller(up.folder.path())),
    ] {
        let body = json!({ "name": name, "function_name": "onnx", "path": path });
        client.register(&body).await.unwrap();
        client.deploy(name, 1).await.unwrap();
        until("the model is deployed", || async {
            let model = client.model(name).await.ok()?;
            (model.model_state == "DEPLOYED").then_some(())
        })
        .await;
    }
    let mut command = python("ollama_client.py");
    command
        .args(["--url", &format!("http://{}", up.rest)])
        .args(["--caller", "caller", "--embedder", "text-embed"]);
    assert_eq!(steps(&mut command).await, 11);
    nothing_runs(&up, "storyteller").await;
}

/// A browser, where the machine has one.
fn browser() -> Option<std::path::PathBuf> {
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let folders = std::env::var_os("PATH")?;
    let folders: Vec<_> = std::env::split_paths(&folders).collect();
    let places = names
        .into_iter()
        .flat_map(|name| folders.iter().map(move |it| it.join(name)));
    let mut there = places.filter(|place| place.exists());
    there.next()
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_of_events_that_know_no_house_have_everything_once() {
    let up = Up::start().await;
    let mut command = python("streams.py");
    command.args(["--url", &format!("http://{}", up.rest)]);
    let expected = match browser() {
        Some(browser) => {
            command.arg("--browser").arg(browser);
            3
        }
        None => {
            eprintln!("no browser was at hand: nothing is known of EventSource");
            2
        }
    };
    assert_eq!(steps(&mut command).await, expected);
    nothing_runs(&up, "storyteller").await;
}
