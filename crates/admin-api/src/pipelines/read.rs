//! Parsing of a pipeline from JSON.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use volley_types::registry::{
    Branch, ColumnRef, ColumnType, Inputs, PipelineSpec, PipelineStep, StepKind,
};
use volley_types::{ModelName, PredictError, Task};

use volley_dialect_kit::parameters;
use volley_http_edge::body::Fields;

const FIELDS: [&str; 6] = ["name", "task", "inputs", "steps", "output", "description"];
/// The kinds of steps. A step has exactly one of these keys.
const KINDS: [&str; 9] = [
    "model",
    "explode",
    "template",
    "select",
    "branch",
    "merge",
    "top_k",
    "similarity",
    "compute",
];
/// Default column names of steps that create one column.
const TEXT: &str = "text";
const SCORE: &str = "score";

type Object = Map<String, Value>;

pub(super) fn pipeline(body: &Object, name: ModelName) -> Result<PipelineSpec, PredictError> {
    body.only("a pipeline", &FIELDS)?;
    let task = body.required("task")?;
    let task = Task::from_name(task).ok_or_else(|| {
        PredictError::invalid(
            "field 'task' must be generate, tensors, embed, rerank, classify, classify_tokens or \
             encode_sparse",
        )
    })?;
    let steps = match body.get("steps") {
        Some(Value::Array(steps)) => steps.iter().map(step).collect::<Result<Vec<_>, _>>()?,
        _ => {
            return Err(PredictError::invalid(
                "field 'steps' must be a list of steps",
            ));
        }
    };
    let last = steps.last().map(|step| step.name.clone());
    let output = body.text("output")?.map(str::to_owned).or(last);
    Ok(PipelineSpec {
        name,
        task,
        inputs: types(body)?,
        steps,
        output: output.unwrap_or_default(),
        description: body.text("description")?.unwrap_or_default().to_owned(),
        ensemble: None,
    })
}

fn types(body: &Object) -> Result<BTreeMap<String, ColumnType>, PredictError> {
    let Some(inputs) = body.object("inputs")? else {
        return Ok(BTreeMap::new());
    };
    let inputs = inputs.iter().map(|(name, kind)| {
        let kind = kind.as_str().and_then(ColumnType::from_name);
        let kind = kind.ok_or_else(|| {
            PredictError::invalid(format!(
                "input '{name}' must be text, int, float, bool, floats or tensor"
            ))
        })?;
        Ok((name.clone(), kind))
    });
    inputs.collect()
}

fn step(step: &Value) -> Result<PipelineStep, PredictError> {
    let step = step
        .as_object()
        .ok_or_else(|| PredictError::invalid("a step must be an object"))?;
    let name = step.required("name")?.to_owned();
    let of_step = |mut error: PredictError| {
        error.message = format!("step '{name}': {}", error.message);
        error
    };
    let mut kinds = KINDS.into_iter().filter(|kind| step.contains_key(*kind));
    let (Some(kind), None) = (kinds.next(), kinds.next()) else {
        let message = format!("must have one of {}", KINDS.join(", "));
        return Err(of_step(PredictError::invalid(message)));
    };
    let known: &[&str] = match kind {
        "model" => &["name", "over", "model", "inputs", "parameters"],
        kind => &["name", "over", kind],
    };
    let read = || {
        step.only("a step", known)?;
        Ok((
            step.text("over")?.map(str::to_owned),
            read_kind(step, kind)?,
        ))
    };
    let (over, kind) = read().map_err(of_step)?;
    Ok(PipelineStep { name, over, kind })
}

