//! The catalogue of callable models for all model lists, and the default model for clients that
//! name none.

use serde::Deserialize;
use volley_types::registry::{
    ModelEntry, ModelSource, ModelState, ProviderName, RegistryState, ReplicaState,
};
use volley_types::{ErrorCode, ModelName, ModelRef, PredictError, Signature, Task};

use volley_http_edge::edge::Caller;

/// Maximum number of names in an error.
const NAMED: usize = 8;

/// A name that can be called, or could be called after its deployment.
#[derive(Clone, Debug)]
pub struct CatalogueEntry {
    /// The name that requests use.
    pub name: ModelName,
    /// Time of registration in milliseconds since 1970.
    pub created_ms: u64,
    /// The signature, if a model of this name is loaded.
    pub signature: Option<Signature>,
    /// The state of what the name calls: after a failed rollout, of the version that answers.
    pub state: ModelState,
}

impl CatalogueEntry {
    /// The task of the loaded model; `None` if none is loaded.
    pub fn task(&self) -> Option<Task> {
        self.signature.as_ref().map(|it| it.task)
    }

    /// Maximum number of tokens, if known.
    pub fn context(&self) -> Option<usize> {
        self.signature.as_ref().and_then(Signature::context)
    }

    /// Whether it is ready, and can chat, complete or embed.
    pub fn is_usual(&self) -> bool {
        matches!(self.task(), Some(Task::Generate | Task::Embed))
    }
}

/// All names, in their order.
pub async fn all(caller: &Caller) -> Vec<CatalogueEntry> {
    let registry = caller.cluster.registry.state();
    let models = registry.models.values().map(|entry| {
        let created_ms = newest_ms(entry);
        (entry.name.clone(), created_ms, true)
    });
    let others = named(caller, &registry);
    let others = others.into_iter().map(|(name, ms)| (name, ms, false));
    let mut listed = Vec::new();
    for (name, created_ms, is_model) in models.chain(others) {
        listed.extend(self::listed(caller, name, created_ms, is_model).await);
    }
    listed.sort_by(|a, b| a.name.cmp(&b.name));
    listed
}

/// The entry of a name, deployed or not; `None` for an unknown name.
pub async fn find(caller: &Caller, name: &ModelName) -> Option<CatalogueEntry> {
    let registry = caller.cluster.registry.state();
    if let Some(entry) = registry.models.get(name) {
        return listed(caller, name.clone(), newest_ms(entry), true).await;
    }
    let others = named(caller, &registry);
    let (name, ms) = others.into_iter().find(|(other, _)| other == name)?;
    listed(caller, name, ms, false).await
}

/// The only ready model with one of these tasks; `what` is the verb for errors.
///
/// # Errors
/// `NotFound` if no model matches; `InvalidInput` with the names if several match.
pub async fn only(
    caller: &Caller,
    tasks: &[Task],
    what: &str,
) -> Result<(ModelRef, Signature), PredictError> {
    let registry = caller.cluster.registry.state();
    let mut found = Vec::new();
    for name in registry.models.keys() {
        // Signatures of models that are scaled to zero are not requested, because that would
        // activate them.
        let Some(listed) = listed(caller, name.clone(), 0, true).await else {
            continue;
        };
        if let Some(signature) = listed.signature.filter(|it| tasks.contains(&it.task)) {
            found.push((name.clone(), signature));
        }
    }
    if 1 < found.len() {
        let names = found
            .iter()
            .take(NAMED)
            .map(|(name, _)| format!("'{name}'"));
        let names: Vec<_> = names.collect();
        let more = if NAMED < found.len() { ", …" } else { "" };
        return Err(PredictError::invalid(format!(
            "several models {what}: {}{more}; name one in the field 'model', as '?model=' in the \
             query, or in the path, as in '/tei/NAME/embed'",
            names.join(", ")
        )));
    }
    let (name, signature) = found.pop().ok_or_else(|| {
        let message = format!("no ready model can {what}; deploy one");
        PredictError::new(ErrorCode::NotFound, message)
    })?;
    Ok((ModelRef::deployed(name), signature))
}

/// Whether a model runs in this cluster and not at a provider.
pub fn runs_here(caller: &Caller, model: &ModelRef) -> bool {
    let registry = caller.cluster.registry.state();
    let Some(entry) = registry.models.get(&model.name) else {
        return false;
    };
    let deployed = entry.deployment.as_ref().map(|deployed| deployed.version);
    let version = model.version.or(deployed);
    let spec = version.and_then(|version| entry.versions.get(&version));
    spec.is_some_and(|spec| matches!(spec.source, ModelSource::Path(_) | ModelSource::Url { .. }))
}

