//! The Open Inference Protocol, version 2: over REST (`/v2`) as KServe, MLServer and Triton
//! implement it, with tensors in JSON or in binary form after the JSON; and over gRPC.

mod binary;
mod casts;
mod classes;
mod coded;
mod config;
pub mod dataplane;
mod describe;
pub mod dialect;
pub mod ensemble;
pub mod error;
mod events;
mod flat;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub(crate) mod generate;
pub mod grpc;
mod index;
pub(crate) mod infer;
pub(crate) mod infer_stream;
mod known;
mod load;
pub mod model_files;
pub(crate) mod models;
mod nested;
pub(crate) mod operations;
mod outputs;
mod raw;
mod repository;
mod reserved;
mod shared_memory_routes;
pub mod state;
pub(crate) mod statistics;
mod statistics_routes;
mod tensors;
#[cfg(test)]
mod tests;
mod text_parameters;
mod texts;

use arrow_array::RecordBatch;
use serde::Deserialize;
use volley_dialect_kit::{answer, events as events_of_columns};
use volley_types::control::ModelStatus;
use volley_types::registry::RegistryState;
use volley_types::signature::{ModelMetadata, SERVED_VERSION};
use volley_types::{
    ChunkStream, ErrorCode, Input, ModelName, ModelRef, ModelVersion, ParamValue, PredictError,
    PredictRequest, Signature, Task,
};

use volley_http_edge::edge::Caller;

/// The model in a route's path.
#[derive(Debug, Deserialize)]
pub(crate) struct ModelPath {
    model: String,
    #[serde(default)]
    version: Option<String>,
}

/// The path parameters of an existing model: its name, and the version if the path has one.
///
/// # Errors
/// `NotFound` if the model does not exist.
pub(crate) async fn there(
    caller: &Caller,
    named: &ModelPath,
) -> Result<Vec<(&'static str, String)>, PredictError> {
    match ResolvedModel::find(caller, named).await {
        Err(error) if error.code == ErrorCode::NotFound => Err(error),
        _ => {
            let model = std::iter::once(("model", named.model.clone()));
            let version = named.version.clone();
            Ok(model.chain(version.map(|it| ("version", it))).collect())
        }
    }
}

/// A model that can be called, with its version and signature.
struct ResolvedModel {
    model: ModelRef,
    version: String,
    /// The registered versions that answer during a rollout; empty without one.
    serving: Vec<String>,
    /// The version by its name in the model's files, if one replica serves several versions or
    /// names its own.
    inner: Option<String>,
    signature: Signature,
    served: ModelMetadata,
}

impl ResolvedModel {
    /// Looks up the model of a path or a message.
    ///
    /// # Errors
    /// `NotFound` if the model does not exist or is not loaded; `Unavailable` while it is being
    /// loaded, or if its workers are unreachable.
    async fn find(caller: &Caller, named: &ModelPath) -> Result<Self, PredictError> {
        Self::lookup(caller, named).await.map_err(absent)
    }

    async fn lookup(caller: &Caller, named: &ModelPath) -> Result<Self, PredictError> {
        // No model has a malformed name.
        let name = ModelName::new(named.model.clone());
        let name = name.map_err(|_| unknown(&named.model))?;
        let deployed = ModelRef::deployed(name.clone());
        let Some(asked) = &named.version else {
            return Self::of(caller, deployed, None).await;
        };
        if let Some(version) = registered(&caller.cluster.registry.state(), &name, asked) {
            let model = ModelRef {
                name: name.clone(),
                version: Some(version),
            };
            let found = Self::of(caller, model, None).await;
            // Version names in the model's files take precedence over those in the registry.
            if !found
                .as_ref()
                .is_ok_and(|it| !it.served.versions.is_empty())
            {
                return match found {
                    // In the words of this protocol, which are not always the registry's numbers.
                    Err(error) if is_absent(&error) => {
                        let own = Self::of(caller, deployed.clone(), None).await;
                        let own = own.map_err(|_| error)?;
                        if own.served.versions.iter().any(|version| version == asked) {
                            return Self::of(caller, deployed, Some(asked)).await;
                        }
                        Err(no_version(&name, asked, &own.versions()))
                    }
                    found => found,
                };
            }
        }
        Self::of(caller, deployed, Some(asked)).await
    }

    /// Looks up a model, and with `asked` the version with that name among those of its replicas.
    async fn of(
        caller: &Caller,
        model: ModelRef,
        asked: Option<&str>,
    ) -> Result<Self, PredictError> {
        let signature = caller.cluster.inference.signature(&model).await?;
        let served = ModelMetadata::of(&signature);
        let inner = match asked {
            None => served.versions.last().cloned(),
            Some(asked) => {
                let mut versions = served.versions.iter();
                let found = versions.find(|version| *version == asked);
                Some(
                    found
                        .cloned()
                        .ok_or_else(|| no_version(&model.name, asked, &served.versions))?,
                )
            }
        };
        let registry = caller.cluster.registry.state();
        let entry = registry.models.get(&model.name);
        let deployment = entry.and_then(|entry| entry.deployment.as_ref());
        let deployed = deployment.map(|deployment| deployment.version);
        // The version behind an alias is only known after its response has started.
        let stands_for_others = registry.stands_for_others(&model.name);
        let rolls = deployment.is_some_and(|deployment| deployment.rollout.is_some());
        let serving = match model.version.is_none() && rolls {
            true => caller.cluster.view.model_status(&model.name),
            false => None,
        };
        let listed = serving.as_ref().and_then(ModelStatus::listed_version);
        let told = model
            .version
            .or(listed)
            .or(deployed)
            .or(stands_for_others.then_some(ModelVersion(1)));
        let number = told.ok_or_else(|| {
            let message = format!("model '{}' is not deployed", model.name);
            PredictError::new(ErrorCode::NotDeployed, message)
        })?;
        let version = inner.clone();
        let serving = serving.iter().flat_map(|status| &status.serving);
        let serving = serving.map(|version| label(&registry, &model.name, *version));
        Ok(Self {
            version: version.unwrap_or_else(|| label(&registry, &model.name, number)),
            serving: serving.collect(),
            model,
            inner,
            signature,
            served,
        })
    }

