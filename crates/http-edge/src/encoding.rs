//! Compression of responses and decompression of requests on every route.
//!
//! Each chunk of a stream is compressed and flushed separately, so that a client can read an event
//! when it arrives and not when a block is full. Request bodies are decompressed while they are
//! read, within limits.

mod deflate;
mod inflate;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use hyper::body::Body as _;

use self::deflate::deflated;
use self::inflate::inflated;

pub use self::inflate::is_too_much;

/// Smaller responses are not compressed, in bytes.
const MIN_BYTES: u64 = 64;

/// Marks responses that are never compressed: some clients announce encodings that they cannot
/// read.
#[derive(Clone, Copy, Debug)]
pub struct NoCompression;

/// Length of a compressed request body in bytes, if known.
#[derive(Clone, Copy, Debug)]
pub struct CompressedLength(pub u64);

/// A content encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    Zstd,
    Gzip,
    Deflate,
}

impl Encoding {
    /// In order of preference for equal client weights.
    const ALL: [Self; 3] = [Self::Zstd, Self::Gzip, Self::Deflate];

    fn name(self) -> &'static str {
        match self {
            Self::Zstd => "zstd",
            Self::Gzip => "gzip",
            Self::Deflate => "deflate",
        }
    }

    fn of(name: &str) -> Option<Self> {
        let name = if name.eq_ignore_ascii_case("x-gzip") {
            "gzip"
        } else {
            name
        };
        let mut all = Self::ALL.into_iter();
        all.find(|encoding| name.eq_ignore_ascii_case(encoding.name()))
    }
}

/// Middleware of all routes. `limit` is the maximum size of a complete body in bytes.
pub async fn middleware(State(limit): State<usize>, mut request: Request, next: Next) -> Response {
    let wanted = wanted(request.headers());
    let headers = request.headers_mut();
    let given = headers.get(header::CONTENT_ENCODING);
    let given = given.and_then(|value| Encoding::of(value.to_str().ok()?.trim()));
    // The body reader rejects other encodings.
    if let Some(encoding) = given {
        headers.remove(header::CONTENT_ENCODING);
        headers.remove(header::CONTENT_LENGTH);
        let length = CompressedLength(request.body().size_hint().lower());
        request.extensions_mut().insert(length);
        request = request.map(|body| inflated(body, encoding, limit));
    }
    let bodiless = request.method() == Method::HEAD;
    let response = next.run(request).await;
    if bodiless {
        return response;
    }
    compressed(response, wanted)
}

/// The client's preferred encoding; `None` if it prefers an uncompressed response.
fn wanted(headers: &HeaderMap) -> Option<Encoding> {
    let values = headers.get_all(header::ACCEPT_ENCODING).iter();
    let values = values.filter_map(|value| value.to_str().ok());
    let (mut weights, mut plain, mut others) = ([None; 3], None, None);
    for accepted in values.flat_map(|value| value.split(',')) {
        let mut parts = accepted.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default();
        let weight = parts
            .find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")))
            .map_or(1.0, |weight| weight.trim().parse().unwrap_or(0.0_f32));
        if let Some(encoding) = Encoding::of(name) {
            weights[encoding as usize] = Some(weight);
        } else if name == "identity" {
            plain = Some(weight);
        } else if name == "*" {
            others = Some(weight);
        }
    }
    let mut best = (None, plain.unwrap_or(0.0));
    for encoding in Encoding::ALL {
        let weight = weights[encoding as usize].or(others).unwrap_or(0.0);
        let better = match best.0 {
            None => 0.0 < weight && best.1 <= weight,
            Some(_) => best.1 < weight,
        };
        if better {
            best = (Some(encoding), weight);
        }
    }
    best.0
}

fn compressed(mut response: Response, wanted: Option<Encoding>) -> Response {
    if !is_worth_it(&response) {
        return response;
    }
    let headers = response.headers_mut();
    headers.append(
        header::VARY,
        HeaderValue::from_static(header::ACCEPT_ENCODING.as_str()),
    );
    let Some(encoding) = wanted else {
        return response;
    };
    let name = HeaderValue::from_static(encoding.name());
    headers.insert(header::CONTENT_ENCODING, name);
    headers.remove(header::CONTENT_LENGTH);
    response.map(|body| deflated(body, encoding))
}

fn is_worth_it(response: &Response) -> bool {
    let status = response.status();
    let bodiless = !status.is_success() || status == StatusCode::NO_CONTENT;
    let plain = response.extensions().get::<NoCompression>().is_some();
    let encoded = response.headers().contains_key(header::CONTENT_ENCODING);
    let small = response.body().size_hint().upper();
    !bodiless && !plain && !encoded && small.is_none_or(|bytes| MIN_BYTES <= bytes)
}

#[cfg(test)]
mod tests;
