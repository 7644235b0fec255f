//! Servers behind a model's name: a real MLServer, and one that sends without end. What they say,
//! how they fail, that they wait for callers who do not read and learn when one leaves.

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use volley_tests::cluster::tell;
use volley_tests::http::post;
use volley_tests::judges::{deploy, root, serves};
use volley_tests::process::free_port;
use volley_tests::{until, upstream};

use crate::clients::Up;

/// MLServer with a model that says its prompt word by word.
async fn mlserver(left: &Path) -> (Child, String) {
    let run = root().join("tests/python/mlserver/run.sh");
    let installed = root().join("target/venv-mlserver/bin/mlserver").exists();
    assert!(installed, "run scripts/get-oip-clients.sh before the tests");
    let ports = [free_port(), free_port(), free_port()];
    let mut child = Command::new(run)
        .args(ports.map(|port| port.to_string()))
        .arg(left)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let base = format!("http://127.0.0.1:{}", ports[0]);
    let ready = format!("{base}/v2/models/words/ready");
    let is_ready = async || {
        let answer = reqwest::get(&ready).await;
        answer.is_ok_and(|answer| answer.status().is_success())
    };
    serves(&mut child, is_ready).await;
    (child, base)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_mlserver_streams_fails_and_is_left_through_the_cluster() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let folder = tempfile::tempdir().unwrap();
    let left = folder.path().join("left");
    let ((_server, base), up) = tokio::join!(mlserver(&left), Up::start());
    let client = up.client();
    let connector = json!({
        "name": "words",
        "url": format!("{base}/v2/models/words/generate_stream"),
        "request_body": "{\"inputs\": [{\"name\": \"input\", \"shape\": [1], \"datatype\": \
                         \"BYTES\", \"data\": [${parameters.prompt}]}]}",
    });
    let connector = client.create_connector(&connector).await.unwrap();
    let body = json!({ "name": "words", "function_name": "remote", "connector_id": connector });
    deploy(&client, &body).await;

    let told = tell(&client, "words", "a quick fox").await.unwrap();
    assert_eq!(told, "You said: a quick fox");

    // Its stream ends without an end, and no dialect makes a success of that.
    let failed = tell(&client, "words", "fail now").await.unwrap_err();
    let failed = failed.to_string();
    assert!(failed.contains("remote model"), "{failed}");
    for (path, body) in [
        (
            "/v1/completions",
            json!({ "model": "words", "stream": true, "prompt": "fail now" }),
        ),
        (
            "/v2/models/words/generate_stream",
            json!({ "text_input": "fail now" }),
        ),
    ] {
        let (status, events) =
            volley_tests::http::exchange(&up.rest, &post(path, &body.to_string())).await;
        assert_eq!(status, 200, "{events}");
        assert!(
            events.contains("You said:") && events.contains("error"),
            "{events}"
        );
        assert!(!events.contains("[DONE]"), "{events}");
    }

    // A caller that leaves in the middle is gone for the server behind, too.
    let body = json!({ "parameters": { "prompt": "wait here" } }).to_string();
    let mut socket = TcpStream::connect(&up.rest).await.unwrap();
    let path = "/_plugins/_ml/models/words/_predict/stream";
    socket
        .write_all(post(path, &body).as_bytes())
        .await
        .unwrap();
    let mut heard = Vec::new();
    while !String::from_utf8_lossy(&heard).contains("wait") {
        let reading = socket.read_buf(&mut heard);
        let read = tokio::time::timeout(Duration::from_secs(20), reading).await;
        assert_ne!(read.expect("the stream runs").unwrap(), 0);
    }
    assert!(!left.exists());
    drop(socket);
    until(
        "the server behind knows that its caller is gone",
        || async { left.exists().then_some(()) },
    )
    .await;
}

/// A server that sends events without end, and counts the bytes that it could send.
struct Flood {
    url: String,
    sent: Arc<AtomicUsize>,
    /// When its callers have left.
    left: mpsc::Receiver<Instant>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Flood {
    async fn start() -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        // What the system holds for a sender is none of what is held behind it.
        socket.set_send_buffer_size(32 << 10).unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(16).unwrap();
        let url = format!(
            "http://{}/v1/chat/completions",
            listener.local_addr().unwrap()
        );
        let (leave, left) = mpsc::channel(16);
        let sent = Arc::<AtomicUsize>::default();
        let counter = sent.clone();
        let task = tokio::spawn(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                let (leave, sent) = (leave.clone(), counter.clone());
                tokio::spawn(async move {
                    let mut request = vec![0; 64 << 10];
                    let _ = socket.read(&mut request).await;
                    let head = upstream::head("200 OK", "text/event-stream");
                    let _ = socket.write_all(head.as_bytes()).await;
                    let event = upstream::chunk(&"words ".repeat(150));
                    while socket.write_all(event.as_bytes()).await.is_ok() {
                        sent.fetch_add(event.len(), Ordering::Relaxed);
                    }
                    let _ = leave.send(Instant::now()).await;
                });
            }
        });
        Self {
            url,
            sent,
            left,
            task,
        }
    }
}

/// Asks for a chat of `model`, and reads its first bytes.
async fn ask(address: &str, model: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(16 << 10).unwrap();
    let mut socket = socket.connect(address.parse().unwrap()).await.unwrap();
    let body = json!({
        "model": model, "stream": true, "messages": [{ "role": "user", "content": "x" }],
    });
    let request = post("/v1/chat/completions", &body.to_string());
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut head = [0; 256];
    let read = tokio::time::timeout(Duration::from_secs(20), socket.read_exact(&mut head)).await;
    read.expect("an answer").unwrap();
    assert!(head.starts_with(b"HTTP/1.1 200"));
    socket
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_does_not_read_makes_the_server_wait_and_one_that_leaves_closes_it() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let (mut flood, up) = tokio::join!(Flood::start(), Up::start());
    let client = up.client();
    let connector =
        json!({ "name": "flood", "provider": "openai", "url": flood.url, "model": "m" });
    let connector = client.create_connector(&connector).await.unwrap();
    let body = json!({ "name": "flood", "function_name": "remote", "connector_id": connector });
    deploy(&client, &body).await;

    let (mut most, mut soonest) = (0, Duration::MAX);
    for _ in 0..5 {
        flood.sent.store(0, Ordering::Relaxed);
        let socket = ask(&up.rest, "flood").await;
        // Nothing reads on: it stands still once all that may be held is.
        let held = until("the server waits", || async {
            let before = flood.sent.load(Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(400)).await;
            (before == flood.sent.load(Ordering::Relaxed)).then_some(before)
        })
        .await;
        most = most.max(held);
        let begun = Instant::now();
        drop(socket);
        let left = tokio::time::timeout(Duration::from_secs(10), flood.left.recv()).await;
        let left = left.expect("the server sees it").unwrap();
        // The machine may be busy; the promise is not about its worst moment.
        soonest = soonest.min(left.saturating_duration_since(begun));
    }
    eprintln!(
        "held for a caller that does not read: {} KiB at most",
        most >> 10
    );
    eprintln!("closed after the caller left: {soonest:?} at best");
    assert!(most <= 4 << 20, "{most} bytes are held");
    assert!(soonest < Duration::from_millis(50), "{soonest:?}");
}
