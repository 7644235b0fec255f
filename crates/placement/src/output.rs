//! Output of a plan.

use volley_types::registry::PlacementDecision;
use volley_types::{ModelName, Revision, WorkerId};

/// The changes of a plan.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// New placements, for the models whose placement changes.
    pub placings: Vec<PlacementDecision>,
    /// Models whose rollout stops because the new version cannot be loaded, with the reason.
    pub stops: Vec<(ModelName, String)>,
    /// Number of unschedulable replicas.
    pub unschedulable: usize,
    /// Migrations that start with this plan.
    pub moves: Vec<Move>,
    /// Whether migrations would help, even if none may start now.
    pub moves_wanted: bool,
}

/// Reason of a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MoveReason {
    /// Frees capacity for an unschedulable replica.
    Room,
    /// The source worker is much fuller than the target.
    Rebalance,
}

impl MoveReason {
    /// Stable name, for logs and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Room => "room",
            Self::Rebalance => "rebalance",
        }
    }
}

/// A migration of a replica between two workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// The model. Only one of its replicas migrates at a time.
    pub model: ModelName,
    /// [`revision`](volley_types::registry::Deployment::revision) of the deployment.
    pub deployment: Revision,
    /// Source worker.
    pub from: WorkerId,
    /// Target worker.
    pub to: WorkerId,
    /// Reason of the migration.
    pub reason: MoveReason,
}
