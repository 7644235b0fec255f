//! Permissions: roles, model scopes and the API keys of the registry. The registry stores the hash
//! of a key, never the key.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use crate::error::PredictError;
use crate::ids::{KeyId, ModelName, NodeId, TenantId, WorkerId};

/// Role of a caller. Each role includes the permissions of the roles listed before it.
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

    /// The stable name, as in configuration and the API.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Predict => "predict",
            Self::ModelAdmin => "model-admin",
            Self::ClusterAdmin => "cluster-admin",
        }
    }

    /// Parses a stable name; `None` if it is unknown.
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

/// A model's name, or a prefix such as `team-a.*`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ModelPattern {
    /// This model.
    Name(ModelName),
    /// Every model whose name starts with this prefix.
    Prefix(ModelName),
}

impl ModelPattern {
    /// Whether the pattern matches `model`.
    #[must_use]
    pub fn matches(&self, model: &ModelName) -> bool {
        self.covers(model.as_str())
    }

    /// Whether the pattern matches an object of any kind with this name.
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

/// The models that a caller may see and call. The same patterns select its connectors, secrets,
/// groups, aliases and pipelines.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ModelScope(Vec<ModelPattern>);

/// The pattern for all models.
pub const ALL_MODELS: &str = "*";

impl ModelScope {
    /// A scope of these patterns. An empty list selects all models.
    #[must_use]
    pub fn new(patterns: Vec<ModelPattern>) -> Self {
        Self(patterns)
    }

    /// Parses patterns: names, prefixes such as `team-a.*`, or [`ALL_MODELS`].
    ///
    /// # Errors
    /// `InvalidInput` when a text is none of these.
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

    /// Default scope of a tenant: every name that starts with the tenant's name and a dot. The
    /// default tenant's scope is all models.
    #[must_use]
    pub fn of_tenant(tenant: &TenantId) -> Self {
        let own = ModelName::new(format!("{tenant}."));
        match own {
            Ok(own) if *tenant != TenantId::default() => Self(vec![ModelPattern::Prefix(own)]),
            // A tenant's name of the maximum length has no room for the dot: its scope is that name
            // only.
            Err(_) => Self(vec![ModelPattern::Name(tenant.as_name())]),
            Ok(_) => Self::default(),
        }
    }

    /// Whether the scope includes an object of any kind with this name.
    #[must_use]
    pub fn covers(&self, name: &str) -> bool {
        self.is_all() || self.0.iter().any(|pattern| pattern.covers(name))
    }

    /// The name prefix of the scope's first prefix pattern, if it has one.
    #[must_use]
    pub fn beginning(&self) -> Option<&str> {
        self.0.iter().find_map(|pattern| match pattern {
            ModelPattern::Prefix(start) => Some(start.as_str()),
            ModelPattern::Name(_) => None,
        })
    }

    /// Whether the scope includes every model.
    #[must_use]
    pub fn is_all(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the scope includes `model`.
    #[must_use]
    pub fn contains(&self, model: &ModelName) -> bool {
        self.is_all() || self.0.iter().any(|pattern| pattern.matches(model))
    }

    /// The patterns; empty means all models.
    #[must_use]
    pub fn patterns(&self) -> &[ModelPattern] {
        &self.0
    }

    /// The entries of `all` in the scope. The method uses range lookups and skips all other
    /// entries.
    #[must_use]
    pub fn select<T: Clone>(&self, all: &BTreeMap<ModelName, T>) -> BTreeMap<ModelName, T> {
        self.select_by(all, ModelName::as_str)
    }

    /// As [`ModelScope::select`], for objects whose names have the form of model names.
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
            // `Qwen/` is a prefix, not a valid name.
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

/// The SHA-256 of an API key. `Debug` prints none of its bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KeyHash(pub [u8; 32]);

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyHash(..)")
    }
}

/// Quota of a key, shared by all its users. `None` means no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Quota {
    /// Predictions that may start per minute.
    pub requests_per_minute: Option<u32>,
    /// Prompt and completion tokens per minute.
    pub tokens_per_minute: Option<u32>,
    /// Predictions that may run concurrently.
    pub max_streams: Option<u32>,
}

/// An API key as the registry stores it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiKey {
    /// The id, which is also part of the key.
    pub id: KeyId,
    /// Display name.
    pub name: String,
    /// SHA-256 of the complete key.
    pub hash: KeyHash,
    /// The hash before the last rotation, and the end of its validity in milliseconds since 1970.
    pub previous: Option<(KeyHash, u64)>,
    /// Role of the caller that presents the key.
    pub role: Role,
    /// The models that the key has access to.
    pub models: ModelScope,
    /// Tenant of the key.
    pub tenant: TenantId,
    /// Creation time in milliseconds since 1970.
    pub created_ms: u64,
    /// Expiry time in milliseconds since 1970; `None` for a key that does not expire.
    pub expires_ms: Option<u64>,
    /// Quota of the key.
    pub quota: Quota,
}

/// Identity of a node, as in its certificate.
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

    /// Parses the URI name of a certificate: `volley://coordinator/1` or `volley://worker/w1`.
    #[must_use]
    pub fn from_uri(uri: &str) -> Option<Self> {
        if let Some(id) = uri.strip_prefix(Self::COORDINATOR) {
            return Some(Self::Coordinator(NodeId(id.parse().ok()?)));
        }
        let id = uri.strip_prefix(Self::WORKER)?;
        Some(Self::Worker(WorkerId::new(id).ok()?))
    }

    /// Whether the node is a coordinator.
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
