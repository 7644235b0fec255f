//! Maps failures of fetching to errors for operators.

use std::io;

use object_store::client::HttpError;
use volley_types::{ErrorCode, PredictError};

use crate::http_client::{ForbiddenAddress, RedirectRejected, cause};

/// Maps an error of a store.
pub(crate) fn of_store(error: object_store::Error) -> PredictError {
    let (code, message) = match &error {
        object_store::Error::NotFound { .. } => (
            ErrorCode::NotFound,
            "a file of the model was not found: check the URL",
        ),
        object_store::Error::PermissionDenied { .. }
        | object_store::Error::Unauthenticated { .. } => (
            ErrorCode::PermissionDenied,
            "the model's store refused this worker: give it credentials in its environment, \
             artifacts.options or artifacts.tokens",
        ),
        _ if cause::<ForbiddenAddress>(&error).is_some() => (
            ErrorCode::PermissionDenied,
            "the model's server, or the target of its redirect, has an address that this worker \
             may not call: see artifacts.allowed_urls and artifacts.allow_private",
        ),
        _ if cause::<RedirectRejected>(&error).is_some() => (
            ErrorCode::UpstreamFailed,
            "the model's store redirects too often, or to a location without the bucket: register \
             the final URL, or set the region of the bucket",
        ),
        _ if is_broken_off(&error) => (
            ErrorCode::UpstreamFailed,
            "the model's store cannot be reached, or the connection broke; the next attempt \
             resumes from the bytes received so far",
        ),
        _ => (
            ErrorCode::UpstreamFailed,
            "the model's store returned an error; see the worker's log",
        ),
    };
    PredictError::new(code, message).with_source(error)
}

/// Whether the connection failed, as opposed to the request.
pub(crate) fn is_broken_off(error: &object_store::Error) -> bool {
    cause::<HttpError>(error).is_some()
}

/// Maps an error of the cache's file system.
pub(crate) fn of_disk(error: io::Error) -> PredictError {
    let message = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "the disk of this worker's cache is full"
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "this worker may not write to its cache: see artifacts.cache_dir"
        }
        _ => "this worker's cache cannot be read or written: see artifacts.cache_dir",
    };
    PredictError::new(ErrorCode::Unavailable, message).with_source(error)
}

/// Maps the panic or cancellation of a blocking task.
pub(crate) fn of_task(error: tokio::task::JoinError) -> PredictError {
    PredictError::internal("fetching the model failed", error)
}

/// The error of work whose load was dropped.
pub(crate) fn cancelled() -> PredictError {
    PredictError::new(ErrorCode::Cancelled, "the load was abandoned")
}

/// The error for content with another hash than registered.
pub(crate) fn wrong_hash() -> PredictError {
    PredictError::invalid("the downloaded model does not have the expected SHA-256 and was deleted")
}
