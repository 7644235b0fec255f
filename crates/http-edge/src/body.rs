//! Reads JSON bodies with limits on size, time and depth.

pub mod content;
mod unique;

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use http::{HeaderMap, HeaderName, StatusCode, header};
use hyper::body::Body as _;
use serde_json::{Map, Value};
use volley_types::{ErrorCode, PredictError, Share, exact};

pub use self::content::{broken, parse};
pub use self::unique::Unique as UniqueJson;
use crate::auth::Grants;
use crate::compact;
use crate::edge::Edge;
use crate::encoding::CompressedLength;
use crate::error::{self, ApiError};
use crate::intake::{BodyShare, tree_room};

/// A JSON object; an empty body counts as an empty object. The content type is ignored: many
/// clients send JSON as a form (`curl -d`), as bytes (aiohttp) or without a type. Pages of other
/// origins, which could send such requests too, are rejected earlier ([`crate::origins::Origins`]).
#[derive(Debug)]
pub struct JsonObject(pub Map<String, Value>);

impl<S: AsRef<Edge> + Send + Sync> FromRequest<S> for JsonObject {
    type Rejection = Response;

    async fn from_request(request: Request, state: &S) -> Result<Self, Response> {
        object(
            request,
            state.as_ref(),
            state.as_ref().config().max_body_bytes,
        )
        .await
        .map(Self)
    }
}

/// A JSON object with messages in Anthropic's or Ollama's format, in which the inputs of calls are
/// [exact](exact::keep_inputs).
#[derive(Debug)]
pub struct JsonMessages(pub Map<String, Value>);

impl<S: AsRef<Edge> + Send + Sync> FromRequest<S> for JsonMessages {
    type Rejection = Response;

    async fn from_request(request: Request, state: &S) -> Result<Self, Response> {
        let edge = state.as_ref();
        let (mut body, bytes) = object_of(request, edge, edge.config().max_body_bytes).await?;
        if let Ok(text) = std::str::from_utf8(&bytes) {
            exact::keep_inputs(&mut body, text);
        }
        Ok(Self(body))
    }
}

/// A JSON object, for a route whose siblings accept binary tensors.
#[derive(Debug)]
pub struct UntypedJsonObject(pub Map<String, Value>);

impl<S: AsRef<Edge> + Send + Sync> FromRequest<S> for UntypedJsonObject {
    type Rejection = Response;

    async fn from_request(request: Request, state: &S) -> Result<Self, Response> {
        if request.headers().contains_key(BINARY_TENSORS) {
            let message = "this route does not accept binary tensors; send JSON only";
            let error = PredictError::invalid(message);
            return Err(error::respond(&error, StatusCode::UNSUPPORTED_MEDIA_TYPE));
        }
        object(
            request,
            state.as_ref(),
            state.as_ref().config().max_tensor_bytes,
        )
        .await
        .map(Self)
    }
}

/// Header with the length of the JSON in a body that continues with raw tensors; 0 for a body
/// without JSON.
pub const BINARY_TENSORS: HeaderName = HeaderName::from_static("inference-header-content-length");

/// The tensors of an inference.
#[derive(Debug)]
pub enum Tensors {
    /// A JSON object and the bytes after it.
    Told(Map<String, Value>, Bytes),
    /// Only the bytes of one tensor.
    Raw(Bytes),
}

impl<S: AsRef<Edge> + Send + Sync> FromRequest<S> for Tensors {
    type Rejection = Response;

    async fn from_request(request: Request, state: &S) -> Result<Self, Response> {
        let media = other_media(request.headers());
        let (held, length) = (held(&request), json_length(request.headers()));
        let edge = state.as_ref();
        let limit = edge.config().max_tensor_bytes;
        let (bytes, mut share) = read(request, edge, limit).await?;
        let size = bytes.len();
        let told = Self::split(bytes, length, &mut share);
        held.keep(share, size);
        told.map_err(|error| malformed(error, media.filter(|_| length.is_none())))
    }
}

/// The declared length of the JSON. A malformed header yields a length that no body has.
fn json_length(headers: &HeaderMap) -> Option<usize> {
    let length = headers.get(BINARY_TENSORS)?.to_str().ok();
    let length = length.and_then(|text| text.trim().parse().ok());
    Some(length.unwrap_or(usize::MAX))
}

