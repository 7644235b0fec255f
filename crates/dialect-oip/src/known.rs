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

/// Rejects parameters of a tensor that are not `known`.
///
/// # Errors
/// `InvalidInput` naming the parameter.
pub(super) fn only(what: &str, names: &[&str], known: &[&str]) -> Result<(), PredictError> {
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
mod tests {
    use serde_json::json;

    use super::*;

    fn told(checked: Result<(), PredictError>) -> String {
        checked.unwrap_err().message
    }

    #[test]
    fn what_a_tensor_does_not_have_is_refused_by_name() {
        let good = json!([{
            "name": "x", "shape": [1], "datatype": "FP32", "data": [1], "parameters": {
                "content_type": "np", "binary_data_size": 4, "headers": null,
            },
        }, { "name": "y", "shape": [1], "datatype": "FP32", "parameters": null }]);
        inputs(good.as_array().unwrap()).unwrap();
        for (bad, says) in [
            (json!([1]), "each input must be an object"),
            (
                json!([{ "name": "x", "paramters": {} }]),
                "field 'paramters' of input 'x' is not known; the fields are name, shape",
            ),
            (
                json!([{ "name": "x", "parameters": { "binary_size": 4 } }]),
                "parameter 'binary_size' of input 'x' is not known; the parameters are binary",
            ),
            (
                json!([{ "name": "x", "parameters": 4 }]),
                "'parameters' of input 'x' must be an object",
            ),
            (
                json!([{ "name": "x", "parameters": { "content_type": 4 } }]),
                "'content_type' of input 'x' must be a string",
            ),
        ] {
            let message = told(inputs(bad.as_array().unwrap()));
            assert!(message.contains(says), "{message}");
        }
        output(&json!({ "name": "y", "parameters": { "classification": 3 } })).unwrap();
        let message = told(output(&json!({ "name": "y", "binary_data": true })));
        assert!(
            message.contains("field 'binary_data' of output 'y'"),
            "{message}"
        );
        let message = told(output(
            &json!({ "name": "y", "parameters": { "classes": 3 } }),
        ));
        assert!(message.contains("'classes' of output 'y'"), "{message}");
    }

    #[test]
    fn headers_are_only_for_tensors_and_only_as_mlserver_has_them() {
        let take = |parameters: Value, tensors: bool| {
            let mut parameters = parameters.as_object().unwrap().clone();
            take_codecs(&mut parameters, tensors).map(|()| parameters)
        };
        let codecs = json!({ "content_type": "np", "binary_data_output": true, "own": 1 });
        for tensors in [true, false] {
            let left = take(codecs.clone(), tensors).unwrap();
            assert_eq!(Value::Object(left), json!({ "own": 1 }));
        }
        let headers = json!({ "headers": { "x-team": "search" } });
        assert!(take(headers.clone(), true).unwrap().is_empty());
        for (bad, tensors, says) in [
            (headers, false, "'headers' is not supported"),
            (
                json!({ "headers": "x" }),
                true,
                "'headers' must be an object",
            ),
            (json!({ "headers": { "a": 1 } }), true, "'headers' must be"),
            (json!({ "content_type": "base64" }), true, "of each input"),
            (json!({ "content_type": 1 }), true, "must be a string"),
        ] {
            let message = take(bad, tensors).unwrap_err().message;
            assert!(message.contains(says), "{message}");
        }
    }
}
