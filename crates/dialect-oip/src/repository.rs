//! The model repository: load and unload.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use serde_json::{Map, Value};
use volley_types::control::{DeploymentFailure, ModelStatus};
use volley_types::registry::{
    ModelSource, ModelState, PipelineSpec, RegistryCommand, RegistryState, ReplicaState,
};
use volley_types::{ErrorCode, ModelName, ModelVersion, PredictError, Revision};

use super::ensemble;
use super::load::{self, Load, LoadParameter, Version};
use super::tensors::printable;
use crate::model_files::ModelFile;
use crate::state::OipCaller;
use volley_http_edge::body::{Fields, JsonObject, UntypedJsonObject};
use volley_http_edge::context::RequestContext;
use volley_http_edge::error::ApiError;
use volley_http_edge::extract::Path;

/// Interval of the checks while a model is loaded or unloaded.
const LOOK: Duration = Duration::from_millis(20);

/// How often a load or an unload of an ensemble is written while others load or unload it too.
const PUTS: usize = 8;

/// Deploys the newest version of a model, or one with the contents of the load, and responds when
/// the model is ready.
pub(crate) async fn load(
    caller: OipCaller,
    Path(model): Path<String>,
    context: RequestContext,
    UntypedJsonObject(body): UntypedJsonObject,
) -> Result<StatusCode, ApiError> {
    body.only("a load", &["parameters"])?;
    let given = body.object("parameters")?.into_iter().flatten();
    let given = given.map(|(name, value)| Ok((name.clone(), LoadParameter::json(name, value)?)));
    let given: Vec<_> = given.collect::<Result<_, PredictError>>()?;
    drop(body);
    let load = Load::read(given)?;
    context.in_time(deploy(&caller, model, load)).await?;
    Ok(StatusCode::OK)
}

/// Deploys the newest version of the repository, or one with the contents of the load, and returns
/// when it is ready. An ensemble is ready when its models are. If the future is dropped, written
/// registry commands remain in effect and the model continues to load.
///
/// # Errors
/// `InvalidInput` for a malformed name, or if the model cannot be loaded; errors of the registry.
pub(super) async fn deploy(
    caller: &OipCaller,
    model: String,
    load: Load,
) -> Result<(), PredictError> {
    let model = ModelName::new(model)?;
    if load.is_ensemble()
        && let Some(config) = &load.config
    {
        let registry = caller.cluster.registry.state();
        let revision = registry.pipelines.get(&model).map(|entry| entry.revision);
        let revision = revision.unwrap_or_default();
        let spec = ensemble::pipeline(caller, model.clone(), config).await?;
        return load_ensemble(caller, ReadEnsemble { spec, revision }).await;
    }
    if let Some(ensemble) = ensemble_of(&caller.cluster.registry.state(), &model) {
        if load.config.is_some() {
            return Err(PredictError::invalid(format!(
                "'{model}' is an ensemble: a configuration in a load must have \
                 'ensemble_scheduling'"
            )));
        }
        return load_ensemble(caller, ensemble).await;
    }
    let version = match &load.config {
        None => load::own_version(&caller.cluster.registry.state(), &model)?,
        Some(config) => register(caller, &model, config, load.files).await?,
    };
    deploy_version(caller, &model, Some(version)).await?;
    deployed(caller, &model).await
}

/// The version of a model with this configuration and these files. A new version is registered.
async fn register(
    caller: &OipCaller,
    model: &ModelName,
    config: &Map<String, Value>,
    files: Vec<ModelFile>,
) -> Result<ModelVersion, PredictError> {
    let source = match files.is_empty() {
        true => None,
        // The caller's permission is checked first, so that no files are stored without it.
        false => {
            caller.principal.change(model)?;
            let store = caller.state.models().ok_or_else(no_store)?;
            let (url, sha256) = store.keep(files).await?;
            let sha256 = Some(sha256);
            Some(ModelSource::Url { url, sha256 })
        }
    };
    match load::version(&caller.cluster.registry.state(), model, config, source)? {
        Version::There(version) => Ok(version),
        Version::New(command) => {
            let reply = caller.cluster.registry.write(*command).await?;
            reply.version.ok_or_else(|| {
                PredictError::internal("the model was not registered", "the reply has no version")
            })
        }
    }
}

