//! Triton's flavor.

use futures::StreamExt;
use tonic::{Request, Response, Status, Streaming};
use volley_proto::inference::triton::grpc_inference_service_server::GrpcInferenceService;
use volley_proto::inference::triton::infer_parameter::ParameterChoice;
use volley_proto::inference::triton::system_shared_memory_status_response::RegionStatus;
use volley_proto::inference::triton::{
    CudaSharedMemoryRegisterRequest, CudaSharedMemoryRegisterResponse,
    CudaSharedMemoryStatusRequest, CudaSharedMemoryStatusResponse,
    CudaSharedMemoryUnregisterRequest, CudaSharedMemoryUnregisterResponse, InferStatistics,
    ModelConfigRequest, ModelConfigResponse, ModelInferRequest, ModelInferResponse,
    ModelMetadataRequest, ModelMetadataResponse, ModelReadyRequest, ModelReadyResponse,
    ModelStatistics, ModelStatisticsRequest, ModelStatisticsResponse, ModelStreamInferResponse,
    RepositoryIndexRequest, RepositoryIndexResponse, RepositoryModelLoadRequest,
    RepositoryModelLoadResponse, RepositoryModelUnloadRequest, RepositoryModelUnloadResponse,
    ServerLiveRequest, ServerLiveResponse, ServerMetadataRequest, ServerMetadataResponse,
    ServerReadyRequest, ServerReadyResponse, StatisticDuration, SystemSharedMemoryRegisterRequest,
    SystemSharedMemoryRegisterResponse, SystemSharedMemoryStatusRequest,
    SystemSharedMemoryStatusResponse, SystemSharedMemoryUnregisterRequest,
    SystemSharedMemoryUnregisterResponse,
};
use volley_proto::model_config::message;
use volley_proto::status::public_message;
use volley_types::ModelName;

use super::context::{CallContext, status};
use super::reply::parameter;
use super::request::named;
use super::service::{GrpcAnswer, InferenceService, finish};
use super::stream::{self, Message, Responses};
use crate::statistics::{Counts, Total};
use crate::{ResolvedModel, config};
use volley_shared_memory as shared_memory;
use volley_shared_memory::Region;

/// Response parameter that marks the last response to a request.
const FINAL: &str = "triton_final_response";
/// Metadata with which a client requests that the first error ends the stream.
const ERRORS_END: &str = "triton_grpc_error";

pub(super) struct Triton(pub(super) InferenceService);

#[tonic::async_trait]
impl GrpcInferenceService for Triton {
    async fn server_live(
        &self,
        request: Request<ServerLiveRequest>,
    ) -> GrpcAnswer<ServerLiveResponse> {
        self.0.server_live(&request)
    }

    async fn server_ready(
        &self,
        request: Request<ServerReadyRequest>,
    ) -> GrpcAnswer<ServerReadyResponse> {
        self.0.server_ready(&request)
    }

    async fn server_metadata(
        &self,
        request: Request<ServerMetadataRequest>,
    ) -> GrpcAnswer<ServerMetadataResponse> {
        self.0.server_metadata(&request)
    }

    async fn model_ready(
        &self,
        request: Request<ModelReadyRequest>,
    ) -> GrpcAnswer<ModelReadyResponse> {
        self.0.model_ready(request).await
    }

    async fn model_metadata(
        &self,
        request: Request<ModelMetadataRequest>,
    ) -> GrpcAnswer<ModelMetadataResponse> {
        self.0.model_metadata(request).await
    }

    async fn model_infer(
        &self,
        request: Request<ModelInferRequest>,
    ) -> GrpcAnswer<ModelInferResponse> {
        self.0.model_infer(request).await
    }

    type ModelStreamInferStream = Responses<ModelStreamInferResponse>;

    async fn model_stream_infer(
        &self,
        request: Request<Streaming<ModelInferRequest>>,
    ) -> GrpcAnswer<Self::ModelStreamInferStream> {
        let context = CallContext::of(&request)?;
        let errors_end = request
            .metadata()
            .get(ERRORS_END)
            .is_some_and(|value| value == "true");
        let said = stream::answers(self.0, context, request.into_inner());
        let wrapped = said.map(move |said| wrap(said?, errors_end));
        Ok(Response::new(wrapped.boxed()))
    }

    async fn model_config(
        &self,
        request: Request<ModelConfigRequest>,
    ) -> GrpcAnswer<ModelConfigResponse> {
        let context = CallContext::of(&request)?;
        let asked = request.into_inner();
        let named = named(asked.name, asked.version);
        let work = async {
            let found = ResolvedModel::find(&context.caller, &named).await?;
            Ok(ModelConfigResponse {
                config: Some(message(&config::of(&found))),
            })
        };
        finish(&context, work).await
    }

    async fn model_statistics(
        &self,
        request: Request<ModelStatisticsRequest>,
    ) -> GrpcAnswer<ModelStatisticsResponse> {
        let context = CallContext::of(&request)?;
        let asked = request.into_inner();
        let work = async {
            let caller = &context.caller;
            let counted = if asked.name.is_empty() {
                caller
                    .state
                    .statistics()
                    .all(&caller.cluster.registry.state())
            } else {
                let found = ResolvedModel::find(caller, &named(asked.name, asked.version)).await?;
                let key = (found.model.name, found.version);
                [(key.clone(), caller.state.statistics().of(&key))].into()
            };
            let model_stats = counted.into_iter().map(statistics).collect();
            Ok(ModelStatisticsResponse { model_stats })
        };
        finish(&context, work).await
    }