fn read_kind(step: &Object, kind: &str) -> Result<StepKind, PredictError> {
    match kind {
        "model" => {
            let parameters = step.object("parameters")?;
            let parameters = parameters.map(parameters::from_json).transpose()?;
            Ok(StepKind::Model {
                model: step.required("model")?.parse()?,
                inputs: inputs(step, "inputs")?,
                parameters: parameters.unwrap_or_default(),
            })
        }
        "select" => Ok(StepKind::Select(inputs(step, "select")?)),
        "merge" => Ok(StepKind::Merge(names(step, "merge")?)),
        "branch" => Ok(StepKind::Branch(branch(told(step, kind)?)?)),
        "explode" => {
            let told = told(step, kind)?;
            told.only("explode", &["list", "as"])?;
            Ok(StepKind::Explode {
                list: column(told, "list")?,
                column: named(told, TEXT)?,
            })
        }
        "template" => read_template(told(step, kind)?),
        "top_k" => {
            let told = told(step, kind)?;
            told.only("top_k", &["k", "by"])?;
            let k = told.count("k")?;
            let k = k.ok_or_else(|| PredictError::invalid("field 'k' is missing"))?;
            Ok(StepKind::TopK {
                k: u32::try_from(k).unwrap_or(u32::MAX),
                by: column(told, "by")?,
            })
        }
        "similarity" => {
            let told = told(step, kind)?;
            told.only("similarity", &["left", "right", "as"])?;
            Ok(StepKind::Similarity {
                left: column(told, "left")?,
                right: column(told, "right")?,
                column: named(told, SCORE)?,
            })
        }
        _ => {
            let told = told(step, kind)?;
            told.only("compute", &["expression", "inputs", "as"])?;
            Ok(StepKind::Compute {
                expression: told.required("expression")?.to_owned(),
                inputs: inputs(told, "inputs")?,
                column: named(told, SCORE)?,
            })
        }
    }
}

/// Reads a step that renders a text.
fn read_template(told: &Object) -> Result<StepKind, PredictError> {
    told.only("template", &["template", "inputs", "gather", "as"])?;
    let gather = match told.get("gather") {
        None | Some(Value::Null) => false,
        Some(Value::Bool(gather)) => *gather,
        Some(_) => {
            return Err(PredictError::invalid(
                "field 'gather' must be true or false",
            ));
        }
    };
    Ok(StepKind::Template {
        template: told.required("template")?.to_owned(),
        inputs: inputs(told, "inputs")?,
        gather,
        column: named(told, TEXT)?,
    })
}

fn told<'s>(step: &'s Object, kind: &str) -> Result<&'s Object, PredictError> {
    let told = step.object(kind)?;
    told.ok_or_else(|| PredictError::invalid(format!("field '{kind}' must be an object")))
}

fn named(told: &Object, otherwise: &str) -> Result<String, PredictError> {
    Ok(told.text("as")?.unwrap_or(otherwise).to_owned())
}

fn column(told: &Object, name: &str) -> Result<ColumnRef, PredictError> {
    told.required(name)?.parse()
}

fn inputs(told: &Object, field: &str) -> Result<Inputs, PredictError> {
    let Some(inputs) = told.object(field)? else {
        return Ok(Inputs::new());
    };
    let inputs = inputs.iter().map(|(name, column)| {
        let text = column.as_str().unwrap_or_default();
        Ok((name.clone(), text.parse::<ColumnRef>()?))
    });
    inputs.collect()
}

fn names(told: &Object, field: &str) -> Result<Vec<String>, PredictError> {
    let wrong =
        || PredictError::invalid(format!("field '{field}' must be a list of names of steps"));
    let Some(Value::Array(names)) = told.get(field) else {
        return Err(wrong());
    };
    let names = names
        .iter()
        .map(|name| name.as_str().map(str::to_owned).ok_or_else(wrong));
    names.collect()
}

fn branch(told: &Object) -> Result<Branch, PredictError> {
    told.only("branch", &["when", "inputs", "otherwise"])?;
    match (told.text("when")?, told.contains_key("otherwise")) {
        (Some(expression), false) => Ok(Branch::When {
            expression: expression.to_owned(),
            inputs: inputs(told, "inputs")?,
        }),
        (None, true) => Ok(Branch::Otherwise(names(told, "otherwise")?)),
        _ => Err(PredictError::invalid(
            "a branch has either 'when' or 'otherwise'",
        )),
    }
}
