//! Output of a plan.

use volley_types::registry::PlacementDecision;
use volley_types::{ModelName, Revision, WorkerId};

/// The changes of a plan.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// New placements, for the models whose placement changes.
    pub placings: Vec<PlacementDecision>,
    /// Rolls that stop because the new version cannot be loaded, and why.
    pub stops: Vec<(ModelName, String)>,
    /// Number of unschedulable replicas.
    pub unschedulable: usize,
    /// Moves that begin with this plan.
    pub moves: Vec<Move>,
    /// Whether migrations would help, even if none may start now.
    pub moves_wanted: bool,
}

/// Why a replica is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MoveReason {
    /// Frees capacity for an unschedulable replica.
    Room,
    /// The source worker is much fuller than the target.
    Rebalance,
}

impl MoveReason {
    /// The stable name.
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
    /// The model; one replica of it moves at a time.
    pub model: ModelName,
    /// [`revision`](volley_types::registry::Deployment::revision) of the deployment.
    pub deployment: Revision,
    /// Where it is.
    pub from: WorkerId,
    /// Where it is loaded.
    pub to: WorkerId,
    /// Why.
    pub reason: MoveReason,
}
