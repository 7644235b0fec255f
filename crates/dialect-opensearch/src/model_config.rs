//! `model_config` of a registration. It is checked here, stored as a parameter of the version, and
//! read by the workers.

use serde_json::{Map, Value};
use volley_types::{ParamValue, Parameters, PredictError};

use volley_http_edge::body::Fields;

/// Parameter of a version that stores `model_config`.
pub(crate) const NAME: &str = "model_config";
/// Parameter of a version with the task of a text encoder.
const TASK: &str = "task";

const FIELDS: [&str; 10] = [
    "model_type",
    "embedding_dimension",
    "framework_type",
    "pooling_mode",
    "normalize_result",
    "model_max_length",
    "query_prefix",
    "passage_prefix",
    "all_config",
    "additional_config",
];
const FRAMEWORKS: [&str; 2] = ["sentence_transformers", "huggingface_transformers"];
const POOLING: [&str; 5] = ["mean", "cls", "max", "lasttoken", "none"];

/// Adds `function_name` and `model_config` to the parameters of a local model.
///
/// # Errors
/// `InvalidInput` naming the field that is wrong.
pub(crate) fn add(
    parameters: &mut Parameters,
    function: &str,
    body: &Map<String, Value>,
) -> Result<(), PredictError> {
    let task = match function {
        "text_embedding" => Some("embed"),
        "text_similarity" => Some("rerank"),
        "sparse_encoding" => Some("encode_sparse"),
        _ => None,
    };
    if let Some(task) = task
        && parameters.get(TASK).is_none()
    {
        parameters.set(TASK, ParamValue::Text(task.to_owned()))?;
    }
    let Some(config) = body.object(NAME)? else {
        return Ok(());
    };
    if parameters.get(NAME).is_some() {
        return Err(PredictError::invalid(
            "give 'model_config' as a field or among 'parameters', not both",
        ));
    }
    let text = Value::Object(checked(config)?).to_string();
    parameters.set(NAME, ParamValue::Json(text))
}

fn checked(config: &Map<String, Value>) -> Result<Map<String, Value>, PredictError> {
    config.only("'model_config'", &FIELDS)?;
    config.count("embedding_dimension")?;
    config.count("model_max_length")?;
    config.object("additional_config")?;
    for name in ["model_type", "query_prefix", "passage_prefix"] {
        config.text(name)?;
    }
    one_of(config, "framework_type", &FRAMEWORKS)?;
    one_of(config, "pooling_mode", &POOLING)?;
    let normalize = config.get("normalize_result").unwrap_or(&Value::Null);
    if !matches!(normalize, Value::Null | Value::Bool(_)) {
        return Err(PredictError::invalid(
            "field 'normalize_result' must be true or false",
        ));
    }
    let mut config = config.clone();
    let all = match config.get("all_config") {
        None | Some(Value::Null) => None,
        // OpenSearch stores this object as text.
        Some(Value::Object(all)) => Some(Value::Object(all.clone()).to_string()),
        Some(Value::String(text)) => Some(text.clone()),
        Some(_) => return Err(no_config()),
    };
    if let Some(all) = all {
        serde_json::from_str::<Map<String, Value>>(&all)
            .map_err(|error| no_config().with_source(error))?;
        config.insert("all_config".to_owned(), all.into());
    }
    Ok(config)
}

fn one_of(config: &Map<String, Value>, name: &str, known: &[&str]) -> Result<(), PredictError> {
    let known_one = |text: &str| known.iter().any(|known| known.eq_ignore_ascii_case(text));
    match config.text(name)? {
        Some(text) if !known_one(text) => Err(PredictError::invalid(format!(
            "field '{name}' of 'model_config' must be one of: {}",
            known.join(", ")
        ))),
        _ => Ok(()),
    }
}

fn no_config() -> PredictError {
    PredictError::invalid(
        "field 'all_config' of 'model_config' must be the JSON object of the model's config.json, \
         as text or as it is",
    )
}
