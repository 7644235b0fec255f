//! Converts the parameters of Text Generation Inference. Pure.

use serde_json::{Map, Value, json};
use volley_types::PredictError;

use volley_http_edge::body::{Fields, take_flag};

/// Default number of tokens of an answer. It is that of Text Generation Inference.
const NEW_TOKENS: u64 = 100;

/// Options of the response, and the parameters of the model.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Options {
    pub(super) details: bool,
    pub(super) return_full_text: bool,
    /// Number of alternatives to return for each token.
    pub(super) alternatives: u64,
    pub(super) seed: Option<u64>,
    /// Parameters with their internal names.
    pub(super) parameters: Map<String, Value>,
}

const KNOWN: [&str; 22] = [
    "adapter_id",
    "best_of",
    "decoder_input_details",
    "details",
    "do_sample",
    "frequency_penalty",
    "grammar",
    "max_new_tokens",
    "presence_penalty",
    "repetition_penalty",
    "return_full_text",
    "seed",
    "stop",
    "stop_sequences",
    "temperature",
    "top_k",
    "top_n_tokens",
    "top_p",
    "truncate",
    "typical_p",
    "watermark",
    "raw",
];

/// Parses `parameters` for a server of the same format, which takes them under their own names.
/// Such a server is always asked for `details`, and prepends the prompt itself.
///
/// # Errors
/// `InvalidInput` if `details` or `raw` is malformed, or if `raw` is false: the server applies no
/// chat template.
pub(super) fn own(mut given: Map<String, Value>) -> Result<Options, PredictError> {
    given.retain(|_, value| !value.is_null());
    if given.contains_key("raw") && !take_flag(&mut given, "raw")? {
        return Err(unsupported("raw"));
    }
    Ok(Options {
        details: take_flag(&mut given, "details")?,
        parameters: given,
        ..Options::default()
    })
}

/// Parses `parameters`.
///
/// # Errors
/// `InvalidInput` naming the parameter that is unknown, malformed or not supported.
pub(super) fn read(mut given: Map<String, Value>) -> Result<Options, PredictError> {
    given.only("the parameters", &KNOWN)?;
    given.retain(|_, value| !value.is_null());
    refuse(&mut given)?;
    let mut options = Options {
        details: take_flag(&mut given, "details")?,
        return_full_text: take_flag(&mut given, "return_full_text")?,
        alternatives: given.count("top_n_tokens")?.unwrap_or(0),
        seed: given.count("seed")?,
        parameters: Map::new(),
    };
    given.remove("top_n_tokens");
    if 0 < options.alternatives && !options.details {
        return Err(PredictError::invalid(
            "parameter 'top_n_tokens' needs 'details' to be true",
        ));
    }
    let new_tokens = given.count("max_new_tokens")?.unwrap_or(NEW_TOKENS);
    given.remove("max_new_tokens");
    given.insert("max_tokens".to_owned(), new_tokens.into());
    if let Some(stops) = given.remove("stop_sequences") {
        given.entry("stop").or_insert(stops);
    }
    if take_flag(&mut given, "do_sample")? && !given.contains_key("temperature") {
        given.insert("temperature".to_owned(), 1.0.into());
    }
    if given.get("temperature").and_then(Value::as_f64) == Some(0.0) {
        return Err(PredictError::invalid(
            "parameter 'temperature' must be above 0; for greedy decoding, leave out both this \
             parameter and 'do_sample'",
        ));
    }
    take_grammar(&mut given)?;
    options.parameters = given;
    Ok(options)
}

/// Rejects unsupported parameters, which would otherwise be ignored silently. Their default values
/// are accepted.
fn refuse(given: &mut Map<String, Value>) -> Result<(), PredictError> {
    let harmless = [
        ("best_of", json!(1)),
        ("decoder_input_details", json!(false)),
        ("watermark", json!(false)),
        ("typical_p", json!(1.0)),
    ];
    for (name, value) in harmless {
        let same = |given: &Value| match (given.as_f64(), value.as_f64()) {
            (Some(given), Some(value)) => (given - value).abs() < f64::EPSILON,
            _ => *given == value,
        };
        if given.remove(name).is_some_and(|given| !same(&given)) {
            return Err(unsupported(name));
        }
    }
    for name in ["adapter_id", "truncate"] {
        if given.remove(name).is_some() {
            return Err(unsupported(name));
        }
    }
    Ok(())
}