fn no_store() -> PredictError {
    PredictError::new(
        ErrorCode::Unimplemented,
        "this cluster has no store for the files of a load: set 'uploads.store' in the \
         coordinators' configuration to a bucket or a share that all workers can reach, as \
         \"s3://bucket/models/\" or \"file:///mnt/models/\"",
    )
}

async fn deploy_version(
    caller: &OipCaller,
    model: &ModelName,
    version: Option<ModelVersion>,
) -> Result<(), PredictError> {
    let deploy = caller.cluster.registry.state().deploy_again(model, version);
    caller.cluster.registry.write(deploy).await?;
    Ok(())
}

/// Waits until a model is ready and its rollout is complete.
async fn deployed(caller: &OipCaller, model: &ModelName) -> Result<(), PredictError> {
    loop {
        let status = caller
            .cluster
            .view
            .model_status(model)
            .ok_or_else(|| gone(model))?;
        let registry = caller.cluster.registry.state();
        let entry = registry.models.get(model);
        let deployment = entry.and_then(|entry| entry.deployment.as_ref());
        if let Some(failure) = DeploymentFailure::find(deployment, &status) {
            return Err(failed(model, &failure.reason));
        }
        // A rollout that keeps the previous version does not end.
        let rolls =
            deployment.is_some_and(|it| it.rollout.is_some() && it.options.keep_previous == 0);
        match status.state {
            ModelState::Deployed | ModelState::PartiallyDeployed if !rolls => return Ok(()),
            ModelState::DeployFailed => return Err(failed(model, "its replicas failed")),
            ModelState::Undeployed => return Err(gone(model)),
            _ => tokio::time::sleep(LOOK).await,
        }
    }
}

/// An ensemble that is to be written, and the revision at which its name was read.
struct ReadEnsemble {
    spec: PipelineSpec,
    /// 0 where there was none.
    revision: Revision,
}

/// The pipeline of that name, where it is an ensemble.
fn ensemble_of(registry: &RegistryState, name: &ModelName) -> Option<ReadEnsemble> {
    let entry = registry.pipelines.get(name)?;
    entry.spec.ensemble.as_ref()?;
    Some(ReadEnsemble {
        spec: PipelineSpec::clone(&entry.spec),
        revision: entry.revision,
    })
}

/// The models that an ensemble calls, those of ensembles in it too, and these ensembles.
fn behind(registry: &RegistryState, spec: &PipelineSpec) -> (Vec<ModelName>, Vec<ReadEnsemble>) {
    let (mut models, mut ensembles) = (Vec::new(), Vec::new());
    let mut open: Vec<ModelName> = spec.names().map(|model| model.name.clone()).collect();
    while let Some(name) = open.pop() {
        if models.contains(&name) {
            continue;
        }
        if let Some(inner) = ensemble_of(registry, &name) {
            open.extend(inner.spec.names().map(|model| model.name.clone()));
            ensembles.push(inner);
        } else if registry.models.contains_key(&name) {
            models.push(name);
        }
    }
    (models, ensembles)
}

/// Writes an ensemble as one that answers, with those in it, and has its models deployed.
async fn load_ensemble(caller: &OipCaller, ensemble: ReadEnsemble) -> Result<(), PredictError> {
    let (models, inner) = behind(&caller.cluster.registry.state(), &ensemble.spec);
    for model in &models {
        let registry = caller.cluster.registry.state();
        let entry = registry.models.get(model);
        if entry.is_some_and(|entry| entry.deployment.is_none()) {
            let version = load::own_version(&registry, model).ok();
            deploy_version(caller, model, version).await?;
        }
    }
    for model in &models {
        deployed(caller, model).await?;
    }
    let name = ensemble.spec.name.clone();
    for ensemble in inner.into_iter().chain([ensemble]) {
        put(caller, ensemble, true).await?;
    }
    // The signature is only known once a worker has reported those of the models. Replicas that an
    // unload just before this load removes may still have counted as deployed.
    let ensemble = volley_types::ModelRef::deployed(name);
    loop {
        match caller.cluster.inference.signature(&ensemble).await {
            Ok(_) => return Ok(()),
            Err(error) if error.code == ErrorCode::Unavailable => {
                tokio::time::sleep(LOOK).await;
                for model in &models {
                    deployed(caller, model).await?;
                }
            }
            Err(error) => return Err(error),
        }
    }
}

