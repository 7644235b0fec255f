//! Bodies of answers: their pieces, how long they may take and how long they may be.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::{FutureExt, Stream, StreamExt};
use http::{HeaderName, header};
pub use reqwest::Response;
use volley_types::PredictError;

use crate::upstream;

/// Pieces of a body are joined up to this size.
const MAX_GATHERED_BYTES: usize = 64 << 10;
/// A piece of a body, as it comes.
pub type Piece = reqwest::Result<Bytes>;

/// Joins the pieces that are there already to `first`, so that they become one batch of rows:
/// what a batch costs, it costs once. What is there and is no piece of a body is `held`.
pub fn gather(
    first: Bytes,
    pieces: &mut (impl Stream<Item = Piece> + Unpin),
    held: &mut Option<Option<Piece>>,
) -> Bytes {
    let mut joined = None;
    let length = |joined: &Option<BytesMut>| joined.as_ref().map_or(first.len(), BytesMut::len);
    while length(&joined) < MAX_GATHERED_BYTES {
        match pieces.next().now_or_never() {
            Some(Some(Ok(next))) => joined
                .get_or_insert_with(|| BytesMut::from(first.as_ref()))
                .extend_from_slice(&next),
            Some(other) => {
                *held = Some(other);
                break;
            }
            None => break,
        }
    }
    joined.map_or(first, BytesMut::freeze)
}

/// The result of `work`, unless it takes longer than `limit`.
///
/// # Errors
/// `UpstreamTimeout`.
pub async fn within<T>(limit: Duration, work: impl Future<Output = T>) -> Result<T, PredictError> {
    tokio::time::timeout(limit, work)
        .await
        .map_err(|_| upstream::silent(limit))
}

/// Whether a body that is cut is told from one that ends. Without a length, and before HTTP/2, it
/// ends with the connection, however that ends.
pub fn is_bounded(response: &Response) -> bool {
    let lengths = [header::CONTENT_LENGTH, header::TRANSFER_ENCODING];
    let has = |name: &HeaderName| response.headers().contains_key(name);
    http::Version::HTTP_2 <= response.version() || lengths.iter().any(has)
}

/// A body of at most `limit` bytes, with at most `stall` between two pieces.
///
/// # Errors
/// As a stream's; `UpstreamFailed` past the limit.
pub async fn bounded(
    mut response: Response,
    limit: usize,
    stall: Duration,
) -> Result<Bytes, PredictError> {
    let mut body = BytesMut::new();
    while let Some(piece) = within(stall, response.chunk())
        .await?
        .map_err(upstream::broken)?
    {
        if limit < body.len() + piece.len() {
            return Err(upstream::not_a_stream("a body over the limit"));
        }
        body.extend_from_slice(&piece);
    }
    Ok(body.freeze())
}
