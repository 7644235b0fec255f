//! Type check of a pipeline: the inputs and outputs of each step, once its models are known.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_schema::{DataType, Field, FieldRef, Schema};
use volley_types::chat::message_fields;
use volley_types::registry::{
    Branch, ColumnRef, ColumnType, Inputs, PARAMETERS, PipelineSpec, PipelineStep, REQUEST, Shape,
    StepKind,
};
use volley_types::signature::{EMBEDDING, ModelMetadata, SCORE, SERVED_VERSION, TOKENS};
use volley_types::{ModelRef, PredictError, Signature, Task};

use super::tensor;

/// Column with the question of a generation: its prompt, or the last message of the user.
pub(super) const QUESTION: &str = "question";
/// Column with the text of a generation.
pub(super) const TEXT: &str = "text";

/// A pipeline with the types of its columns.
#[derive(Clone, Debug)]
pub(super) struct TypedPipeline {
    pub(super) signature: Signature,
    /// Output columns of each step, by index; empty for steps that only select rows.
    pub(super) gives: Vec<Columns>,
    /// Signatures of the model steps, by index.
    pub(super) models: Vec<Option<Signature>>,
}

/// Columns by their names.
pub(super) type Columns = BTreeMap<String, FieldRef>;

/// The version of an ensemble.
const VERSION: &str = "1";

fn wrong(step: &PipelineStep, what: impl std::fmt::Display) -> PredictError {
    PredictError::invalid(format!("step '{}' {what}", step.name))
}

/// A nullable column with this name and type.
fn column(name: &str, kind: DataType) -> FieldRef {
    Arc::new(Field::new(name, kind, true))
}

/// The request's own columns, as clients send them. `tensor` returns the type of the first model
/// that uses a column.
fn request_schema(
    spec: &PipelineSpec,
    mut tensor: impl FnMut(&str) -> Result<Field, PredictError>,
) -> Result<Schema, PredictError> {
    let input = match spec.task {
        Task::Generate => Signature::generation().input,
        Task::Embed => Signature::embed(0).input,
        Task::Rerank => Signature::rerank().input,
        Task::Classify => Signature::classify().input,
        Task::ClassifyTokens => Signature::classify_tokens().input,
        Task::EncodeSparse => Signature::encode_sparse().input,
        Task::Tensors | Task::Events => {
            let fields = spec.inputs.iter();
            let fields = fields.map(|(name, kind)| match data_type(*kind) {
                Some(kind) => Ok(Field::new(name, kind, false)),
                None => Ok(tensor(name)?.with_name(name).with_nullable(false)),
            });
            return Ok(Schema::new(fields.collect::<Result<Vec<_>, _>>()?));
        }
    };
    Ok(input.as_ref().clone())
}

/// The type of a column; `None` for [`ColumnType::Tensor`].
fn data_type(kind: ColumnType) -> Option<DataType> {
    Some(match kind {
        ColumnType::Text => DataType::Utf8,
        ColumnType::Int => DataType::Int64,
        ColumnType::Float => DataType::Float32,
        ColumnType::Bool => DataType::Boolean,
        ColumnType::Floats => {
            DataType::List(Arc::new(Field::new("item", DataType::Float32, false)))
        }
        ColumnType::Tensor => return None,
    })
}

/// The input field of the first model that uses the request's column `name`.
fn taken(
    spec: &PipelineSpec,
    shape: &Shape,
    name: &str,
    signature_of: &mut impl FnMut(&ModelRef) -> Result<Signature, PredictError>,
) -> Result<Field, PredictError> {
    for step in shape.order.iter().map(|place| &spec.steps[*place]) {
        let StepKind::Model { model, inputs, .. } = &step.kind else {
            continue;
        };
        let takes = |(_, it): &(&String, &ColumnRef)| it.step == REQUEST && it.column == name;
        let Some((own, _)) = inputs.iter().find(takes) else {
            continue;
        };
        let signature = signature_of(model).map_err(|error| super::of_step(step, error))?;
        let field = signature.input.field_with_name(own);
        return field.cloned().map_err(|_| {
            wrong(
                step,
                format_args!(
                    "passes the input '{own}' to its model '{model}', which does not have it"
                ),
            )
        });
    }
    Err(PredictError::invalid(format!(
        "the input '{name}' is a tensor, and no model has it as an input"
    )))
}

pub(super) fn is_messages(kind: &DataType) -> bool {
    let messages = DataType::Struct(message_fields());
    matches!(kind, DataType::List(item) if *item.data_type() == messages)
}