    /// All versions that can be called under this name.
    fn versions(&self) -> Vec<String> {
        match (self.served.versions.is_empty(), self.serving.is_empty()) {
            (false, _) => self.served.versions.clone(),
            (true, false) => self.serving.clone(),
            (true, true) => vec![self.version.clone()],
        }
    }

    /// Whether the model's own configuration defines queues.
    fn has_queues(&self) -> bool {
        self.configures("dynamic_batching")
    }

    fn configures(&self, field: &str) -> bool {
        let config = self.served.config.as_ref();
        config.is_some_and(|config| config.get(field).is_some())
    }

    /// Sends `request` to the requested version. Without rows there is no call, and the response is
    /// empty; a step of a sequence must have a row.
    async fn predict(
        &self,
        caller: &Caller,
        mut request: PredictRequest,
    ) -> Result<ChunkStream, PredictError> {
        if let Input::Batch(rows) = &*request.input
            && rows.num_rows() == 0
            && !matches!(self.signature.task, Task::Generate | Task::Events)
        {
            if self.configures("sequence_batching") {
                let message = "a request of a sequence must have one row, and has 0";
                return Err(PredictError::invalid(message));
            }
            let schema = self.signature.output.clone();
            return Ok(ChunkStream::new(schema, futures::stream::empty()));
        }
        if let Some(inner) = &self.inner {
            let version = ParamValue::Text(inner.clone());
            request.parameters.set(SERVED_VERSION, version)?;
        }
        let chunks = caller.cluster.inference.predict(request).await;
        let chunks = chunks.map_err(absent)?;
        Ok(match self.signature.task {
            Task::Events => events_of_columns::whole(chunks, &self.signature),
            _ => chunks,
        })
    }

    /// The complete response of a model without texts. A model that streams events returns its
    /// only event.
    async fn collect(&self, chunks: ChunkStream) -> Result<Vec<RecordBatch>, PredictError> {
        match self.signature.task {
            Task::Events => Ok(vec![events_of_columns::only(chunks, STREAMING).await?]),
            _ => answer::collect(chunks).await,
        }
    }

    /// The name of the version that responds.
    fn answering(&self, caller: &Caller, chunks: &ChunkStream) -> String {
        if let Some(inner) = &self.inner {
            return inner.clone();
        }
        let by = chunks.answered_by();
        let by = by.and_then(|model| Some((&model.name, model.version?)));
        by.map_or_else(
            || self.version.clone(),
            |(name, version)| label(&caller.cluster.registry.state(), name, version),
        )
    }
}

/// The ways to read a stream of events.
const STREAMING: &str = "'infer_stream' or, over gRPC, 'ModelStreamInfer'";

/// Maximum number of versions in an error.
const NAMED: usize = 8;

/// Parameter of a registered version with its name in this protocol.
const LABEL: &str = "version_name";

/// The registered version with this name or number.
fn registered(registry: &RegistryState, name: &ModelName, asked: &str) -> Option<ModelVersion> {
    let versions = registry.models.get(name).map(|entry| &entry.versions);
    let labelled = versions.and_then(|versions| {
        let mut versions = versions.values().rev();
        let found = versions.find(|spec| spec.parameters.text(LABEL).as_deref() == Some(asked));
        found.map(|spec| spec.version)
    });
    labelled.or_else(|| asked.parse().ok().map(ModelVersion))
}

/// The name of a registered version.
fn label(registry: &RegistryState, name: &ModelName, version: ModelVersion) -> String {
    let entry = registry.models.get(name);
    let spec = entry.and_then(|entry| entry.versions.get(&version));
    let label = spec.and_then(|spec| spec.parameters.text(LABEL));
    label.unwrap_or_else(|| version.0.to_string())
}

fn is_absent(error: &PredictError) -> bool {
    matches!(error.code, ErrorCode::NotDeployed | ErrorCode::NotFound)
}

/// Converts the code of `error`: in this protocol, a model that is not loaded does not exist.
fn absent(mut error: PredictError) -> PredictError {
    if error.code == ErrorCode::NotDeployed {
        error.code = ErrorCode::NotFound;
    }
    error
}

fn unknown(model: &str) -> PredictError {
    let message = format!("no model '{}' is registered", tensors::printable(model));
    PredictError::new(ErrorCode::NotFound, message)
}

fn no_version(model: &ModelName, version: &str, loaded: &[String]) -> PredictError {
    let version = tensors::printable(version);
    let mut message = format!("version '{version}' of model '{model}' is not loaded");
    if !loaded.is_empty() {
        let loaded: Vec<_> = loaded.iter().take(NAMED).map(String::as_str).collect();
        message.push_str(&format!("; loaded: {}", loaded.join(", ")));
    }
    PredictError::new(ErrorCode::NotFound, message)
}
