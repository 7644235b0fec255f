//! Operations on registered models: update, deploy, undeploy, delete.

use serde::Deserialize;
use serde_json::{Map, Value, json};
use volley_http_edge::axum::Json;
use volley_types::control::DeploymentFailure;
use volley_types::registry::{
    Deployment, ModelSource, ModelState, ModelVersionSpec, RegistryCommand, RegistryState,
};
use volley_types::{
    ErrorCode, ModelGroupId, ModelName, ModelRef, ModelVersion, PredictError, WorkerId,
};

use super::{INDEX, unknown};
use crate::state::OpenSearchCaller;
use crate::{deployment, settings, tasks};
use volley_http_edge::body::{Fields, JsonObject};
use volley_http_edge::error::ApiError;
use volley_http_edge::extract::{Path, Query};

/// Maximum number of nodes or models in one request.
const MAX_NAMED: usize = 1_000;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DeployQuery {
    replicas: Option<u32>,
    overcommit: Option<bool>,
}

pub(crate) async fn deploy(
    caller: OpenSearchCaller,
    Path(id): Path<String>,
    Query(query): Query<DeployQuery>,
    JsonObject(body): JsonObject,
) -> Result<Json<Value>, ApiError> {
    let ModelRef { name, version } = id.parse()?;
    body.only("a deployment", &deployment::FIELDS)?;
    let registry = caller.cluster.registry.state();
    let command = deploy_command(&registry, name.clone(), version, &query, &body)?;
    if let RegistryCommand::Deploy { workers, .. } = &command
        && !workers.is_empty()
        && body.contains_key("node_ids")
    {
        settings::demand(&registry, settings::CUSTOM_PLAN, "A custom deployment plan")?;
        known(&caller, &registry, workers)?;
    }
    may_run(&registry, &name, version)?;
    caller.cluster.registry.write(command).await?;
    let registry = caller.cluster.registry.state();
    let deployment = registry
        .models
        .get(&name)
        .and_then(|entry| entry.deployment.clone());
    let task = deployment.map(|deployment| tasks::deploy_id(&name, deployment.revision));
    Ok(Json(
        json!({ "task_id": task, "task_type": "DEPLOY_MODEL", "status": "CREATED" }),
    ))
}

/// The command that deploys a model with the options in the body. Absent options keep their current
/// value.
pub(super) fn deploy_command(
    registry: &RegistryState,
    name: ModelName,
    version: Option<ModelVersion>,
    query: &DeployQuery,
    body: &Map<String, Value>,
) -> Result<RegistryCommand, PredictError> {
    let mut command = registry.deploy_again(&name, version);
    let RegistryCommand::Deploy {
        replicas,
        overcommit,
        workers,
        options,
        ..
    } = &mut command
    else {
        return Ok(command);
    };
    let number = match query.replicas {
        Some(number) => Some(number),
        None if body.contains_key("replicas") => Some(super::replicas(body)?),
        None => None,
    };
    let fixed = match number {
        Some(_) => Map::from_iter([("replicas".to_owned(), Value::Null)]),
        None => Map::new(),
    };
    let fields: Map<String, Value> = body.clone().into_iter().chain(fixed).collect();
    *options = deployment::options(&fields, std::mem::take(options))?;
    if let Some(flag) = query.overcommit {
        *overcommit = flag;
    } else if body.contains_key("overcommit") {
        *overcommit = super::overcommit(body)?;
    }
    match (self::workers(body)?, number) {
        (Some(named), number) => {
            let each = u32::try_from(named.len().max(1)).unwrap_or(u32::MAX);
            *replicas = number.unwrap_or(if named.is_empty() { *replicas } else { each });
            *workers = named;
        }
        (None, Some(number)) => {
            *replicas = number;
            // A worker list that is shorter than the new number of replicas cannot hold them.
            if workers.len() < number as usize {
                workers.clear();
            }
        }
        (None, None) => {}
    }
    Ok(command)
}

/// The command that deploys the version that a registration creates. Its options are checked before
/// the registration is written.
pub(super) fn first_deployment(
    registry: &RegistryState,
    name: &ModelName,
    body: &Map<String, Value>,
) -> Result<RegistryCommand, PredictError> {
    let fields = ["replicas", "overcommit"].into_iter();
    let fields = fields.filter_map(|field| Some((field.to_owned(), body.get(field)?.clone())));
    let query = DeployQuery::default();
    let command = deploy_command(registry, name.clone(), None, &query, &fields.collect())?;
    if let RegistryCommand::Deploy { replicas, .. } = &command {
        Deployment::check_replicas(*replicas)?;
    }
    Ok(command)
}

