//! What there is to call, as every list of models has it; and which of them is meant where a
//! client of a server with one model names none.

use volley_types::registry::{BackendKind, ModelEntry, ModelState, ReplicaState};
use volley_types::{ErrorCode, ModelName, ModelRef, PredictError, Signature, Task};

use crate::aliases;
use crate::app::App;

/// The most names in an error.
const NAMED: usize = 8;

/// One name that can be called, or could be if it were deployed.
#[derive(Clone, Debug)]
pub(crate) struct Listed {
    pub(crate) name: ModelName,
    /// In milliseconds since 1970.
    pub(crate) created_ms: u64,
    /// What it takes and gives, where something that answers to the name is loaded.
    pub(crate) signature: Option<Signature>,
    pub(crate) state: ModelState,
}

impl Listed {
    pub(crate) fn task(&self) -> Option<Task> {
        self.signature.as_ref().map(|it| it.task)
    }

    /// How many tokens it takes, where that is known.
    pub(crate) fn context(&self) -> Option<usize> {
        self.signature.as_ref().and_then(Signature::context)
    }

    /// Whether it is ready, and can chat, complete or embed.
    pub(crate) fn is_usual(&self) -> bool {
        matches!(self.task(), Some(Task::Generate | Task::Embed))
    }
}

/// All names, in their order.
pub(crate) async fn all(app: &App) -> Vec<Listed> {
    let registry = app.control.registry();
    let models = registry.models.values().map(|entry| {
        let created_ms = newest_ms(entry);
        (entry.name.clone(), created_ms, true)
    });
    let others = aliases::listed(app, &registry);
    let others = others.into_iter().map(|(name, ms)| (name, ms, false));
    let mut listed = Vec::new();
    for (name, created_ms, is_model) in models.chain(others) {
        listed.extend(self::listed(app, name, created_ms, is_model).await);
    }
    listed.sort_by(|a, b| a.name.cmp(&b.name));
    listed
}

/// One of them, deployed or not; `None` where nothing has this name.
pub(crate) async fn find(app: &App, name: &ModelName) -> Option<Listed> {
    let registry = app.control.registry();
    if let Some(entry) = registry.models.get(name) {
        return listed(app, name.clone(), newest_ms(entry), true).await;
    }
    let others = aliases::listed(app, &registry);
    let (name, ms) = others.into_iter().find(|(other, _)| other == name)?;
    listed(app, name, ms, false).await
}

/// The only one that is ready and does one of these; `what` says so in words.
///
/// # Errors
/// `NotFound` where there is none; `InvalidInput`, with their names, where there are several.
pub(crate) async fn only(
    app: &App,
    tasks: &[Task],
    what: &str,
) -> Result<(ModelRef, Signature), PredictError> {
    let registry = app.control.registry();
    let mut found = Vec::new();
    for name in registry.models.keys() {
        // Signatures of what sleeps are not asked for: that would wake it.
        let Some(listed) = listed(app, name.clone(), 0, true).await else {
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
        let message = format!("no model that is ready can {what}; deploy one");
        PredictError::new(ErrorCode::NotFound, message)
    })?;
    Ok((ModelRef::deployed(name), signature))
}

/// Whether a model runs in this cluster, and not at somebody else's.
pub(crate) fn runs_here(app: &App, model: &ModelRef) -> bool {
    let registry = app.control.registry();
    let Some(entry) = registry.models.get(&model.name) else {
        return false;
    };
    let deployed = entry.deployment.as_ref().map(|deployed| deployed.version);
    let version = model.version.or(deployed);
    let spec = version.and_then(|version| entry.versions.get(&version));
    spec.is_some_and(|spec| spec.backend == BackendKind::Onnx)
}

fn newest_ms(entry: &ModelEntry) -> u64 {
    let deployed = entry.deployment.as_ref();
    let deployed = deployed.and_then(|deployed| entry.versions.get(&deployed.version));
    let version = deployed.or_else(|| entry.versions.values().next_back());
    version.map_or(0, |version| version.created_ms)
}

async fn listed(app: &App, name: ModelName, created_ms: u64, is_model: bool) -> Option<Listed> {
    let status = app.control.model_status(&name)?;
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
        true => app.control.signature(&reference).await.ok(),
        false => None,
    };
    Some(Listed {
        name,
        created_ms,
        signature,
        state: status.state,
    })
}
