//! Models: register, get and search; the other operations are in [`lifecycle`]. A model's id is its
//! unique name. Registering an existing name creates its next version.

mod lifecycle;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use volley_http_edge::axum::Json;
use volley_types::control::ModelStatus;
use volley_types::registry::{
    BackendInfo, BackendList, ModelEntry, ModelSource, ModelUrl, ModelUrlKind, ModelVersionSpec,
    RegistryCommand, RegistryState, ReplicaState, SourceKind,
};
use volley_types::{
    ConnectorId, ErrorCode, ModelName, ModelRef, ModelVersion, PredictError, WorkerId,
};

pub(crate) use self::lifecycle::{delete, deploy, undeploy, undeploy_many, update};
use crate::search::{Search, SearchQuery};
use crate::state::OpenSearchCaller;
use crate::{connectors, defaults, deployment, model_config, settings, tasks};
use volley_dialect_kit::clock::now_ms;
use volley_dialect_kit::parameters;
use volley_dialect_kit::rollout::failure;
use volley_http_edge::body::{Fields, JsonObject};
use volley_http_edge::error::ApiError;
use volley_http_edge::extract::{Path, Query};

/// Default `function_name` of a registration with a connector.
const REMOTE: &str = "remote";
const ONNX: &str = "onnx";

/// Name of the index that contains models in OpenSearch.
const INDEX: &str = ".plugins-ml-model";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RegisterQuery {
    #[serde(default)]
    deploy: bool,
}

pub(crate) async fn register(
    caller: OpenSearchCaller,
    Query(query): Query<RegisterQuery>,
    JsonObject(body): JsonObject,
) -> Result<Json<Value>, ApiError> {
    let model = ModelName::new(body.required("name")?)?;
    let mut spec = spec(&body, &caller.backends)?;
    let registry = caller.cluster.registry.state();
    let group = lifecycle::group(&registry, &body)?;
    lifecycle::allowed(&registry, &spec)?;
    origin_allowed(&registry, &spec.source)?;
    let mut deploy = lifecycle::first_deployment(&registry, &model, &body)?;
    if let Some(connector) = body.object("connector")? {
        let given = connectors::sealing::read(&caller, &registry, connector)?;
        settings::trust_connector(&registry, &given.spec)?;
        spec.source = ModelSource::Connector(given.spec.id.clone());
        connectors::sealing::write(&caller, given).await?;
    }
    let registered = caller
        .cluster
        .registry
        .write(RegistryCommand::RegisterModel(model.clone(), spec))
        .await?;
    let version = registered.version.unwrap_or_default();
    if group.is_some() {
        let update = RegistryCommand::UpdateModel {
            model: model.clone(),
            description: None,
            group: Some(group),
        };
        caller.cluster.registry.write(update).await?;
    }
    if query.deploy {
        if let RegistryCommand::Deploy { version: named, .. } = &mut deploy {
            *named = Some(version);
        }
        caller.cluster.registry.write(deploy).await?;
    }
    Ok(Json(json!({
        "task_id": tasks::register_id(&model, version),
        "status": "CREATED",
        "model_id": model.as_str(),
        "model_version": version.0.to_string(),
    })))
}

/// Checks that the settings allow models from this source.
fn origin_allowed(registry: &RegistryState, source: &ModelSource) -> Result<(), PredictError> {
    match source {
        ModelSource::Url { .. } => settings::demand(
            registry,
            settings::VIA_URL,
            "Registering a model by its URL",
        ),
        ModelSource::Path(_) => {
            let what = "Registering a model by its path";
            settings::demand(registry, settings::VIA_LOCAL_FILE, what)
        }
        ModelSource::None | ModelSource::Connector(_) => Ok(()),
    }
}

fn replicas(body: &Map<String, Value>) -> Result<u32, PredictError> {
    let replicas = body.count("replicas")?.unwrap_or(1);
    u32::try_from(replicas).map_err(|_| PredictError::invalid("field 'replicas' is too large"))
}

fn overcommit(body: &Map<String, Value>) -> Result<bool, PredictError> {
    match body.get("overcommit") {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(overcommit)) => Ok(*overcommit),
        Some(_) => Err(PredictError::invalid(
            "field 'overcommit' must be true or false",
        )),
    }
}

/// Fields of a registration. `version` is accepted for OpenSearch's clients and ignored, because
/// versions are numbered here.
const FIELDS: [&str; 15] = [
    "name",
    "function_name",
    "description",
    "connector_id",
    "connector",
    "path",
    "url",
    "model_content_hash_value",
    "parameters",
    "replicas",
    "overcommit",
    "model_format",
    "version",
    "model_group_id",
    "model_config",
];