impl TypedPipeline {
    /// Types the steps in their order.
    ///
    /// # Errors
    /// `InvalidInput`, naming the step whose columns do not fit; those of `signature_of`.
    pub(super) fn new(
        spec: &PipelineSpec,
        shape: &Shape,
        mut signature_of: impl FnMut(&ModelRef) -> Result<Signature, PredictError>,
    ) -> Result<Self, PredictError> {
        let request = request_schema(spec, |name| taken(spec, shape, name, &mut signature_of))?;
        let mut typed = Self {
            signature: Signature {
                task: spec.task,
                input: Arc::new(request),
                output: Signature::generation().output,
            },
            gives: vec![BTreeMap::new(); spec.steps.len()],
            models: vec![None; spec.steps.len()],
        };
        for place in &shape.order {
            let step = &spec.steps[*place];
            if let StepKind::Model {
                model, parameters, ..
            } = &step.kind
            {
                let signature = signature_of(model).map_err(|error| super::of_step(step, error))?;
                if let Some(version) = parameters.text(SERVED_VERSION)
                    && !ModelMetadata::of(&signature).versions.contains(&version)
                {
                    return Err(wrong(
                        step,
                        format_args!("names version {version} of '{model}', which is not loaded"),
                    ));
                }
                typed.models[*place] = Some(signature);
            }
            typed.gives[*place] = typed.step(spec, *place)?;
        }
        let output = typed.output(spec, shape.output)?;
        typed.signature.output = Arc::new(output);
        if let Some(ensemble) = &spec.ensemble {
            let served = ModelMetadata {
                versions: vec![VERSION.to_owned()],
                config: serde_json::from_str(&ensemble.config).ok(),
            };
            typed.signature = served.on(typed.signature);
        }
        Ok(typed)
    }

    /// Whether a step generates text.
    pub(super) fn generates(&self, place: usize) -> bool {
        let signature = self.models[place].as_ref();
        signature.is_some_and(|signature| signature.task == Task::Generate)
    }

    /// The type of a column; `None` for a parameter, which may have any type.
    fn column(
        &self,
        spec: &PipelineSpec,
        step: &PipelineStep,
        column: &ColumnRef,
    ) -> Result<Option<FieldRef>, PredictError> {
        let found = match column.step.as_str() {
            PARAMETERS => return Ok(None),
            REQUEST if spec.task == Task::Generate && column.column == QUESTION => {
                Some(self::column(QUESTION, DataType::Utf8))
            }
            REQUEST => {
                let found = self.signature.input.fields().find(&column.column);
                found.map(|(_, field)| field.clone())
            }
            name => {
                let place = spec.step(name);
                place.and_then(|place| self.gives[place].get(&column.column).cloned())
            }
        };
        let missing = || {
            wrong(
                step,
                format_args!("uses the column '{column}', which does not exist"),
            )
        };
        found.map(Some).ok_or_else(missing)
    }

    /// The same of a pipeline that is typed.
    pub(super) fn field(&self, spec: &PipelineSpec, column: &ColumnRef) -> Option<&FieldRef> {
        match column.step.as_str() {
            PARAMETERS => None,
            REQUEST => {
                let found = self.signature.input.fields().find(&column.column);
                found.map(|(_, field)| field)
            }
            name => self.gives[spec.step(name)?].get(&column.column),
        }
    }

    /// Its type alone.
    fn kind(
        &self,
        spec: &PipelineSpec,
        step: &PipelineStep,
        column: &ColumnRef,
    ) -> Result<Option<DataType>, PredictError> {
        let found = self.column(spec, step, column)?;
        Ok(found.map(|field| field.data_type().clone()))
    }

    fn step(&self, spec: &PipelineSpec, place: usize) -> Result<Columns, PredictError> {
        let step = &spec.steps[place];
        for column in step.columns() {
            self.column(spec, step, column)?;
        }
        let one = |name: &str, kind| {
            Ok(BTreeMap::from([(
                name.to_owned(),
                self::column(name, kind),
            )]))
        };
        match &step.kind {
            StepKind::Model { inputs, .. } => self.model(spec, place, inputs),
            StepKind::Explode { list, column } => match self.kind(spec, step, list)? {
                None => one(column, DataType::Utf8),
                Some(DataType::List(item)) => one(column, item.data_type().clone()),
                Some(kind) => Err(wrong(
                    step,
                    format_args!("needs a list, but '{list}' is {kind}"),
                )),
            },
            StepKind::Template { column, .. } => one(column, DataType::Utf8),
            StepKind::Compute { column, .. } => one(column, DataType::Float32),
            StepKind::Similarity {
                left,
                right,
                column,
            } => {
                for side in [left, right] {
                    self.vectors(spec, step, side)?;
                }
                one(column, DataType::Float32)
            }
            StepKind::TopK { by, .. } => match self.kind(spec, step, by)? {
                Some(DataType::Float32 | DataType::Float64) => Ok(BTreeMap::new()),
                _ => Err(wrong(
                    step,
                    format_args!("ranks by '{by}', which is not a score"),
                )),
            },
            StepKind::Branch(Branch::When { .. } | Branch::Otherwise(_)) => Ok(BTreeMap::new()),
            StepKind::Select(columns) => {
                let columns = columns.iter().map(|(name, column)| {
                    let found = self.column(spec, step, column)?;
                    // The same for every row: a text.
                    let found = found.unwrap_or_else(|| self::column(name, DataType::Utf8));
                    Ok((name.clone(), found))
                });
                columns.collect()
            }
            StepKind::Merge(steps) => self.merge(spec, step, steps),
        }
    }

