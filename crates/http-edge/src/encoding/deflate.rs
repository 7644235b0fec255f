//! An answer's body on its way through a compressor.

use std::io;

use async_compression::Level;
use async_compression::tokio::bufread::{GzipEncoder, ZlibEncoder, ZstdEncoder};
use async_compression::zstd::CParameter;
use async_stream::try_stream;
use axum::body::Body;
use bytes::Bytes;
use futures::{Stream, StreamExt, TryStreamExt, stream};
use hyper::body::Body as _;
use tokio::io::{AsyncBufReadExt, AsyncRead};
use tokio_util::io::{ReaderStream, StreamReader};

use super::Encoding;

/// Taken in at once: a large answer must not hold its thread for long.
const STEP_BYTES: usize = 128 << 10;
/// Given out at once. An open stream keeps it.
const OUT_BYTES: usize = 8 << 10;
/// What a stream's compressor looks back at, as a power of two: it is memory that every open
/// stream takes, here and at the client.
const ZSTD_WINDOW_LOG: u32 = 16;

/// `body`, compressed as it is asked for. One that breaks off does so without the format's end.
pub(super) fn deflated(body: Body, encoding: Encoding) -> Body {
    let encoded = async move {
        let mut steps = StreamReader::new(Box::pin(steps(body)));
        // A stream that waits for its first piece takes no memory for a compressor.
        steps.fill_buf().await?;
        let small = [
            CParameter::window_log(ZSTD_WINDOW_LOG),
            CParameter::hash_log(ZSTD_WINDOW_LOG - 2),
            CParameter::chain_log(ZSTD_WINDOW_LOG - 2),
        ];
        let level = Level::Fastest;
        let encoded: Box<dyn AsyncRead + Send + Unpin> = match encoding {
            Encoding::Zstd => Box::new(ZstdEncoder::with_quality_and_params(steps, level, &small)),
            Encoding::Gzip => Box::new(GzipEncoder::with_quality(steps, level)),
            Encoding::Deflate => Box::new(ZlibEncoder::with_quality(steps, level)),
        };
        Ok::<_, io::Error>(ReaderStream::with_capacity(encoded, OUT_BYTES))
    };
    Body::from_stream(stream::once(encoded).try_flatten())
}

/// The pieces of `body`. A compressor gives all that it has when it has to wait, so a wait follows
/// each: a reader can have it before the next is there, or fails.
fn steps(body: Body) -> impl Stream<Item = io::Result<Bytes>> {
    try_stream! {
        let mut pieces = body.into_data_stream();
        while let Some(piece) = pieces.next().await {
            let mut piece = piece.map_err(io::Error::other)?;
            while !piece.is_empty() {
                yield piece.split_to(piece.len().min(STEP_BYTES));
                if !(piece.is_empty() && pieces.is_end_stream()) {
                    tokio::task::yield_now().await;
                }
            }
        }
    }
}
