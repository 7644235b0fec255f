//! Batches that one coordinator runs, asked about at another one.

use reqwest::{Client, Method};
use serde_json::{Value, json};
use volley_tests::cluster::Cluster;
use volley_tests::until;

const ML: &str = "/_plugins/_ml";

struct Caller<'a> {
    http: Client,
    cluster: &'a Cluster,
}

impl Caller<'_> {
    async fn send(&self, at: usize, method: Method, path: &str, body: &Value) -> (u16, Value) {
        let url = format!("http://{}{ML}{path}", self.cluster.coordinators[at].http);
        let request = self.http.request(method, url);
        let request = request.header("content-type", "application/json");
        let response = request.body(body.to_string()).send().await.unwrap();
        let status = response.status().as_u16();
        let text = response.text().await.unwrap();
        (status, serde_json::from_str(&text).unwrap_or(Value::Null))
    }

    async fn begin(&self, at: usize, chunks: u32, delay_ms: u32) -> String {
        let parameters = json!({
            "prompt": "x", "chunks": chunks, "delay_ms": delay_ms, "text": "n{n} ",
        });
        let body = json!({ "parameters": parameters });
        let path = "/models/drill/_batch_predict";
        let (status, begun) = self.send(at, Method::POST, path, &body).await;
        assert_eq!(
            (status, &begun["status"]),
            (200, &json!("CREATED")),
            "{begun}"
        );
        begun["task_id"].as_str().unwrap().to_owned()
    }

    async fn get(&self, at: usize, task: &str) -> (u16, Value) {
        let path = format!("/tasks/{task}");
        self.send(at, Method::GET, &path, &json!({})).await
    }

    async fn cancel(&self, at: usize, task: &str) -> u16 {
        let path = format!("/tasks/{task}/_cancel");
        self.send(at, Method::POST, &path, &json!({})).await.0
    }

    async fn delete(&self, at: usize, task: &str) -> u16 {
        let path = format!("/tasks/{task}");
        self.send(at, Method::DELETE, &path, &json!({})).await.0
    }

    /// The ids and states of all batches, as a coordinator lists them.
    async fn listed(&self, at: usize) -> Vec<(String, String)> {
        let query = json!({ "query": { "term": { "task_type": "BATCH_PREDICTION" } } });
        let (status, found) = self.send(at, Method::POST, "/tasks/_search", &query).await;
        assert_eq!(status, 200, "{found}");
        let hits = found["hits"]["hits"].as_array().unwrap().iter();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        hits.map(|hit| (text(&hit["_id"]), text(&hit["_source"]["state"])))
            .collect()
    }

    async fn forgotten(&self, task: &str) {
        until("all have forgotten it", || async {
            let mut gone = true;
            for at in 0..3 {
                gone &= self.get(at, task).await.0 == 404;
            }
            gone.then_some(())
        })
        .await;
    }

    async fn ends(&self, at: usize, task: &str) -> Value {
        until("the batch ends", || async {
            let (status, told) = self.get(at, task).await;
            (status == 200 && told["state"] != "RUNNING").then_some(told)
        })
        .await
    }
}

async fn drilled() -> Cluster {
    let cluster = Cluster::start(3, 1).await;
    let model = json!({ "name": "drill", "function_name": "fake" });
    cluster.deploy(&model, 1).await;
    cluster
}

fn caller(cluster: &Cluster) -> Caller<'_> {
    // The second client of a process finds it installed.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let http = Client::new();
    Caller { http, cluster }
}

