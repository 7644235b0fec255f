//! Real clients against `volley up`: pyarrow, curl's bytes, and a real LLM proxy behind it.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::{Child, Command};
use volley_client::Client;
use volley_tests::cluster::{client, tell, tell_with};
use volley_tests::http::{exchange, post};
use volley_tests::judges::{deploy, nothing_runs, printed, python, root, serves, steps};
use volley_tests::process::{Process, free_port, run};
use volley_tests::until;

/// `volley up` with ports of its own.
pub(crate) struct Up {
    pub(crate) process: Process,
    pub(crate) rest: String,
    pub(crate) internal: String,
    pub(crate) folder: TempDir,
}

impl Up {
    pub(crate) async fn start() -> Self {
        Self::with(&[]).await
    }

    /// With further arguments.
    pub(crate) async fn with(more: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let port = free_port();
        let data = folder.path().join("data");
        let (port_text, data) = (port.to_string(), data.to_string_lossy());
        let mut arguments = vec!["up", "--port", &port_text, "--data-dir", &data];
        arguments.extend(more);
        let process = Process::start("up", &arguments, folder.path());
        let address = |offset| format!("127.0.0.1:{}", port + offset);
        let mut up = Self {
            process,
            rest: address(0),
            internal: address(1),
            folder,
        };
        until("volley up says that it is ready", || {
            let (runs, said) = (up.process.runs(), up.process.output());
            async move {
                assert!(runs, "it ended: {said}");
                said.contains("Ctrl-C").then_some(())
            }
        })
        .await;
        up
    }

    pub(crate) fn client(&self) -> Client {
        client(&[&self.rest])
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn volley_up_serves_its_demo_models_and_stops_cleanly() {
    let mut up = Up::start().await;
    let greeting = up.process.output();
    assert!(
        greeting.contains("curl") && greeting.contains(&up.rest),
        "{greeting}"
    );
    let client = up.client();
    let prompt = json!({ "prompt": "Tell me a story." });
    assert!(
        40 < tell_with(&client, "storyteller", &prompt)
            .await
            .unwrap()
            .len()
    );
    let path = "/_plugins/_ml/models/storyteller/_predict/stream";
    let body = r#"{"parameters":{"prompt":"Tell me a story.","max_tokens":3}}"#;
    let (status, events) = exchange(&up.rest, &post(path, body)).await;
    assert_eq!(status, 200);
    let events: Vec<_> = events
        .lines()
        .filter(|line| line.starts_with("data: "))
        .collect();
    let last = r#"data: {"inference_results":[{"output":[{"name":"response","dataAsMap":{"content":"","is_last":true}}]}]}"#;
    assert_eq!(events.last(), Some(&last));
    let start =
        r#"data: {"inference_results":[{"output":[{"name":"response","dataAsMap":{"content":""#;
    assert!(
        events.iter().all(|event| event.starts_with(start)),
        "{events:?}"
    );
    assert!(events.len() > 2, "token by token");

    let blank = vec![vec![vec![0; 8]; 8]];
    let body = json!({ "inputs": { "pixels": blank } });
    let answer = client.predict("classifier", &body).await.unwrap();
    assert_eq!(
        answer["inference_results"][0]["output"][0]["shape"],
        json!([1, 10])
    );
    let body = json!({ "inputs": { "pixels": [[1, 2]] } });
    let wrong = client
        .predict("classifier", &body)
        .await
        .unwrap_err()
        .to_string();
    assert!(
        wrong.contains("'pixels', row 0") && wrong.contains("[8, 8]"),
        "{wrong}"
    );

    // Counted when the server has let go of the streams, a moment after their readers.
    until("both stories are counted", || async {
        let request = "GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        let (_, metrics) = exchange(&up.rest, request).await;
        let counted = "volley_requests_total{model=\"storyteller\",code=\"ok\"} 2";
        metrics.contains(counted).then_some(())
    })
    .await;
    up.process.terminate();
    assert!(up.process.ended().await.success());
}

/// The storyteller with a chat template that takes tools.
pub(crate) fn caller(folder: &Path) -> PathBuf {
    let caller = folder.join("caller");
    std::fs::create_dir(&caller).unwrap();
    for file in std::fs::read_dir(root().join("models/storyteller")).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), caller.join(file.file_name())).unwrap();
    }
    let template = "{% for t in tools or [] %}<tool_call>{{ t.function.name }}</tool_call>\
                    {% endfor %}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>\
                    {% endfor %}<|assistant|>";
    std::fs::write(caller.join("chat_template.jinja"), template).unwrap();
    caller
}

