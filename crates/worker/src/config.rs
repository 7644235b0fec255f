//! Configuration of a worker.

use std::collections::BTreeMap;
use std::time::Duration;

use volley_security::nodes::Dialer;
use volley_types::WorkerId;

use crate::memory;

/// Configuration of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerConfig {
    /// Its identity, stable over restarts and unique in the cluster.
    pub id: WorkerId,
    /// Address of its Flight service for coordinators, `host:port`.
    pub address: String,
    /// Free labels, shown in the status.
    pub labels: BTreeMap<String, String>,
    /// The internal addresses of all coordinators, `host:port`.
    pub coordinators: Vec<String>,
    /// Maximum number of queued requests per replica; further ones are rejected with `overloaded`.
    pub queue_per_replica: usize,
    /// Maximum time in the queue; then the request is rejected with `overloaded`.
    pub queue_timeout: Duration,
    /// Maximum number of concurrent loads.
    pub concurrent_loads: usize,
    /// Memory budget of all models together in bytes; `None` means 80 % of the machine's memory, or
    /// of the control group's limit if that is lower.
    pub memory_budget: Option<u64>,
    /// Time limit of one load; then it is abandoned.
    pub load_timeout: Duration,
    /// Interval of heartbeats; changes are reported immediately.
    pub heartbeat_interval: Duration,
    /// Time for which a drained worker still accepts requests that were sent before its
    /// coordinators noticed the drain.
    pub drain_grace: Duration,
    /// Time for the streams of an unassigned replica to end; then they are aborted.
    pub unload_timeout: Duration,
    /// Dialer for connections to coordinators.
    pub dialer: Dialer,
}

impl WorkerConfig {
    /// A configuration with defaults for all other fields.
    #[must_use]
    pub fn new(id: WorkerId, address: impl Into<String>, coordinators: Vec<String>) -> Self {
        Self {
            id,
            address: address.into(),
            labels: BTreeMap::new(),
            coordinators,
            queue_per_replica: 256,
            queue_timeout: Duration::from_secs(60),
            concurrent_loads: 2,
            memory_budget: None,
            load_timeout: Duration::from_secs(600),
            heartbeat_interval: Duration::from_millis(500),
            drain_grace: Duration::from_millis(500),
            unload_timeout: Duration::from_secs(600),
            dialer: Dialer::plain(),
        }
    }

    /// The memory budget in bytes, configured or by default.
    pub(crate) fn effective_budget(&self) -> u64 {
        self.memory_budget.unwrap_or_else(memory::default_budget)
    }

    /// Bytes that the runs of models may use together, besides the models: as many as the memory
    /// budget. `None` if the system does not tell its memory.
    #[must_use]
    pub fn run_memory(&self) -> Option<u64> {
        Some(self.effective_budget()).filter(|bytes| *bytes != u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_limited_to_the_budget_and_by_default_to_a_part_of_the_machine() {
        let id = WorkerId::new("w").unwrap();
        let mut config = WorkerConfig::new(id, "127.0.0.1:1", Vec::new());
        let default = config.run_memory().unwrap();
        assert_eq!(default, config.effective_budget());
        assert!(memory::system_bytes().is_none_or(|bytes| default < bytes));
        config.memory_budget = Some(7);
        assert_eq!(config.run_memory(), Some(7));
    }
}
