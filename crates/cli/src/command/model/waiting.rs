//! Waiting for a deployment: as long as something comes of it.

use std::time::{Duration, Instant};

use anyhow::bail;
use volley_client::{Client, ModelInfo, Status};

use super::super::explain;
use crate::terminal::Terminal;

/// Between two looks.
const LOOK: Duration = Duration::from_millis(100);
/// Between two lines that tell how far fetches have come.
const TELL: Duration = Duration::from_secs(5);
/// How long nothing may come of it.
const PATIENCE: Duration = Duration::from_secs(600);

/// What workers have fetched of one version, and what there is of it in all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fetched {
    worker: String,
    bytes: u64,
    total_bytes: u64,
}

impl Fetched {
    /// What the cluster tells of `model` while it is being deployed: nothing to those who may not
    /// see its status.
    pub(super) async fn now(client: &Client, model: &ModelInfo) -> Vec<Self> {
        if !matches!(&*model.model_state, "DEPLOYING" | "PARTIALLY_DEPLOYED") {
            return Vec::new();
        }
        match client.status().await {
            Ok(status) => Self::of(&status, model),
            Err(_) => Vec::new(),
        }
    }

    fn of(status: &Status, model: &ModelInfo) -> Vec<Self> {
        let workers = status.workers.iter();
        let replicas =
            workers.flat_map(|worker| worker.replicas.iter().map(move |it| (worker, it)));
        let fetches = replicas.filter_map(|(worker, replica)| {
            let of_model = replica.model == model.model_id
                && replica.version.to_string() == model.model_version;
            let fetch = replica.fetch.filter(|_| of_model)?;
            Some(Self {
                worker: worker.id.clone(),
                bytes: fetch.bytes,
                total_bytes: fetch.total_bytes,
            })
        });
        fetches.collect()
    }

    /// For people.
    pub(super) fn told(&self) -> String {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        format!(
            "{}: {:.1} of {:.1} MiB",
            self.worker,
            mib(self.bytes),
            mib(self.total_bytes)
        )
    }
}

/// Returns once `model` is deployed; tells meanwhile how far its workers have fetched it.
///
/// # Errors
/// What its workers say where they cannot load it; that it is not ready after ten minutes in which
/// nothing was fetched.
pub(super) async fn until_deployed(client: &Client, model: &str) -> anyhow::Result<()> {
    let mut terminal = Terminal::stderr();
    let (mut moved, mut told) = (Instant::now(), Instant::now());
    let mut known = Vec::new();
    loop {
        let info = client.model(model).await.map_err(explain)?;
        match info.model_state.as_str() {
            "DEPLOYED" => return Ok(()),
            "DEPLOY_FAILED" => bail!("{model} could not be loaded: {}", reasons(&info)),
            _ if moved.elapsed() < PATIENCE => tokio::time::sleep(LOOK).await,
            _ => bail!("the model was not ready in time"),
        }
        if told.elapsed() < TELL {
            continue;
        }
        told = Instant::now();
        let fetched = Fetched::now(client, &info).await;
        if fetched != known {
            moved = Instant::now();
            for fetch in &fetched {
                terminal.line(&format!("fetching     {}", fetch.told()))?;
            }
            known = fetched;
        }
    }
}

fn reasons(info: &ModelInfo) -> String {
    let reasons = info.failures.iter();
    let reasons: Vec<_> = reasons
        .map(|(worker, reason)| format!("{worker}: {reason}"))
        .collect();
    reasons.join("; ")
}

#[cfg(test)]
mod tests {
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
            "wanted_replicas": 3, "current_worker_nodes": [], "versions": [1, 2],
        });
        let status: Status = serde_json::from_value(status).unwrap();
        let model: ModelInfo = serde_json::from_value(model).unwrap();
        let told = Fetched::of(&status, &model);
        let told: Vec<_> = told.iter().map(Fetched::told).collect();
        assert_eq!(told, ["a: 1.5 of 64.0 MiB", "c: 64.0 of 64.0 MiB"]);
    }
}
