//! Parses the configuration of an ensemble. Pure.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};
use volley_types::registry::REQUEST;
use volley_types::{ModelName, PredictError};

use super::SCHEDULING;
use crate::tensors::printable;

type Object = Map<String, Value>;

/// Fields whose keys are names and must not be converted.
const MAPS: [&str; 4] = ["input_map", "output_map", "parameters", "metric_tags"];

/// An input or output tensor of an ensemble.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) name: String,
    pub(super) data_type: String,
}

/// A step of an ensemble, which calls a model.
#[derive(Debug)]
pub(super) struct EnsembleStep {
    /// Name in the pipeline.
    pub(super) name: String,
    pub(super) model: ModelName,
    /// The requested version; `None` for the newest.
    pub(super) version: Option<i64>,
    /// Tensors of the ensemble by the names of the model's inputs.
    pub(super) inputs: BTreeMap<String, String>,
    /// Tensors of the ensemble by the names of the model's outputs.
    pub(super) outputs: BTreeMap<String, String>,
}

/// The error for an invalid configuration.
pub(super) fn wrong(what: impl std::fmt::Display) -> PredictError {
    PredictError::invalid(format!("the configuration of the ensemble: {what}"))
}

/// Whether a field has the default value, which clients write for fields that they do not set.
pub(super) fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(values) => values.is_empty(),
        _ => false,
    }
}

/// Converts the field names to those of a `config.pbtxt` and 64-bit integers, which are texts in
/// the JSON of protocol buffers, to numbers.
pub(super) fn snaked(object: &Object) -> Object {
    let fields = object.iter().map(|(name, value)| {
        let name = snake(name);
        let value = match value {
            value if MAPS.contains(&name.as_str()) => value.clone(),
            value => snaked_value(&name, value),
        };
        (name, value)
    });
    fields.collect()
}

fn snaked_value(name: &str, value: &Value) -> Value {
    match value {
        Value::Object(object) => snaked(object).into(),
        Value::Array(values) => values.iter().map(|it| snaked_value(name, it)).collect(),
        Value::String(text) if ["dims", "model_version", "shape", "versions"].contains(&name) => {
            text.parse::<i64>()
                .map_or_else(|_| value.clone(), Value::from)
        }
        value => value.clone(),
    }
}

fn snake(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for c in name.chars() {
        if c.is_ascii_uppercase() {
            out.push('_');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}

pub(super) fn ports(config: &Object, field: &str) -> Result<Vec<Port>, PredictError> {
    let tensors = config.get(field).and_then(Value::as_array);
    let tensors = tensors.filter(|tensors| !tensors.is_empty());
    let tensors = tensors.ok_or_else(|| wrong(format_args!("'{field}' lists no tensors")))?;
    let port = |tensor: &Value| {
        let text = |field: &str| tensor.get(field).and_then(Value::as_str);
        let name = text("name").filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| wrong(format_args!("an '{field}' has no name")))?;
        for unknown in [
            "reshape",
            "optional",
            "is_shape_tensor",
            "allow_ragged_batch",
        ] {
            let told = tensor.get(unknown);
            if told.is_some_and(|told| !is_nothing(told) && *told != Value::Bool(false)) {
                let told = format_args!(
                    "'{unknown}' of the {field} '{}' is not supported",
                    printable(name)
                );
                return Err(wrong(told));
            }
        }
        Ok(Port {
            data_type: text("data_type").unwrap_or_default().to_owned(),
            name: name.to_owned(),
        })
    };
    tensors.iter().map(port).collect()
}

pub(super) fn steps(config: &Object) -> Result<Vec<EnsembleStep>, PredictError> {
    let scheduling = config.get(SCHEDULING).and_then(Value::as_object);
    let steps = scheduling.and_then(|scheduling| scheduling.get("step")?.as_array());
    let steps = steps.filter(|steps| !steps.is_empty());
    let steps = steps.ok_or_else(|| wrong(format_args!("'{SCHEDULING}' has no steps")))?;
    let mut names = BTreeSet::new();
    let mut read = Vec::new();
    for (number, step) in (1..).zip(steps) {
        let mut step = self::step(step, number)?;
        step.name = unique(&step.name, &names.iter().map(String::as_str).collect());
        names.insert(step.name.clone());
        read.push(step);
    }
    Ok(read)
}

fn step(step: &Value, number: usize) -> Result<EnsembleStep, PredictError> {
    let empty = Object::new();
    let step = step.as_object().unwrap_or(&empty);
    let known = [
        "model_name",
        "model_version",
        "model_namespace",
        "input_map",
        "output_map",
    ];
    for (field, value) in step {
        let is_known = known.contains(&field.as_str()) && (field != known[2] || is_nothing(value));
        if !is_known && !is_nothing(value) {
            let field = printable(field);
            return Err(wrong(format_args!(
                "'{field}' of step {number} is not supported"
            )));
        }
    }
    let model = step.get("model_name").and_then(Value::as_str);
    let model = model.filter(|model| !model.is_empty());
    let model = model.ok_or_else(|| wrong(format_args!("step {number} names no model")))?;
    let version = match step.get("model_version") {
        None | Some(Value::Null) => None,
        Some(version) => {
            let told = || {
                wrong(format_args!(
                    "'model_version' of step {number} is not a number"
                ))
            };
            Some(version.as_i64().ok_or_else(told)?)
        }
    };
    let map = |field: &str| {
        let told = || {
            wrong(format_args!(
                "'{field}' of step {number} maps names to no tensors"
            ))
        };
        let entries = step.get(field).and_then(Value::as_object);
        let entries = entries
            .filter(|entries| !entries.is_empty())
            .ok_or_else(told)?;
        let entry = |(name, tensor): (&String, &Value)| {
            let tensor = tensor.as_str().filter(|tensor| !tensor.is_empty());
            let tensor = tensor.filter(|_| !name.is_empty()).ok_or_else(told)?;
            Ok((name.clone(), tensor.to_owned()))
        };
        entries
            .iter()
            .map(entry)
            .collect::<Result<_, PredictError>>()
    };
    let plain = |c: char| match c.is_ascii_alphanumeric() || "-_".contains(c) {
        true => c,
        false => '-',
    };
    Ok(EnsembleStep {
        name: model.chars().map(plain).take(64).collect(),
        model: ModelName::new(model.to_owned())?,
        version: version.filter(|version| 0 < *version),
        inputs: map("input_map")?,
        outputs: map("output_map")?,
    })
}

/// `name`, with a number appended if it is taken.
pub(super) fn unique(name: &str, taken: &BTreeSet<&str>) -> String {
    let is_free = |name: &str| !taken.contains(name) && ![REQUEST, "parameters"].contains(&name);
    if is_free(name) {
        return name.to_owned();
    }
    let mut numbered = (2..).map(|number| format!("{name}-{number}"));
    numbered.find(|name| is_free(name)).unwrap_or_default()
}
