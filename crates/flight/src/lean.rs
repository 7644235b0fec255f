//! Exchanges with small buffers. The generated code gives each direction of a call 8 KiB before
//! there is a byte to hold, at both ends, and keeps them for as long as the call runs; a stream of
//! chunks needs a tenth of that. They grow where a message is larger.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use arrow_flight::FlightData;
use arrow_flight::flight_service_server::{FlightService, FlightServiceServer};
use tonic::client::Grpc;
use tonic::codec::{BufferSettings, Codec};
use tonic::codegen::{Body, BoxFuture, Service, StdError, http};
use tonic::server::{NamedService, StreamingService};
use tonic::transport::Channel;
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::MAX_MESSAGE_BYTES;
use crate::client::Messages;
use crate::server::FlightServer;
use crate::server::counted::{Counted, Taken};

const EXCHANGE: &str = "/arrow.flight.protocol.FlightService/DoExchange";
/// What a buffer begins with; a chunk of text and its header fit.
const BUFFER_BYTES: usize = 512;
/// What is encoded before it is handed on, as by default.
const YIELD_BYTES: usize = 32 << 10;

type Messaged = ProstCodec<FlightData, FlightData>;

/// The codec of both ends.
#[derive(Clone, Copy, Debug)]
struct Lean;

impl Codec for Lean {
    type Encode = FlightData;
    type Decode = FlightData;
    type Encoder = <Messaged as Codec>::Encoder;
    type Decoder = <Messaged as Codec>::Decoder;

    fn encoder(&mut self) -> Self::Encoder {
        Messaged::raw_encoder(BufferSettings::new(BUFFER_BYTES, YIELD_BYTES))
    }

    fn decoder(&mut self) -> Self::Decoder {
        Messaged::raw_decoder(BufferSettings::new(BUFFER_BYTES, YIELD_BYTES))
    }
}

/// Opens an exchange over `channel`.
///
/// # Errors
/// The node's, or that of the connection.
pub(crate) async fn exchange(
    channel: Channel,
    call: Request<Messages>,
) -> Result<Streaming<FlightData>, Status> {
    let mut grpc = Grpc::new(channel)
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES);
    grpc.ready()
        .await
        .map_err(|error| Status::from_error(error.into()))?;
    let path = http::uri::PathAndQuery::from_static(EXCHANGE);
    let replies = grpc.streaming(call, path, Lean).await?;
    Ok(replies.into_inner())
}

/// The gRPC service that [`FlightServer::into_service`] makes.
#[derive(Clone, Debug)]
pub struct FlightGrpcService {
    server: Arc<FlightServer>,
    /// All calls but exchanges.
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
        let taken = Taken::new(self.server.intake().share());
        let mut request = request.map(|body| Counted::new(body, taken.clone()));
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
            let mut grpc = tonic::server::Grpc::new(Lean)
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
