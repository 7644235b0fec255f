//! Request parameters as JSON.

use serde_json::{Map, Value};
use volley_types::{ParamValue, Parameters, PredictError};

/// Converts JSON parameters to typed ones; null counts as missing.
///
/// # Errors
/// `InvalidInput` when there are too many.
pub fn from_json(object: &Map<String, Value>) -> Result<Parameters, PredictError> {
    let mut parameters = Parameters::default();
    for (name, value) in object {
        let value = match value {
            Value::Null => continue,
            Value::Bool(value) => ParamValue::Bool(*value),
            Value::String(text) => ParamValue::Text(text.clone()),
            Value::Number(number) => match number.as_i64() {
                Some(whole) => ParamValue::Int(whole),
                None => ParamValue::Float(number.as_f64().unwrap_or(f64::NAN)),
            },
            Value::Array(_) | Value::Object(_) => ParamValue::Json(value.to_string()),
        };
        parameters.set(name.clone(), value)?;
    }
    Ok(parameters)
}

/// Converts typed parameters to JSON, to return registered values.
pub fn to_json(parameters: &Parameters) -> Value {
    let fields = parameters.iter().map(|(name, value)| {
        let value = match value {
            ParamValue::Bool(value) => Value::from(*value),
            ParamValue::Int(value) => Value::from(*value),
            ParamValue::Float(value) => Value::from(*value),
            ParamValue::Text(value) => Value::from(value.as_str()),
            ParamValue::Json(text) => serde_json::from_str(text).unwrap_or(Value::Null),
        };
        (name.to_owned(), value)
    });
    Value::Object(fields.collect())
}
