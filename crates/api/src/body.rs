//! Reading JSON bodies, bounded in size, time and depth.

use axum::extract::{FromRequest, Request};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, StatusCode, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde_json::{Map, Value};
use volley_types::{ErrorCode, PredictError};

use crate::auth::Sealed;
use crate::encoding;
use crate::error::{self, ApiError};

/// A JSON object; an empty body counts as an empty object.
#[derive(Debug)]
pub(crate) struct JsonObject(pub(crate) Map<String, Value>);

impl FromRequest<Sealed> for JsonObject {
    type Rejection = Response;

    async fn from_request(request: Request, app: &Sealed) -> Result<Self, Response> {
        // Besides being clear, this keeps web pages of other origins from posting here: browsers
        // ask before they send JSON, and are not answered.
        let json = is_json(request.headers());
        object(request, app, json).await.map(Self)
    }
}

/// A JSON object of a client that does not say what it sends, as Triton's do not. Only for routes
/// that change nothing.
#[derive(Debug)]
pub(crate) struct UntypedJsonObject(pub(crate) Map<String, Value>);

impl FromRequest<Sealed> for UntypedJsonObject {
    type Rejection = Response;

    async fn from_request(request: Request, app: &Sealed) -> Result<Self, Response> {
        let headers = request.headers();
        if headers.contains_key(BINARY_TENSORS) {
            let message = "this route takes no binary tensors; send JSON alone";
            let error = PredictError::invalid(message);
            return Err(error::respond(&error, StatusCode::UNSUPPORTED_MEDIA_TYPE));
        }
        let json = is_json(headers) || !headers.contains_key(header::CONTENT_TYPE);
        object(request, app, json).await.map(Self)
    }
}

/// A JSON object of a client that may not say what it sends, for routes that change something. A
/// web page of another origin always tells its origin, and is refused.
#[derive(Debug)]
pub(crate) struct OwnJsonObject(pub(crate) Map<String, Value>);

impl FromRequest<Sealed> for OwnJsonObject {
    type Rejection = Response;

    async fn from_request(request: Request, app: &Sealed) -> Result<Self, Response> {
        let headers = request.headers();
        let untyped = !headers.contains_key(header::CONTENT_TYPE);
        let json = is_json(headers) || (untyped && !headers.contains_key(header::ORIGIN));
        object(request, app, json).await.map(Self)
    }
}

/// Says where the JSON ends in a body that goes on with raw tensors; 0 where there is no JSON.
pub(crate) const BINARY_TENSORS: HeaderName =
    HeaderName::from_static("inference-header-content-length");

/// The tensors of an inference. Only for routes that change nothing.
#[derive(Debug)]
pub(crate) enum Tensors {
    /// A JSON object, and the bytes behind it.
    Told(Map<String, Value>, Bytes),
    /// The bytes of one tensor alone.
    Raw(Bytes),
}

impl FromRequest<Sealed> for Tensors {
    type Rejection = Response;

    async fn from_request(request: Request, app: &Sealed) -> Result<Self, Response> {
        let headers = request.headers();
        let Some(length) = headers.get(BINARY_TENSORS) else {
            let json = is_json(headers) || !headers.contains_key(header::CONTENT_TYPE);
            let object = object(request, app, json).await?;
            return Ok(Self::Told(object, Bytes::new()));
        };
        let length = length
            .to_str()
            .ok()
            .and_then(|text| text.trim().parse().ok());
        let bytes = read(request, app).await?;
        Self::split(bytes, length).map_err(|error| ApiError(error).into_response())
    }
}

impl Tensors {
    fn split(mut bytes: Bytes, length: Option<usize>) -> Result<Self, PredictError> {
        let length = length.filter(|length| *length <= bytes.len()).ok_or_else(|| {
            PredictError::invalid(format!(
                "header '{BINARY_TENSORS}' must be the length of the JSON in bytes, no more than \
                 the body's {}",
                bytes.len()
            ))
        })?;
        if length == 0 {
            return Ok(Self::Raw(bytes));
        }
        let raw = bytes.split_off(length);
        Ok(Self::Told(parse(&bytes)?, raw))
    }
}