#[tokio::test(flavor = "multi_thread")]
async fn any_coordinator_tells_lists_ends_and_forgets_a_batch() {
    let cluster = drilled().await;
    let caller = caller(&cluster);
    let short = caller.begin(0, 3, 1).await;
    assert!(short.starts_with("batch-1-"), "{short}");
    let told = caller.ends(1, &short).await;
    assert_eq!(told["state"], "COMPLETED", "{told}");
    let output = &told["response"]["inference_results"][0]["output"][0];
    assert_eq!(output["dataAsMap"]["response"], "n0 n1 n2 ");
    for at in [0, 2] {
        assert_eq!(
            caller.get(at, &short).await,
            (200, told.clone()),
            "the same from anywhere"
        );
    }

    let long = caller.begin(1, 100_000, 20).await;
    for at in 0..3 {
        let (status, told) = caller.get(at, &long).await;
        assert_eq!((status, &told["state"]), (200, &json!("RUNNING")), "{told}");
        assert_eq!(told["worker_node"], json!(["coordinator-2"]));
        let (_, profile) = caller
            .send(at, Method::GET, "/profile/tasks", &json!({}))
            .await;
        let running = &profile["nodes"]["coordinator-2"]["tasks"][&long];
        assert_eq!(running["state"], "RUNNING", "{profile}");
        let mut wanted = vec![
            (short.clone(), "COMPLETED".to_owned()),
            (long.clone(), "RUNNING".to_owned()),
        ];
        let mut listed = caller.listed(at).await;
        wanted.sort();
        listed.sort();
        assert_eq!(listed, wanted);
        assert_eq!(caller.delete(at, &long).await, 409, "it runs");
    }
    assert_eq!(caller.cancel(2, &long).await, 200);
    for at in 0..3 {
        let (_, told) = caller.get(at, &long).await;
        assert_eq!(told["state"], "CANCELLED", "{told}");
        assert_eq!(caller.cancel(at, &long).await, 409, "it does not run");
    }
    let worker = &cluster.workers[0].http;
    until("the work behind it ends", || async {
        let url = format!("http://{worker}/metrics");
        let text = caller.http.get(url).send().await.ok()?.text().await.ok()?;
        text.contains("volley_active_streams{model=\"drill\"} 0")
            .then_some(())
    })
    .await;

    for (at, task) in [(2, &short), (0, &long)] {
        assert_eq!(caller.delete(at, task).await, 200);
        assert_eq!(caller.get(at, task).await.0, 404);
        caller.forgotten(task).await;
        assert_eq!(caller.cancel(1, task).await, 404);
    }
    for never in ["batch-2-x", "batch-9-x", "batch-x", "batch-"] {
        assert_eq!(caller.get(0, never).await.0, 404, "{never}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_whose_coordinator_is_lost_has_failed_and_says_so() {
    let mut cluster = drilled().await;
    let (done, runs, cancelled) = {
        let caller = caller(&cluster);
        let done = caller.begin(0, 1, 1).await;
        assert_eq!(caller.ends(0, &done).await["state"], "COMPLETED");
        let cancelled = caller.begin(0, 100_000, 20).await;
        assert_eq!(caller.cancel(1, &cancelled).await, 200);
        (done, caller.begin(0, 100_000, 20).await, cancelled)
    };
    cluster.coordinators[0].kill().await;
    cluster.wait_for_leader().await;
    let failed = |told: &Value| {
        assert_eq!(told["state"], "FAILED", "{told}");
        let why = told["error"].as_str().unwrap();
        assert!(
            why.contains("coordinator 1") && why.contains("again"),
            "{why}"
        );
    };
    for at in [1, 2] {
        let caller = caller(&cluster);
        // What was written before the end may have come to this one a moment after it.
        until("it knows of all three, and how one ended", || async {
            let listed = caller.listed(at).await;
            let ended = (cancelled.clone(), "CANCELLED".to_owned());
            (listed.len() == 3 && listed.contains(&ended)).then_some(())
        })
        .await;
        for task in [&done, &runs] {
            let (status, told) = caller.get(at, task).await;
            assert_eq!(status, 200, "{told}");
            failed(&told);
            assert_eq!(caller.cancel(at, task).await, 409);
        }
        assert_eq!(caller.get(at, &cancelled).await.1["state"], "CANCELLED");
        assert_eq!(caller.listed(at).await.len(), 3);
    }

    // A new life of it knows as much.
    cluster.coordinators[0].start();
    cluster.wait_for_leader().await;
    let caller = caller(&cluster);
    let told = until("it has caught up", || async {
        let (status, told) = caller.get(0, &runs).await;
        (status == 200).then_some(told)
    })
    .await;
    failed(&told);
    assert_eq!(caller.delete(2, &runs).await, 200);
    caller.forgotten(&runs).await;
}
