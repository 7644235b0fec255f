//! Conversions of parameters: `map<string, ParamValue>` ⇄ [`Parameters`].

use std::collections::BTreeMap;

use volley_types::{ParamValue, Parameters, PredictError};

use crate::predict::v1 as wire;
use crate::predict::v1::param_value::Value;

/// Converts parameters to the wire.
#[must_use]
pub fn to_wire(parameters: &Parameters) -> BTreeMap<String, wire::ParamValue> {
    parameters
        .iter()
        .map(|(name, value)| (name.to_owned(), value_to_wire(value)))
        .collect()
}

fn value_to_wire(value: &ParamValue) -> wire::ParamValue {
    let value = match value {
        ParamValue::Bool(value) => Value::BoolValue(*value),
        ParamValue::Int(value) => Value::IntValue(*value),
        ParamValue::Float(value) => Value::FloatValue(*value),
        ParamValue::Text(value) => Value::TextValue(value.clone()),
        ParamValue::Json(value) => Value::JsonValue(value.clone()),
    };
    wire::ParamValue { value: Some(value) }
}

/// Converts parameters from the wire.
///
/// # Errors
/// `InvalidInput` when there are too many parameters, or when one has no value.
pub fn from_wire(wire: BTreeMap<String, wire::ParamValue>) -> Result<Parameters, PredictError> {
    let mut parameters = Parameters::default();
    for (name, value) in wire {
        let value = match value.value {
            Some(Value::BoolValue(value)) => ParamValue::Bool(value),
            Some(Value::IntValue(value)) => ParamValue::Int(value),
            Some(Value::FloatValue(value)) => ParamValue::Float(value),
            Some(Value::TextValue(value)) => ParamValue::Text(value),
            Some(Value::JsonValue(value)) => ParamValue::Json(value),
            None => {
                return Err(PredictError::invalid(
                    "a parameter in the command has no value",
                ));
            }
        };
        parameters.set(name, value)?;
    }
    Ok(parameters)
}
