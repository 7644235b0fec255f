//! Reading JSON bodies, bounded in size, time and depth.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde_json::{Map, Value};
use volley_types::{ErrorCode, PredictError};

use crate::app::App;
use crate::error::ApiError;

/// A JSON object; an empty body counts as an empty object.
#[derive(Debug)]
pub(crate) struct JsonObject(pub(crate) Map<String, Value>);

impl FromRequest<Arc<App>> for JsonObject {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, ApiError> {
        let bytes = read(request.into_body(), app).await?;
        Ok(Self(parse(&bytes)?))
    }
}

async fn read(body: Body, app: &App) -> Result<Bytes, PredictError> {
    let limit = app.config.max_body_bytes;
    let collected = Limited::new(body, limit).collect();
    match tokio::time::timeout(app.config.body_timeout, collected).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(PredictError::new(
            ErrorCode::TooLarge,
            format!("the request's body is over the limit of {limit} bytes"),
        )),
        Ok(Err(_)) => Err(PredictError::invalid(
            "the request's body could not be read",
        )),
        Err(_) => Err(PredictError::invalid(
            "the request's body did not arrive in time",
        )),
    }
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
    /// A string; `None` where absent or null.
    fn text(&self, name: &str) -> Result<Option<&str>, PredictError>;
    /// A string that must be there.
    fn required(&self, name: &str) -> Result<&str, PredictError>;
    /// A whole number that is not negative.
    fn count(&self, name: &str) -> Result<Option<u64>, PredictError>;
    /// An object.
    fn object(&self, name: &str) -> Result<Option<&Map<String, Value>>, PredictError>;
}

impl Fields for Map<String, Value> {
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
