//! Decompression of request bodies.

use std::error::Error;
use std::fmt;
use std::io::{self, BufRead, Read};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use bytes::{Buf, Bytes};
use flate2::bufread::MultiGzDecoder;
use flate2::{Decompress, FlushDecompress, Status};
use hyper::body::{Body as HttpBody, Frame};
use zstd::stream::read::Decoder as ZstdDecoder;

use super::Encoding;

/// Output bytes per step.
const STEP_BYTES: usize = 64 << 10;
/// Maximum window of a frame as a power of two: RFC 9659's 8 MiB.
const ZSTD_WINDOW_LOG: u32 = 23;
/// Maximum ratio of decompressed to compressed size above the limit for complete bodies. Bodies
/// that are read row by row may have any length.
const MAX_RATIO: u64 = 256;

/// The decompressed body is too large for its compressed size.
#[derive(Debug)]
struct InflationLimit;

impl fmt::Display for InflationLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the decompressed body exceeds its limit")
    }
}

impl Error for InflationLimit {}

/// Whether an error is an exceeded decompression limit.
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

/// `source()` of an I/O error skips its inner error; this returns the inner error.
fn inner<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e (dyn Error + 'static)> {
    let io: Option<&io::Error> = error.downcast_ref();
    match io.and_then(io::Error::get_ref) {
        Some(inner) => Some(inner),
        None => error.source(),
    }
}

/// Received bytes that are not decompressed yet. Reads return `WouldBlock` if more bytes may
/// arrive.
#[derive(Default)]
struct Feed {
    piece: Bytes,
    ended: bool,
}

impl BufRead for Feed {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.piece.is_empty() && !self.ended {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(&self.piece)
    }

    fn consume(&mut self, bytes: usize) {
        self.piece.advance(bytes);
    }
}

impl Read for Feed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = self.fill_buf()?.read(buffer)?;
        self.consume(bytes);
        Ok(bytes)
    }
}

/// HTTP's `deflate`, which is zlib's format. Unlike the library's reader, it reports a truncated
/// body as an error.
struct Zlib {
    feed: Feed,
    state: Decompress,
    ended: bool,
}

impl Read for Zlib {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while !self.ended {
            let piece = self.feed.fill_buf()?;
            let over = piece.is_empty();
            let (taken, given) = (self.state.total_in(), self.state.total_out());
            let status = self
                .state
                .decompress(piece, buffer, FlushDecompress::None)
                .map_err(io::Error::other)?;
            let taken = self.state.total_in() - taken;
            let given = self.state.total_out() - given;
            self.feed.consume(taken as usize);
            self.ended = status == Status::StreamEnd;
            if given != 0 {
                return Ok(given as usize);
            }
            if !self.ended && (over || taken == 0) {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(0)
    }
}

enum Decoder {
    Zstd(ZstdDecoder<'static, Feed>),
    Gzip(Box<MultiGzDecoder<Feed>>),
    Deflate(Box<Zlib>),
}

impl Decoder {
    fn new(encoding: Encoding) -> io::Result<Self> {
        let feed = Feed::default();
        Ok(match encoding {
            Encoding::Gzip => Self::Gzip(Box::new(MultiGzDecoder::new(feed))),
            Encoding::Deflate => Self::Deflate(Box::new(Zlib {
                feed,
                state: Decompress::new(true),
                ended: false,
            })),
            Encoding::Zstd => {
                let mut decoder = ZstdDecoder::with_buffer(feed)?;
                decoder.window_log_max(ZSTD_WINDOW_LOG)?;
                Self::Zstd(decoder)
            }
        })
    }

    fn feed(&mut self) -> &mut Feed {
        match self {
            Self::Zstd(decoder) => decoder.get_mut(),
            Self::Gzip(decoder) => decoder.get_mut(),
            Self::Deflate(decoder) => &mut decoder.feed,
        }
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Zstd(decoder) => decoder.read(buffer),
            Self::Gzip(decoder) => decoder.read(buffer),
            Self::Deflate(decoder) => decoder.read(buffer),
        }
    }
}

/// A body that is decompressed while it is polled.
pub(super) struct InflatedBody {
    inner: Body,
    encoding: Encoding,
    decoder: Option<Decoder>,
    limit: u64,
    taken: u64,
    given: u64,
    ended: bool,
    scratch: Vec<u8>,
}

impl InflatedBody {
    /// `limit` is the maximum size of a complete body in bytes.
    pub(super) fn new(inner: Body, encoding: Encoding, limit: usize) -> Self {
        Self {
            inner,
            encoding,
            decoder: None,
            limit: limit as u64,
            taken: 0,
            given: 0,
            ended: false,
            scratch: Vec::new(),
        }
    }

    fn decoder(&mut self) -> io::Result<&mut Decoder> {
        match &mut self.decoder {
            Some(decoder) => Ok(decoder),
            none => Ok(none.insert(Decoder::new(self.encoding)?)),
        }
    }

    /// Decompresses the received bytes: returns bytes, `None` at the end, or an error, which is
    /// `WouldBlock` if more input is needed.
    fn step(&mut self) -> io::Result<Option<Bytes>> {
        let mut out = std::mem::take(&mut self.scratch);
        out.resize(STEP_BYTES, 0);
        let read = self.decoder().and_then(|decoder| decoder.read(&mut out));
        // Copies the exact bytes: a body may have very many tiny chunks.
        let piece = Bytes::copy_from_slice(&out[..read.as_ref().map_or(0, |given| *given)]);
        self.scratch = out;
        let given = read?;
        if given == 0 {
            return Ok(None);
        }
        self.given += given as u64;
        let allowed = self.limit.saturating_add(MAX_RATIO * self.taken);
        if allowed < self.given {
            return Err(io::Error::other(InflationLimit));
        }
        Ok(Some(piece))
    }

    fn push(&mut self, piece: Bytes) -> io::Result<()> {
        self.taken += piece.len() as u64;
        self.decoder()?.feed().piece = piece;
        Ok(())
    }

    fn end(&mut self) -> io::Result<()> {
        // A body without bytes is empty, even if its header names an encoding.
        self.ended = self.taken == 0;
        self.decoder()?.feed().ended = true;
        Ok(())
    }
}

impl HttpBody for InflatedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        while !this.ended {
            let failed = match this.step() {
                Ok(Some(bytes)) => return Poll::Ready(Some(Ok(Frame::data(bytes)))),
                Ok(None) => {
                    this.ended = true;
                    break;
                }
                Err(error) => error,
            };
            if failed.kind() != io::ErrorKind::WouldBlock {
                this.ended = true;
                return Poll::Ready(Some(Err(axum::Error::new(failed))));
            }
            let fed = match ready!(Pin::new(&mut this.inner).poll_frame(cx)) {
                Some(Ok(frame)) => this.push(frame.into_data().unwrap_or_default()),
                Some(Err(error)) => {
                    this.ended = true;
                    return Poll::Ready(Some(Err(error)));
                }
                None => this.end(),
            };
            if let Err(error) = fed {
                this.ended = true;
                return Poll::Ready(Some(Err(axum::Error::new(error))));
            }
        }
        Poll::Ready(None)
    }
}
