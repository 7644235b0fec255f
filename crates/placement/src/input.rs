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
    /// It may get new replicas: it is alive and not draining.
    pub placeable: bool,
    /// It keeps its replicas: it is alive, or was until a moment ago.
    pub keep: bool,
    /// Its labels; `None` if it has not reported them yet.
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
    /// All known workers, each once.
    pub workers: Vec<PlacementWorker<'a>>,
    /// Memory of a version's replica in bytes, if a loaded replica has reported it.
    pub sizes: HashMap<(&'a ModelName, ModelVersion), u64>,
    /// Replicas that could not be loaded, with the reason.
    pub failed: HashMap<PlacedReplica<'a>, &'a str>,
    /// Ready replicas of models with a rollout or a migration, or of all models if migrations may
    /// start.
    pub ready: HashSet<PlacedReplica<'a>>,
    /// Maximum number of replicas on a worker; `None` for no limit.
    pub most_replicas: Option<usize>,
    /// Strategy for choosing among the workers with free capacity.
    pub strategy: PlacementStrategy,
    /// Running migrations, and the limits of new ones.
    pub moves: Moves<'a>,
}

/// State of migrations.
#[derive(Debug, Default)]
pub struct Moves<'a> {
    /// Running migrations.
    pub under_way: HashMap<&'a ModelName, &'a Move>,
    /// Number of migrations that may start.
    pub may_begin: usize,
    /// Difference in memory use between the fullest and the emptiest worker above which replicas
    /// are migrated, in thousandths; `None` without rebalancing.
    pub imbalance: Option<u64>,
    /// Models that changed recently. They are not rebalanced, but may migrate to free capacity.
    pub resting: HashSet<&'a ModelName>,
    /// Models that must not migrate.
    pub fixed: HashSet<&'a ModelName>,
    /// Workers that are too new to receive rebalanced replicas.
    pub young: HashSet<&'a WorkerId>,
}