/// Whether all models of a name are known to run at other providers than `provider`.
pub fn runs_at_others(caller: &Caller, model: &ModelRef, provider: &str) -> bool {
    let registry = caller.cluster.registry.state();
    let is_other = |model: &ModelRef| {
        let provider_of = provider_of(&registry, model);
        provider_of.is_some_and(|name| name.as_str() != provider)
    };
    if registry.models.contains_key(&model.name) {
        return is_other(model);
    }
    let alias = registry.aliases.get(&model.name);
    alias.is_some_and(|alias| alias.spec.names().all(is_other))
}

/// The provider of a remote model. All its versions serve the same clients.
fn provider_of(registry: &RegistryState, model: &ModelRef) -> Option<ProviderName> {
    let entry = registry.models.get(&model.name)?;
    let spec = match model.version {
        Some(version) => entry.versions.get(&version),
        None => entry.versions.values().next_back(),
    };
    match &spec?.source {
        ModelSource::Connector(id) => Some(registry.connectors.get(id)?.provider),
        _ => None,
    }
}

fn newest_ms(entry: &ModelEntry) -> u64 {
    let deployed = entry.deployment.as_ref();
    let deployed = deployed.and_then(|deployed| entry.versions.get(&deployed.version));
    let version = deployed.or_else(|| entry.versions.values().next_back());
    version.map_or(0, |version| version.created_ms)
}

async fn listed(
    caller: &Caller,
    name: ModelName,
    created_ms: u64,
    is_model: bool,
) -> Option<CatalogueEntry> {
    let status = caller.cluster.view.model_status(&name)?;
    // For an alias or a pipeline, only the state is known.
    let ready = match is_model {
        true => {
            let mut replicas = status.replicas.iter();
            status.serves_another() || replicas.any(|it| it.state == ReplicaState::Ready)
        }
        false => matches!(
            status.state,
            ModelState::Deployed | ModelState::PartiallyDeployed
        ),
    };
    let reference = ModelRef::deployed(name.clone());
    let signature = match ready {
        true => caller.cluster.inference.signature(&reference).await.ok(),
        false => None,
    };
    Some(CatalogueEntry {
        name,
        created_ms,
        signature,
        state: status.callable_state(),
    })
}

/// Callable aliases and pipelines as catalogue entries.
fn named(caller: &Caller, registry: &RegistryState) -> Vec<(ModelName, u64)> {
    let answers = |alias: &ModelName| {
        let status = caller.cluster.view.model_status(alias);
        status.is_some_and(|status| status.state != ModelState::Undeployed)
    };
    let aliases = registry.aliases.values().map(|entry| {
        let created = created_ms(registry, entry.spec.names());
        (entry.spec.name.clone(), created)
    });
    let pipelines = registry.pipelines.values().map(|entry| {
        let created = created_ms(registry, entry.spec.names());
        (entry.spec.name.clone(), created)
    });
    let names = aliases.chain(pipelines);
    names.filter(|(name, _)| answers(name)).collect()
}

/// Registration time of the newest of these models; 0 without models.
fn created_ms<'a>(registry: &RegistryState, names: impl Iterator<Item = &'a ModelRef>) -> u64 {
    let versions = names.filter_map(|model| {
        let entry = registry.models.get(&model.name)?;
        let newest = entry.versions.last_key_value();
        newest.map(|(_, version)| version.created_ms)
    });
    versions.max().unwrap_or(0)
}

/// ModelsQuery models, and which page of them.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelsQuery {
    /// Includes models that are not ready or have other tasks.
    #[serde(default)]
    pub all: bool,
    /// Page size in Anthropic's format.
    pub limit: Option<usize>,
    /// The model before which a page ends.
    pub before_id: Option<String>,
    /// The model after which a page begins.
    pub after_id: Option<String>,
}

/// The deployed model of a reference.
pub async fn deployed(caller: &Caller, reference: &ModelRef) -> Option<CatalogueEntry> {
    let registry = caller.cluster.registry.state();
    if let Some(entry) = registry.models.get(&reference.name) {
        let deployed = entry.deployment.as_ref()?;
        let meant = reference.version.unwrap_or(deployed.version);
        entry.versions.get(&meant)?;
    }
    find(caller, &reference.name).await
}

/// The error for an unknown model name.
pub fn unknown(name: &str) -> PredictError {
    let name: String = name.chars().filter(|c| !c.is_control()).take(200).collect();
    PredictError::new(
        ErrorCode::NotFound,
        format!("no model '{name}' is deployed"),
    )
}
