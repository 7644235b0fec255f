//! Planning state of one version of a model: its replicas and requirements.

use volley_types::registry::{Deployment, ModelEntry};
use volley_types::{ModelVersion, WorkerId};

use crate::fleet::ReplicaRequirements;

/// One version of a model, with its current workers and its desired number of replicas.
pub(crate) struct DesiredVersion<'a> {
    pub(crate) entry: &'a ModelEntry,
    pub(crate) version: ModelVersion,
    pub(crate) count: usize,
    pub(crate) size: u64,
    /// Places among the fleet's workers.
    pub(crate) kept: Vec<usize>,
    pub(crate) failed: Vec<usize>,
    /// Replicas on workers that are drained, and the one that moves.
    pub(crate) leaving: Vec<usize>,
    /// From which worker to which one moves.
    pub(crate) moving: Option<(usize, usize)>,
    /// Whether it is the replaced version.
    pub(crate) old: bool,
}

/// Requirements of a replica.
pub(crate) fn need<'n>(
    one: &DesiredVersion<'n>,
    deployment: &'n Deployment,
    avoid: &'n [usize],
) -> ReplicaRequirements<'n> {
    ReplicaRequirements {
        labels: &deployment.options.labels,
        allowed: workers_of(deployment, one.old),
        spread: deployment.options.spread.as_deref(),
        size: one.size,
        avoid,
    }
}

/// The allowed workers of a version. A worker list only applies to the new version if the other one
/// is kept beside it.
pub(crate) fn workers_of(deployment: &Deployment, old: bool) -> &[WorkerId] {
    match old && deployment.options.keep_previous != 0 {
        true => &[],
        false => &deployment.workers,
    }
}

impl DesiredVersion<'_> {
    pub(crate) fn deployment(&self) -> Option<&Deployment> {
        self.entry.deployment.as_ref()
    }

    /// Memory that it occupies permanently in bytes: overcommitted models can be evicted and count
    /// as 0.
    pub(crate) fn counted_size(&self) -> u64 {
        let overcommit = self
            .deployment()
            .is_some_and(|deployment| deployment.overcommit);
        if overcommit { 0 } else { self.size }
    }
}
