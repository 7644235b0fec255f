//! What there is to call, as every list of models has it; and which of them is meant where a
//! client of a server with one model names none.

use serde::Deserialize;
use volley_types::registry::{ModelEntry, ModelSource, ModelState, RegistryState, ReplicaState};
use volley_types::{ErrorCode, ModelName, ModelRef, PredictError, Signature, Task};

use volley_http_edge::edge::Caller;

/// The most names in an error.
const NAMED: usize = 8;

/// One name that can be called, or could be if it were deployed.
#[derive(Clone, Debug)]
pub struct CatalogueEntry {
    /// The name that requests use.
    pub name: ModelName,
    /// In milliseconds since 1970.
    pub created_ms: u64,
    /// What it takes and gives, where something that answers to the name is loaded.
    pub signature: Option<Signature>,
    /// The state of the deployment.
    pub state: ModelState,
}

impl CatalogueEntry {
    /// The task of what is loaded; `None` where nothing is.
    pub fn task(&self) -> Option<Task> {
        self.signature.as_ref().map(|it| it.task)
    }

    /// How many tokens it takes, where that is known.
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

/// One of them, deployed or not; `None` where nothing has this name.
pub async fn find(caller: &Caller, name: &ModelName) -> Option<CatalogueEntry> {
    let registry = caller.cluster.registry.state();
    if let Some(entry) = registry.models.get(name) {
        return listed(caller, name.clone(), newest_ms(entry), true).await;
    }
    let others = named(caller, &registry);
    let (name, ms) = others.into_iter().find(|(other, _)| other == name)?;
    listed(caller, name, ms, false).await
}

/// The only one that is ready and does one of these; `what` says so in words.
///
/// # Errors
/// `NotFound` where there is none; `InvalidInput`, with their names, where there are several.
pub async fn only(
    caller: &Caller,
    tasks: &[Task],
    what: &str,
) -> Result<(ModelRef, Signature), PredictError> {
    let registry = caller.cluster.registry.state();
    let mut found = Vec::new();
    for name in registry.models.keys() {
        // Signatures of what sleeps are not asked for: that would wake it.
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

/// Whether a model runs in this cluster, and not at somebody else's.
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
    // Of an alias or a pipeline the state is all that is known.
    let ready = match is_model {
        true => status
            .replicas
            .iter()
            .any(|it| it.state == ReplicaState::Ready),
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
        state: status.state,
    })
}

/// Aliases and pipelines as entries of lists of models: those that answer.
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

/// When the newest of these models was registered; 0 where there is none.
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
    /// What is not ready, or does something else, too.
    #[serde(default)]
    pub all: bool,
    /// Of a page in Anthropic's form.
    pub limit: Option<usize>,
    /// The model before which a page ends.
    pub before_id: Option<String>,
    /// The model after which a page begins.
    pub after_id: Option<String>,
}

/// What a reference names, where it is deployed.
pub async fn deployed(caller: &Caller, reference: &ModelRef) -> Option<CatalogueEntry> {
    let registry = caller.cluster.registry.state();
    if let Some(entry) = registry.models.get(&reference.name) {
        let deployed = entry.deployment.as_ref()?;
        let meant = reference.version.unwrap_or(deployed.version);
        entry.versions.get(&meant)?;
    }
    find(caller, &reference.name).await
}

/// The answer to a name that has no model.
pub fn unknown(name: &str) -> PredictError {
    let name: String = name.chars().filter(|c| !c.is_control()).take(200).collect();
    PredictError::new(
        ErrorCode::NotFound,
        format!("no model '{name}' is deployed"),
    )
}
