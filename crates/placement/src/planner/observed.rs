//! Snapshot of the workers as observed by a coordinator.

use std::collections::BTreeMap;

use volley_types::control::Liveness;
use volley_types::{WorkerId, WorkerReport};

/// A worker, as the coordinator that plans sees it.
#[derive(Clone, Copy, Debug)]
pub struct ObservedWorker<'a> {
    /// The last report.
    pub report: &'a WorkerReport,
    /// Whether it can be sent requests.
    pub liveness: Liveness,
    /// It keeps the replicas that it has: it is alive, or was until a moment ago.
    pub keep: bool,
}

/// All workers that the coordinator that plans has heard of.
#[derive(Clone, Debug, Default)]
pub struct ObservedWorkers<'a> {
    /// By id.
    pub workers: BTreeMap<&'a WorkerId, ObservedWorker<'a>>,
    /// The coordinator has begun to listen so recently that a worker that it has not heard is not
    /// gone: workers find a new leader within moments.
    pub settling: bool,
}