/// Writes an ensemble as one that answers or not. A change that others made since it was read is
/// kept, unless it is only a load or an unload too.
///
/// # Errors
/// `Conflict` when the ensemble was changed or deleted since it was read; the registry's own.
async fn put(caller: &OipCaller, ensemble: ReadEnsemble, loaded: bool) -> Result<(), PredictError> {
    let ReadEnsemble { mut spec, revision } = ensemble;
    let mut expected = revision;
    if let Some(ensemble) = &mut spec.ensemble {
        ensemble.loaded = loaded;
    }
    let pipeline = Arc::new(spec);
    for _ in 0..PUTS {
        let put = RegistryCommand::PutPipeline {
            pipeline: pipeline.clone(),
            expected: Some(expected),
        };
        let error = match caller.cluster.registry.write(put).await {
            Ok(_) => return Ok(()),
            Err(error) if error.code == ErrorCode::Conflict => error,
            Err(error) => return Err(error),
        };
        let registry = caller.cluster.registry.state();
        let current = registry.pipelines.get(&pipeline.name);
        let current = current.filter(|entry| has_definition(&entry.spec, &pipeline));
        expected = current.ok_or(error)?.revision;
        tokio::time::sleep(LOOK).await;
    }
    Err(PredictError::new(
        ErrorCode::Conflict,
        format!("ensemble '{}' is being changed; try again", pipeline.name),
    ))
}

/// Whether two ensembles differ at most in whether they are loaded.
fn has_definition(current: &PipelineSpec, other: &PipelineSpec) -> bool {
    let mut current = current.clone();
    if let (Some(ensemble), Some(other)) = (&mut current.ensemble, &other.ensemble) {
        ensemble.loaded = other.loaded;
    }
    current == *other
}

fn gone(model: &ModelName) -> PredictError {
    let message = format!("model '{model}' was undeployed while it was loaded");
    PredictError::new(ErrorCode::Conflict, message)
}

fn failed(model: &ModelName, reason: &str) -> PredictError {
    PredictError::invalid(format!("model '{model}' could not be loaded: {reason}"))
}

/// The reason why a replica could not be loaded.
pub(super) fn failure(status: &ModelStatus) -> Option<&str> {
    status
        .replicas
        .iter()
        .find_map(|replica| match &replica.state {
            ReplicaState::Failed(reason) => Some(reason.as_str()),
            _ => None,
        })
}

/// Undeploys a model.
pub(crate) async fn unload(
    caller: OipCaller,
    Path(model): Path<String>,
    JsonObject(body): JsonObject,
) -> Result<StatusCode, ApiError> {
    body.only("an unload", &["parameters"])?;
    let given = body.object("parameters")?.into_iter().flatten();
    let given = given.map(|(name, value)| (name.clone(), value.as_bool()));
    undeploy(&caller, model, dependents(given)?).await?;
    Ok(StatusCode::OK)
}

/// Parses whether an unload includes the models of an ensemble.
///
/// # Errors
/// `InvalidInput` naming a parameter that is unknown or not a boolean.
pub(super) fn dependents(
    given: impl IntoIterator<Item = (String, Option<bool>)>,
) -> Result<bool, PredictError> {
    let mut dependents = false;
    for (name, value) in given {
        if name != "unload_dependents" {
            return Err(PredictError::invalid(format!(
                "unload parameter '{}' is not known; the only parameter is 'unload_dependents'",
                printable(&name)
            )));
        }
        dependents = value.ok_or_else(|| {
            PredictError::invalid("unload parameter 'unload_dependents' must be true or false")
        })?;
    }
    Ok(dependents)
}

/// Undeploys a model. With `dependents`, also undeploys the models of an ensemble.
///
/// # Errors
/// `InvalidInput` for a malformed name; errors of the registry.
pub(super) async fn undeploy(
    caller: &OipCaller,
    model: String,
    dependents: bool,
) -> Result<(), PredictError> {
    let model = ModelName::new(model)?;
    let registry = caller.cluster.registry.state();
    let Some(ensemble) = ensemble_of(&registry, &model) else {
        caller
            .cluster
            .registry
            .write(RegistryCommand::Undeploy(model))
            .await?;
        return Ok(());
    };
    let (models, inner) = behind(&registry, &ensemble.spec);
    put(caller, ensemble, false).await?;
    if dependents {
        for inner in inner {
            put(caller, inner, false).await?;
        }
        for model in models {
            caller
                .cluster
                .registry
                .write(RegistryCommand::Undeploy(model))
                .await?;
        }
    }
    Ok(())
}
