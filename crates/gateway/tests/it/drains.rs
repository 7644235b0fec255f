//! Drained nodes.

use serde_json::json;
use volley_types::ErrorCode;
use volley_types::PredictError;

use super::support::Edge;

#[tokio::test]
async fn a_worker_or_a_coordinator_is_drained_and_put_back_and_the_status_tells() {
    let edge = Edge::start().await;
    let drained = edge.post("/_volley/nodes/w1/drain", "").await.ok();
    let described = json!({
        "node": "w1", "kind": "worker", "state": "draining", "force": false,
        "models": ["m"], "blocked": [], "active": 2,
    });
    assert_eq!(drained, described);
    let force = r#"{"force":true,"kind":"worker"}"#;
    let drained = edge.post("/_volley/nodes/w1/drain", force).await.ok();
    assert_eq!(drained["force"], true);
    let drained = edge.post("/_volley/nodes/1/drain", "").await.ok();
    assert_eq!(
        (&drained["kind"], &drained["node"]),
        (&json!("coordinator"), &json!("1"))
    );
    let status = edge.get("/_volley/status").await.ok();
    assert_eq!(status["workers"][0]["drain"], "draining");
    assert_eq!(status["coordinators"][0]["drain"], "draining");
    assert_eq!(status["drains"].as_array().map(Vec::len), Some(2));

    let undrained = edge.post("/_volley/nodes/w1/undrain", "{}").await.ok();
    assert_eq!(
        undrained,
        json!({ "node": "w1", "kind": "worker", "state": "working" })
    );
    edge.post("/_volley/nodes/1/undrain", "").await.ok();
    let status = edge.get("/_volley/status").await.ok();
    assert_eq!(status["workers"][0]["drain"], json!(null));
    assert_eq!(status["drains"], json!([]));
}

#[tokio::test]
async fn who_is_not_there_is_not_drained_and_bad_bodies_are_told() {
    let edge = Edge::start().await;
    for (node, body) in [
        ("nobody", ""),
        ("7", ""),
        ("..", ""),
        ("w1", r#"{"kind":"coordinator"}"#),
        ("1", r#"{"kind":"worker"}"#),
    ] {
        let path = format!("/_volley/nodes/{node}/drain");
        let refused = edge.post(&path, body).await.refused(404);
        assert!(refused.contains("the id"), "{refused}");
    }
    for body in [
        r#"{"force":"yes"}"#,
        r#"{"kind":"leader"}"#,
        r#"{"kind":1}"#,
    ] {
        let path = "/_volley/nodes/w1/drain";
        edge.post(path, body).await.refused(400);
    }
    let late = "finish the upgrade first: coordinator 2 runs at level 1";
    *edge.cluster.write_refusal.lock() = Some(PredictError::new(ErrorCode::Conflict, late));
    let refused = edge.post("/_volley/nodes/w1/drain", "").await.refused(409);
    assert!(refused.contains("finish the upgrade"), "{refused}");
}
