//! The calls of both flavors.

use tonic::{Request, Response, Status};
use volley_proto::inference::triton::model_repository_parameter::ParameterChoice;
use volley_proto::inference::triton::{
    ModelInferRequest, ModelInferResponse, ModelMetadataRequest, ModelMetadataResponse,
    ModelReadyRequest, ModelReadyResponse, RepositoryIndexRequest, RepositoryIndexResponse,
    RepositoryModelLoadRequest, RepositoryModelLoadResponse, RepositoryModelUnloadRequest,
    RepositoryModelUnloadResponse, ServerLiveRequest, ServerLiveResponse, ServerMetadataRequest,
    ServerMetadataResponse, ServerReadyRequest, ServerReadyResponse,
    model_metadata_response::TensorMetadata, repository_index_response::ModelIndex,
};
use volley_types::{ErrorCode, PredictError};

use super::GrpcFlavor;
use super::context::{CallContext, status};
use super::request::{ModelInferCall, named};
use crate::describe::{self, TensorForm};
use crate::load::{Load, LoadParameter};
use crate::tensors::printable;
use crate::{ResolvedModel, index, repository};

/// Result of a call.
pub(super) type GrpcAnswer<T> = Result<Response<T>, Status>;

/// The calls of one flavor. Their state arrives with each call.
#[derive(Clone, Copy, Debug)]
pub(super) struct InferenceService {
    pub(super) flavor: GrpcFlavor,
}

/// Runs `work` until the deadline, and converts its result.
pub(super) async fn finish<T>(
    context: &CallContext,
    work: impl Future<Output = Result<T, PredictError>>,
) -> GrpcAnswer<T> {
    let done = context.request.in_time(work).await;
    done.map(Response::new).map_err(|error| status(&error))
}

impl InferenceService {
    pub(super) fn server_live(
        &self,
        _: &Request<ServerLiveRequest>,
    ) -> GrpcAnswer<ServerLiveResponse> {
        Ok(Response::new(ServerLiveResponse { live: true }))
    }

    pub(super) fn server_ready(
        &self,
        request: &Request<ServerReadyRequest>,
    ) -> GrpcAnswer<ServerReadyResponse> {
        let context = CallContext::of(request)?;
        let ready = context.caller.cluster.view.ready();
        Ok(Response::new(ServerReadyResponse { ready }))
    }

    pub(super) fn server_metadata(
        &self,
        _: &Request<ServerMetadataRequest>,
    ) -> GrpcAnswer<ServerMetadataResponse> {
        let extensions = match self.flavor {
            GrpcFlavor::Triton => describe::GRPC_EXTENSIONS.map(str::to_owned).to_vec(),
            GrpcFlavor::MlServer => Vec::new(),
        };
        Ok(Response::new(ServerMetadataResponse {
            name: describe::SERVER.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            extensions,
        }))
    }

    pub(super) async fn model_ready(
        &self,
        request: Request<ModelReadyRequest>,
    ) -> GrpcAnswer<ModelReadyResponse> {
        let context = CallContext::of(&request)?;
        let asked = request.into_inner();
        let named = named(asked.name, asked.version);
        let work = async {
            let ready = match ResolvedModel::find(&context.caller, &named).await {
                Ok(_) => true,
                Err(error) => match error.code {
                    ErrorCode::Unavailable => false,
                    // Triton's clients check with this call whether a model exists.
                    ErrorCode::NotFound if self.flavor == GrpcFlavor::Triton => false,
                    _ => return Err(error),
                },
            };
            Ok(ModelReadyResponse { ready })
        };
        finish(&context, work).await
    }

