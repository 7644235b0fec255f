//! `DoExchange` codec with 512-byte initial buffers. The generated code allocates 8 KiB per
//! direction at both ends for the duration of a call; a stream of chunks needs a tenth of that. The
//! buffers grow for larger messages.

use arrow_flight::FlightData;
use tonic::client::Grpc;
use tonic::codec::{BufferSettings, Codec};
use tonic::codegen::http;
use tonic::transport::Channel;
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::MAX_MESSAGE_BYTES;
use crate::client::Messages;

/// The path of exchanges.
pub(crate) const EXCHANGE: &str = "/arrow.flight.protocol.FlightService/DoExchange";
/// Initial size of a buffer in bytes, enough for a text chunk and its header.
const BUFFER_BYTES: usize = 512;
/// Bytes that are encoded before they are yielded, as by default.
const YIELD_BYTES: usize = 32 << 10;

type MessageCodec = ProstCodec<FlightData, FlightData>;

/// The codec of both ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SmallBufferCodec;

impl Codec for SmallBufferCodec {
    type Encode = FlightData;
    type Decode = FlightData;
    type Encoder = <MessageCodec as Codec>::Encoder;
    type Decoder = <MessageCodec as Codec>::Decoder;

    fn encoder(&mut self) -> Self::Encoder {
        MessageCodec::raw_encoder(BufferSettings::new(BUFFER_BYTES, YIELD_BYTES))
    }

    fn decoder(&mut self) -> Self::Decoder {
        MessageCodec::raw_decoder(BufferSettings::new(BUFFER_BYTES, YIELD_BYTES))
    }
}

/// Opens an exchange over `channel`.
///
/// # Errors
/// The error of the node or of the connection.
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
    let replies = grpc.streaming(call, path, SmallBufferCodec).await?;
    Ok(replies.into_inner())
}
