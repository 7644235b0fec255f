//! The knobs of a worker.

use std::collections::BTreeMap;
use std::time::Duration;

use volley_security::nodes::Dialer;
use volley_types::WorkerId;

/// The knobs of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerConfig {
    /// Its identity, stable over restarts and unique in the cluster.
    pub id: WorkerId,
    /// Where coordinators reach its Flight service, `host:port`.
    pub address: String,
    /// Free labels, shown in the status.
    pub labels: BTreeMap<String, String>,
    /// The internal addresses of all coordinators, `host:port`.
    pub coordinators: Vec<String>,
    /// Requests that may wait for a place on one replica; one more is refused with
    /// `overloaded`.
    pub queue_per_replica: usize,
    /// How long a request may wait there; then it is refused with `overloaded` too.
    pub queue_timeout: Duration,
    /// Models that are loaded at the same time.
    pub concurrent_loads: usize,
    /// Bytes that all models together may take; `None` means four fifths of the machine's
    /// memory, or of the process's control group's limit where that is less.
    pub memory_budget: Option<u64>,
    /// How long the loading of one model may take; then it is given up.
    pub load_timeout: Duration,
    /// Between two heartbeats; changes are told at once.
    pub heartbeat_interval: Duration,
    /// How long a drained worker goes on listening, so that requests that were on their way
    /// when its coordinators heard of the drain still find it.
    pub drain_grace: Duration,
    /// How long the streams of a replica that is not wanted any more may take to end; then
    /// they are cut.
    pub unload_timeout: Duration,
    /// How coordinators are called.
    pub dialer: Dialer,
}

impl WorkerConfig {
    /// The defaults around what has none.
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
}
