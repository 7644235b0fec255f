//! An answer's body on its way through a compressor.

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

/// Taken in at once: a large answer must not hold its thread for long.
const STEP_BYTES: usize = 128 << 10;
const ZSTD_LEVEL: i32 = 1;
/// What a stream's compressor looks back at, as a power of two: it is memory that every open
/// stream takes, here and at the client.
const ZSTD_WINDOW_LOG: u32 = 16;

/// A compressor and what it has given.
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

    /// `piece` compressed, so that a reader can have all of it; with the format's end where it
    /// is the last one.
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

/// A body, compressed as it is asked for. One that breaks off does so without the format's end.
pub(super) struct DeflatedBody {
    inner: Body,
    encoding: Encoding,
    /// Made with the first piece; a stream that waits for it takes no memory.
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

    /// Compresses a step of what is pending; `over` when nothing follows it.
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