/// The definition of a version, from `function_name` and the related fields.
fn spec(
    body: &Map<String, Value>,
    backends: &BackendList,
) -> Result<ModelVersionSpec, PredictError> {
    body.only("a model", &FIELDS)?;
    let function = body
        .text("function_name")?
        .unwrap_or("")
        .to_ascii_lowercase();
    let connector = body.text("connector_id")?;
    let has_source = body.contains_key("path") || body.contains_key("url");
    let onnx = body
        .text("model_format")?
        .is_some_and(|format| format.eq_ignore_ascii_case("onnx"));
    let name = match function.as_str() {
        "" if connector.is_some() || body.contains_key("connector") => REMOTE,
        "" | "text_embedding" | "text_similarity" | "text_generation" | "sparse_encoding"
            if has_source || onnx =>
        {
            ONNX
        }
        "" => {
            return Err(PredictError::invalid(
                "field 'function_name' is missing: 'remote' (with 'connector_id'), 'onnx' (with \
                 'path' or 'url'), or another backend",
            ));
        }
        named => named,
    };
    let backend = backends.find(name).map_err(|error| {
        PredictError::invalid(format!("field 'function_name': {}", error.message))
    })?;
    source_fields_fit(body, backend)?;
    let source = match backend.source {
        SourceKind::None => ModelSource::None,
        SourceKind::Connector => match connector {
            Some(id) => ModelSource::Connector(ConnectorId::new(id)?),
            None if body.contains_key("connector") => ModelSource::None,
            None => return Err(PredictError::invalid("field 'connector_id' is missing")),
        },
        SourceKind::Files => local_source(body)?,
    };
    let empty = Map::new();
    let parameters = body.object("parameters")?.unwrap_or(&empty);
    let mut parameters = parameters::from_json(parameters)?;
    defaults::check(backend, &parameters)?;
    if backend.takes_model_config {
        model_config::add(&mut parameters, &function, body)?;
    }
    Ok(ModelVersionSpec {
        version: ModelVersion::default(),
        backend: backend.name,
        source,
        parameters,
        description: body.text("description")?.unwrap_or_default().to_owned(),
        created_ms: now_ms(),
    })
}

/// Rejects fields with a source that the backend does not support.
fn source_fields_fit(body: &Map<String, Value>, backend: &BackendInfo) -> Result<(), PredictError> {
    const FILES: [&str; 3] = ["path", "url", "model_content_hash_value"];
    const CONNECTOR: [&str; 2] = ["connector_id", "connector"];
    let (unused, takes): (&[&[&str]], _) = match backend.source {
        SourceKind::None => (&[&FILES, &CONNECTOR], "needs no source"),
        SourceKind::Files => (&[&CONNECTOR], "needs 'path' or 'url'"),
        SourceKind::Connector => (&[&FILES], "needs 'connector_id' or 'connector'"),
    };
    let given = |name: &&&str| body.get(**name).is_some_and(|value| !value.is_null());
    match unused.iter().copied().flatten().find(given) {
        Some(name) => Err(PredictError::invalid(format!(
            "field '{name}' does not fit the backend '{}', which {takes}",
            backend.name
        ))),
        None => Ok(()),
    }
}

/// The source of a local model: a directory on the workers, or a URL that they fetch.
fn local_source(body: &Map<String, Value>) -> Result<ModelSource, PredictError> {
    let hash = body.text("model_content_hash_value")?;
    match (body.text("path")?, body.text("url")?) {
        (Some(_), Some(_)) => Err(PredictError::invalid("give 'path' or 'url', not both")),
        (Some(_), None) if hash.is_some() => Err(PredictError::invalid(
            "'model_content_hash_value' needs 'url': files at 'path' are not fetched",
        )),
        (Some(path), None) => Ok(ModelSource::Path(directory(path)?)),
        (None, Some(url)) => url_source(url, hash),
        (None, None) => Err(PredictError::invalid(
            "field 'path' is missing (the model's directory on the workers), or 'url'",
        )),
    }
}

/// The source of a URL. A `file://` URL of a directory without a hash is used in place.
fn url_source(url: &str, hash: Option<&str>) -> Result<ModelSource, PredictError> {
    let is_archive = || ModelUrl::parse(url).is_ok_and(|url| url.kind() != ModelUrlKind::Directory);
    if url.starts_with("file://") && hash.is_none() && !is_archive() {
        return Ok(ModelSource::Path(directory(url)?));
    }
    Ok(ModelSource::Url {
        url: ModelUrl::parse(url)?,
        sha256: hash.map(str::parse).transpose()?,
    })
}

fn directory(path: &str) -> Result<String, PredictError> {
    let path = path.strip_prefix("file://").unwrap_or(path);
    if path.contains("://") {
        return Err(PredictError::invalid(
            "field 'path' must be a directory on the workers; use 'url' for files that the \
             workers fetch",
        ));
    }
    Ok(path.to_owned())
}

