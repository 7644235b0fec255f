//! Limits of registered objects. Each limit is far above normal definitions, and bounds log
//! entries, snapshots and memory.

pub use volley_types::registry::MAX_REPLICAS;
use volley_types::registry::size::{credential_bytes, parameter_bytes, path_bytes};
use volley_types::registry::{
    AliasSpec, ConnectorSpec, ModelVersionSpec, PipelineSpec, RegistryState,
};
use volley_types::{ErrorCode, PredictError};

/// Maximum number of models in a registry.
pub const MAX_MODELS: usize = 10_000;
/// Maximum number of versions of one model.
pub const MAX_VERSIONS: usize = 1_000;
/// Maximum number of connectors in a registry.
pub const MAX_CONNECTORS: usize = 10_000;
/// Maximum number of model groups in a registry.
pub const MAX_GROUPS: usize = 10_000;
/// Maximum number of cluster settings.
pub const MAX_SETTINGS: usize = 256;
/// Maximum number of tasks of one model that users have deleted.
pub const MAX_DELETED_TASKS: usize = 1_000;
/// Maximum number of aliases in a registry.
pub const MAX_ALIASES: usize = 10_000;
/// Maximum number of pipelines in a registry.
pub const MAX_PIPELINES: usize = 10_000;
/// Maximum size of all texts of a pipeline together, in bytes.
pub const MAX_PIPELINE_BYTES: usize = 256 << 10;
/// Maximum number of secrets in a registry.
pub const MAX_SECRETS: usize = 10_000;
/// Maximum number of drained nodes.
pub const MAX_DRAINS: usize = 10_000;
/// Maximum number of tasks; a further one replaces the task that expires first.
pub const MAX_TASKS: usize = 1_000;
/// Maximum number of API keys in a registry.
pub const MAX_KEYS: usize = 10_000;
/// Maximum number of model names and prefixes of one API key.
pub const MAX_KEY_MODELS: usize = 256;
/// Maximum number of labels in a deployment.
pub const MAX_LABELS: usize = 16;
/// Maximum length of a URL, a path, a model name at an upstream, or a header, in bytes.
pub const MAX_TEXT: usize = 2 << 10;
/// Maximum length of a description in bytes.
pub const MAX_DESCRIPTION: usize = 4 << 10;
/// Maximum length of a request body template in bytes.
pub const MAX_TEMPLATE: usize = 64 << 10;
/// Maximum number of headers of a connector.
pub const MAX_HEADERS: usize = 64;
/// Maximum size of all default parameters of a model version or a connector together, in bytes.
pub const MAX_PARAMETERS: usize = 64 << 10;
/// Maximum size of the registry in bytes: of everything but deployments, placements and drained
/// nodes.
pub const MAX_REGISTRY_BYTES: usize = 256 << 20;

pub(super) fn within(what: &str, size: usize, limit: usize) -> Result<(), PredictError> {
    if size <= limit {
        return Ok(());
    }
    // All other limits are sizes.
    let unit = match what.starts_with("the number of") {
        true => "",
        false => " bytes",
    };
    Err(PredictError::new(
        ErrorCode::TooLarge,
        format!("{what} is {size}, over the limit of {limit}{unit}"),
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

/// Rejects an object of `after` bytes that does not fit into the registry. It replaces one of
/// `before` bytes; 0 means that it is new. A replacement that does not grow always fits.
pub(super) fn registry_fits(
    state: &mut RegistryState,
    before: usize,
    after: usize,
) -> Result<(), PredictError> {
    if 0 < before && after <= before {
        return Ok(());
    }
    let size = state.size().saturating_add(after).saturating_sub(before);
    within("the size of the registry", size, MAX_REGISTRY_BYTES)
}

pub(super) fn alias_fits(spec: &AliasSpec) -> Result<(), PredictError> {
    let description = spec.description.len();
    within("the alias's description", description, MAX_DESCRIPTION)
}

pub(super) fn pipeline_fits(spec: &PipelineSpec) -> Result<(), PredictError> {
    let description = spec.description.len();
    within("the pipeline's description", description, MAX_DESCRIPTION)?;
    let size = spec.bytes();
    within("the size of the pipeline", size, MAX_PIPELINE_BYTES)
}
