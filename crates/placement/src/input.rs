//! Input of a plan besides the registry.

use std::collections::{BTreeMap, HashMap, HashSet};

use volley_types::registry::{Drain, PlacementStrategy};
use volley_types::{ModelName, ModelVersion, WorkerId};

use crate::output::Move;

/// A worker as placement sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementWorker<'a> {
    /// Its id.
    pub id: &'a WorkerId,
    /// It may be given a new replica: it is alive and not draining.
    pub placeable: bool,
    /// It keeps the replicas that it has: it is alive, or was until a moment ago.
    pub keep: bool,
    /// Its labels.
    pub labels: Option<&'a BTreeMap<String, String>>,
    /// Memory budget for all its models in bytes; 0 if it does not report one.
    pub budget_bytes: u64,
    /// Its drain, if any: replicas leave as others replace them.
    pub drain: Option<Drain>,
}

/// A version of a model on a worker.
pub type PlacedReplica<'a> = (&'a ModelName, ModelVersion, &'a WorkerId);

/// Observed state besides the registry.
#[derive(Debug, Default)]
pub struct PlacementInput<'a> {
    /// All workers that are known, each once.
    pub workers: Vec<PlacementWorker<'a>>,
    /// Memory of a version's replica in bytes, if a loaded replica has reported it.
    pub sizes: HashMap<(&'a ModelName, ModelVersion), u64>,
    /// Where loading has failed, and why.
    pub failed: HashMap<PlacedReplica<'a>, &'a str>,
    /// Ready replicas of models with a rollout or a migration, or of all models if migrations may
    /// start.
    pub ready: HashSet<PlacedReplica<'a>>,
    /// Replicas that a worker may be given at most.
    pub most_replicas: Option<usize>,
    /// Which of the workers with room gets a replica.
    pub strategy: PlacementStrategy,
    /// Replicas that go elsewhere although their workers are there.
    pub moves: Moves<'a>,
}

/// State of migrations.
#[derive(Debug, Default)]
pub struct Moves<'a> {
    /// Running migrations.
    pub under_way: HashMap<&'a ModelName, &'a Move>,
    /// Number of migrations that may start.
    pub may_begin: usize,
    /// From how far apart the fullest and the emptiest worker are on, in thousandths, replicas
    /// are moved between them; `None` where they are not.
    pub imbalance: Option<u64>,
    /// Models that stay where they are unless they make room: they have changed of late.
    pub resting: HashSet<&'a ModelName>,
    /// Models that stay where they are.
    pub fixed: HashSet<&'a ModelName>,
    /// Workers that are too new to be filled.
    pub young: HashSet<&'a WorkerId>,
}