fn unknown(model: &ModelName) -> PredictError {
    PredictError::new(
        ErrorCode::NotFound,
        format!("Failed to find model '{model}'"),
    )
}

pub(crate) async fn get(
    caller: OpenSearchCaller,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let model: ModelRef = id.parse()?;
    let registry = caller.cluster.registry.state();
    let entry = registry
        .models
        .get(&model.name)
        .ok_or_else(|| unknown(&model.name))?;
    let status = caller
        .cluster
        .view
        .model_status(&model.name)
        .ok_or_else(|| unknown(&model.name))?;
    if let Some(version) = model.version
        && !entry.versions.contains_key(&version)
    {
        return Err(unknown(&model.name).into());
    }
    Ok(Json(render(entry, &status, model.version)))
}

pub(crate) async fn search(
    caller: OpenSearchCaller,
    Query(query): Query<SearchQuery>,
    JsonObject(body): JsonObject,
) -> Result<Json<Value>, ApiError> {
    let search = Search::read(&body, &query)?;
    let registry = caller.cluster.registry.state();
    let ids = registry.models.keys().map(ToString::to_string);
    let show = |id: &str| {
        let entry = registry.models.get(&ModelName::new(id).ok()?)?;
        let status = caller.cluster.view.model_status(&entry.name)?;
        Some(render(entry, &status, None))
    };
    Ok(Json(search.run(INDEX, ids, show)))
}

/// Formats a model, with the requested version, else the deployed one, else the newest.
fn render(entry: &ModelEntry, status: &ModelStatus, version: Option<ModelVersion>) -> Value {
    let newest = || entry.versions.keys().next_back().copied();
    let version = version
        .or(status.version)
        .or_else(newest)
        .unwrap_or_default();
    let spec = entry.versions.get(&version);
    let ids = |workers: &[WorkerId]| workers.iter().map(|id| id.to_string()).collect::<Vec<_>>();
    let ready = status
        .replicas
        .iter()
        .filter(|replica| replica.state == ReplicaState::Ready);
    let ready: Vec<_> = ready.map(|replica| replica.worker.clone()).collect();
    let failures: Map<String, Value> = status
        .replicas
        .iter()
        .filter_map(|replica| Some((replica.worker.to_string(), replica.failure()?.into())))
        .collect();
    let (mut path, mut url, mut hash, mut connector) = (None, None, None, None);
    match spec.map(|spec| &spec.source) {
        Some(ModelSource::Path(source)) => path = Some(source.clone()),
        Some(ModelSource::Url {
            url: source,
            sha256,
        }) => {
            url = Some(source.to_string());
            hash = sha256.map(|hash| hash.to_string());
        }
        Some(ModelSource::Connector(id)) => connector = Some(id.to_string()),
        Some(ModelSource::None) | None => {}
    }
    let mut parameters = spec.map(|spec| parameters::to_json(&spec.parameters));
    let fields = parameters.as_mut().and_then(Value::as_object_mut);
    let config = fields.and_then(|fields| fields.remove(model_config::NAME));
    json!({
        "name": entry.name.as_str(),
        "model_id": entry.name.as_str(),
        "model_group_id": entry.group.as_ref().map(|group| group.as_str()),
        "model_version": version.0.to_string(),
        "algorithm": spec.map(|spec| spec.backend.as_str().to_ascii_uppercase()),
        "description": spec.map(|spec| spec.description.as_str()),
        "parameters": parameters,
        "model_config": config,
        "path": path,
        "url": url,
        "model_content_hash_value": hash,
        "connector_id": connector,
        "model_state": status.state.as_str(),
        "created_time": spec.map(|spec| spec.created_ms),
        "versions": entry.versions.keys().map(|version| version.0).collect::<Vec<_>>(),
        "deployed_version": status.version.map(|version| version.0),
        "desired_replicas": status.desired_replicas,
        "overcommit": entry.deployment.as_ref().is_some_and(|deployment| deployment.overcommit),
        "deploy_to_all_nodes": entry.deployment.as_ref().is_none_or(|it| it.workers.is_empty()),
        "deployment": deployment::shown(entry.deployment.as_ref()),
        "planning_worker_node_count": entry.placement.len(),
        "planning_worker_nodes": ids(&entry.placement),
        "current_worker_node_count": ready.len(),
        "current_worker_nodes": ids(&ready),
        "failures": failures,
        "failure": failure(entry, status),
        "unplaced": status.unplaced.as_ref().map(|unplaced| {
            json!({ "reason": unplaced.reason, "permanent": unplaced.permanent })
        }),
    })
}
