//! The flavor of MLServer and KServe.

use futures::StreamExt;
use tonic::{Request, Response, Streaming};
use volley_proto::inference::mlserver::grpc_inference_service_server::GrpcInferenceService;
use volley_proto::inference::triton::{
    ModelInferRequest, ModelInferResponse, ModelMetadataRequest, ModelMetadataResponse,
    ModelReadyRequest, ModelReadyResponse, RepositoryIndexRequest, RepositoryIndexResponse,
    RepositoryModelLoadRequest, RepositoryModelLoadResponse, RepositoryModelUnloadRequest,
    RepositoryModelUnloadResponse, ServerLiveRequest, ServerLiveResponse, ServerMetadataRequest,
    ServerMetadataResponse, ServerReadyRequest, ServerReadyResponse,
};

use super::context::{CallContext, status};
use super::service::{GrpcAnswer, InferenceService};
use super::stream::{self, Message, Responses};

pub(super) struct MlServer(pub(super) InferenceService);

#[tonic::async_trait]
impl GrpcInferenceService for MlServer {
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

    type ModelStreamInferStream = Responses<ModelInferResponse>;

    async fn model_stream_infer(
        &self,
        request: Request<Streaming<ModelInferRequest>>,
    ) -> GrpcAnswer<Self::ModelStreamInferStream> {
        let context = CallContext::of(&request)?;
        let said = stream::answers(self.0, context, request.into_inner());
        let plain = said.map(|said| match said? {
            Message::Response { response, .. } => Ok(response),
            Message::Refused { error, .. } => Err(status(&error)),
        });
        Ok(Response::new(plain.boxed()))
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
}