fn unsupported(name: &str) -> PredictError {
    PredictError::invalid(format!("parameter '{name}' is not supported; leave it out"))
}

/// Converts `grammar` to a response format.
fn take_grammar(given: &mut Map<String, Value>) -> Result<(), PredictError> {
    let Some(grammar) = given.remove("grammar") else {
        return Ok(());
    };
    let wrong = || {
        PredictError::invalid(
            "parameter 'grammar' must have a 'type' of 'json', 'json_schema' or 'regex', and a \
             'value'",
        )
    };
    let value = grammar.get("value").cloned().ok_or_else(wrong)?;
    let (name, value) = match grammar.get("type").and_then(Value::as_str) {
        Some("regex") => ("guided_regex", value),
        // Clients send the schema either as JSON or as a JSON text.
        Some("json") => {
            let schema = match &value {
                Value::String(text) => serde_json::from_str(text).map_err(|_| wrong())?,
                _ => value,
            };
            ("guided_json", schema)
        }
        Some("json_schema") => {
            let schema = value.get("schema").cloned();
            ("guided_json", schema.unwrap_or(value))
        }
        _ => return Err(wrong()),
    };
    given.insert(name.to_owned(), value);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(value: Value) -> Result<Options, PredictError> {
        read(value.as_object().unwrap().clone())
    }

    #[test]
    fn parameters_get_our_names() {
        let options = given(json!({
            "max_new_tokens": 7, "do_sample": true, "seed": 3, "stop": ["x"], "best_of": 1,
            "details": true, "top_n_tokens": 2, "watermark": false, "typical_p": null,
            "grammar": { "type": "regex", "value": "a+" },
        }))
        .unwrap();
        assert!(options.details && !options.return_full_text);
        assert_eq!((options.alternatives, options.seed), (2, Some(3)));
        assert_eq!(
            Value::Object(options.parameters),
            json!({ "max_tokens": 7, "temperature": 1.0, "seed": 3, "stop": ["x"],
                    "guided_regex": "a+" })
        );
        let silent = given(json!({})).unwrap();
        assert_eq!(silent.parameters["max_tokens"], 100);
    }

    #[test]
    fn a_server_of_the_same_format_is_sent_everything_under_its_name() {
        let options = json!({ "details": true, "watermark": true, "best_of": 2, "newest": 1,
                              "return_full_text": true, "truncate": null });
        let options = own(options.as_object().unwrap().clone()).unwrap();
        assert!(options.details && !options.return_full_text);
        assert_eq!(
            Value::Object(options.parameters),
            json!({ "watermark": true, "best_of": 2, "newest": 1, "return_full_text": true })
        );
        let raw = |raw: bool| own(Map::from_iter([("raw".to_owned(), raw.into())]));
        assert!(raw(true).unwrap().parameters.is_empty());
        assert!(raw(false).unwrap_err().message.contains("'raw'"));
    }

    #[test]
    fn what_is_not_supported_is_named() {
        for (name, value) in [
            ("best_of", json!(2)),
            ("watermark", json!(true)),
            ("typical_p", json!(0.5)),
            ("truncate", json!(10)),
            ("decoder_input_details", json!(true)),
            ("adapter_id", json!("a")),
            ("temperature", json!(0)),
            ("top_n_tokens", json!(2)),
            ("grammar", json!({ "type": "lark", "value": "x" })),
            ("temprature", json!(1)),
        ] {
            let error = given(json!({ name: value })).unwrap_err();
            assert!(error.message.contains(name), "{name}: {}", error.message);
        }
    }
}
