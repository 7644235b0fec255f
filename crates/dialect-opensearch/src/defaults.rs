//! Checks of default parameters, as far as a coordinator knows them. The names that a model takes
//! are known where it is loaded.

use volley_types::registry::{BackendInfo, SourceKind};
use volley_types::{Parameters, PredictError, unknown_parameter};

/// Keys of a model's `model.toml` that a registration cannot set.
const DIRECTORY: [&str; 17] = [
    "activation",
    "batch_window_us",
    "device",
    "instances",
    "labels",
    "max_batch_rows",
    "max_batch_tokens",
    "max_context",
    "max_length",
    "max_rows",
    "passage_prefix",
    "pooling",
    "prefix_reuse",
    "query_prefix",
    "shapes",
    "slots",
    "threads",
];
/// Parameters of generations that are numbers.
const NUMBERS: [&str; 15] = [
    "frequency_penalty",
    "max_completion_tokens",
    "max_new_tokens",
    "max_tokens",
    "min_p",
    "min_tokens",
    "n",
    "presence_penalty",
    "repeat_penalty",
    "repetition_penalty",
    "seed",
    "temperature",
    "top_k",
    "top_logprobs",
    "top_p",
];
/// Shorter names are similar to too many others.
const SIMILAR_FROM: usize = 8;

/// Checks the default parameters of a model.
///
/// # Errors
/// `InvalidInput` naming a parameter with a value of the wrong type and, for ONNX models, a
/// misspelled one or one that belongs in the model's directory.
pub(crate) fn check(backend: &BackendInfo, parameters: &Parameters) -> Result<(), PredictError> {
    // The models whose directory describes them.
    if backend.takes_model_config {
        for (name, _) in parameters.iter() {
            names(name)?;
        }
    }
    match backend.takes_model_config || backend.source == SourceKind::Connector {
        true => numbers(parameters),
        false => Ok(()),
    }
}

fn names(name: &str) -> Result<(), PredictError> {
    if DIRECTORY.contains(&name) {
        return Err(PredictError::invalid(format!(
            "parameter '{name}' has no effect in a registration: set it in the model.toml of the \
             model's directory"
        )));
    }
    let known = || DIRECTORY.into_iter().chain(NUMBERS);
    let misspelled = !NUMBERS.contains(&name)
        && SIMILAR_FROM <= name.len()
        && volley_types::nearest(name, known()).is_some();
    match misspelled {
        true => Err(unknown_parameter(name, known())),
        false => Ok(()),
    }
}

/// Checks that the values of numeric parameters are numbers.
///
/// # Errors
/// `InvalidInput` naming the parameter.
pub(crate) fn numbers(parameters: &Parameters) -> Result<(), PredictError> {
    NUMBERS
        .iter()
        .try_for_each(|name| parameters.float(name).map(drop))
}

#[cfg(test)]
mod tests;
