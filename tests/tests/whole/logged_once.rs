//! A prediction that fails is in one log, once, with the request's id: in that of the node where
//! its error was made.

use serde_json::json;
use volley_tests::cluster::Cluster;
use volley_tests::until;

/// The lines of warnings and errors in which an id stands.
fn lines(log: &str, id: &str) -> Vec<String> {
    let told = log.lines().filter(|line| line.contains(id));
    let loud = told.filter(|line| line.contains("WARN") || line.contains("ERROR"));
    loud.map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_prediction_is_told_once_where_it_failed() {
    // The second client of a process finds it installed.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let cluster = Cluster::start(1, 1).await;
    let model = json!({ "name": "drill", "function_name": "fake" });
    cluster.deploy(&model, 1).await;
    let address = &cluster.coordinators[0].http;
    for (id, path, fail_after) in [
        ("whole-answer", "_predict", 0),
        ("first-chunk", "_predict/stream", 0),
        ("later-chunk", "_predict/stream", 2),
    ] {
        let parameters =
            json!({ "prompt": "x", "fail_after": fail_after, "fail_code": "internal" });
        let request = reqwest::Client::new()
            .post(format!("http://{address}/_plugins/_ml/models/drill/{path}"))
            .header("content-type", "application/json")
            .header("x-request-id", id)
            .body(json!({ "parameters": parameters }).to_string());
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), if fail_after == 0 { 500 } else { 200 });
        response.text().await.unwrap();
        let worker = cluster.workers[0].process.as_ref().unwrap();
        let coordinator = cluster.coordinators[0].process.as_ref().unwrap();
        let told = until("the worker has told its log", || async {
            let told = lines(&worker.output(), id);
            (!told.is_empty()).then_some(told)
        })
        .await;
        assert_eq!(told.len(), 1, "{told:?}");
        let also = lines(&coordinator.output(), id);
        assert!(also.is_empty(), "{also:?}");
    }
}
