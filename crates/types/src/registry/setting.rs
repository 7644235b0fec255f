//! Cluster settings of the placement. The registry stores them as JSON under their full names. Each
//! version keeps settings that it does not know, and ignores them.

use crate::registry::RegistryState;

/// Cluster setting: maximum number of models on a worker.
pub const MAX_MODEL_ON_NODE: &str = "plugins.ml_commons.max_model_on_node";
/// Cluster setting: strategy that selects a worker with free capacity.
pub const PLACEMENT_STRATEGY: &str = "volley.placement.strategy";
/// Cluster setting: whether replicas migrate from full workers to emptier ones.
pub const REBALANCE: &str = "volley.placement.rebalance";

/// Strategy that selects a worker with free capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum PlacementStrategy {
    /// The emptiest worker: spreads the load and limits the loss of one worker.
    #[default]
    Spread,
    /// The worker with the least free capacity that fits: keeps other workers empty for large
    /// models or for removal.
    Pack,
}

impl PlacementStrategy {
    /// All strategies, by name.
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
    /// The value of a cluster setting as JSON; `None` if it is not set.
    #[must_use]
    pub fn setting(&self, name: &str) -> Option<&str> {
        self.settings.get(name).map(String::as_str)
    }

    /// Maximum number of models on a worker; `None` means no limit.
    #[must_use]
    pub fn max_models_on_worker(&self) -> Option<usize> {
        self.setting(MAX_MODEL_ON_NODE)?.parse().ok()
    }

    /// The placement strategy.
    #[must_use]
    pub fn placement_strategy(&self) -> PlacementStrategy {
        let set = self.setting(PLACEMENT_STRATEGY);
        let set = set.map(|value| value.trim_matches('"'));
        let mut known = PlacementStrategy::ALL.iter();
        known
            .find(|(name, _)| Some(*name) == set)
            .map_or_else(PlacementStrategy::default, |(_, strategy)| *strategy)
    }

    /// Whether rebalancing is on: the default, unless it is disabled or the strategy is
    /// [`PlacementStrategy::Pack`].
    #[must_use]
    pub fn rebalances(&self) -> bool {
        self.setting(REBALANCE) != Some("false")
            && self.placement_strategy() == PlacementStrategy::Spread
    }

    /// Number of running migrations between live workers.
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
