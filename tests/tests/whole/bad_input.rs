//! Bad input and bad upstreams, through the whole cluster: a clear error, soon, and the
//! processes live on.

use std::time::{Duration, Instant};

use futures::StreamExt;
use serde_json::json;
use volley_tests::cluster::{Cluster, tell};
use volley_tests::http::{code, exchange, post};
use volley_tests::upstream::{Upstream, chunk, head};

/// No answer of these waits for anything: far below every timeout of a node, and far above what a
/// busy machine takes.
const SOON: Duration = Duration::from_secs(10);
const STREAM: &str = "/_plugins/_ml/models/words/_predict/stream";

#[tokio::test(flavor = "multi_thread")]
async fn bad_requests_get_a_clear_error_and_nothing_else_suffers() {
    let cluster = Cluster::start(1, 1).await;
    cluster
        .deploy(&json!({ "name": "words", "function_name": "text" }), 1)
        .await;
    cluster.client(0).register_text_model("idle").await.unwrap();
    let address = cluster.coordinators[0].http.as_str();
    let good = r#"{"parameters":{"prompt":"hi"}}"#;
    let model = |name: &str| format!("/_plugins/_ml/models/{name}/_predict/stream");
    let deep = "[".repeat(100_000);
    let large = format!(r#"{{"parameters":{{"prompt":"{}"}}}}"#, "x".repeat(2 << 20));
    let cases = [
        (post(&model("nobody"), good), 404, "not_found"),
        (post(&model("idle"), good), 400, "not_deployed"),
        (post(&model("words:7"), good), 400, "not_deployed"),
        (post(&model("no%20such%20name"), good), 400, "invalid_input"),
        (post(STREAM, "{"), 400, "invalid_input"),
        (post(STREAM, &deep), 400, "invalid_input"),
        (post(STREAM, &large), 413, "too_large"),
        (post(STREAM, "[]"), 400, "invalid_input"),
        (
            post(STREAM, r#"{"parameters":{"prompt":7}}"#),
            400,
            "invalid_input",
        ),
        (
            post(STREAM, r#"{"parameters":{"prompt":"a","messages":[]}}"#),
            400,
            "invalid_input",
        ),
        (
            post(STREAM, r#"{"parameters":{"prompt":"a","delay_ms":"soon"}}"#),
            400,
            "invalid_input",
        ),
        (
            post("/_plugins/_ml/models/_register", r#"{"name":"x"}"#),
            400,
            "invalid_input",
        ),
        (
            post(
                "/_plugins/_ml/models/_register",
                r#"{"name":"x","function_name":"remote","connector_id":"c"}"#,
            ),
            404,
            "not_found",
        ),
        (
            post(
                "/_plugins/_ml/connectors/_create",
                r#"{"url":"http://x/","model":"m","credential":"sk-secret"}"#,
            ),
            400,
            "invalid_input",
        ),
        (post("/no/such/route", good), 404, "not_found"),
    ];
    for (request, status, name) in &cases {
        let started = Instant::now();
        let (got, body) = exchange(address, request).await;
        let shown: String = request.chars().take(120).collect();
        assert_eq!(
            (got, code(&body).as_str()),
            (*status, *name),
            "{shown}: {body}"
        );
        assert!(started.elapsed() < SOON, "{shown}");
        assert!(!body.contains("sk-secret"), "{body}");
    }
    assert_eq!(
        tell(&cluster.client(0), "words", "alive").await.unwrap(),
        "alive"
    );
}

async fn remote(cluster: &Cluster, name: &str, url: &str) {
    let client = cluster.client(0);
    let connector = json!({ "url": url, "model": "m", "connector_id": name });
    client.create_connector(&connector).await.unwrap();
    cluster
        .deploy(
            &json!({ "name": name, "function_name": "remote", "connector_id": name }),
            1,
        )
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_upstreams_get_a_status_before_the_first_chunk_and_an_error_event_after_it() {
    let mut cluster = Cluster::new(1, 1);
    let worker = &cluster.workers[0].config;
    let text = std::fs::read_to_string(worker).unwrap();
    let hasty = "\n[remote]\nfirst_byte_timeout = \"1s\"\nstall_timeout = \"1s\"\n";
    std::fs::write(worker, text + hasty).unwrap();
    cluster.run().await;
    let ok = head("200 OK", "text/event-stream");
    let begun = format!("{ok}{}", chunk("good so far"));
    let json = |status: &str| {
        format!(
            "{}{{\"error\":{{\"message\":\"no\"}}}}",
            head(status, "application/json")
        )
    };
    let mut flood = begun.clone().into_bytes();
    flood.resize(32 << 20, b'x');
    let cases: Vec<(&str, Vec<u8>, bool, u16, &str)> = vec![
        (
            "unauthorised",
            json("401 Unauthorized").into(),
            false,
            502,
            "upstream_failed",
        ),
        (
            "limited",
            json("429 Too Many Requests").into(),
            false,
            429,
            "overloaded",
        ),
        (
            "broken",
            json("500 Internal Server Error").into(),
            false,
            502,
            "upstream_failed",
        ),
        (
            "page",
            format!("{}<html>", head("200 OK", "text/html")).into(),
            false,
            502,
            "upstream_failed",
        ),
        ("silent", Vec::new(), true, 504, "upstream_timeout"),
        ("empty", ok.into(), false, 502, "upstream_incomplete"),
        (
            "stalled",
            begun.clone().into(),
            true,
            200,
            "upstream_timeout",
        ),
        ("cut", begun.into(), false, 200, "upstream_incomplete"),
        ("flood", flood, false, 200, "upstream_failed"),
    ];
    for (name, bytes, hold, status, expected) in cases {
        let upstream = Upstream::start(bytes, hold).await;
        remote(&cluster, name, &upstream.url).await;
        let request = post(
            &format!("/_plugins/_ml/models/{name}/_predict/stream"),
            r#"{"parameters":{"prompt":"x"}}"#,
        );
        let started = Instant::now();
        let (got, body) = exchange(&cluster.coordinators[0].http, &request).await;
        assert_eq!(got, status, "{name}: {body}");
        assert!(
            body.contains(&format!("\"code\":\"{expected}\"")),
            "{name}: {body}"
        );
        assert!(
            !body.contains("\"is_last\":true"),
            "{name}: no success after an error"
        );
        assert_eq!(
            body.contains("good so far"),
            status == 200,
            "{name}: {body}"
        );
        assert!(started.elapsed() < SOON, "{name}: {:?}", started.elapsed());
    }
    assert!(cluster.workers[0].process.as_mut().unwrap().runs());
    assert!(cluster.coordinators[0].process.as_mut().unwrap().runs());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_closes_the_upstreams_socket() {
    let cluster = Cluster::start(1, 1).await;
    let begun = format!("{}{}", head("200 OK", "text/event-stream"), chunk("first"));
    let mut upstream = Upstream::start(begun, true).await;
    remote(&cluster, "held", &upstream.url).await;
    let mut soonest = Duration::MAX;
    for _ in 0..5 {
        let client = cluster.client(0);
        let mut stream = client
            .stream("held", &json!({ "prompt": "x" }))
            .await
            .unwrap();
        assert_eq!(stream.next().await.unwrap().unwrap(), "first");
        drop(stream);
        let begun = Instant::now();
        let left = tokio::time::timeout(SOON, upstream.left.recv()).await;
        left.expect("the upstream sees it").unwrap();
        // The machine may be busy; the promise is not about its worst moment.
        soonest = soonest.min(begun.elapsed());
    }
    assert!(soonest < Duration::from_millis(500), "{soonest:?}");
}
