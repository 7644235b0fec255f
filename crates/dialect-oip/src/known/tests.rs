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
fn a_place_in_shared_memory_needs_its_region() {
    for place in ["shared_memory_byte_size", "shared_memory_offset"] {
        let given = json!({ "name": "y", "parameters": { place: 4 } });
        let input = inputs(std::slice::from_ref(&given)).unwrap_err();
        assert!(input.message.contains(place), "{input}");
        let output = output(&given).unwrap_err();
        assert!(output.message.contains(place), "{output}");
    }
    let given = json!({ "name": "y", "parameters": {
        "shared_memory_region": "r", "shared_memory_byte_size": 4, "shared_memory_offset": 0 } });
    assert!(output(&given).is_ok());
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