    pub(super) async fn model_metadata(
        &self,
        request: Request<ModelMetadataRequest>,
    ) -> GrpcAnswer<ModelMetadataResponse> {
        let context = CallContext::of(&request)?;
        let asked = request.into_inner();
        let named = named(asked.name, asked.version);
        let work = async {
            let found = ResolvedModel::find(&context.caller, &named).await?;
            let inputs = describe::inputs(&found.signature);
            let outputs = describe::outputs(&found.signature);
            let tensors = |forms: Vec<TensorForm>| {
                let tensor = |form: TensorForm| TensorMetadata {
                    name: form.name,
                    datatype: form.datatype.to_owned(),
                    shape: form.shape,
                };
                forms.into_iter().map(tensor).collect()
            };
            Ok(ModelMetadataResponse {
                inputs: tensors(describe::declared(&found, "input", inputs)),
                outputs: tensors(describe::declared(&found, "output", outputs)),
                platform: describe::platform(&found),
                name: found.model.name.as_str().to_owned(),
                versions: found.versions(),
            })
        };
        finish(&context, work).await
    }

    pub(super) async fn model_infer(
        &self,
        request: Request<ModelInferRequest>,
    ) -> GrpcAnswer<ModelInferResponse> {
        let context = CallContext::of(&request)?;
        let work = async {
            let given = request.into_inner();
            let share = context.share_of(&given)?;
            let asked =
                ModelInferCall::read(&context.caller, self.flavor, given, &context.request, share)
                    .await?;
            asked.answer(&context.caller).await
        };
        finish(&context, work).await
    }

    pub(super) async fn repository_index(
        &self,
        request: Request<RepositoryIndexRequest>,
    ) -> GrpcAnswer<RepositoryIndexResponse> {
        let context = CallContext::of(&request)?;
        let asked = request.into_inner();
        let work = async {
            if !asked.repository_name.is_empty() {
                let name = printable(&asked.repository_name);
                let message = format!("no repository '{name}' exists; leave 'repository_name' out");
                return Err(PredictError::new(ErrorCode::NotFound, message));
            }
            Ok(index::entries(&context.caller, asked.ready).await)
        };
        let entries = context.request.in_time(work).await;
        let entries = entries.map_err(|error| status(&error))?;
        let entry = |entry: index::IndexEntry| ModelIndex {
            name: entry.name,
            version: entry.version.unwrap_or_default(),
            state: entry.state.to_owned(),
            reason: entry.reason,
        };
        let models = entries.into_iter().map(entry).collect();
        Ok(Response::new(RepositoryIndexResponse { models }))
    }

    pub(super) async fn load(
        &self,
        request: Request<RepositoryModelLoadRequest>,
    ) -> GrpcAnswer<RepositoryModelLoadResponse> {
        let context = CallContext::of(&request)?;
        let asked = request.into_inner();
        let work = async {
            let model_name = repository_model(asked.repository_name, asked.model_name);
            let given = asked.parameters.into_iter().map(|(name, value)| {
                let value = match value.parameter_choice {
                    Some(ParameterChoice::StringParam(text)) => LoadParameter::Text(text),
                    Some(ParameterChoice::BytesParam(bytes)) => LoadParameter::Bytes(bytes),
                    _ => LoadParameter::Other,
                };
                (name, value)
            });
            let load = Load::read(given)?;
            repository::deploy(&context.caller, model_name.clone(), load).await?;
            Ok(RepositoryModelLoadResponse {
                model_name,
                is_loaded: true,
            })
        };
        finish(&context, work).await
    }

    pub(super) async fn unload(
        &self,
        request: Request<RepositoryModelUnloadRequest>,
    ) -> GrpcAnswer<RepositoryModelUnloadResponse> {
        let context = CallContext::of(&request)?;
        let asked = request.into_inner();
        let work = async {
            let model_name = repository_model(asked.repository_name, asked.model_name);
            let given = asked.parameters.into_iter().map(|(name, value)| {
                let value = match value.parameter_choice {
                    Some(ParameterChoice::BoolParam(value)) => Some(value),
                    _ => None,
                };
                (name, value)
            });
            let dependents = repository::dependents(given)?;
            repository::undeploy(&context.caller, model_name.clone(), dependents).await?;
            Ok(RepositoryModelUnloadResponse {
                model_name,
                is_unloaded: true,
            })
        };
        finish(&context, work).await
    }
}

/// KServe's clients send the model's name in the first field, in which other clients send the
/// repository's name.
fn repository_model(repository: String, model: String) -> String {
    if model.is_empty() { repository } else { model }
}
