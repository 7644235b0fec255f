//! The parameters that a request to a tensor model may have.

use volley_types::{Dialect, Parameters, PredictError, unknown_parameter};

/// What the Open Inference Protocol says of a request's waiting and of its sequence. A model
/// without queues or without sequences passes over them: in an ensemble, each model gets all.
const KNOWN: [&str; 5] = [
    "priority",
    "timeout",
    "sequence_id",
    "sequence_start",
    "sequence_end",
];

/// Refuses what a request asks for and nothing would come of. Callers of the Open Inference
/// Protocol may send what they like: servers of it ignore what they do not know.
///
/// # Errors
/// `InvalidInput` naming the parameter, and the nearest that there is.
pub(super) fn check(parameters: &Parameters, dialect: Dialect) -> Result<(), PredictError> {
    if dialect == Dialect::OpenInference {
        return Ok(());
    }
    let mut names = parameters.iter().map(|(name, _)| name);
    match names.find(|name| !KNOWN.contains(name)) {
        Some(name) => Err(unknown_parameter(name, KNOWN)),
        None => Ok(()),
    }
}
