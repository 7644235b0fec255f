//! Traces and metrics that arrive at a collector, which reads them by OpenTelemetry's own
//! definitions.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use volley_tests::cluster::{Cluster, tell_with};
use volley_tests::until;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CALLER: &str = "b7ad6b7169203331";
const PROMPT: &str = "a prompt that nobody else shall read";

struct Collector {
    child: Child,
    address: String,
    file: PathBuf,
}

impl Collector {
    async fn start(folder: &Path) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let python = root.join("target/otlp-venv/bin/python");
        assert!(python.exists(), "run scripts/get-otlp.sh before the tests");
        let file = folder.join("telemetry.jsonl");
        let mut child = Command::new(python)
            .arg(root.join("tests/python/otlp_collector.py"))
            .arg(&file)
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let port = lines.next_line().await.unwrap().expect("its port");
        Self {
            child,
            address: format!("http://127.0.0.1:{port}"),
            file,
        }
    }

    fn told(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(&self.file).unwrap_or_default();
        text.lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    }

    /// The first point of a metric that has arrived, for a model and a type of tokens.
    async fn point(&self, name: &str, model: &str, kind: Option<&str>) -> Value {
        until(name, || async {
            let mut told = self.told().into_iter();
            told.find(|told| {
                told["name"] == name
                    && told["told"]["gen_ai.request.model"] == model
                    && told["told"]["gen_ai.token.type"].as_str() == kind
            })
        })
        .await
    }

    fn span(&self, service: &str, name: &str) -> Option<Value> {
        let mut told = self.told().into_iter();
        told.find(|span| {
            span["trace"] == TRACE && span["service"] == service && span["name"] == name
        })
    }
}

/// A cluster of one coordinator and one worker that send to `endpoint`.
async fn telling(endpoint: &str) -> Cluster {
    let mut cluster = Cluster::new(1, 1);
    for node in cluster.coordinators.iter_mut().chain(&mut cluster.workers) {
        let mut config = std::fs::OpenOptions::new()
            .append(true)
            .open(&node.config)
            .unwrap();
        write!(
            config,
            "\n[otlp]\nendpoint = {endpoint:?}\nsample_ratio = 0.0\n"
        )
        .unwrap();
        node.start();
    }
    cluster.wait_for_leader().await;
    let body = json!({ "name": "drill", "function_name": "fake" });
    cluster.deploy(&body, 1).await;
    cluster
}

#[tokio::test(flavor = "multi_thread")]
async fn a_callers_trace_leads_through_every_hop_and_a_collector_that_dies_costs_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut collector = Collector::start(folder.path()).await;
    let cluster = telling(&collector.address).await;
    let url = format!(
        "http://{}/_plugins/_ml/models/drill/_predict/stream",
        cluster.coordinators[0].http
    );
    let answer = reqwest::Client::new()
        .post(&url)
        .header("traceparent", format!("00-{TRACE}-{CALLER}-01"))
        .header("content-type", "application/json")
        .body(json!({ "parameters": { "prompt": PROMPT, "text": "ok" } }).to_string())
        .send()
        .await
        .unwrap();
    assert!(answer.status().is_success(), "{}", answer.status());
    answer.text().await.unwrap();

    // Caller → edge → call → worker → backend, each the child of the one before. Four rows of
    // text, and one that ends them.
    let hops = [
        ("volley-coordinator", "predict", 2),
        ("volley-coordinator", "call worker", 3),
        ("volley-worker", "predict", 2),
        ("volley-worker", "run", 1),
    ];
    let mut parent = json!(CALLER);
    for (service, name, side) in hops {
        let span = until(name, || async { collector.span(service, name) }).await;
        assert_eq!(span["parent"], parent, "{span}");
        assert_eq!(span["side"], side, "{span}");
        assert_eq!(span["events"], json!(["first chunk"]), "{span}");
        assert_eq!(
            (&span["told"]["volley.rows"], &span["error"]),
            (&json!(5), &json!(false))
        );
        parent = span["span"].clone();
    }
    for name in [
        "request.duration",
        "time_to_first_token",
        "time_per_output_token",
    ] {
        let name = format!("gen_ai.server.{name}");
        let point = until(&name, || async {
            collector
                .told()
                .into_iter()
                .find(|told| told["name"] == name.as_str())
        })
        .await;
        assert_eq!(
            (&point["unit"], &point["count"]),
            (&json!("s"), &json!(1)),
            "{point}"
        );
        assert_eq!(point["told"]["gen_ai.request.model"], "drill");
    }
    for name in ["duration", "time_to_first_chunk"] {
        let name = format!("gen_ai.client.operation.{name}");
        let point = collector.point(&name, "drill", None).await;
        assert_eq!((&point["unit"], &point["count"]), (&json!("s"), &json!(1)));
    }
    for (kind, tokens) in [("input", 1.0), ("output", 4.0)] {
        let name = "gen_ai.client.token.usage";
        let point = collector.point(name, "drill", Some(kind)).await;
        assert_eq!(
            (&point["unit"], &point["sum"]),
            (&json!("{token}"), &json!(tokens)),
            "{kind}"
        );
    }
    let text = std::fs::read_to_string(&collector.file).unwrap();
    assert!(!text.contains(PROMPT), "prompts are nobody else's");

    // What no caller records is not recorded with a ratio of 0.
    let client = cluster.client(0);
    let fast = json!({ "prompt": "x", "text": "ok" });
    tell_with(&client, "drill", &fast).await.unwrap();
    let others = |told: &Value| told["kind"] == "span" && told["trace"] != TRACE;
    assert!(!collector.told().iter().any(others));

    // Without a collector everything goes on. Who waited for it would wait for ten seconds each time.
    collector.child.kill().await.unwrap();
    let began = Instant::now();
    for _ in 0..50 {
        assert_eq!(
            tell_with(&client, "drill", &fast).await.unwrap(),
            "ok".repeat(4)
        );
    }
    assert!(
        began.elapsed() < Duration::from_secs(60),
        "{:?}",
        began.elapsed()
    );
}
