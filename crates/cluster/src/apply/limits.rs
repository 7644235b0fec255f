//! How large what is registered may be. Each limit is far above what a definition needs, and
//! keeps log entries, snapshots and memory bounded.

use volley_types::registry::{
    AliasSpec, Branch, ConnectorSpec, CredentialRef, Inputs, ModelSource, ModelVersionSpec,
    PipelineSpec, PipelineStep, RegistryState, StepKind,
};
use volley_types::{ErrorCode, ParamValue, Parameters, PredictError};

/// The most models in a registry.
pub const MAX_MODELS: usize = 10_000;
/// The most versions of one model.
pub const MAX_VERSIONS: usize = 1_000;
/// The most connectors in a registry.
pub const MAX_CONNECTORS: usize = 10_000;
/// The most model groups in a registry.
pub const MAX_GROUPS: usize = 10_000;
/// The most cluster settings.
pub const MAX_SETTINGS: usize = 256;
/// The most tasks of one model that users may have deleted.
pub const MAX_DELETED_TASKS: usize = 1_000;
/// The most aliases in a registry.
pub const MAX_ALIASES: usize = 10_000;
/// The most pipelines in a registry.
pub const MAX_PIPELINES: usize = 10_000;
/// All texts of a pipeline together, in bytes.
pub const MAX_PIPELINE_BYTES: usize = 256 << 10;
/// The most secrets in a registry.
pub const MAX_SECRETS: usize = 10_000;
/// The most nodes that are drained at a time.
pub const MAX_DRAINS: usize = 10_000;
/// The most tasks that are known; the one that would go first makes room for one more.
pub const MAX_TASKS: usize = 1_000;
/// The most API keys in a registry.
pub const MAX_KEYS: usize = 10_000;
/// The most model names and prefixes of one API key.
pub const MAX_KEY_MODELS: usize = 256;
/// The most replicas of one deployment.
pub const MAX_REPLICAS: u32 = 1_000;
/// The most labels that a deployment may ask of its workers.
pub const MAX_LABELS: usize = 16;
/// The longest URL, path, model name at an upstream, or header, in bytes.
pub const MAX_TEXT: usize = 2 << 10;
/// The longest description, in bytes.
pub const MAX_DESCRIPTION: usize = 4 << 10;
/// The longest request body template, in bytes.
pub const MAX_TEMPLATE: usize = 64 << 10;
/// The most headers of a connector.
pub const MAX_HEADERS: usize = 64;
/// All default parameters of a model version or a connector together, in bytes.
pub const MAX_PARAMETERS: usize = 64 << 10;
/// Everything that is registered together, in bytes.
pub const MAX_REGISTRY_BYTES: usize = 256 << 20;

/// What a record takes besides its texts, generously.
const RECORD: usize = 128;

pub(super) fn within(what: &str, size: usize, limit: usize) -> Result<(), PredictError> {
    if size <= limit {
        return Ok(());
    }
    Err(PredictError::new(
        ErrorCode::TooLarge,
        format!("{what} is over the limit of {limit}"),
    ))
}

pub(super) fn connector_fits(spec: &ConnectorSpec) -> Result<(), PredictError> {
    within("the connector's URL", spec.url.len(), MAX_TEXT)?;
    within("the connector's name", spec.name.len(), MAX_TEXT)?;
    within("the connector's model name", spec.model.len(), MAX_TEXT)?;
    let credential = credential_bytes(spec);
    within("the connector's credential", credential, MAX_TEXT)?;
    let headers = spec.headers.len();
    within(
        "the number of the connector's headers",
        headers,
        MAX_HEADERS,
    )?;
    for (name, value) in &spec.headers {
        let header = name.len() + value.len();
        within("one of the connector's headers", header, MAX_TEXT)?;
    }
    let template = spec.request_body.as_ref().map_or(0, String::len);
    within("the connector's request body", template, MAX_TEMPLATE)?;
    let parameters = parameter_bytes(&spec.parameters);
    within("the connector's parameters", parameters, MAX_PARAMETERS)
}

pub(super) fn version_fits(spec: &ModelVersionSpec) -> Result<(), PredictError> {
    let description = spec.description.len();
    within("the model's description", description, MAX_DESCRIPTION)?;
    within("the model's path", path_bytes(spec), MAX_TEXT)?;
    let parameters = parameter_bytes(&spec.parameters);
    within("the model's parameters", parameters, MAX_PARAMETERS)
}

