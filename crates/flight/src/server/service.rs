//! The gRPC service of a server: exchanges with small buffers, and all other calls with the
//! generated code.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use arrow_flight::FlightData;
use arrow_flight::flight_service_server::{FlightService, FlightServiceServer};
use tonic::codegen::{Body, BoxFuture, Service, StdError, http};
use tonic::server::{NamedService, StreamingService};
use tonic::{Request, Response, Status, Streaming};

use super::FlightServer;
use super::counted::{CountedBody, MessageShare};
use crate::MAX_MESSAGE_BYTES;
use crate::small_buffer_codec::{EXCHANGE, SmallBufferCodec};

/// The gRPC service that [`FlightServer::into_service`] makes.
#[derive(Clone, Debug)]
pub struct FlightGrpcService {
    server: Arc<FlightServer>,
    /// All calls except exchanges.
    rest: FlightServiceServer<FlightServer>,
}

impl FlightGrpcService {
    pub(crate) fn new(server: FlightServer) -> Self {
        let server = Arc::new(server);
        let rest = FlightServiceServer::from_arc(server.clone())
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES);
        Self { server, rest }
    }
}

impl NamedService for FlightGrpcService {
    const NAME: &'static str = <FlightServiceServer<FlightServer> as NamedService>::NAME;
}

impl<B> Service<http::Request<B>> for FlightGrpcService
where
    B: Body + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Service::<http::Request<B>>::poll_ready(&mut self.rest, cx)
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let taken = MessageShare::new(self.server.intake().share());
        let mut request = request.map(|body| CountedBody::new(body, taken.clone()));
        if request.uri().path() != EXCHANGE {
            let answer = self.rest.call(request);
            return Box::pin(async move {
                let answer = answer.await;
                drop(taken);
                answer
            });
        }
        request.extensions_mut().insert(taken);
        let method = Exchanges(self.server.clone());
        Box::pin(async move {
            let mut grpc = tonic::server::Grpc::new(SmallBufferCodec)
                .apply_max_message_size_config(Some(MAX_MESSAGE_BYTES), Some(MAX_MESSAGE_BYTES));
            Ok(grpc.streaming(method, request).await)
        })
    }
}

struct Exchanges(Arc<FlightServer>);

impl StreamingService<FlightData> for Exchanges {
    type Response = FlightData;
    type ResponseStream = <FlightServer as FlightService>::DoExchangeStream;
    type Future = BoxFuture<Response<Self::ResponseStream>, Status>;

    fn call(&mut self, request: Request<Streaming<FlightData>>) -> Self::Future {
        let server = self.0.clone();
        Box::pin(async move { server.do_exchange(request).await })
    }
}
