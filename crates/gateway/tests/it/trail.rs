//! The audit log: recorded and unrecorded requests.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt;
use http::Method;
use serde_json::{Value, json};
use volley_gateway::ApiConfig;
use volley_security::audit::{self, AuditLog};
use volley_security::{Authenticator, Principal};
use volley_types::registry::{RegistryCommand, RegistryReply, RegistryState};
use volley_types::{ClusterHandle, PredictError, Registry};

use crate::cluster::Cluster;
use crate::keys::{BOOTSTRAP, keyed, make};
use crate::support::{Edge, SOON, request};

#[tokio::test]
async fn what_was_changed_and_refused_is_in_the_trail_without_keys() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.jsonl");
    let log = AuditLog::open(&path).unwrap();
    let gate = |registry| {
        let gate = Authenticator::keys(registry, Some(BOOTSTRAP)).unwrap();
        gate.with_audit(log)
    };
    let edge = Edge::guarded(ApiConfig::default(), gate).await;
    let (id, key) = make(
        &edge,
        json!({ "name": "a", "role": "model-admin", "models": ["a.*"] }),
    )
    .await;
    let body = json!({ "name": "b.model", "function_name": "text" }).to_string();
    let register = request(Method::POST, "/_plugins/_ml/models/_register", &body);
    edge.send(keyed(&key, register)).await.refused(403);
    let text = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[0]["who"], "bootstrap");
    assert_eq!(lines[0]["action"], "key.create");
    assert_eq!(lines[0]["result"], "ok");
    assert_eq!(lines[1]["who"], format!("key {id}"));
    assert_eq!(lines[1]["target"], "b.model");
    assert_eq!(lines[1]["result"], "permission_denied");
    assert!(!text.contains(key.splitn(3, '_').nth(2).unwrap()));
    assert_eq!(audit::verify(&path).unwrap().head.seq, 2);
}

#[tokio::test]
async fn whom_a_route_refuses_is_in_the_trail_too_and_fills_no_disk() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.jsonl");
    let log = AuditLog::open(&path).unwrap();
    let gate = |registry| {
        let gate = Authenticator::keys(registry, Some(BOOTSTRAP)).unwrap();
        gate.with_audit(log)
    };
    let edge = Edge::guarded(ApiConfig::default(), gate).await;
    let (id, key) = make(&edge, json!({ "name": "a", "role": "viewer" })).await;
    let lines = || -> Vec<Value> {
        let text = std::fs::read_to_string(&path).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        lines.collect()
    };
    let try_it = async |path: &str| {
        let asked = keyed(&key, request(Method::POST, path, "{}"));
        edge.send(asked).await.refused(403)
    };
    try_it("/_volley/keys?name=canary").await;
    let told = lines().pop().unwrap();
    assert_eq!(told["who"], format!("key {id}"));
    assert_eq!(told["action"], "request.refused");
    assert_eq!(told["target"], "POST /_volley/keys");
    assert_eq!(told["result"], "permission_denied");
    // Reads, predictions and unauthenticated requests are not recorded.
    try_it("/_plugins/_ml/models/m/_predict").await;
    let nobody = request(Method::POST, "/_volley/keys", "{}");
    edge.send(nobody).await.refused(401);
    assert_eq!(lines().len(), 2);
    let began = std::time::Instant::now();
    for _ in 0..100 {
        try_it("/_volley/keys").await;
    }
    let seconds = usize::try_from(began.elapsed().as_secs()).unwrap() + 2;
    assert!(lines().len() <= 2 + 10 * seconds, "{}", lines().len());
}

/// A registry that answers some time after it has changed.
struct SlowRegistry(Arc<Cluster>);

#[async_trait]
impl Registry for SlowRegistry {
    fn state(&self) -> Arc<RegistryState> {
        self.0.state()
    }

    async fn write(&self, command: RegistryCommand) -> Result<RegistryReply, PredictError> {
        let reply = self.0.write(command).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        reply
    }
}

#[tokio::test]
async fn a_change_whose_caller_is_gone_is_in_the_trail() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.jsonl");
    let gate = Authenticator::open().with_audit(AuditLog::open(&path).unwrap());
    let cluster = Arc::new(Cluster::default());
    let mut handle = ClusterHandle::new(cluster.clone());
    handle.registry = Arc::new(SlowRegistry(cluster.clone()));
    let guarded = gate.guard(&handle, &Arc::new(Principal::anonymous()));
    let settings = [("a".to_owned(), Some("b".to_owned()))];
    let command = RegistryCommand::ChangeSettings(settings.into());
    assert!(guarded.registry.write(command).now_or_never().is_none());
    let recorded = async {
        while audit::verify(&path).unwrap().head.seq == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(SOON, recorded).await.unwrap();
    assert_eq!(cluster.state().settings["a"], "b");
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains("settings.change"), "{text}");
}
