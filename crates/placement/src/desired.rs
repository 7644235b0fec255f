//! One version of a model while a plan is made: what there is of it, and what it needs.

use volley_types::registry::{Deployment, ModelEntry};
use volley_types::{ModelVersion, WorkerId};

use crate::fleet::ReplicaRequirements;

/// One version of a model, its workers of now and how many there shall be.
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
    /// It is the version that goes.
    pub(crate) old: bool,
}

/// What a replica needs of its worker.
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

/// The workers that may hold a version: those that are named are for the new one alone, where the
/// other one stays beside it.
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

    /// What it takes for good: workers unload an overcommitted model when they need the room.
    pub(crate) fn counted_size(&self) -> u64 {
        let overcommit = self
            .deployment()
            .is_some_and(|deployment| deployment.overcommit);
        if overcommit { 0 } else { self.size }
    }
}
