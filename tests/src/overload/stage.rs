//! The cluster of a scene: one coordinator, its workers, and what they cost.

use std::path::Path;
use std::time::Duration;

use serde_json::json;

use super::client::get;
use crate::cluster::Cluster;
use crate::until;

/// A running cluster of one coordinator.
pub struct Stage {
    /// The cluster.
    pub cluster: Cluster,
}

impl Stage {
    /// Starts one coordinator and `workers` workers, with further sections in the file of
    /// each.
    ///
    /// # Panics
    /// When a file cannot be written.
    pub async fn set(workers: usize, coordinator: &str, worker: &str) -> Self {
        let mut cluster = Cluster::new(1, workers);
        cluster.configure(0, |text| merged(text, coordinator));
        for node in &cluster.workers {
            let text = std::fs::read_to_string(&node.config).expect("a configuration");
            std::fs::write(&node.config, text + worker).expect("a configuration");
        }
        for node in cluster.coordinators.iter_mut().chain(&mut cluster.workers) {
            node.start();
        }
        Self { cluster }
    }

    /// Where the coordinator serves.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.cluster.coordinators[0].http
    }

    /// Deploys the scripted backend as `name` on every worker, with room for `capacity` streams
    /// on each.
    pub async fn deploy(&self, name: &str, capacity: usize) {
        self.cluster.wait_for_leader().await;
        let body = json!({
            "name": name, "function_name": "fake", "parameters": { "capacity": capacity },
        });
        let replicas = u32::try_from(self.cluster.workers.len()).unwrap_or(u32::MAX);
        self.cluster.deploy(&body, replicas).await;
    }

    /// Resident bytes of the coordinator, and of all workers.
    ///
    /// # Panics
    /// When a process has ended.
    #[must_use]
    pub fn resident(&self) -> [u64; 2] {
        let of = |nodes: &[crate::cluster::Node]| {
            let pids = nodes.iter().map(|node| {
                let process = node.process.as_ref().expect("it runs");
                process.pid().expect("it runs")
            });
            pids.map(resident_bytes).sum()
        };
        [of(&self.cluster.coordinators), of(&self.cluster.workers)]
    }

    /// Streams of a model that run, as a node counts them: the coordinator, or a worker.
    pub async fn active(&self, model: &str, worker: Option<usize>) -> u64 {
        let node = match worker {
            Some(worker) => &self.cluster.workers[worker],
            None => &self.cluster.coordinators[0],
        };
        let text = get(&node.http, "/metrics").await.unwrap_or_default();
        let name = format!("volley_active_streams{{model=\"{model}\"}} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&name));
        line.and_then(|count| count.trim().parse().ok())
            .unwrap_or(0)
    }

    /// Waits until no stream of a model runs anywhere.
    pub async fn quiet(&self, model: &str) {
        until("no stream runs", || async {
            let mut running = self.active(model, None).await;
            for worker in 0..self.cluster.workers.len() {
                running += self.active(model, Some(worker)).await;
            }
            (running == 0).then_some(())
        })
        .await;
    }

    /// Waits until the processes neither grow nor shrink by more than a hundredth in a while.
    pub async fn settled(&self) -> [u64; 2] {
        let mut before = self.resident();
        for _ in 0..20 {
            tokio::time::sleep(Duration::from_millis(300)).await;
            let now = self.resident();
            let same = before
                .iter()
                .zip(&now)
                .all(|(was, is)| was.abs_diff(*is) * 100 < *was);
            before = now;
            if same {
                break;
            }
        }
        before
    }
}

/// A configuration with the keys of `more`, whose sections may be there already.
fn merged(text: String, more: &str) -> String {
    match more.split_once('\n') {
        Some((section, keys)) if text.contains(&format!("\n{section}\n")) => text.replacen(
            &format!("\n{section}\n"),
            &format!("\n{section}\n{keys}"),
            1,
        ),
        _ => text + more,
    }
}

/// Resident bytes of a process; 0 when it has ended.
#[must_use]
pub fn resident_bytes(pid: u32) -> u64 {
    let path = Path::new("/proc").join(pid.to_string()).join("status");
    let status = std::fs::read_to_string(path).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
