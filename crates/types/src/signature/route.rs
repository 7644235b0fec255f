//! Routes that models declare for themselves.

use std::sync::Arc;

use super::{Signature, printable};
use crate::error::PredictError;

/// Metadata key of a model's input schema: the route that the model declares, without a slash.
const ROUTE: &str = "volley.route";

/// Longest route.
const MAX_LENGTH: usize = 64;

/// Adds the route that a model declares, such as `/generate-stream`.
///
/// # Errors
/// `InvalidInput` if it is not a slash and one segment of a path.
pub fn with_route(mut signature: Signature, route: &str) -> Result<Signature, PredictError> {
    let name = route.strip_prefix('/').unwrap_or(route);
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if name.is_empty()
        || MAX_LENGTH < name.len()
        || name.starts_with('.')
        || !name.bytes().all(is_plain)
    {
        return Err(PredictError::invalid(format!(
            "the route '{}' of the model must be a slash and 1 to {MAX_LENGTH} letters, digits, \
             '-', '_' and '.', such as '/generate-stream'",
            printable(route)
        )));
    }
    let mut metadata = signature.input.metadata().clone();
    metadata.insert(ROUTE.to_owned(), name.to_owned());
    let input = signature.input.as_ref().clone().with_metadata(metadata);
    signature.input = Arc::new(input);
    Ok(signature)
}

/// The route that a model declares, without a slash.
#[must_use]
pub fn route_of(signature: &Signature) -> Option<&str> {
    let route = signature.input.metadata().get(ROUTE);
    route.map(String::as_str)
}

#[cfg(test)]
mod tests;
