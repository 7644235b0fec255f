//! The Open Inference Protocol over gRPC in two flavors, Triton's and MLServer's. Requests become
//! the same rows as over REST.
//!
//! Reading order: `context` (around every call), `service` (what the flavors share), `request` and
//! `reply` (messages ⇄ rows), `stream` (`ModelStreamInfer`), `triton` and `mlserver` (the flavors).

mod context;
mod mlserver;
mod reply;
mod request;
mod service;
mod stream;
mod triton;

use tonic::Status;
use tonic::codec::CompressionEncoding::{Deflate, Gzip};
use tonic::server::NamedService;
use tower::Service;
use volley_http_edge::axum::Router;
use volley_http_edge::axum::extract::Request;
use volley_http_edge::axum::middleware::from_fn_with_state;
use volley_http_edge::axum::response::{IntoResponse, Response};
use volley_proto::inference::mlserver::grpc_inference_service_server::GrpcInferenceServiceServer as MlServerServer;
use volley_proto::inference::triton::grpc_inference_service_server::GrpcInferenceServiceServer as TritonServer;

use self::mlserver::MlServer;
use self::service::InferenceService;
use self::triton::Triton;
use crate::state::Oip;
use volley_dialect_kit::answer;

/// Maximum size in bytes of a message without the tensors of the largest response.
const MESSAGE_SLACK_BYTES: usize = 1 << 20;

/// The flavor of the clients of a gRPC listener. Both flavors have the same service name but
/// different messages of `ModelStreamInfer`, so each needs a listener of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrpcFlavor {
    /// `tritonclient`: outputs are raw. The messages of a stream are wrapped, and errors are
    /// messages too.
    Triton,
    /// MLServer and KServe: outputs are typed if the inputs were. The messages of a stream are not
    /// wrapped, and an error ends the stream.
    MlServer,
}

/// Routes of one flavor, for a router with other routes.
pub fn routes(oip: &Oip, flavor: GrpcFlavor) -> Router {
    let calls = InferenceService { flavor };
    let receive = oip.edge().config().max_tensor_bytes;
    let send = answer::MAX_BYTES + MESSAGE_SLACK_BYTES;
    // The middleware below permits compressed responses only for compressed requests.
    let router = match flavor {
        GrpcFlavor::Triton => service(
            TritonServer::new(Triton(calls))
                .max_decoding_message_size(receive)
                .max_encoding_message_size(send)
                .accept_compressed(Gzip)
                .accept_compressed(Deflate)
                .send_compressed(Gzip)
                .send_compressed(Deflate),
        ),
        GrpcFlavor::MlServer => service(
            MlServerServer::new(MlServer(calls))
                .max_decoding_message_size(receive)
                .max_encoding_message_size(send)
                .accept_compressed(Gzip)
                .accept_compressed(Deflate)
                .send_compressed(Gzip)
                .send_compressed(Deflate),
        ),
    };
    let state = (oip.clone(), flavor);
    router.layer(from_fn_with_state(state, context::middleware))
}

/// Routes of a listener that serves only this flavor.
pub fn listener(oip: &Oip, flavor: GrpcFlavor) -> Router {
    routes(oip, flavor).fallback(no_service)
}

fn service<S>(service: S) -> Router
where
    S: Service<Request, Error = std::convert::Infallible>
        + NamedService
        + Clone
        + Send
        + Sync
        + 'static,
    S::Response: IntoResponse,
    S::Future: Send + 'static,
{
    Router::new().route_service(&format!("/{}/{{*call}}", S::NAME), service)
}

async fn no_service() -> Response {
    let status = Status::unimplemented("this listener serves inference.GRPCInferenceService");
    status.into_http::<volley_http_edge::axum::body::Body>()
}
