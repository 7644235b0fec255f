//! The request parameters of tensor models.

use volley_types::{Dialect, Parameters, PredictError, unknown_parameter};

/// Parameters of the Open Inference Protocol for queues and sequences. Models without queues or
/// sequences ignore them, because an ensemble passes all parameters to each of its models.
const KNOWN: [&str; 5] = [
    "priority",
    "timeout",
    "sequence_id",
    "sequence_start",
    "sequence_end",
];

/// Rejects parameters without an effect. Parameters of the Open Inference Protocol are not checked:
/// its servers ignore unknown ones.
///
/// # Errors
/// `InvalidInput` with the parameter and the most similar known one.
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
