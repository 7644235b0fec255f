//! Conversions of pipelines: wire ⇄ [`volley_types::registry`].

use std::collections::BTreeMap;
use std::sync::Arc;

use volley_types::registry::{
    Branch, ColumnType, Ensemble, Inputs, PipelineEntry, PipelineSpec, PipelineStep, StepKind,
};
use volley_types::{ModelName, PredictError, Revision, Task};

use crate::params;
use crate::registry::v1 as wire;
use crate::registry::v1::pipeline_step::Kind;

fn malformed(what: &str) -> PredictError {
    PredictError::invalid(format!("a pipeline's {what} is malformed"))
}

/// Converts a pipeline to the wire.
#[must_use]
pub fn pipeline_to_wire(spec: &PipelineSpec) -> wire::Pipeline {
    let inputs = spec.inputs.iter();
    wire::Pipeline {
        name: spec.name.to_string(),
        task: spec.task.as_str().to_owned(),
        inputs: inputs
            .map(|(name, kind)| (name.clone(), kind.as_str().to_owned()))
            .collect(),
        steps: spec.steps.iter().map(step_to_wire).collect(),
        output: spec.output.clone(),
        description: spec.description.clone(),
        ensemble: spec.ensemble.as_ref().map(|ensemble| wire::Ensemble {
            config: ensemble.config.clone(),
            loaded: ensemble.loaded,
        }),
    }
}

/// Converts a pipeline from the wire.
///
/// # Errors
/// `InvalidInput` when a field is malformed.
pub fn pipeline_from_wire(spec: wire::Pipeline) -> Result<PipelineSpec, PredictError> {
    let inputs = spec.inputs.into_iter().map(|(name, kind)| {
        let kind = ColumnType::from_name(&kind).ok_or_else(|| malformed("input"))?;
        Ok((name, kind))
    });
    Ok(PipelineSpec {
        name: ModelName::new(spec.name)?,
        task: Task::from_name(&spec.task).ok_or_else(|| malformed("task"))?,
        inputs: inputs.collect::<Result<_, PredictError>>()?,
        steps: spec
            .steps
            .into_iter()
            .map(step_from_wire)
            .collect::<Result<_, _>>()?,
        output: spec.output,
        description: spec.description,
        ensemble: spec.ensemble.map(|ensemble| Ensemble {
            config: ensemble.config,
            loaded: ensemble.loaded,
        }),
    })
}

/// Converts a pipeline of a snapshot to the wire.
#[must_use]
pub fn pipeline_entry_to_wire(entry: &PipelineEntry) -> wire::PipelineRecord {
    wire::PipelineRecord {
        pipeline: Some(pipeline_to_wire(&entry.spec)),
        revision: entry.revision.0,
    }
}

/// Converts a pipeline of a snapshot from the wire.
///
/// # Errors
/// `InvalidInput` when a field is malformed or missing.
pub fn pipeline_entry_from_wire(
    record: wire::PipelineRecord,
) -> Result<PipelineEntry, PredictError> {
    let spec = record.pipeline.ok_or_else(|| malformed("record"))?;
    Ok(PipelineEntry {
        spec: Arc::new(pipeline_from_wire(spec)?),
        revision: Revision(record.revision),
    })
}

fn columns_to_wire(inputs: &Inputs) -> BTreeMap<String, String> {
    let inputs = inputs.iter();
    inputs
        .map(|(name, column)| (name.clone(), column.to_string()))
        .collect()
}

fn columns_from_wire(inputs: BTreeMap<String, String>) -> Result<Inputs, PredictError> {
    let inputs = inputs.into_iter();
    inputs
        .map(|(name, column)| Ok((name, column.parse()?)))
        .collect()
}

fn step_to_wire(step: &PipelineStep) -> wire::PipelineStep {
    let kind = match &step.kind {
        StepKind::Model {
            model,
            inputs,
            parameters,
        } => Kind::Model(wire::ModelStep {
            model: model.to_string(),
            inputs: columns_to_wire(inputs),
            parameters: params::to_wire(parameters),
        }),
        StepKind::Explode { list, column } => Kind::Explode(wire::ExplodeStep {
            list: list.to_string(),
            column: column.clone(),
        }),
        StepKind::Template {
            template,
            inputs,
            gather,
            column,
        } => Kind::Template(wire::TemplateStep {
            template: template.clone(),
            inputs: columns_to_wire(inputs),
            gather: *gather,
            column: column.clone(),
        }),
        StepKind::Select(columns) => Kind::Select(wire::SelectStep {
            columns: columns_to_wire(columns),
        }),
        StepKind::Branch(Branch::When { expression, inputs }) => Kind::Branch(wire::BranchStep {
            when: expression.clone(),
            inputs: columns_to_wire(inputs),
            otherwise: Vec::new(),
        }),
        StepKind::Branch(Branch::Otherwise(steps)) => Kind::Branch(wire::BranchStep {
            when: String::new(),
            inputs: BTreeMap::new(),
            otherwise: steps.clone(),
        }),
        StepKind::Merge(steps) => Kind::Merge(wire::MergeStep { of: steps.clone() }),
        StepKind::TopK { k, by } => Kind::TopK(wire::TopKStep {
            k: *k,
            by: by.to_string(),
        }),
        StepKind::Similarity {
            left,
            right,
            column,
        } => Kind::Similarity(wire::SimilarityStep {
            left: left.to_string(),
            right: right.to_string(),
            column: column.clone(),
        }),
        StepKind::Compute {
            expression,
            inputs,
            column,
        } => Kind::Compute(wire::ComputeStep {
            expression: expression.clone(),
            inputs: columns_to_wire(inputs),
            column: column.clone(),
        }),
    };
    wire::PipelineStep {
        name: step.name.clone(),
        over: step.over.clone().unwrap_or_default(),
        kind: Some(kind),
    }
}

fn step_from_wire(step: wire::PipelineStep) -> Result<PipelineStep, PredictError> {
    let kind = match step.kind.ok_or_else(|| malformed("step"))? {
        Kind::Model(model) => StepKind::Model {
            model: model.model.parse()?,
            inputs: columns_from_wire(model.inputs)?,
            parameters: params::from_wire(model.parameters)?,
        },
        Kind::Explode(explode) => StepKind::Explode {
            list: explode.list.parse()?,
            column: explode.column,
        },
        Kind::Template(template) => StepKind::Template {
            template: template.template,
            inputs: columns_from_wire(template.inputs)?,
            gather: template.gather,
            column: template.column,
        },
        Kind::Select(select) => StepKind::Select(columns_from_wire(select.columns)?),
        Kind::Branch(branch) if branch.otherwise.is_empty() => StepKind::Branch(Branch::When {
            expression: branch.when,
            inputs: columns_from_wire(branch.inputs)?,
        }),
        Kind::Branch(branch) => StepKind::Branch(Branch::Otherwise(branch.otherwise)),
        Kind::Merge(merge) => StepKind::Merge(merge.of),
        Kind::TopK(top_k) => StepKind::TopK {
            k: top_k.k,
            by: top_k.by.parse()?,
        },
        Kind::Similarity(similarity) => StepKind::Similarity {
            left: similarity.left.parse()?,
            right: similarity.right.parse()?,
            column: similarity.column,
        },
        Kind::Compute(compute) => StepKind::Compute {
            expression: compute.expression,
            inputs: columns_from_wire(compute.inputs)?,
            column: compute.column,
        },
    };
    Ok(PipelineStep {
        name: step.name,
        over: Some(step.over).filter(|over| !over.is_empty()),
        kind,
    })
}
