//! Content of bodies, and errors of incomplete bodies.

use axum::BoxError;
use serde_json::{Map, Value};
use volley_types::{ErrorCode, PredictError};

use crate::encoding;

/// The error of an incomplete body.
pub fn broken(source: BoxError) -> PredictError {
    let error = if encoding::is_too_much(&*source) {
        PredictError::new(
            ErrorCode::TooLarge,
            "the request's body expands too much when decompressed; send it in parts, or compress \
             it less",
        )
    } else {
        PredictError::invalid(
            "the request's body could not be read; check that it is complete and compressed as \
             its header declares",
        )
    };
    error.with_source(source)
}

/// Whether a body is empty and so counts as an empty object.
pub(super) fn is_blank(bytes: &[u8]) -> bool {
    bytes.iter().all(u8::is_ascii_whitespace)
}

/// Parses a body. The parser limits the depth to 128.
pub fn parse(bytes: &[u8]) -> Result<Map<String, Value>, PredictError> {
    if is_blank(bytes) {
        return Ok(Map::new());
    }
    parsed(serde_json::from_slice(bytes))
}

pub(super) fn parsed(value: serde_json::Result<Value>) -> Result<Map<String, Value>, PredictError> {
    match value {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(PredictError::invalid(
            "the request's body must be a JSON object",
        )),
        Err(error) => Err(PredictError::invalid(format!(
            "the request's body is not valid JSON: {error}"
        ))),
    }
}
