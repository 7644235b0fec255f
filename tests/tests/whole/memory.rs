//! What one large body costs a coordinator: its peak memory, as the kernel counts it.

use std::fmt::Write;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use volley_tests::PATIENCE;
use volley_tests::cluster::Cluster;
use volley_tests::http::{exchange, post};
use volley_tests::judges::root;

/// Of each body.
const BODY: usize = 15 << 20;
/// The most that a body may cost, in times of its own size.
const TIMES: usize = 8;

/// The peak of a process's resident memory, since it was started or [forgotten](forget).
fn peak(pid: u32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib: usize = line
        .unwrap()
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .unwrap();
    kib * 1024
}

/// Lets the peak begin anew at what the process holds now.
fn forget(pid: u32) {
    std::fs::write(format!("/proc/{pid}/clear_refs"), "5").unwrap();
}

/// One coordinator that takes bodies of that size, and a worker with a model of tensors and one of
/// texts.
async fn cluster() -> Cluster {
    let mut cluster = Cluster::new(1, 1);
    cluster.configure(0, |text| {
        text.replace("max_body_size = \"1MiB\"\n", "") + "\n[http]\nbody_timeout = \"5m\"\n"
    });
    cluster.run().await;
    let folder = root().join("crates/backend-onnx/tests/models");
    for (name, path) in [
        ("tensors", root().join("models/classifier")),
        ("texts", folder.join("text-embed")),
    ] {
        let body = json!({ "name": name, "function_name": "onnx", "path": path });
        cluster.deploy(&body, 1).await;
    }
    cluster
}

/// A list of numbers of `bytes` bytes at most, in rows of 64.
fn numbers(bytes: usize) -> (usize, String) {
    let row = ["0.125"; 64].join(",");
    let rows = bytes / (row.len() + 1);
    (rows, vec![row; rows].join(","))
}

fn open_inference(bytes: usize) -> String {
    let (rows, data) = numbers(bytes - 128);
    format!(
        r#"{{"inputs":[{{"name":"pixels","datatype":"FP32","shape":[{rows},8,8],"data":[{data}]}}]}}"#
    )
}

fn opensearch(bytes: usize) -> String {
    let line = format!("[{}]", ["0.125"; 8].join(","));
    let row = format!("[{}]", [line.as_str(); 8].join(","));
    let rows = (bytes - 64) / (row.len() + 1);
    format!(
        r#"{{"inputs":{{"pixels":[{}]}}}}"#,
        vec![row; rows].join(",")
    )
}

/// Texts of the length of a paragraph; what is denser is refused by its own limit.
fn embeddings(bytes: usize) -> String {
    let row = json!("the quick brown fox ran to the river. ".repeat(16)).to_string();
    let rows = (bytes - 64) / (row.len() + 1);
    format!(
        r#"{{"model":"texts","input":[{}]}}"#,
        vec![row; rows].join(",")
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_of_json_tensors_costs_at_most_eight_times_its_size() {
    let cluster = cluster().await;
    let node = &cluster.coordinators[0];
    let pid = node.process.as_ref().unwrap().pid().unwrap();
    let small = 1 << 16;
    for (path, body) in [
        (
            "/v2/models/tensors/infer",
            open_inference as fn(usize) -> String,
        ),
        ("/_plugins/_ml/models/tensors/_predict", opensearch),
        ("/v1/embeddings", embeddings),
    ] {
        // What every first request makes once.
        let (status, answer) = exchange(&node.http, &post(path, &body(small))).await;
        assert_ne!(status, 0, "{path}: {answer}");
        let body = body(BODY);
        assert!(BODY - (64 << 10) < body.len() && body.len() <= BODY);
        forget(pid);
        let before = peak(pid);
        let (status, answer) = exchange(&node.http, &post(path, &body)).await;
        let grown = peak(pid).saturating_sub(before);
        let tail: String = answer.chars().take(300).collect();
        eprintln!(
            "{path}: {status}, {} MiB of body, {} MiB of memory: {:.1} times",
            body.len() >> 20,
            grown >> 20,
            grown as f64 / body.len() as f64
        );
        // The edge has taken the body, whatever the model says to so many rows or so long a text.
        let taken = status == 200 || tail.contains("the model reads at most");
        assert!(taken, "{path}: {status} {tail}");
        assert!(grown <= TIMES * body.len(), "{path}: {grown} bytes");
    }
}

/// Sends a request; whether it was answered with 200, and by how much the process's peak grew.
async fn cost(cluster: &Cluster, sent: &str) -> (bool, usize) {
    let node = &cluster.coordinators[0];
    let pid = node.process.as_ref().unwrap().pid().unwrap();
    forget(pid);
    let before = peak(pid);
    let answer = tokio::time::timeout(4 * PATIENCE, async {
        let mut socket = TcpStream::connect(&node.http).await.unwrap();
        socket.write_all(sent.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        socket.read_to_end(&mut answer).await.unwrap();
        answer
    });
    let answer = answer.await.expect("an answer in time");
    (
        answer.starts_with(b"HTTP/1.1 200"),
        peak(pid).saturating_sub(before),
    )
}

/// The most that a coordinator's peak differs from one request to the same one again, for threads
/// that are woken and memory that the allocator keeps.
const NOISE: usize = 40 << 20;

#[tokio::test(flavor = "multi_thread")]
async fn a_body_in_one_byte_chunks_costs_no_more_than_its_content() {
    let cluster = cluster().await;
    let path = "/v2/models/tensors/infer";
    let body = open_inference(2 << 20);
    let mut chunked = format!(
        "POST {path} HTTP/1.1\r\nhost: volley\r\nconnection: close\r\n\
         transfer-encoding: chunked\r\n\r\n"
    );
    for byte in body.chars() {
        write!(chunked, "1\r\n{byte}\r\n").unwrap();
    }
    chunked.push_str("0\r\n\r\n");
    // What every first request makes once.
    let (answered, _) = cost(&cluster, &post(path, &body)).await;
    assert!(answered);
    let (answered, whole) = cost(&cluster, &post(path, &body)).await;
    assert!(answered);
    let (answered, in_chunks) = cost(&cluster, &chunked).await;
    assert!(answered);
    eprintln!(
        "{} KiB: {} KiB of memory whole, {} KiB in chunks of a byte",
        body.len() >> 10,
        whole >> 10,
        in_chunks >> 10
    );
    // A piece of its own for each byte would be eighty megabytes and more.
    assert!(
        in_chunks <= whole + body.len() + NOISE,
        "{in_chunks} and {whole}"
    );
}
