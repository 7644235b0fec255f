use serde_json::json;

use super::*;

fn given(json: &Value) -> Parameters {
    volley_dialect_kit::parameters::from_json(json.as_object().unwrap()).unwrap()
}

#[test]
fn what_a_response_cannot_hold_is_refused_by_its_name() {
    for (parameters, told) in [
        (json!({ "logprobs": true }), "'logprobs'"),
        (json!({ "logprobs": 0 }), "'logprobs'"),
        (json!({ "top_logprobs": 2 }), "'top_logprobs'"),
        (
            json!({ "max_tokens": 3, "max_new_tokens": 5 }),
            "'max_tokens' and 'max_new_tokens'",
        ),
    ] {
        let error = check(&given(&parameters)).unwrap_err();
        assert!(error.message.contains(told), "{error}");
    }
    for parameters in [
        json!({}),
        json!({ "logprobs": false, "top_logprobs": 0 }),
        json!({ "max_tokens": 3, "max_new_tokens": 3, "temperature": 1 }),
    ] {
        assert!(check(&given(&parameters)).is_ok(), "{parameters}");
    }
}

#[test]
fn a_prompt_has_one_answer() {
    for one in [json!({}), json!({ "n": 1 })] {
        assert!(one_answer(&given(&one)).is_ok(), "{one}");
    }
    for several in [json!({ "n": 3 }), json!({ "n": "x" })] {
        let error = one_answer(&given(&several)).unwrap_err();
        assert!(error.message.contains("'n'"), "{error}");
    }
}

#[test]
fn a_parameter_has_one_value() {
    let mut parameters = Map::new();
    for value in [json!(null), json!(3), json!(3), json!(null)] {
        add(&mut parameters, "max_tokens", value).unwrap();
    }
    assert_eq!(parameters["max_tokens"], 3);
    let error = add(&mut parameters, "max_tokens", json!(5)).unwrap_err();
    assert!(error.message.contains("'max_tokens'"), "{error}");
}

#[test]
fn a_stream_fits_its_route() {
    let take = |value: Value, streams| {
        let mut fields = Map::from_iter([("stream".to_owned(), value)]);
        take_stream(&mut fields, streams).map(|()| fields.len())
    };
    assert_eq!(take(json!(true), true).unwrap(), 0);
    assert_eq!(take(json!(false), false).unwrap(), 0);
    assert_eq!(take(json!(null), false).unwrap(), 0);
    for (value, streams) in [
        (json!(true), false),
        (json!(false), true),
        (json!("yes"), true),
    ] {
        let error = take(value, streams).unwrap_err();
        assert!(error.message.contains("'stream'"), "{error}");
    }
}
