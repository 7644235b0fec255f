//! Extractors whose rejections use the dialect's error format.

use axum::extract::{FromRequestParts, rejection::PathRejection};
use http::request::Parts;
use serde::de::DeserializeOwned;
use volley_types::PredictError;

use crate::error::ApiError;

/// The parameters in a route's path.
#[derive(Debug)]
pub struct Path<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Path<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let path = axum::extract::Path::from_request_parts(parts, state).await;
        let axum::extract::Path(value) = path.map_err(|rejection: PathRejection| {
            PredictError::invalid("the request's path is malformed").with_source(rejection)
        })?;
        Ok(Self(value))
    }
}

/// The query string. `pretty` and `human`, which OpenSearch's clients add, are ignored; other
/// unknown parameters are rejected.
#[derive(Debug)]
pub struct Query<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let query: Vec<_> = parts
            .uri
            .query()
            .unwrap_or_default()
            .split('&')
            .filter(|pair| !matches!(pair.split('=').next(), Some("pretty" | "human")))
            .collect();
        let uri = format!("/?{}", query.join("&"));
        let malformed = |reason: String| {
            PredictError::invalid(format!("the request's query is malformed: {reason}"))
        };
        let uri = uri
            .parse()
            .map_err(|error: http::uri::InvalidUri| malformed(error.to_string()))?;
        let query = axum::extract::Query::try_from_uri(&uri);
        let axum::extract::Query(value) =
            query.map_err(|rejection| malformed(rejection.body_text()))?;
        Ok(Self(value))
    }
}
