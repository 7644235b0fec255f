//! Snapshot of the workers as observed by a coordinator.

use std::collections::BTreeMap;

use volley_types::control::Liveness;
use volley_types::{WorkerId, WorkerReport};

/// A worker as the planning coordinator sees it.
#[derive(Clone, Copy, Debug)]
pub struct ObservedWorker<'a> {
    /// The last report.
    pub report: &'a WorkerReport,
    /// Whether it is alive, suspect, dead or draining.
    pub liveness: Liveness,
    /// It keeps its replicas: it is alive, or was until a moment ago.
    pub keep: bool,
}

/// All workers known to the planning coordinator.
#[derive(Clone, Debug, Default)]
pub struct ObservedWorkers<'a> {
    /// The workers, by id.
    pub workers: BTreeMap<&'a WorkerId, ObservedWorker<'a>>,
    /// The coordinator started so recently that an unknown worker is not gone: workers find a new
    /// leader within moments.
    pub settling: bool,
}