impl Tensors {
    fn split(
        mut bytes: Bytes,
        length: Option<usize>,
        share: &mut Share,
    ) -> Result<Self, PredictError> {
        let length = length.unwrap_or(bytes.len());
        if bytes.len() < length {
            return Err(PredictError::invalid(format!(
                "header '{BINARY_TENSORS}' must be the length of the JSON in bytes, at most the \
                 body's {}",
                bytes.len()
            )));
        }
        if length == 0 && !bytes.is_empty() {
            return Ok(Self::Raw(bytes));
        }
        let (raw, size) = (bytes.split_off(length), share.bytes());
        if compact::LARGE <= length {
            share.grow(compact::FACTOR * length)?;
            if let Some((body, raw)) = compact::read(&bytes, &raw, share)? {
                return Ok(Self::Told(body, raw));
            }
            share.shrink_to(size);
        }
        share.grow(tree_room(&bytes)?)?;
        Ok(Self::Told(parse(&bytes)?, raw))
    }
}

async fn object(
    request: Request,
    edge: &Edge,
    limit: usize,
) -> Result<Map<String, Value>, Response> {
    let (object, _) = object_of(request, edge, limit).await?;
    Ok(object)
}

/// A JSON object and its text.
async fn object_of(
    request: Request,
    edge: &Edge,
    limit: usize,
) -> Result<(Map<String, Value>, Bytes), Response> {
    let media = other_media(request.headers());
    let grants = request.extensions().get::<Grants>().is_some();
    let held = held(&request);
    let (bytes, mut share) = read(request, edge, limit).await?;
    let grown = tree_room(&bytes).and_then(|room| share.grow(room));
    held.keep(share, bytes.len());
    let read = if grants { unique::parse } else { parse };
    let object = grown.and_then(|()| read(&bytes));
    let object = object.map_err(|error| malformed(error, media))?;
    Ok((object, bytes))
}

/// The error for a body that is not JSON, with its declared media type.
pub fn malformed(mut error: PredictError, media: Option<String>) -> Response {
    match media {
        Some(media) if error.code == ErrorCode::InvalidInput => {
            error.message = format!("{}; it is sent as '{media}', send JSON", error.message);
            error::respond(&error, StatusCode::UNSUPPORTED_MEDIA_TYPE)
        }
        _ => ApiError(error).into_response(),
    }
}

/// The request's share of the memory for bodies.
pub fn held(request: &Request) -> BodyShare {
    request.extensions().get().cloned().unwrap_or_default()
}

/// The declared media type of a body, if it is not JSON.
pub fn other_media(headers: &HeaderMap) -> Option<String> {
    let given = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
    let media = given.split(';').next()?.trim().to_ascii_lowercase();
    let json = media == "application/json" || media.ends_with("+json") || media.is_empty();
    (!json).then_some(media)
}

/// The response to an unsupported content encoding. Supported encodings are already decompressed at
/// this point, and their header is removed.
pub fn unknown_encoding(headers: &HeaderMap) -> Option<Response> {
    let encoding = headers.get(header::CONTENT_ENCODING);
    if encoding.is_none_or(|encoding| encoding.as_bytes().eq_ignore_ascii_case(b"identity")) {
        return None;
    }
    let message = "this content encoding is not supported; send gzip, deflate, zstd or none";
    let error = PredictError::invalid(message);
    Some(error::respond(&error, StatusCode::UNSUPPORTED_MEDIA_TYPE))
}

/// Reads the complete body of at most `limit` bytes. The limit applies to the decompressed size.
pub async fn read(request: Request, edge: &Edge, limit: usize) -> Result<(Bytes, Share), Response> {
    if let Some(refusal) = unknown_encoding(request.headers()) {
        return Err(refusal);
    }
    let compressed = request.extensions().get::<CompressedLength>();
    let compressed = compressed.map_or(0, |length| length.0);
    let announced = request.body().size_hint().lower().max(compressed);
    // Rejected before the client sends it, if the client waits for `100 Continue`.
    if announced > limit as u64 {
        return Err(over(limit));
    }
    let mut share = edge.intake().share();
    let collected = collect(request.into_body(), limit, &mut share);
    let late = || {
        let message = "the request's body did not arrive in time";
        let error = PredictError::new(ErrorCode::DeadlineExceeded, message);
        error::respond(&error, StatusCode::REQUEST_TIMEOUT)
    };
    let read = tokio::time::timeout(edge.config().body_timeout, collected).await;
    let bytes = read.map_err(|_| late())??;
    Ok((bytes, share))
}