/// The workers in `node_ids`; `None` if the field is absent.
fn workers(body: &Map<String, Value>) -> Result<Option<Vec<WorkerId>>, PredictError> {
    let Some(ids) = texts(body, "node_ids")? else {
        return Ok(None);
    };
    let ids = ids.into_iter().map(WorkerId::new);
    ids.collect::<Result<_, _>>().map(Some)
}

fn texts<'b>(
    body: &'b Map<String, Value>,
    name: &str,
) -> Result<Option<Vec<&'b str>>, PredictError> {
    let list = match body.get(name) {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Array(list)) if list.len() <= MAX_NAMED => list,
        Some(_) => return Err(no_list(name)),
    };
    let texts = list.iter().map(Value::as_str).collect::<Option<_>>();
    texts.map(Some).ok_or_else(|| no_list(name))
}

fn no_list(name: &str) -> PredictError {
    PredictError::invalid(format!(
        "field '{name}' must be a list of at most {MAX_NAMED} ids"
    ))
}

/// Rejects unknown workers. A deployment would wait forever for a misspelled one.
fn known(
    caller: &OpenSearchCaller,
    registry: &RegistryState,
    workers: &[WorkerId],
) -> Result<(), PredictError> {
    let status = caller.cluster.view.status();
    let heard = |id: &WorkerId| status.workers.iter().any(|worker| worker.id == *id);
    let placed = |id: &WorkerId| registry.models.values().any(|it| it.placement.contains(id));
    match workers.iter().find(|id| !heard(id) && !placed(id)) {
        None => Ok(()),
        Some(id) => Err(PredictError::invalid(format!(
            "field 'node_ids' names '{id}', which is not a worker of this cluster"
        ))),
    }
}

/// Checks that the cluster settings allow this version to run.
fn may_run(
    registry: &RegistryState,
    name: &ModelName,
    version: Option<ModelVersion>,
) -> Result<(), PredictError> {
    let Some(entry) = registry.models.get(name) else {
        return Ok(());
    };
    let newest = entry.versions.keys().next_back().copied();
    let version = version.or(newest).unwrap_or_default();
    let spec = entry.versions.get(&version);
    spec.map_or(Ok(()), |spec| allowed(registry, spec))
}

/// Checks that the cluster settings allow models of this kind and source.
pub(super) fn allowed(
    registry: &RegistryState,
    spec: &ModelVersionSpec,
) -> Result<(), PredictError> {
    let demand = |setting, what| settings::demand(registry, setting, what);
    match &spec.source {
        ModelSource::Connector(id) => {
            demand(settings::REMOTE_ENABLED, "Remote Inference")?;
            match registry.connectors.get(id) {
                Some(connector) => settings::trust_connector(registry, connector),
                None => Ok(()),
            }
        }
        ModelSource::Url { url, .. } => {
            demand(settings::LOCAL_ENABLED, "Local Model")?;
            settings::trust_url(registry, url.as_str())
        }
        ModelSource::Path(_) => demand(settings::LOCAL_ENABLED, "Local Model"),
        ModelSource::None => Ok(()),
    }
}

/// Undeploys a model from all its workers, or from those in the body.
pub(crate) async fn undeploy(
    caller: OpenSearchCaller,
    Path(id): Path<String>,
    JsonObject(body): JsonObject,
) -> Result<Json<Value>, ApiError> {
    body.only("an undeployment", &["node_ids"])?;
    let model = ModelName::new(id)?;
    let mut told = Map::new();
    undeploy_one(&caller, &model, workers(&body)?.as_deref(), &mut told).await?;
    Ok(Json(Value::Object(told)))
}

/// Undeploys several models, or all models if the body names none.
pub(crate) async fn undeploy_many(
    caller: OpenSearchCaller,
    JsonObject(body): JsonObject,
) -> Result<Json<Value>, ApiError> {
    body.only("an undeployment", &["node_ids", "model_ids"])?;
    let workers = workers(&body)?;
    let models = match texts(&body, "model_ids")? {
        Some(names) => names
            .into_iter()
            .map(ModelName::new)
            .collect::<Result<Vec<_>, _>>()?,
        None => {
            let registry = caller.cluster.registry.state();
            let deployed = registry
                .models
                .values()
                .filter(|it| it.deployment.is_some());
            deployed.map(|entry| entry.name.clone()).collect()
        }
    };
    let mut told = Map::new();
    for model in &models {
        undeploy_one(&caller, model, workers.as_deref(), &mut told).await?;
    }
    Ok(Json(Value::Object(told)))
}

