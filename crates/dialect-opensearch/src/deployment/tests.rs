use super::*;

fn read(body: Value) -> Result<DeployOptions, PredictError> {
    options(body.as_object().unwrap(), DeployOptions::default())
}

#[test]
fn what_a_body_does_not_name_stays() {
    let current = read(json!({
        "labels": { "zone": "a" }, "max_surge": 3, "min_replicas": 2, "max_replicas": 9,
    }));
    let current = current.unwrap();
    let change = |body: Value| options(body.as_object().unwrap(), current.clone()).unwrap();
    assert_eq!(change(json!({})), current);
    let scaling = |body| change(body).scaling;
    let fewer = scaling(json!({ "min_replicas": 1 })).unwrap();
    assert_eq!((fewer.min_replicas, fewer.max_replicas), (1, 9));
    assert_eq!(scaling(json!({ "replicas": 2 })), None, "a fixed number");
    assert_eq!(scaling(json!({ "max_replicas": null })), None);
    let cleared = change(json!({ "labels": {}, "max_surge": null }));
    assert!(cleared.labels.is_empty());
    assert_eq!(cleared.max_surge, DeployOptions::default().max_surge);
    assert_eq!(cleared.scaling, current.scaling);
}

#[test]
fn a_deployment_is_read_and_what_is_wrong_with_it_is_told() {
    assert_eq!(read(json!({})).unwrap(), DeployOptions::default());
    let full = read(json!({
        "labels": { "device": "cuda" }, "spread": "zone", "memory_bytes": 7,
        "max_surge": 0, "max_unavailable": 2, "min_replicas": 0, "max_replicas": 9,
    }));
    let full = full.unwrap();
    assert_eq!(full.labels["device"], "cuda");
    assert_eq!((full.max_surge, full.max_unavailable), (0, 2));
    let scaling = full.scaling.unwrap();
    assert_eq!((scaling.min_replicas, scaling.max_replicas), (0, 9));
    for wrong in [
        json!({ "labels": { "a": 1 } }),
        json!({ "labels": "x" }),
        json!({ "min_replicas": 1 }),
        json!({ "max_replicas": 4_294_967_296_u64 }),
        json!({ "max_surge": -1 }),
    ] {
        assert!(read(wrong.clone()).is_err(), "{wrong}");
    }
}