#[tokio::test(flavor = "multi_thread")]
async fn the_official_clients_of_every_house_find_it() {
    let up = Up::start().await;
    let client = up.client();
    let encoders = root().join("crates/backend-onnx/tests/models");
    for (name, path) in [
        ("text-embed", encoders.join("text-embed")),
        ("text-rerank", encoders.join("text-rerank")),
        ("caller", caller(up.folder.path())),
    ] {
        let body = json!({ "name": name, "function_name": "onnx", "path": path });
        deploy(&client, &body).await;
    }
    let url = format!("http://{}", up.rest);
    let mut command = python("venv-sdks", "get-sdks", "examples/sdks/client.py");
    command.args(["--url", &url, "--caller", "caller"]).args([
        "--embedder",
        "text-embed",
        "--reranker",
        "text-rerank",
    ]);
    assert_eq!(steps(&mut command).await, 35);
    nothing_runs(&up.rest, "storyteller").await;

    // Modules are looked for beside the program.
    let node = root().join("target/node-sdks");
    if !node.join("volley-package.json").exists() {
        eprintln!("node was not at hand: nothing is known of the npm clients");
        return;
    }
    let program = node.join("client.mjs");
    std::fs::copy(root().join("examples/sdks/client.mjs"), &program).unwrap();
    let mut command = Command::new("node");
    command
        .arg(program)
        .args([&url, "storyteller", "text-embed"]);
    assert_eq!(steps(&mut command).await, 10);
    nothing_runs(&up.rest, "storyteller").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tritons_own_client_sends_and_reads_binary_tensors() {
    let up = Up::start().await;
    let client = up.client();
    for name in ["identity-bfloat16", "identity-string", "identity-int8"] {
        let path = root().join("crates/backend-onnx/tests/models").join(name);
        let body = json!({ "name": name, "function_name": "onnx", "path": path });
        // The last one is loaded by the client.
        match name {
            "identity-int8" => _ = client.register(&body).await.unwrap(),
            _ => deploy(&client, &body).await,
        }
    }
    let mut client = python("venv-triton", "get-triton", "examples/triton/client.py");
    client
        .args(["--url", &up.rest, "--repository", "identity-int8"])
        .args(["--bfloat16", "identity-bfloat16"])
        .args(["--text", "identity-string"]);
    let text = printed(&mut client).await;
    assert_eq!(text.lines().count(), 11, "{text}");
    nothing_runs(&up.rest, "storyteller").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_of_the_onnx_standards_own_tests_passes_through_the_served_interface() {
    let up = Up::start().await;
    let mut client = python("venv-onnx", "get-onnx", "tests/python/onnx_nodes");
    client.args(["--url", &format!("http://{}", up.rest), "--every", "25"]);
    let text = printed(&mut client).await;
    assert!(text.contains("| failed | 0 |"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_clients_of_triton_kserve_and_mlserver_find_their_skin() {
    let (mlserver, rest) = (free_port(), free_port());
    let (mlserver_text, rest_text) = (mlserver.to_string(), rest.to_string());
    let ports = [
        "--grpc-mlserver-port",
        &mlserver_text,
        "--extra-http-port",
        &rest_text,
    ];
    let up = Up::with(&ports).await;
    let kserve = format!("127.0.0.1:{mlserver}");
    let also = format!("127.0.0.1:{rest}");
    for (flavor, address, count) in [
        ("--triton", &up.rest, 8),
        ("--kserve", &kserve, 6),
        ("--kserve-rest", &also, 6),
    ] {
        let mut client = python("venv-oip", "get-oip-clients", "examples/sdks/oip.py");
        assert_eq!(steps(client.args([flavor, address])).await, count);
    }
    let mut client = python(
        "venv-mlserver",
        "get-oip-clients",
        "examples/sdks/oip_streams.py",
    );
    client.args(["--rest", &also, "--grpc", &kserve]);
    let text = printed(&mut client).await;
    assert_eq!(text.lines().count(), 9, "{text}");
    nothing_runs(&up.rest, "storyteller").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_is_inspected_without_a_cluster() {
    let inspect = |path: &str| {
        let path = root().join(path).to_string_lossy().into_owned();
        async move { run(&["model", "inspect", &path, "--json"]).await }
    };
    let encoder = "crates/backend-onnx/tests/models/text-embed";
    for (path, kind, task) in [
        ("models/storyteller", "decoder", "generate"),
        ("models/classifier/model.onnx", "graph", "tensors"),
        (encoder, "text encoder", "embed"),
    ] {
        let (said, done) = inspect(path).await;
        assert!(done, "{said}");
        let told: Value = serde_json::from_str(&said).unwrap();
        assert_eq!((&told["kind"], &told["task"]), (&json!(kind), &json!(task)));
    }
    let (said, done) = inspect("docs").await;
    assert!(!done && said.contains("no .onnx file"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn pyarrow_speaks_every_part_of_the_flight_protocol() {
    let up = Up::start().await;
    let body = json!({ "name": "drill", "function_name": "fake" });
    deploy(&up.client(), &body).await;
    let uri = format!("grpc://{}", up.internal);
    let mut client = python("venv", "get-pyarrow", "examples/pyarrow/client.py");
    client
        .args([
            "--uri",
            &uri,
            "--model",
            "storyteller",
            "--tensor-model",
            "classifier",
        ])
        .args(["--error-model", "drill"]);
    let text = printed(&mut client).await;
    let steps: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(steps.len() >= 8, "{text}");
}

async fn litellm() -> (Child, String) {
    let run = root().join("tests/python/litellm/run.sh");
    let installed = root().join("target/venv-litellm/bin/litellm").exists();
    assert!(installed, "run scripts/get-litellm.sh before the tests");
    let port = free_port();
    let mut child = Command::new(run)
        .arg(port.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let address = format!("127.0.0.1:{port}");
    let listens = async || tokio::net::TcpStream::connect(&address).await.is_ok();
    serves(&mut child, listens).await;
    (child, format!("http://{address}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_llm_proxy_streams_through_the_cluster_in_both_formats() {
    let ((_proxy, base), up) = tokio::join!(litellm(), Up::start());
    let client = up.client();
    let remotes = [
        (
            "gpt",
            "openai",
            "/v1/chat/completions",
            "mock-gpt",
            "The quick brown fox jumps over the lazy dog, says the proxy.",
        ),
        (
            "claude",
            "anthropic",
            "/v1/messages",
            "mock-claude",
            "Every good boy deserves fudge, says the other proxy.",
        ),
    ];
    for (name, provider, path, model, says) in remotes {
        let connector = json!({
            "name": name,
            "provider": provider,
            "url": format!("{base}{path}"),
            "model": model,
            "credential": "env:VOLLEY_TEST_KEY",
        });
        let connector = client.create_connector(&connector).await.unwrap();
        let body = json!({ "name": name, "function_name": "remote", "connector_id": connector });
        deploy(&client, &body).await;
        assert_eq!(tell(&client, name, "hello").await.unwrap(), says);
    }
}
