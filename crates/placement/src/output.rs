//! What a plan says.

use volley_types::registry::PlacementDecision;
use volley_types::{ModelName, Revision, WorkerId};

/// What shall change.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// New placements, for the models whose placement changes.
    pub placings: Vec<PlacementDecision>,
    /// Rolls that stop because the new version cannot be loaded, and why.
    pub stops: Vec<(ModelName, String)>,
    /// Replicas that no worker can take.
    pub unschedulable: usize,
    /// Moves that begin with this plan.
    pub moves: Vec<Move>,
    /// Moves would be of use, whether any may begin or not.
    pub moves_wanted: bool,
}

/// Why a replica is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MoveReason {
    /// One that has no place gets its place, or a part of it.
    Room,
    /// Its worker is far fuller than the one that it goes to.
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

/// A replica that goes from one worker to another.
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
