use serde_json::json;

use super::*;

fn replica(model: &str, version: u32, fetch: serde_json::Value) -> serde_json::Value {
    json!({
        "model": model, "version": version, "state": "loading", "active": 0, "queued": 0,
        "capacity": 1, "fetch": fetch,
    })
}

#[test]
fn what_is_fetched_of_a_version_is_told_by_worker() {
    let fetch = |bytes: u64| json!({ "bytes": bytes, "total_bytes": 64 << 20 });
    let worker = |id: &str, replicas: Vec<serde_json::Value>| {
        json!({
            "id": id, "address": "127.0.0.1:1", "liveness": "alive", "last_heard_ms": 1,
            "memory_bytes": 1, "memory_budget_bytes": 1, "replicas": replicas,
        })
    };
    let status = json!({
        "node": { "id": 1, "role": "leader", "leader": 1, "term": 1 },
        "registry_revision": 1, "coordinators": [], "models": [], "active_streams": 0,
        "workers": [
            worker("a", vec![replica("m", 1, fetch(1 << 20)), replica("m", 2, fetch(3 << 19))]),
            worker("b", vec![replica("n", 2, fetch(5)), replica("m", 2, json!(null))]),
            worker("c", vec![replica("m", 2, fetch(64 << 20))]),
        ],
    });
    let model = json!({
        "model_id": "m", "model_version": "2", "model_state": "DEPLOYING", "name": "m",
        "desired_replicas": 3, "current_worker_nodes": [], "versions": [1, 2],
    });
    let status: Status = serde_json::from_value(status).unwrap();
    let model: ModelInfo = serde_json::from_value(model).unwrap();
    let told = FetchProgress::of(&status, &model);
    let told: Vec<_> = told.iter().map(FetchProgress::told).collect();
    assert_eq!(told, ["a: 1.5 of 64.0 MiB", "c: 64.0 of 64.0 MiB"]);
}

#[test]
fn a_deployment_that_cannot_succeed_is_explained_at_once_and_then_given_up() {
    let info = |permanent: Option<bool>| {
        let unplaced = permanent.map(
            |permanent| json!({ "reason": "no worker has the labels a=b", "permanent": permanent }),
        );
        let model = json!({
            "model_id": "m", "model_version": "1", "model_state": "DEPLOYING", "name": "m",
            "desired_replicas": 1, "current_worker_nodes": [], "versions": [1],
            "unplaced": unplaced,
        });
        serde_json::from_value::<ModelInfo>(model).unwrap()
    };
    let (start, later) = (Instant::now(), Instant::now() + JOINING * 2);
    let mut obstacle = Obstacle::default();
    let line = obstacle.update(&info(Some(true)), start).unwrap();
    assert_eq!(
        line.as_deref(),
        Some("m waits: no worker has the labels a=b")
    );
    assert_eq!(obstacle.update(&info(Some(true)), start).unwrap(), None);
    let error = obstacle.update(&info(Some(true)), later).unwrap_err();
    assert!(error.to_string().contains("no worker has the labels a=b"));

    let mut obstacle = Obstacle::default();
    obstacle.update(&info(Some(false)), start).unwrap();
    assert_eq!(obstacle.update(&info(Some(false)), later).unwrap(), None);
    assert_eq!(obstacle.update(&info(None), later).unwrap(), None);
}
