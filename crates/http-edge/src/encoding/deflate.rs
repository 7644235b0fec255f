//! Compression of response bodies.

use std::io::{self, Write};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use zstd::stream::raw::CParameter;
use zstd::stream::write::Encoder as ZstdEncoder;

use super::Encoding;

/// Input bytes per step, so that a large response does not block its thread.
const STEP_BYTES: usize = 128 << 10;
const ZSTD_LEVEL: i32 = 1;
/// Window of a stream's compressor as a power of two. Every open stream needs this memory, on the
/// server and on the client.
const ZSTD_WINDOW_LOG: u32 = 16;

/// A compressor and its output.
enum Encoder {
    Zstd(ZstdEncoder<'static, Vec<u8>>),
    Gzip(GzEncoder<Vec<u8>>),
    Deflate(ZlibEncoder<Vec<u8>>),
}

impl Encoder {
    fn new(encoding: Encoding) -> io::Result<Self> {
        Ok(match encoding {
            Encoding::Gzip => Self::Gzip(GzEncoder::new(Vec::new(), Compression::fast())),
            Encoding::Deflate => Self::Deflate(ZlibEncoder::new(Vec::new(), Compression::fast())),
            Encoding::Zstd => {
                let mut encoder = ZstdEncoder::new(Vec::new(), ZSTD_LEVEL)?;
                for small in [
                    CParameter::WindowLog(ZSTD_WINDOW_LOG),
                    CParameter::HashLog(ZSTD_WINDOW_LOG - 2),
                    CParameter::ChainLog(ZSTD_WINDOW_LOG - 2),
                ] {
                    encoder.set_parameter(small)?;
                }
                Self::Zstd(encoder)
            }
        })
    }

    /// Compresses and flushes `piece`; the `last` one is followed by the end of the format.
    fn push(&mut self, piece: &[u8], last: bool) -> io::Result<Bytes> {
        let out = match self {
            Self::Zstd(encoder) => {
                encoder.write_all(piece)?;
                if last {
                    encoder.do_finish()?;
                } else {
                    encoder.flush()?;
                }
                encoder.get_mut()
            }
            Self::Gzip(encoder) => {
                encoder.write_all(piece)?;
                if last {
                    encoder.try_finish()?;
                } else {
                    encoder.flush()?;
                }
                encoder.get_mut()
            }
            Self::Deflate(encoder) => {
                encoder.write_all(piece)?;
                if last {
                    encoder.try_finish()?;
                } else {
                    encoder.flush()?;
                }
                encoder.get_mut()
            }
        };
        Ok(Bytes::from(std::mem::take(out)))
    }
}

/// A body that is compressed while it is polled. After an error of the inner body, the end of the
/// format is missing.
pub(super) struct DeflatedBody {
    inner: Body,
    encoding: Encoding,
    /// Created with the first chunk, so that a waiting stream needs no memory.
    encoder: Option<Encoder>,
    pending: Bytes,
    ended: bool,
}

impl DeflatedBody {
    pub(super) fn new(inner: Body, encoding: Encoding) -> Self {
        Self {
            inner,
            encoding,
            encoder: None,
            pending: Bytes::new(),
            ended: false,
        }
    }

    /// Compresses one step of the pending bytes; `over` if no more bytes follow.
    fn step(&mut self, over: bool) -> io::Result<Bytes> {
        let step = self.pending.len().min(STEP_BYTES);
        let piece = self.pending.split_to(step);
        self.ended = self.pending.is_empty() && (over || self.inner.is_end_stream());
        let encoder = match &mut self.encoder {
            Some(encoder) => encoder,
            none => none.insert(Encoder::new(self.encoding)?),
        };
        let out = encoder.push(&piece, self.ended)?;
        if self.ended {
            self.encoder = None;
        }
        Ok(out)
    }
}

impl HttpBody for DeflatedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        while this.pending.is_empty() {
            if this.ended {
                return Poll::Ready(None);
            }
            match ready!(Pin::new(&mut this.inner).poll_frame(cx)) {
                Some(Ok(frame)) => this.pending = frame.into_data().unwrap_or_default(),
                Some(Err(error)) => {
                    this.ended = true;
                    return Poll::Ready(Some(Err(error)));
                }
                None => break,
            }
        }
        let out = this.step(this.pending.is_empty());
        Poll::Ready(Some(out.map(Frame::data).map_err(axum::Error::new)))
    }

    fn is_end_stream(&self) -> bool {
        self.ended
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}