async fn object(
    request: Request,
    app: &Sealed,
    json: bool,
) -> Result<Map<String, Value>, Response> {
    let bytes = read(request, app).await?;
    if !bytes.is_empty() && !json {
        let message = "send the body as JSON, with the header 'content-type: application/json'";
        let error = PredictError::invalid(message);
        return Err(error::respond(&error, StatusCode::UNSUPPORTED_MEDIA_TYPE));
    }
    parse(&bytes).map_err(|error| ApiError(error).into_response())
}

fn is_json(headers: &HeaderMap) -> bool {
    let given = headers.get(header::CONTENT_TYPE);
    let media = given.and_then(|value| value.to_str().ok()?.split(';').next());
    media.is_some_and(|media| media.trim().eq_ignore_ascii_case("application/json"))
}

/// The refusal of a body in an encoding that nobody here reads; what is read, is inflated already,
/// and its header gone.
pub(crate) fn unknown_encoding(headers: &HeaderMap) -> Option<Response> {
    let encoding = headers.get(header::CONTENT_ENCODING);
    if encoding.is_none_or(|encoding| encoding.as_bytes().eq_ignore_ascii_case(b"identity")) {
        return None;
    }
    let message = "bodies of that content encoding are not taken; send gzip, deflate, zstd or none";
    let error = PredictError::invalid(message);
    Some(error::respond(&error, StatusCode::UNSUPPORTED_MEDIA_TYPE))
}

/// Why a body broke off.
pub(crate) fn broken(source: axum::BoxError) -> PredictError {
    let error = if encoding::is_too_much(&*source) {
        PredictError::new(
            ErrorCode::TooLarge,
            "the request's body inflates to far more than it is; send it in parts, or compress it \
             less",
        )
    } else {
        PredictError::invalid(
            "the request's body could not be read; is it whole, and compressed as its header says?",
        )
    };
    error.with_source(source)
}

/// The whole body. What stands compressed on the wire is read inflated here, and the limit is
/// on that.
async fn read(request: Request, app: &Sealed) -> Result<Bytes, Response> {
    if let Some(refusal) = unknown_encoding(request.headers()) {
        return Err(refusal);
    }
    let limit = app.config().max_body_bytes;
    let collected = Limited::new(request.into_body(), limit).collect();
    let (status, code, message) =
        match tokio::time::timeout(app.config().body_timeout, collected).await {
            Ok(Ok(collected)) => return Ok(collected.to_bytes()),
            Ok(Err(error)) if error.is::<LengthLimitError>() => (
                StatusCode::PAYLOAD_TOO_LARGE,
                ErrorCode::TooLarge,
                format!("the request's body is over the limit of {limit} bytes"),
            ),
            Ok(Err(error)) => return Err(ApiError(broken(error)).into_response()),
            Err(_) => (
                StatusCode::REQUEST_TIMEOUT,
                ErrorCode::DeadlineExceeded,
                "the request's body did not arrive in time".to_owned(),
            ),
        };
    Err(error::respond(&PredictError::new(code, message), status))
}

/// Parses a body. The parser's own limit on depth (128) holds.
pub(crate) fn parse(bytes: &[u8]) -> Result<Map<String, Value>, PredictError> {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Ok(Map::new());
    }
    match serde_json::from_slice(bytes) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(PredictError::invalid(
            "the request's body must be a JSON object",
        )),
        Err(error) => Err(PredictError::invalid(format!(
            "the request's body is not valid JSON: {error}"
        ))),
    }
}

/// Typed access to the fields of a body, with errors that name them.
pub(crate) trait Fields {
    /// Refuses fields that are not `known`: what is misspelt must not be passed over.
    fn only(&self, what: &str, known: &[&str]) -> Result<(), PredictError>;
    /// A string; `None` where absent or null.
    fn text(&self, name: &str) -> Result<Option<&str>, PredictError>;
    /// A string that must be there.
    fn required(&self, name: &str) -> Result<&str, PredictError>;
    /// Refuses a body whose 'name' is not the `name` that its path has.
    fn same_name(&self, name: &str) -> Result<(), PredictError>;
    /// A whole number that is not negative.
    fn count(&self, name: &str) -> Result<Option<u64>, PredictError>;
    /// An object.
    fn object(&self, name: &str) -> Result<Option<&Map<String, Value>>, PredictError>;
}

/// Takes a field that is true, false or absent.
pub(crate) fn take_flag(body: &mut Map<String, Value>, name: &str) -> Result<bool, PredictError> {
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
                "field 'name' is not the name in the path; leave it out",
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