/// Whether `more` bytes still fit.
pub(super) fn registry_fits(state: &RegistryState, more: usize) -> Result<(), PredictError> {
    let versions = state
        .models
        .values()
        .flat_map(|model| model.versions.values());
    let versions: usize = versions.map(version_bytes).sum();
    let connectors: usize = state.connectors.values().map(connector_bytes).sum();
    let aliases = state.aliases.values();
    let aliases: usize = aliases.map(|entry| alias_bytes(&entry.spec)).sum();
    let pipelines = state.pipelines.values();
    let pipelines: usize = pipelines.map(|entry| pipeline_bytes(&entry.spec)).sum();
    let size = versions + connectors + aliases + pipelines + more;
    within("the size of the registry", size, MAX_REGISTRY_BYTES)
}

pub(super) fn alias_fits(spec: &AliasSpec) -> Result<(), PredictError> {
    let description = spec.description.len();
    within("the alias's description", description, MAX_DESCRIPTION)
}

pub(super) fn alias_bytes(spec: &AliasSpec) -> usize {
    RECORD * (1 + spec.names().count()) + spec.description.len()
}

pub(super) fn pipeline_fits(spec: &PipelineSpec) -> Result<(), PredictError> {
    let description = spec.description.len();
    within("the pipeline's description", description, MAX_DESCRIPTION)?;
    let size = pipeline_bytes(spec);
    within("the size of the pipeline", size, MAX_PIPELINE_BYTES)
}

pub(super) fn pipeline_bytes(spec: &PipelineSpec) -> usize {
    let inputs: usize = spec.inputs.keys().map(String::len).sum();
    let steps: usize = spec.steps.iter().map(step_bytes).sum();
    RECORD + spec.description.len() + spec.output.len() + inputs + steps
}

fn step_bytes(step: &PipelineStep) -> usize {
    let columns: usize = step
        .columns()
        .iter()
        .map(|column| column.step.len() + column.column.len())
        .sum();
    let of = |steps: &[String]| steps.iter().map(String::len).sum::<usize>();
    let names = |inputs: &Inputs| inputs.keys().map(String::len).sum::<usize>();
    let texts = match &step.kind {
        StepKind::Model {
            inputs, parameters, ..
        } => names(inputs) + parameter_bytes(parameters),
        StepKind::Template {
            template,
            inputs,
            column,
            ..
        } => template.len() + names(inputs) + column.len(),
        StepKind::Branch(Branch::When { expression, inputs }) => expression.len() + names(inputs),
        StepKind::Compute {
            expression,
            inputs,
            column,
        } => expression.len() + names(inputs) + column.len(),
        StepKind::Select(inputs) => names(inputs),
        StepKind::Merge(steps) | StepKind::Branch(Branch::Otherwise(steps)) => of(steps),
        StepKind::Explode { column, .. } | StepKind::Similarity { column, .. } => column.len(),
        StepKind::TopK { .. } => 0,
    };
    let over = step.over.as_ref().map_or(0, String::len);
    RECORD + step.name.len() + over + columns + texts
}

pub(super) fn version_bytes(spec: &ModelVersionSpec) -> usize {
    RECORD + spec.description.len() + path_bytes(spec) + parameter_bytes(&spec.parameters)
}

pub(super) fn connector_bytes(spec: &ConnectorSpec) -> usize {
    let headers = spec.headers.iter();
    let headers: usize = headers.map(|(name, value)| name.len() + value.len()).sum();
    RECORD
        + spec.url.len()
        + spec.name.len()
        + spec.model.len()
        + credential_bytes(spec)
        + headers
        + spec.request_body.as_ref().map_or(0, String::len)
        + parameter_bytes(&spec.parameters)
}

fn path_bytes(spec: &ModelVersionSpec) -> usize {
    match &spec.source {
        ModelSource::Path(path) => path.len(),
        ModelSource::Url { url, .. } => url.as_str().len() + 32,
        ModelSource::None | ModelSource::Connector(_) => 0,
    }
}

fn credential_bytes(spec: &ConnectorSpec) -> usize {
    match &spec.credential {
        Some(CredentialRef::Env(text) | CredentialRef::File(text)) => text.len(),
        Some(CredentialRef::Secret(name) | CredentialRef::Sealed(name, _)) => name.as_str().len(),
        None => 0,
    }
}

fn parameter_bytes(parameters: &Parameters) -> usize {
    let sizes = parameters.iter().map(|(name, value)| {
        let value = match value {
            ParamValue::Text(text) | ParamValue::Json(text) => text.len(),
            ParamValue::Bool(_) | ParamValue::Int(_) | ParamValue::Float(_) => 8,
        };
        name.len() + value
    });
    sizes.sum()
}
