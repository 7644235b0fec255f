//! Parameters of a generation that its response cannot honour, or that contradict each other. They
//! are rejected by name before anything is generated. Pure.

use serde_json::{Map, Value};
use volley_types::{ParamValue, Parameters, PredictError};

use super::tensors::printable;

/// Names of the same setting.
const ALIASES: [&[&str]; 2] = [
    &[
        "max_tokens",
        "max_new_tokens",
        "max_completion_tokens",
        "n_predict",
    ],
    &["repetition_penalty", "repeat_penalty"],
];

/// Rejects probabilities, for which a response has no field, and different values for one setting.
///
/// # Errors
/// `InvalidInput` naming the parameter.
pub(super) fn check(parameters: &Parameters) -> Result<(), PredictError> {
    let off = [ParamValue::Bool(false), ParamValue::Int(0)];
    for (name, off) in ["logprobs", "top_logprobs"].into_iter().zip(off) {
        if parameters.get(name).is_some_and(|value| *value != off) {
            return Err(PredictError::invalid(format!(
                "parameter '{name}' is not supported here, because responses have no field for \
                 probabilities; leave it out, or use /v1/chat/completions"
            )));
        }
    }
    for names in ALIASES {
        let mut given = names
            .iter()
            .filter_map(|name| Some((name, parameters.get(name)?)));
        if let Some((first, value)) = given.next()
            && let Some((second, _)) = given.find(|(_, other)| *other != value)
        {
            return Err(PredictError::invalid(format!(
                "parameters '{first}' and '{second}' are the same setting and differ; give one"
            )));
        }
    }
    Ok(())
}

/// Rejects several answers to a prompt.
///
/// # Errors
/// `InvalidInput` if `n` is above 1 or is not a number.
pub(super) fn one_answer(parameters: &Parameters) -> Result<(), PredictError> {
    match parameters.unsigned("n")? {
        Some(count) if 1 < count => Err(several()),
        _ => Ok(()),
    }
}

/// The error for several answers to a prompt.
pub(super) fn several() -> PredictError {
    PredictError::invalid("a response has one text for each prompt; leave 'n' out, or set it to 1")
}

/// Adds a parameter that may already be given elsewhere.
///
/// # Errors
/// `InvalidInput` naming the parameter if the values differ.
pub(super) fn add(
    parameters: &mut Map<String, Value>,
    name: &str,
    value: Value,
) -> Result<(), PredictError> {
    let before = parameters.get(name).filter(|value| !value.is_null());
    match before {
        Some(before) if !value.is_null() && *before != value => Err(different(name)),
        Some(_) => Ok(()),
        None => {
            parameters.insert(name.to_owned(), value);
            Ok(())
        }
    }
}

/// The error for two values of a parameter.
pub(super) fn different(name: &str) -> PredictError {
    let name = printable(name);
    PredictError::invalid(format!("'{name}' is given twice with different values"))
}

/// Takes the field `stream`, which must fit the route. The route determines whether the response is
/// a stream.
///
/// # Errors
/// `InvalidInput` if it is not a boolean, or is for the other route.
pub(super) fn take_stream(
    fields: &mut Map<String, Value>,
    streams: bool,
) -> Result<(), PredictError> {
    fields
        .remove("stream")
        .map_or(Ok(()), |value| stream("stream", &value, streams))
}

/// As [`take_stream`], for the `value` of a field or an input.
///
/// # Errors
/// As [`take_stream`].
pub(super) fn stream(name: &str, value: &Value, streams: bool) -> Result<(), PredictError> {
    let message = match value {
        Value::Null => return Ok(()),
        Value::Bool(flag) if *flag == streams => return Ok(()),
        Value::Bool(true) => "must be false on this route; use the route with the suffix '_stream'",
        Value::Bool(false) => {
            "must be true on this route; use the route without the suffix '_stream'"
        }
        _ => "must be true or false",
    };
    Err(PredictError::invalid(format!("'{name}' {message}")))
}

#[cfg(test)]
mod tests;
