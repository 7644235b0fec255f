//! A request's body on its way out of a compressor.

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_compression::tokio::bufread::{GzipDecoder, ZlibDecoder, ZstdDecoder};
use async_compression::zstd::DParameter;
use axum::body::Body;
use futures::{StreamExt, TryStreamExt, stream};
use tokio::io::{AsyncBufReadExt, AsyncRead};
use tokio_util::io::{ReaderStream, StreamReader};

use super::Encoding;

/// Given out at once.
const STEP_BYTES: usize = 64 << 10;
/// The largest window that a frame may ask for, as a power of two: RFC 9659's 8 MiB.
const ZSTD_WINDOW_LOG: u32 = 23;
/// A body that is read row by row may be of any length, but beyond the limit on whole bodies it
/// may not be made of less than this part of it.
const MAX_RATIO: u64 = 256;

/// A body that becomes too large for what it is made of.
#[derive(Debug)]
struct InflationLimit;

impl fmt::Display for InflationLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the body inflates beyond its limit")
    }
}

impl Error for InflationLimit {}

/// Whether a body could not be read because it inflates beyond its limit.
pub fn is_too_much(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if error.is::<InflationLimit>() {
            return true;
        }
        cause = inner(error);
    }
    false
}

/// An error of I/O tells the source of what is in it, not that itself.
fn inner<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e (dyn Error + 'static)> {
    let io: Option<&io::Error> = error.downcast_ref();
    match io.and_then(io::Error::get_ref) {
        Some(inner) => Some(inner),
        None => error.source(),
    }
}

/// `body`, inflated as it is asked for. `limit` is that of a whole body.
pub(super) fn inflated(body: Body, encoding: Encoding, limit: usize) -> Body {
    let taken = Arc::new(AtomicU64::new(0));
    let count = taken.clone();
    let decoded = async move {
        let pieces = body.into_data_stream().map_err(io::Error::other);
        let mut pieces = StreamReader::new(pieces.inspect_ok(move |piece| {
            count.fetch_add(piece.len() as u64, Ordering::Relaxed);
        }));
        let empty = pieces.fill_buf().await?.is_empty();
        let decoded: Box<dyn AsyncRead + Send + Unpin> = match encoding {
            // A body of nothing at all is an empty one, whatever its header says.
            _ if empty => Box::new(tokio::io::empty()),
            Encoding::Zstd => {
                let window = [DParameter::window_log_max(ZSTD_WINDOW_LOG)];
                let mut decoder = ZstdDecoder::with_params(pieces, &window);
                decoder.multiple_members(true);
                Box::new(decoder)
            }
            Encoding::Gzip => {
                let mut decoder = GzipDecoder::new(pieces);
                decoder.multiple_members(true);
                Box::new(decoder)
            }
            Encoding::Deflate => Box::new(ZlibDecoder::new(pieces)),
        };
        Ok::<_, io::Error>(ReaderStream::with_capacity(decoded, STEP_BYTES))
    };
    let mut given = 0;
    let decoded = stream::once(decoded).try_flatten().map(move |piece| {
        let piece = piece?;
        given += piece.len() as u64;
        let ratio = MAX_RATIO.saturating_mul(taken.load(Ordering::Relaxed));
        match given <= (limit as u64).saturating_add(ratio) {
            true => Ok(piece),
            false => Err(io::Error::other(InflationLimit)),
        }
    });
    Body::from_stream(decoded)
}
