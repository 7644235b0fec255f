//! The official clients of OpenSearch and Ollama against `volley up`.

use serde_json::json;
use tokio::process::Command;
use volley_tests::judges::{deploy, nothing_runs, printed, python, root, steps};
use volley_tests::process::{binary, free_port};
use volley_tests::upstream::{Upstream, chunk, head};

use super::clients::{Up, caller};

/// A program of the environment with the official clients.
fn official(program: &str) -> Command {
    let program = format!("examples/sdks/{program}");
    python("venv-sdks", "get-sdks", &program)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_route_answers_as_its_document_says() {
    let fetched = root().join("target/venv-schemathesis").exists();
    assert!(
        fetched,
        "run scripts/schemathesis.sh --fetch before the tests"
    );
    let mut judge = Command::new(root().join("scripts/schemathesis.sh"));
    judge.env("VOLLEY_PORT", free_port().to_string());
    printed(judge.arg(binary()).arg("90")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn opensearchs_own_client_lives_through_local_and_remote_models() {
    let up = Up::start().await;
    let mut command = official("opensearch_client.py");
    command
        .args(["--url", &format!("http://{}", up.rest), "--path"])
        .arg(root().join("crates/backend-onnx/tests/models/text-embed"));
    assert_eq!(steps(&mut command).await, 14);
    nothing_runs(&up.rest, "storyteller").await;
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
        deploy(&client, &body).await;
    }
    let mut command = official("ollama_client.py");
    command
        .args(["--url", &format!("http://{}", up.rest)])
        .args(["--caller", "caller", "--embedder", "text-embed"]);
    assert_eq!(steps(&mut command).await, 11);
    nothing_runs(&up.rest, "storyteller").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn official_clients_are_told_of_an_answer_that_broke_off() {
    let up = Up::start().await;
    let client = up.client();
    let mut answer = head("200 OK", "text/event-stream");
    answer.extend(["Once ", "upon "].map(chunk));
    let upstream = Upstream::start(answer, false).await;
    // Nobody may take the server for broken, and refuse the next client without asking it.
    let connector = json!({
        "name": "cut", "provider": "openai", "model": "m", "url": upstream.url,
        "client_config": { "breaker_window": 0 },
    });
    let connector = client.create_connector(&connector).await.unwrap();
    let body = json!({ "name": "cut", "function_name": "remote", "connector_id": connector });
    deploy(&client, &body).await;
    let url = format!("http://{}", up.rest);
    let mut command = official("broken.py");
    assert_eq!(
        steps(command.args(["--url", &url, "--model", "cut"])).await,
        9
    );
    nothing_runs(&up.rest, "cut").await;
    let node = root().join("target/node-sdks");
    if !node.join("volley-package.json").exists() {
        eprintln!("node was not at hand: nothing is known of the npm clients");
        return;
    }
    // Modules are looked for beside the program.
    let program = node.join("broken.mjs");
    std::fs::copy(root().join("examples/sdks/broken.mjs"), &program).unwrap();
    let mut command = Command::new("node");
    assert_eq!(steps(command.arg(program).args([&url, "cut"])).await, 5);
    nothing_runs(&up.rest, "cut").await;
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
    let mut command = official("streams.py");
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
    nothing_runs(&up.rest, "storyteller").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn official_clients_read_what_answers_of_other_houses_refer_to() {
    let up = Up::start().await;
    let client = up.client();
    let fixtures = root().join("crates/backend-remote/tests/fixtures");
    let (mut upstreams, mut names) = (Vec::new(), Vec::new());
    for (provider, path) in [
        ("openai", "/v1/chat/completions"),
        ("openai_responses", "/v1/responses"),
        ("anthropic", "/v1/messages"),
        ("gemini", "/v1beta/models/m:streamGenerateContent"),
        ("cohere", "/v2/chat"),
    ] {
        let events = std::fs::read(fixtures.join(provider).join("cited.sse")).unwrap();
        let mut answer = head("200 OK", "text/event-stream").into_bytes();
        answer.extend(events);
        let upstream = Upstream::start(answer, false).await;
        let name = provider.replace('_', "-");
        let connector = json!({
            "name": name, "provider": provider, "model": "m",
            "url": upstream.url.replace("/v1/chat/completions", path),
        });
        let connector = client.create_connector(&connector).await.unwrap();
        let body = json!({ "name": name, "function_name": "remote", "connector_id": connector });
        deploy(&client, &body).await;
        upstreams.push(upstream);
        names.push(name);
    }
    let mut command = official("cited.py");
    command.args(["--url", &format!("http://{}", up.rest)]);
    for name in &names {
        command.args(["--model", name]);
    }
    assert_eq!(steps(&mut command).await, 4 * names.len());
}
