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
    /// Indexes of the fleet's workers that keep a replica.
    pub(crate) kept: Vec<usize>,
    pub(crate) failed: Vec<usize>,
    /// Replicas on drained workers, and the source of a running migration.
    pub(crate) leaving: Vec<usize>,
    /// Source and target of a running migration.
    pub(crate) moving: Option<(usize, usize)>,
    /// Whether it is the replaced version.
    pub(crate) old: bool,
}

/// Returns the requirements of a replica.
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

/// Returns the allowed workers of a version. A worker list only applies to the new version if the
/// other one is kept beside it.
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

    /// Returns the memory that a replica occupies permanently, in bytes. Overcommitted models can
    /// be evicted and count as 0.
    pub(crate) fn counted_size(&self) -> u64 {
        let overcommit = self
            .deployment()
            .is_some_and(|deployment| deployment.overcommit);
        if overcommit { 0 } else { self.size }
    }
}
