use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use volley_types::registry::ModelState;
use volley_types::{
    ChunkStream, ErrorCode, Incarnation, ModelName, ModelRef, ModelVersion, Predict, PredictError,
    PredictRequest, ReplicaReport, Revision, Signature,
};

use super::*;
use crate::LivenessConfig;
use crate::status;
use volley_types::worker::WorkerReport;

struct Client;

#[async_trait]
impl Predict for Client {
    async fn predict(&self, _: PredictRequest) -> Result<ChunkStream, PredictError> {
        Err(PredictError::new(ErrorCode::Unavailable, "no network here"))
    }
    async fn signature(&self, _: &ModelRef) -> Result<Signature, PredictError> {
        Err(PredictError::new(ErrorCode::Unavailable, "no network here"))
    }
    async fn models(&self) -> Vec<ModelName> {
        Vec::new()
    }
}

fn worker(id: &str, replicas: Vec<ReplicaReport>) -> WorkerReport {
    WorkerReport {
        id: WorkerId::new(id).unwrap(),
        incarnation: Incarnation(1),
        address: "127.0.0.1:1".to_owned(),
        labels: BTreeMap::from([("zone".to_owned(), id.to_owned())]),
        replicas,
        draining: false,
        active: 0,
        queued: 0,
        memory_bytes: 0,
        memory_budget_bytes: 100,
        gpus: Vec::new(),
        uptime_ms: 0,
    }
}

fn ready() -> ReplicaReport {
    ReplicaReport {
        model: ModelName::new("m").unwrap(),
        version: ModelVersion(1),
        state: ReplicaState::Ready,
        active: 0,
        queued: 0,
        capacity: 4,
        queue_wait_ms: 0,
        idle_since_ms: 0,
        fetch: None,
        signature: Some(Signature::generation()),
        evicted: false,
        memory_bytes: 60,
    }
}

fn live(reports: Vec<WorkerReport>) -> LiveWorkers {
    let mut live = LiveWorkers::new(LivenessConfig::default());
    for report in reports {
        live.heard(report, 1, Instant::now(), |_| Arc::new(Client));
    }
    live
}

fn entry(name: &str, replicas: u32, placement: &[&str]) -> ModelEntry {
    let placement = placement.iter().map(|id| WorkerId::new(*id).unwrap());
    ModelEntry {
        name: ModelName::new(name).unwrap(),
        versions: BTreeMap::new(),
        deployment: Some(Deployment::new(ModelVersion(1), replicas, Revision(1))),
        placement: placement.collect(),
        ever_deployed: true,
        group: None,
        deleted_tasks: BTreeSet::new(),
    }
}

fn options(entry: &mut ModelEntry) -> &mut volley_types::registry::DeployOptions {
    &mut entry.deployment.as_mut().unwrap().options
}

#[test]
fn a_deployment_that_no_worker_can_hold_has_a_reason() {
    let two = live(vec![worker("a", vec![]), worker("b", vec![])]);
    let state = RegistryState::default();
    let reason = |entry: &ModelEntry, live: &LiveWorkers| {
        let found = unplaced(entry, &state, live);
        found.map(|found| (found.reason, found.permanent))
    };
    assert_eq!(reason(&entry("m", 2, &[]), &two), None);
    assert_eq!(reason(&entry("m", 0, &[]), &two), None, "scaled to zero");
    let (text, permanent) = reason(&entry("m", 3, &[]), &two).unwrap();
    assert!(permanent && text.contains("only 2 workers"), "{text}");

    let mut labelled = entry("m", 1, &["a"]);
    options(&mut labelled).labels = BTreeMap::from([("foo".to_owned(), "bar".to_owned())]);
    let (text, permanent) = reason(&labelled, &two).unwrap();
    assert!(
        permanent && text == "no worker has the labels foo=bar",
        "{text}"
    );

    let mut large = entry("m", 1, &[]);
    options(&mut large).memory_bytes = 101;
    let (text, permanent) = reason(&large, &two).unwrap();
    assert!(permanent && text.contains("101 bytes"), "{text}");

    let (text, permanent) = reason(&entry("m", 1, &[]), &live(Vec::new())).unwrap();
    assert!(!permanent && text.contains("no worker"), "{text}");
}

#[test]
fn memory_that_other_models_hold_is_a_reason_that_can_end() {
    let workers = live(vec![worker("a", vec![ready()]), worker("b", vec![])]);
    let mut state = RegistryState::default();
    let mut second = entry("n", 2, &["b"]);
    options(&mut second).memory_bytes = 50;
    for one in [entry("m", 1, &["a"]), second.clone()] {
        state.models.insert(one.name.clone(), Arc::new(one));
    }
    let found = unplaced(&second, &state, &workers).unwrap();
    assert!(
        !found.permanent && found.reason.contains("memory"),
        "{found:?}"
    );
    options(&mut second).memory_bytes = 40;
    assert_eq!(unplaced(&second, &state, &workers), None);
}

#[test]
fn a_replica_on_a_worker_that_is_not_allowed_any_more_does_not_complete_a_deployment() {
    let workers = live(vec![worker("a", vec![ready()]), worker("b", vec![])]);
    let state = RegistryState::default();
    let mut entry = entry("m", 1, &["a"]);
    let shown = status::model(&entry, &state, &workers);
    assert_eq!(shown.state, ModelState::Deployed);
    options(&mut entry).labels = BTreeMap::from([("zone".to_owned(), "b".to_owned())]);
    let shown = status::model(&entry, &state, &workers);
    assert_eq!(shown.state, ModelState::PartiallyDeployed, "it serves yet");
    assert_eq!(shown.unplaced, None, "b can hold it");
}
