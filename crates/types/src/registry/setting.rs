//! Cluster settings that placement looks at. They stand in the registry as JSON under their full
//! names; a version that does not know one keeps it and does without.

use crate::registry::RegistryState;

/// The cluster setting that bounds how many models a worker is given.
pub const MAX_MODEL_ON_NODE: &str = "plugins.ml_commons.max_model_on_node";
/// The cluster setting that says which of the workers with room gets a replica.
pub const PLACEMENT_STRATEGY: &str = "volley.placement.strategy";
/// The cluster setting that says whether replicas go from full workers to emptier ones.
pub const REBALANCE: &str = "volley.placement.rebalance";

/// Which of the workers with room gets a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum PlacementStrategy {
    /// The emptiest: load and what is lost with a worker are small everywhere.
    #[default]
    Spread,
    /// The one that it fills best: whole workers stay free, for large models or to be given back.
    Pack,
}

impl PlacementStrategy {
    /// All of them, by name.
    pub const ALL: &'static [(&'static str, Self)] =
        &[("spread", Self::Spread), ("pack", Self::Pack)];

    /// The stable name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Spread => "spread",
            Self::Pack => "pack",
        }
    }
}

impl RegistryState {
    /// The value of a cluster setting that somebody has set, as JSON.
    #[must_use]
    pub fn setting(&self, name: &str) -> Option<&str> {
        self.settings.get(name).map(String::as_str)
    }

    /// How many models a worker may be given at most.
    #[must_use]
    pub fn max_models_on_worker(&self) -> Option<usize> {
        self.setting(MAX_MODEL_ON_NODE)?.parse().ok()
    }

    /// Which of the workers with room gets a replica.
    #[must_use]
    pub fn placement_strategy(&self) -> PlacementStrategy {
        let set = self.setting(PLACEMENT_STRATEGY);
        let set = set.map(|value| value.trim_matches('"'));
        let mut known = PlacementStrategy::ALL.iter();
        known
            .find(|(name, _)| Some(*name) == set)
            .map_or_else(PlacementStrategy::default, |(_, strategy)| *strategy)
    }

    /// Whether replicas go from full workers to emptier ones: unless somebody has said no, or
    /// wants them packed.
    #[must_use]
    pub fn rebalances(&self) -> bool {
        self.setting(REBALANCE) != Some("false")
            && self.placement_strategy() == PlacementStrategy::Spread
    }

    /// How many replicas go from one worker to another now although both are there. Each is on
    /// both until it serves where it goes.
    #[must_use]
    pub fn migrating_replicas(&self) -> usize {
        let models = self.models.values();
        let moving = models.filter_map(|entry| {
            let deployment = entry.deployment.as_ref()?;
            let mut holders = entry.placement.iter();
            let drained = holders.any(|worker| self.worker_drain(worker).is_some());
            let surplus = entry
                .placement
                .len()
                .checked_sub(deployment.replicas as usize)?;
            (deployment.rollout.is_none() && !drained).then_some(surplus)
        });
        moving.sum()
    }
}