async fn undeploy_one(
    caller: &OpenSearchCaller,
    model: &ModelName,
    from: Option<&[WorkerId]>,
    told: &mut Map<String, Value>,
) -> Result<(), PredictError> {
    let registry = caller.cluster.registry.state();
    let entry = registry.models.get(model).ok_or_else(|| unknown(model))?;
    let from = from.filter(|from| !from.is_empty());
    let leaves = |id: &&WorkerId| from.is_none_or(|from| from.contains(id));
    let gone: Vec<_> = entry.placement.iter().filter(leaves).cloned().collect();
    let stay: Vec<_> = entry
        .placement
        .iter()
        .filter(|id| !leaves(id))
        .cloned()
        .collect();
    let command = match (&entry.deployment, stay.is_empty()) {
        // The model stays on the remaining workers and is not placed on others.
        (Some(deployment), false) => RegistryCommand::Deploy {
            model: model.clone(),
            version: Some(deployment.version),
            replicas: u32::try_from(stay.len()).unwrap_or(u32::MAX),
            overcommit: deployment.overcommit,
            workers: stay,
            options: deployment.options.clone(),
        },
        _ => RegistryCommand::Undeploy(model.clone()),
    };
    caller.cluster.registry.write(command).await?;
    for worker in gone {
        let node = told
            .entry(worker.to_string())
            .or_insert_with(|| json!({ "stats": {} }));
        node["stats"][model.as_str()] = "UNDEPLOYED".into();
    }
    Ok(())
}

/// Fields of OpenSearch that are set elsewhere here, with a hint.
const ELSEWHERE: [(&str, &str); 8] = [
    ("name", "a model's name is its id"),
    (
        "connector_id",
        "a version is immutable: register the next one, or change the connector",
    ),
    (
        "connector",
        "a version is immutable: register the next one, or change the connector",
    ),
    (
        "model_config",
        "a version is immutable: register the next one",
    ),
    ("is_enabled", "undeploy the model instead"),
    (
        "rate_limiter",
        "limits are set in the connector's 'client_config' and in the workers' configuration",
    ),
    ("guardrails", "guardrails are not supported"),
    ("interface", "a model's signature defines its inputs"),
];

/// Changes the mutable fields: the description and the group.
pub(crate) async fn update(
    caller: OpenSearchCaller,
    Path(id): Path<String>,
    JsonObject(body): JsonObject,
) -> Result<Json<Value>, ApiError> {
    let model = ModelName::new(id)?;
    if let Some((name, why)) = ELSEWHERE.iter().find(|(name, _)| body.contains_key(*name)) {
        let message = format!("field '{name}' cannot be changed: {why}");
        return Err(PredictError::invalid(message).into());
    }
    body.only("a change of a model", &["description", "model_group_id"])?;
    let group = match body.get("model_group_id") {
        None => None,
        Some(Value::Null) => Some(None),
        Some(_) => Some(
            body.text("model_group_id")?
                .map(ModelGroupId::new)
                .transpose()?,
        ),
    };
    let description = body.text("description")?.map(str::to_owned);
    if group.is_none() && description.is_none() {
        let message = "send 'description' or 'model_group_id': the request changes nothing";
        return Err(PredictError::invalid(message).into());
    }
    let update = RegistryCommand::UpdateModel {
        model: model.clone(),
        description,
        group,
    };
    caller.cluster.registry.write(update).await?;
    Ok(Json(
        json!({ "_index": INDEX, "_id": model.as_str(), "result": "updated" }),
    ))
}

/// Whether a deployment has failed on every worker, so that deleting the model affects no caller.
fn serves_nothing(caller: &OpenSearchCaller, model: &ModelName) -> bool {
    let registry = caller.cluster.registry.state();
    let deployment = registry.models.get(model).map(|entry| &entry.deployment);
    let Some((Some(deployment), status)) = deployment.zip(caller.cluster.view.model_status(model))
    else {
        return false;
    };
    let failure = DeploymentFailure::find(Some(deployment), &status);
    status.state == ModelState::DeployFailed && failure.is_some_and(|it| it.serving.is_none())
}

pub(crate) async fn delete(
    caller: OpenSearchCaller,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let model = ModelName::new(id)?;
    if serves_nothing(&caller, &model) {
        caller
            .cluster
            .registry
            .write(RegistryCommand::Undeploy(model.clone()))
            .await?;
    }
    caller
        .cluster
        .registry
        .write(RegistryCommand::DeleteModel(model.clone()))
        .await?;
    Ok(Json(
        json!({ "_index": INDEX, "_id": model.as_str(), "result": "deleted" }),
    ))
}

/// The group that a registration names, which must exist.
pub(super) fn group(
    registry: &RegistryState,
    body: &Map<String, Value>,
) -> Result<Option<ModelGroupId>, PredictError> {
    let Some(id) = body.text("model_group_id")?.filter(|id| !id.is_empty()) else {
        return Ok(None);
    };
    let id = ModelGroupId::new(id)?;
    if registry.groups.contains_key(&id) {
        return Ok(Some(id));
    }
    let message = format!("Failed to find model group with the provided model group id: {id}");
    Err(PredictError::new(ErrorCode::NotFound, message))
}
