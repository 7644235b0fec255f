//! Errors of the coordinator, in one module so that their texts are consistent.

use std::time::Duration;

use volley_types::{ErrorCode, ModelName, ModelRef, ModelVersion, PredictError};

/// Retry delay while a replica is starting.
const SOON: Duration = Duration::from_secs(1);
/// Retry delay if an operator must act first.
const FAILED: Duration = Duration::from_secs(10);

pub(crate) fn draining() -> PredictError {
    PredictError::new(
        ErrorCode::Unavailable,
        "this coordinator is shutting down or drained; send the request to another one",
    )
    .with_retry_after(SOON)
}

pub(crate) fn full(max_streams: usize) -> PredictError {
    PredictError::new(
        ErrorCode::Overloaded,
        format!("this coordinator runs its limit of {max_streams} streams; try again shortly"),
    )
    .with_retry_after(SOON)
}

pub(crate) fn share_full(share: usize) -> PredictError {
    PredictError::new(
        ErrorCode::Overloaded,
        format!(
            "this coordinator is busy and runs the tenant's share of {share} streams; try again \
             shortly"
        ),
    )
    .with_retry_after(SOON)
}

pub(crate) fn unknown(model: &ModelName) -> PredictError {
    PredictError::new(
        ErrorCode::NotFound,
        format!("no model '{model}' is registered"),
    )
}

pub(crate) fn not_deployed(model: &ModelName) -> PredictError {
    PredictError::new(
        ErrorCode::NotDeployed,
        format!("model '{model}' is registered but not deployed; deploy it first"),
    )
}

pub(crate) fn other_version(asked: &ModelRef, deployed: ModelVersion) -> PredictError {
    PredictError::new(
        ErrorCode::NotDeployed,
        format!("'{asked}' is not deployed; version {deployed} of the model is"),
    )
}

/// `failure` is the reason why the model's replicas could not be loaded, if known.
pub(crate) fn no_replica(model: &ModelName, failure: Option<&str>) -> PredictError {
    if let Some(reason) = failure {
        let message = format!(
            "model '{model}' could not be loaded: {reason}; deploy it again after fixing this"
        );
        return PredictError::new(ErrorCode::Unavailable, message).with_retry_after(FAILED);
    }
    PredictError::new(
        ErrorCode::Unavailable,
        format!(
            "model '{model}' has no ready replica now; it is being deployed, or its workers are \
             not available"
        ),
    )
    .with_retry_after(SOON)
}

pub(crate) fn activation_timed_out(model: &ModelName) -> PredictError {
    PredictError::new(
        ErrorCode::Unavailable,
        format!("model '{model}' was scaled to zero and was not activated in time"),
    )
    .with_retry_after(SOON)
}

pub(crate) fn too_many_wait(model: &ModelName) -> PredictError {
    PredictError::new(
        ErrorCode::Overloaded,
        format!("too many requests already wait for models such as '{model}' to be activated"),
    )
    .with_retry_after(SOON)
}

/// A streamed request cannot be sent twice.
pub(crate) fn spent() -> PredictError {
    PredictError::new(
        ErrorCode::Unavailable,
        "the replica failed while it read the request's stream; send the request again",
    )
}

pub(crate) fn too_late() -> PredictError {
    PredictError::new(
        ErrorCode::DeadlineExceeded,
        "the request's deadline passed before its answer was complete",
    )
}

pub(crate) fn silent_worker() -> PredictError {
    PredictError::new(
        ErrorCode::Unavailable,
        "the worker that ran this model stopped responding; try again",
    )
    .with_retry_after(SOON)
}

pub(crate) fn torn() -> PredictError {
    PredictError::new(
        ErrorCode::Internal,
        "another replica continued the answer at the wrong position",
    )
}

pub(crate) fn silent_end() -> PredictError {
    PredictError::new(
        ErrorCode::Internal,
        "the model's stream ended without a terminal row; the response may be incomplete",
    )
}
