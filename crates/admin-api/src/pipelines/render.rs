//! Rendering of a pipeline as JSON, in the form in which it is parsed.

use serde_json::{Map, Value, json};
use volley_types::control::ModelStatus;
use volley_types::registry::{Branch, Inputs, PipelineEntry, PipelineStep, StepKind};
use volley_types::{ParamValue, Parameters};

pub(super) fn entry(entry: &PipelineEntry, status: Option<&ModelStatus>) -> Value {
    let spec = &entry.spec;
    let inputs = spec.inputs.iter();
    let inputs: Map<_, _> = inputs
        .map(|(name, kind)| (name.clone(), kind.as_str().into()))
        .collect();
    let mut told = json!({
        "name": spec.name.as_str(),
        "task": spec.task.as_str(),
        "inputs": inputs,
        "steps": spec.steps.iter().map(step).collect::<Vec<_>>(),
        "output": spec.output,
        "description": spec.description,
        "revision": entry.revision.0,
        "state": status.map(|status| status.state.as_str()),
    });
    if let Some(ensemble) = &spec.ensemble {
        told["ensemble"] = serde_json::from_str(&ensemble.config).unwrap_or_default();
        told["loaded"] = ensemble.loaded.into();
    }
    told
}

fn columns(inputs: &Inputs) -> Value {
    let columns = inputs.iter();
    let columns: Map<_, _> = columns
        .map(|(name, column)| (name.clone(), column.to_string().into()))
        .collect();
    columns.into()
}

fn step(step: &PipelineStep) -> Value {
    let mut told = json!({ "name": step.name });
    if let Some(over) = &step.over {
        told["over"] = over.as_str().into();
    }
    let (kind, what) = match &step.kind {
        StepKind::Model {
            model,
            inputs,
            parameters,
        } => {
            told["inputs"] = columns(inputs);
            if !parameters.is_empty() {
                told["parameters"] = json(parameters);
            }
            ("model", model.to_string().into())
        }
        StepKind::Explode { list, column } => {
            ("explode", json!({ "list": list.to_string(), "as": column }))
        }
        StepKind::Template {
            template,
            inputs,
            gather,
            column,
        } => {
            let what = json!({ "template": template, "inputs": columns(inputs), "gather": gather,
                               "as": column });
            ("template", what)
        }
        StepKind::Select(inputs) => ("select", columns(inputs)),
        StepKind::Branch(Branch::When { expression, inputs }) => (
            "branch",
            json!({ "when": expression, "inputs": columns(inputs) }),
        ),
        StepKind::Branch(Branch::Otherwise(steps)) => ("branch", json!({ "otherwise": steps })),
        StepKind::Merge(steps) => ("merge", steps.as_slice().into()),
        StepKind::TopK { k, by } => ("top_k", json!({ "k": k, "by": by.to_string() })),
        StepKind::Similarity {
            left,
            right,
            column,
        } => {
            let (left, right) = (left.to_string(), right.to_string());
            (
                "similarity",
                json!({ "left": left, "right": right, "as": column }),
            )
        }
        StepKind::Compute {
            expression,
            inputs,
            column,
        } => {
            let inputs = columns(inputs);
            let what = json!({ "expression": expression, "inputs": inputs, "as": column });
            ("compute", what)
        }
    };
    told[kind] = what;
    told
}

fn json(parameters: &Parameters) -> Value {
    let parameters = parameters.iter().map(|(name, value)| {
        let value = match value {
            ParamValue::Bool(value) => (*value).into(),
            ParamValue::Int(value) => (*value).into(),
            ParamValue::Float(value) => (*value).into(),
            ParamValue::Text(text) => text.as_str().into(),
            ParamValue::Json(text) => {
                serde_json::from_str(text).unwrap_or_else(|_| text.as_str().into())
            }
        };
        (name.to_owned(), value)
    });
    Value::Object(parameters.collect())
}
