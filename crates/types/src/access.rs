//! Who may do what: roles, model scopes, and the API keys that the registry holds. A key's
//! secret is never in here, only its hash.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use crate::error::PredictError;
use crate::ids::{KeyId, ModelName, NodeId, TenantId, WorkerId};

/// What a caller may do. Each role may also do what those before it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Reads models, status and metrics.
    Viewer,
    /// Calls models.
    Predict,
    /// Registers, deploys and deletes models and connectors.
    ModelAdmin,
    /// Changes the membership and manages keys.
    ClusterAdmin,
}

impl Role {
    /// All roles, the weakest first.
    pub const ALL: [Self; 4] = [
        Self::Viewer,
        Self::Predict,
        Self::ModelAdmin,
        Self::ClusterAdmin,
    ];

    /// The stable name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Predict => "predict",
            Self::ModelAdmin => "model-admin",
            Self::ClusterAdmin => "cluster-admin",
        }
    }

    /// The role of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.as_str() == name)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A model's name, or the beginning of several: `team-a.*`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ModelPattern {
    /// This model.
    Name(ModelName),
    /// Every model whose name begins so.
    Prefix(ModelName),
}

impl ModelPattern {
    /// Whether `model` is meant.
    #[must_use]
    pub fn matches(&self, model: &ModelName) -> bool {
        self.covers(model.as_str())
    }

    /// Whether a thing of that name is meant, of whatever kind it is.
    #[must_use]
    pub fn covers(&self, name: &str) -> bool {
        match self {
            Self::Name(own) => own.as_str() == name,
            Self::Prefix(start) => name.starts_with(start.as_str()),
        }
    }
}

impl fmt::Display for ModelPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => name.fmt(f),
            Self::Prefix(start) => write!(f, "{start}*"),
        }
    }
}

impl FromStr for ModelPattern {
    type Err = PredictError;

    fn from_str(text: &str) -> Result<Self, PredictError> {
        Ok(match text.strip_suffix('*') {
            Some(start) => Self::Prefix(ModelName::beginning(start)?),
            None => Self::Name(ModelName::new(text)?),
        })
    }
}

/// Which models a caller may see and call, and by the same names which connectors, secrets, groups,
/// aliases and pipelines are its own.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ModelScope(Vec<ModelPattern>);

/// How all models are written where patterns are.
pub const ALL_MODELS: &str = "*";

impl ModelScope {
    /// Only what the patterns name; all models when there are none.
    #[must_use]
    pub fn new(patterns: Vec<ModelPattern>) -> Self {
        Self(patterns)
    }

