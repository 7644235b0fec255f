use serde_json::{Value, json};
use volley_dialect_kit::parameters::from_json;
use volley_types::registry::BackendName;

use super::*;

fn checked(name: BackendName, given: &Value) -> Result<(), String> {
    let backend = BackendInfo {
        source: match name == BackendName::REMOTE {
            true => SourceKind::Connector,
            false => SourceKind::Files,
        },
        takes_model_config: name == BackendName::ONNX,
        summary: "",
        name,
    };
    let parameters = from_json(given.as_object().unwrap()).unwrap();
    check(&backend, &parameters).map_err(|error| error.message.to_string())
}

#[test]
fn defaults_of_the_wrong_type_or_without_effect_are_rejected_by_name() {
    for (given, named) in [
        (json!({ "temperature": "hot" }), "temperature"),
        (json!({ "max_tokens": [1] }), "max_tokens"),
        (json!({ "max_rows": 1 }), "model.toml"),
        (json!({ "max_rowz": 1 }), "did you mean 'max_rows'?"),
        (json!({ "temprature": 1 }), "did you mean 'temperature'?"),
    ] {
        let message = checked(BackendName::ONNX, &given).unwrap_err();
        assert!(message.contains(named), "{given}: {message}");
    }
    let hot = json!({ "temperature": "hot" });
    assert!(checked(BackendName::REMOTE, &hot).is_err());
}

#[test]
fn parameters_that_models_take_are_accepted() {
    let onnx = json!({
        "variant": "q4", "task": "rerank", "temperature": "0.2", "top_k": -1, "seed": -7,
        "dimensions": 3, "normalize": true, "truncate": false, "raw_scores": true, "stop": ["a"],
        "logit_bias": {}, "stop_token_ids": [1], "min_tokens": 2, "ignore_eos": true,
        "reasoning_effort": "low", "truncate_prompt_tokens": 5, "token_vectors": true,
    });
    assert_eq!(checked(BackendName::ONNX, &onnx), Ok(()));
    let remote = json!({ "max_rows": 1, "temprature": 1, "temperature": 1 });
    assert_eq!(
        checked(BackendName::REMOTE, &remote),
        Ok(()),
        "its server reads them"
    );
}
