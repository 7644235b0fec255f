//! The fields and parameters of a tensor in a request. All others are rejected by name, so that a
//! misspelt one is not ignored. Pure.

use serde_json::{Map, Value};
use volley_types::PredictError;

use super::tensors::printable;
use volley_http_edge::body::Fields;
use volley_shared_memory::{OFFSET, REGION, SIZE};

const INPUT: [&str; 5] = ["name", "shape", "datatype", "parameters", "data"];
const OUTPUT: [&str; 2] = ["name", "parameters"];
/// The parameters of an input.
pub(super) const OF_INPUTS: [&str; 5] = ["binary_data_size", "content_type", REGION, SIZE, OFFSET];
/// The parameters of an output.
pub(super) const OF_OUTPUTS: [&str; 6] = [
    "binary_data",
    "classification",
    "content_type",
    REGION,
    SIZE,
    OFFSET,
];

/// Checks the fields of all `inputs`, and their parameters.
///
/// # Errors
/// `InvalidInput` naming the input and the field.
pub(super) fn inputs(inputs: &[Value]) -> Result<(), PredictError> {
    let mut inputs = inputs.iter();
    inputs.try_for_each(|input| tensor(input, "input", &INPUT, &OF_INPUTS))
}

/// Checks the fields of an output, and its parameters.
///
/// # Errors
/// `InvalidInput` naming the output and the field.
pub(super) fn output(output: &Value) -> Result<(), PredictError> {
    tensor(output, "output", &OUTPUT, &OF_OUTPUTS)
}

fn tensor(
    given: &Value,
    kind: &str,
    fields: &[&str],
    parameters: &[&str],
) -> Result<(), PredictError> {
    let Some(given) = given.as_object() else {
        return Err(PredictError::invalid(format!(
            "each {kind} must be an object with a 'name'"
        )));
    };
    let name = given.get("name").and_then(Value::as_str);
    let what = format!("{kind} '{}'", printable(name.unwrap_or_default()));
    given.only(&what, fields)?;
    let told = match given.get("parameters") {
        None | Some(Value::Null) => return Ok(()),
        Some(Value::Object(told)) => told,
        Some(_) => {
            let message = format!("'parameters' of {what} must be an object");
            return Err(PredictError::invalid(message));
        }
    };
    // Clients write parameters that they do not use as null.
    let used = told.iter().filter(|(_, value)| !value.is_null());
    let names: Vec<&str> = used.map(|(name, _)| name.as_str()).collect();
    only(&what, &names, parameters)?;
    match told.get("content_type") {
        None | Some(Value::Null | Value::String(_)) => Ok(()),
        Some(_) => Err(PredictError::invalid(format!(
            "parameter 'content_type' of {what} must be a string"
        ))),
    }
}

/// Rejects parameters of a tensor that are not `known`, and a place in shared memory without its
/// region.
///
/// # Errors
/// `InvalidInput` naming the parameter.
pub(super) fn only(what: &str, names: &[&str], known: &[&str]) -> Result<(), PredictError> {
    let is_place = |name: &&&str| matches!(**name, SIZE | OFFSET) && !names.contains(&REGION);
    if let Some(place) = names.iter().find(is_place) {
        return Err(PredictError::invalid(format!(
            "parameter '{place}' of {what} needs '{REGION}'; give both, or leave both out"
        )));
    }
    match names.iter().find(|name| !known.contains(*name)) {
        None => Ok(()),
        Some(name) => Err(PredictError::invalid(format!(
            "parameter '{}' of {what} is not known; the parameters are {}",
            printable(name),
            known.join(", ")
        ))),
    }
}

/// Takes from the `parameters` of a request what clients say of codecs to servers and what is not
/// for the model. MLServer's clients may send HTTP headers with tensors, as an object of texts;
/// they have no effect. Of a model that is not one of `tensors`, they would be lost.
///
/// # Errors
/// `InvalidInput` naming the parameter.
pub(super) fn take_codecs(
    parameters: &mut Map<String, Value>,
    tensors: bool,
) -> Result<(), PredictError> {
    parameters.remove("binary_data_output");
    match parameters.remove("content_type") {
        None | Some(Value::Null) => {}
        Some(Value::String(codec)) if codec != "base64" => {}
        Some(Value::String(_)) => {
            let message = "parameter 'content_type: base64' belongs to a tensor; set it in the \
                           'parameters' of each input and output";
            return Err(PredictError::invalid(message));
        }
        Some(_) => {
            let message = "parameter 'content_type' must be a string";
            return Err(PredictError::invalid(message));
        }
    }
    let is_text = |headers: &Map<String, Value>| headers.values().all(Value::is_string);
    match parameters.remove("headers") {
        None | Some(Value::Null) => Ok(()),
        Some(Value::Object(headers)) if tensors && is_text(&headers) => Ok(()),
        Some(_) if tensors => Err(PredictError::invalid(
            "parameter 'headers' must be an object of strings, as MLServer's clients send it",
        )),
        Some(_) => Err(PredictError::invalid(
            "parameter 'headers' is not supported for this model; leave it out, or send HTTP \
             headers with the request",
        )),
    }
}

#[cfg(test)]
mod tests;