    /// What these texts name: names, beginnings such as `team-a.*`, or [`ALL_MODELS`].
    ///
    /// # Errors
    /// `InvalidInput` when one is none of these.
    pub fn read<'t>(texts: impl IntoIterator<Item = &'t str>) -> Result<Self, PredictError> {
        let (mut patterns, mut all) = (Vec::new(), false);
        for text in texts {
            match text {
                ALL_MODELS => all = true,
                text => patterns.push(text.parse()?),
            }
        }
        Ok(if all { Self::default() } else { Self(patterns) })
    }

    /// What a tenant has for its own where nobody says more: every name that begins with the
    /// tenant's and a dot; everything for the tenant that all are of who have none.
    #[must_use]
    pub fn of_tenant(tenant: &TenantId) -> Self {
        let own = ModelName::new(format!("{tenant}."));
        match own {
            Ok(own) if *tenant != TenantId::default() => Self(vec![ModelPattern::Prefix(own)]),
            // A tenant's name may be one letter too long for that: nothing but itself is its own.
            Err(_) => Self(vec![ModelPattern::Name(tenant.as_name())]),
            Ok(_) => Self::default(),
        }
    }

    /// Whether a thing of that name is in it, of whatever kind it is.
    #[must_use]
    pub fn covers(&self, name: &str) -> bool {
        self.is_all() || self.0.iter().any(|pattern| pattern.covers(name))
    }

    /// What names may begin with that it covers, where that is said.
    #[must_use]
    pub fn beginning(&self) -> Option<&str> {
        self.0.iter().find_map(|pattern| match pattern {
            ModelPattern::Prefix(start) => Some(start.as_str()),
            ModelPattern::Name(_) => None,
        })
    }

    /// Whether every model is in it.
    #[must_use]
    pub fn is_all(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `model` is in it.
    #[must_use]
    pub fn contains(&self, model: &ModelName) -> bool {
        self.is_all() || self.0.iter().any(|pattern| pattern.matches(model))
    }

    /// The patterns; empty means all models.
    #[must_use]
    pub fn patterns(&self) -> &[ModelPattern] {
        &self.0
    }

    /// Those of `all` that are in it, without looking at the others.
    #[must_use]
    pub fn select<T: Clone>(&self, all: &BTreeMap<ModelName, T>) -> BTreeMap<ModelName, T> {
        self.select_by(all, ModelName::as_str)
    }

    /// As [`ModelScope::select`], of things whose names have the form of models'.
    #[must_use]
    pub fn select_by<K, T>(&self, all: &BTreeMap<K, T>, text: fn(&K) -> &str) -> BTreeMap<K, T>
    where
        K: Clone + Ord + FromStr,
        T: Clone,
    {
        if self.is_all() {
            return all.clone();
        }
        let mut selected = BTreeMap::new();
        for pattern in &self.0 {
            let (ModelPattern::Name(start) | ModelPattern::Prefix(start)) = pattern;
            let start = start.as_str();
            // `Qwen/` is the beginning of names, and none itself.
            let Ok(named) = start.trim_end_matches('/').parse::<K>() else {
                continue;
            };
            let from = all.range(named..);
            let from = from.skip_while(|(name, _)| text(name) < start);
            let inside = from.take_while(|(name, _)| pattern.covers(text(name)));
            selected.extend(inside.map(|(name, it)| (name.clone(), it.clone())));
        }
        selected
    }
}

/// The SHA-256 of a key. Its `Debug` form shows nothing of it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KeyHash(pub [u8; 32]);

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyHash(..)")
    }
}

/// How much the bearers of a key may use. `None` is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Quota {
    /// Predictions that may begin in a minute.
    pub requests_per_minute: Option<u32>,
    /// Tokens read and written in a minute.
    pub tokens_per_minute: Option<u32>,
    /// Predictions that may run at a time.
    pub max_streams: Option<u32>,
}

/// An API key as the registry holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiKey {
    /// Its id, which stands inside the key too.
    pub id: KeyId,
    /// A name for people.
    pub name: String,
    /// The hash of the whole key.
    pub hash: KeyHash,
    /// The hash before the last rotation, and until when it is still taken, in milliseconds
    /// since 1970.
    pub previous: Option<(KeyHash, u64)>,
    /// What its bearer may do.
    pub role: Role,
    /// On which models.
    pub models: ModelScope,
    /// On whose behalf.
    pub tenant: TenantId,
    /// When it was made, in milliseconds since 1970.
    pub created_ms: u64,
    /// When it ends, in milliseconds since 1970.
    pub expires_ms: Option<u64>,
    /// How much it may use.
    pub quota: Quota,
}

/// A node of the cluster, as its certificate names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NodeIdentity {
    /// The coordinator of that id.
    Coordinator(NodeId),
    /// The worker of that id.
    Worker(WorkerId),
}

impl NodeIdentity {
    const COORDINATOR: &str = "volley://coordinator/";
    const WORKER: &str = "volley://worker/";

    /// The identity that a certificate's URI name stands for: `volley://coordinator/1` or
    /// `volley://worker/w1`.
    #[must_use]
    pub fn from_uri(uri: &str) -> Option<Self> {
        if let Some(id) = uri.strip_prefix(Self::COORDINATOR) {
            return Some(Self::Coordinator(NodeId(id.parse().ok()?)));
        }
        let id = uri.strip_prefix(Self::WORKER)?;
        Some(Self::Worker(WorkerId::new(id).ok()?))
    }

    /// Whether it is a coordinator.
    #[must_use]
    pub fn is_coordinator(&self) -> bool {
        matches!(self, Self::Coordinator(_))
    }
}

impl fmt::Display for NodeIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Coordinator(id) => write!(f, "{}{id}", Self::COORDINATOR),
            Self::Worker(id) => write!(f, "{}{id}", Self::WORKER),
        }
    }
}

#[cfg(test)]
mod tests;