    async fn repository_index(
        &self,
        request: Request<RepositoryIndexRequest>,
    ) -> GrpcAnswer<RepositoryIndexResponse> {
        self.0.repository_index(request).await
    }

    async fn repository_model_load(
        &self,
        request: Request<RepositoryModelLoadRequest>,
    ) -> GrpcAnswer<RepositoryModelLoadResponse> {
        self.0.load(request).await
    }

    async fn repository_model_unload(
        &self,
        request: Request<RepositoryModelUnloadRequest>,
    ) -> GrpcAnswer<RepositoryModelUnloadResponse> {
        self.0.unload(request).await
    }

    async fn system_shared_memory_status(
        &self,
        request: Request<SystemSharedMemoryStatusRequest>,
    ) -> GrpcAnswer<SystemSharedMemoryStatusResponse> {
        let context = CallContext::of(&request)?;
        let name = request.into_inner().name;
        let regions = context.caller.state.shared_memory().regions(&name);
        let regions = regions.map_err(|error| status(&error))?.into_iter();
        let told = |(name, region): (String, Region)| {
            let told = RegionStatus {
                name: name.clone(),
                key: region.key,
                offset: region.offset,
                byte_size: region.byte_size,
            };
            (name, told)
        };
        let regions = regions.map(told).collect();
        Ok(Response::new(SystemSharedMemoryStatusResponse { regions }))
    }

    async fn system_shared_memory_register(
        &self,
        request: Request<SystemSharedMemoryRegisterRequest>,
    ) -> GrpcAnswer<SystemSharedMemoryRegisterResponse> {
        let context = CallContext::of(&request)?;
        let asked = request.into_inner();
        let region = Region {
            key: asked.key,
            offset: asked.offset,
            byte_size: asked.byte_size,
        };
        let registered = context
            .caller
            .state
            .shared_memory()
            .register(asked.name, region);
        registered.map_err(|error| status(&error))?;
        Ok(Response::new(SystemSharedMemoryRegisterResponse {}))
    }

    async fn system_shared_memory_unregister(
        &self,
        request: Request<SystemSharedMemoryUnregisterRequest>,
    ) -> GrpcAnswer<SystemSharedMemoryUnregisterResponse> {
        let context = CallContext::of(&request)?;
        let name = request.into_inner().name;
        context.caller.state.shared_memory().unregister(&name);
        Ok(Response::new(SystemSharedMemoryUnregisterResponse {}))
    }

    async fn cuda_shared_memory_status(
        &self,
        _: Request<CudaSharedMemoryStatusRequest>,
    ) -> GrpcAnswer<CudaSharedMemoryStatusResponse> {
        Ok(Response::new(CudaSharedMemoryStatusResponse::default()))
    }

    async fn cuda_shared_memory_register(
        &self,
        _: Request<CudaSharedMemoryRegisterRequest>,
    ) -> GrpcAnswer<CudaSharedMemoryRegisterResponse> {
        Err(status(&shared_memory::no_cuda()))
    }

    async fn cuda_shared_memory_unregister(
        &self,
        _: Request<CudaSharedMemoryUnregisterRequest>,
    ) -> GrpcAnswer<CudaSharedMemoryUnregisterResponse> {
        Ok(Response::new(CudaSharedMemoryUnregisterResponse {}))
    }
}

/// Wraps one message of a stream. An error becomes a message too, unless the client requests that
/// it ends the stream.
fn wrap(message: Message, errors_end: bool) -> Result<ModelStreamInferResponse, Status> {
    let (error_message, mut response, last) = match message {
        Message::Refused { error, .. } if errors_end => return Err(status(&error)),
        Message::Refused { id, error } => {
            let response = ModelInferResponse {
                id,
                ..ModelInferResponse::default()
            };
            // Called only to log internal errors.
            let _ = status(&error);
            (public_message(&error), response, true)
        }
        Message::Response { response, last } => (String::new(), response, last),
    };
    let last = parameter(ParameterChoice::BoolParam(last));
    response.parameters.insert(FINAL.to_owned(), last);
    Ok(ModelStreamInferResponse {
        error_message,
        infer_response: Some(response),
    })
}

fn statistics(((name, version), counts): ((ModelName, String), Counts)) -> ModelStatistics {
    let told = |total: Total| {
        Some(StatisticDuration {
            count: total.count,
            ns: total.ns(),
        })
    };
    ModelStatistics {
        name: name.as_str().to_owned(),
        version,
        last_inference: counts.last_ms(),
        inference_count: counts.rows,
        execution_count: counts.success.count,
        inference_stats: Some(InferStatistics {
            success: told(counts.success),
            fail: told(counts.fail),
            compute_input: told(counts.input),
            compute_infer: told(counts.infer),
            compute_output: told(counts.output),
        }),
    }
}