    fn vectors(
        &self,
        spec: &PipelineSpec,
        step: &PipelineStep,
        column: &ColumnRef,
    ) -> Result<(), PredictError> {
        match self.kind(spec, step, column)? {
            Some(DataType::List(item) | DataType::FixedSizeList(item, _))
                if *item.data_type() == DataType::Float32 =>
            {
                Ok(())
            }
            _ => Err(wrong(
                step,
                format_args!("compares vectors, but '{column}' is not a vector"),
            )),
        }
    }

    /// The output columns of a model, if its inputs match.
    fn model(
        &self,
        spec: &PipelineSpec,
        place: usize,
        inputs: &Inputs,
    ) -> Result<Columns, PredictError> {
        let step = &spec.steps[place];
        let Some(signature) = &self.models[place] else {
            return Ok(BTreeMap::new());
        };
        if signature.task == Task::Events {
            return Err(wrong(
                step,
                "calls a model that streams events, which a pipeline cannot read",
            ));
        }
        let fields = inputs.iter().map(|(name, column)| {
            let found = self.column(spec, step, column)?;
            let found = found.unwrap_or_else(|| self::column(name, DataType::Utf8));
            let kind = found.data_type().clone();
            let declared = signature.input.field_with_name(name).ok();
            let kind = match declared {
                // A text is a conversation of one message.
                Some(declared)
                    if is_messages(declared.data_type()) && kind == DataType::Utf8
                        || tensor::adapts(&found, declared) =>
                {
                    declared.data_type().clone()
                }
                _ => kind,
            };
            Ok(Field::new(name, kind, true))
        });
        let fields: Vec<_> = fields.collect::<Result<_, PredictError>>()?;
        let given = Schema::new(fields);
        let checked = match signature.task {
            Task::Tensors => signature.check_castable(&given),
            _ => signature.check_input(&given),
        };
        checked.map_err(|error| super::of_step(step, error))?;
        if signature.task == Task::Generate {
            return Ok([(TEXT.to_owned(), self::column(TEXT, DataType::Utf8))].into());
        }
        let gives = signature.output.fields().iter();
        Ok(gives
            .map(|field| (field.name().clone(), field.clone()))
            .collect())
    }

    /// The columns that all branches have.
    fn merge(
        &self,
        spec: &PipelineSpec,
        step: &PipelineStep,
        of: &[String],
    ) -> Result<Columns, PredictError> {
        let mut branches = of.iter().filter_map(|name| spec.step(name));
        let mut common = branches
            .next()
            .map_or_else(BTreeMap::new, |first| self.gives[first].clone());
        for branch in branches {
            let other = &self.gives[branch];
            let same = |name: &str, kind: &DataType| {
                let other = other.get(name);
                other.is_some_and(|other| other.data_type() == kind)
            };
            common.retain(|name, field| same(name, field.data_type()));
        }
        match common.is_empty() {
            true => Err(wrong(step, "merges steps without a common column")),
            false => Ok(common),
        }
    }

    /// The columns of the answer.
    fn output(&self, spec: &PipelineSpec, place: usize) -> Result<Schema, PredictError> {
        let step = &spec.steps[place];
        if let Some(signature) = &self.models[place] {
            if signature.task != spec.task {
                return Err(wrong(
                    step,
                    format_args!(
                        "answers with the task '{}', but the pipeline has the task '{}'",
                        signature.task.as_str(),
                        spec.task.as_str()
                    ),
                ));
            }
            return Ok(signature.output.as_ref().clone());
        }
        let gives = &self.gives[place];
        let wanted: &[&str] = match spec.task {
            Task::Generate => &[TEXT],
            Task::Embed => &[EMBEDDING],
            Task::Rerank => &[SCORE],
            Task::Classify => &["labels", "scores"],
            Task::ClassifyTokens => &["entities"],
            Task::EncodeSparse => &["terms", "weights"],
            Task::Tensors | Task::Events => &[],
        };
        if let Some(missing) = wanted.iter().find(|name| !gives.contains_key(**name)) {
            return Err(wrong(
                step,
                format_args!(
                    "answers without the column '{missing}' of the task '{}'",
                    spec.task.as_str()
                ),
            ));
        }
        if spec.task == Task::Generate {
            return Ok(Signature::generation().output.as_ref().clone());
        }
        let is_wanted = |name: &str| spec.task == Task::Tensors || wanted.contains(&name);
        let columns = gives.iter().filter(|(name, _)| is_wanted(name));
        let mut fields: Vec<_> = columns
            .map(|(name, field)| {
                let field = field.as_ref().clone().with_name(name);
                match spec.task {
                    // A column of the request is nullable; tensors of models are not.
                    Task::Tensors => field.with_nullable(spec.ensemble.is_none()),
                    _ => field.with_nullable(false),
                }
            })
            .collect();
        if spec.task != Task::Tensors {
            fields.push(Field::new(TOKENS, DataType::UInt32, false));
        }
        Ok(Schema::new(fields))
    }
}