/// Collects all bytes of `body`. The memory does not depend on the size of the frames.
async fn collect(body: Body, limit: usize, share: &mut Share) -> Result<Bytes, Response> {
    let expected = body.size_hint().lower() as usize;
    let (mut pieces, mut all) = (body.into_data_stream(), BytesMut::new());
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|error| ApiError(broken(error.into())).into_response())?;
        if limit - all.len() < piece.len() {
            return Err(over(limit));
        }
        share
            .grow(piece.len())
            .map_err(|error| ApiError(error).into_response())?;
        if all.is_empty() && expected == piece.len() {
            return Ok(piece);
        }
        if all.is_empty() {
            all.reserve(expected.max(piece.len()));
        }
        all.extend_from_slice(&piece);
    }
    Ok(all.freeze())
}

fn over(limit: usize) -> Response {
    let message = format!("the request's body is over the limit of {limit} bytes");
    let error = PredictError::new(ErrorCode::TooLarge, message);
    error::respond(&error, StatusCode::PAYLOAD_TOO_LARGE)
}

/// Typed access to the fields of a body. Errors name the field.
pub trait Fields {
    /// Rejects fields that are not `known`, so that a misspelt field is not ignored.
    fn only(&self, what: &str, known: &[&str]) -> Result<(), PredictError>;
    /// A string; `None` where absent or null.
    fn text(&self, name: &str) -> Result<Option<&str>, PredictError>;
    /// A required string.
    fn required(&self, name: &str) -> Result<&str, PredictError>;
    /// Rejects a body whose 'name' differs from the `name` in the path.
    fn same_name(&self, name: &str) -> Result<(), PredictError>;
    /// A whole number that is not negative.
    fn count(&self, name: &str) -> Result<Option<u64>, PredictError>;
    /// An object.
    fn object(&self, name: &str) -> Result<Option<&Map<String, Value>>, PredictError>;
}

/// Takes a field that is true, false or absent.
pub fn take_flag(body: &mut Map<String, Value>, name: &str) -> Result<bool, PredictError> {
    match body.remove(name) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(flag)) => Ok(flag),
        Some(_) => Err(PredictError::invalid(format!(
            "field '{name}' must be true or false"
        ))),
    }
}

impl Fields for Map<String, Value> {
    fn only(&self, what: &str, known: &[&str]) -> Result<(), PredictError> {
        let Some(name) = self.keys().find(|name| !known.contains(&name.as_str())) else {
            return Ok(());
        };
        let name: String = name.chars().filter(|c| !c.is_control()).take(64).collect();
        Err(PredictError::invalid(format!(
            "field '{name}' of {what} is not known; the fields are {}",
            known.join(", ")
        )))
    }

    fn text(&self, name: &str) -> Result<Option<&str>, PredictError> {
        match self.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(PredictError::invalid(format!(
                "field '{name}' must be a string"
            ))),
        }
    }

    fn required(&self, name: &str) -> Result<&str, PredictError> {
        let text = self.text(name)?.filter(|text| !text.is_empty());
        text.ok_or_else(|| PredictError::invalid(format!("field '{name}' is missing")))
    }

    fn same_name(&self, name: &str) -> Result<(), PredictError> {
        match self.text("name")? {
            Some(told) if told != name => Err(PredictError::invalid(
                "field 'name' differs from the name in the path; leave it out",
            )),
            _ => Ok(()),
        }
    }

    fn count(&self, name: &str) -> Result<Option<u64>, PredictError> {
        match self.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => value.as_u64().map(Some).ok_or_else(|| {
                PredictError::invalid(format!("field '{name}' must be a whole number"))
            }),
        }
    }

    fn object(&self, name: &str) -> Result<Option<&Map<String, Value>>, PredictError> {
        match self.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Object(object)) => Ok(Some(object)),
            Some(_) => Err(PredictError::invalid(format!(
                "field '{name}' must be an object"
            ))),
        }
    }
}
