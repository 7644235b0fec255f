//! Reads bodies of answers with limits on time and size.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::{FutureExt, Stream, StreamExt};
use http::{HeaderName, header};
pub use reqwest::Response;
use volley_types::PredictError;

use crate::upstream;

/// Chunks of a body are joined up to this size, in bytes.
const MAX_GATHERED_BYTES: usize = 64 << 10;
/// A chunk of a body as received.
pub type Piece = reqwest::Result<Bytes>;

/// Joins the chunks that are already available to `first`, so that they become one record batch,
/// because each batch has a fixed cost. An error or the end of the body, if reached, goes to
/// `held`. Never waits.
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

/// Awaits `work` for at most `limit`. Cancel safe if `work` is.
///
/// # Errors
/// `UpstreamTimeout`.
pub async fn within<T>(limit: Duration, work: impl Future<Output = T>) -> Result<T, PredictError> {
    tokio::time::timeout(limit, work)
        .await
        .map_err(|_| upstream::silent(limit))
}

/// Whether an aborted body is distinguishable from a complete one. An HTTP/1 body without a length
/// or chunks ends with its connection in both cases.
pub fn is_bounded(response: &Response) -> bool {
    let lengths = [header::CONTENT_LENGTH, header::TRANSFER_ENCODING];
    let has = |name: &HeaderName| response.headers().contains_key(name);
    http::Version::HTTP_2 <= response.version() || lengths.iter().any(has)
}

/// Reads a body of at most `limit` bytes, with at most `stall` between two chunks. Dropping the
/// future loses the chunks and closes the connection.
///
/// # Errors
/// `UpstreamTimeout` for a stall, `UpstreamIncomplete` for a broken connection, and
/// `UpstreamFailed` for a body over the limit.
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
            return Err(upstream::unexpected("a body over the limit", "an answer"));
        }
        body.extend_from_slice(&piece);
    }
    Ok(body.freeze())
}
