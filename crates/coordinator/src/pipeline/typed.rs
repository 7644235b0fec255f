//! What each step of a pipeline takes and gives, as soon as its models are known.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_schema::{DataType, Field, Schema};
use volley_types::chat::message_fields;
use volley_types::registry::{
    Branch, ColumnRef, ColumnType, Inputs, PARAMETERS, PipelineSpec, PipelineStep, REQUEST, Shape,
    StepKind,
};
use volley_types::signature::{EMBEDDING, SCORE, TOKENS};
use volley_types::{ModelRef, PredictError, Signature, Task};

/// The text of what is asked in a generation: its prompt, or the last message of a user.
pub(super) const QUESTION: &str = "question";
/// The column of an answer that a later step takes.
pub(super) const TEXT: &str = "text";

/// A pipeline with the types of its columns.
#[derive(Clone, Debug)]
pub(super) struct Typed {
    pub(super) signature: Signature,
    /// What each step gives, by its place; nothing for steps that only choose rows.
    pub(super) gives: Vec<BTreeMap<String, DataType>>,
    /// The signatures of steps that are models, by their place.
    pub(super) models: Vec<Option<Signature>>,
}

fn wrong(step: &PipelineStep, what: impl std::fmt::Display) -> PredictError {
    PredictError::invalid(format!("step '{}' {what}", step.name))
}

/// The request's own columns, as clients send them.
pub(super) fn request_schema(spec: &PipelineSpec) -> Schema {
    let input = match spec.task {
        Task::Generate => Signature::generation().input,
        Task::Embed => Signature::embed(0).input,
        Task::Rerank => Signature::rerank().input,
        Task::Classify => Signature::classify().input,
        Task::ClassifyTokens => Signature::classify_tokens().input,
        Task::EncodeSparse => Signature::encode_sparse().input,
        Task::Tensors => {
            let fields = spec.inputs.iter();
            let fields = fields.map(|(name, kind)| Field::new(name, data_type(*kind), false));
            return Schema::new(fields.collect::<Vec<_>>());
        }
    };
    input.as_ref().clone()
}

fn data_type(kind: ColumnType) -> DataType {
    match kind {
        ColumnType::Text => DataType::Utf8,
        ColumnType::Int => DataType::Int64,
        ColumnType::Float => DataType::Float32,
        ColumnType::Bool => DataType::Boolean,
        ColumnType::Floats => {
            DataType::List(Arc::new(Field::new("item", DataType::Float32, false)))
        }
    }
}

fn is_messages(kind: &DataType) -> bool {
    let messages = DataType::Struct(message_fields());
    matches!(kind, DataType::List(item) if *item.data_type() == messages)
}

impl Typed {
    /// Types the steps in their order.
    ///
    /// # Errors
    /// `InvalidInput`, naming the step whose columns do not fit; those of `signature_of`.
    pub(super) fn new(
        spec: &PipelineSpec,
        shape: &Shape,
        mut signature_of: impl FnMut(&ModelRef) -> Result<Signature, PredictError>,
    ) -> Result<Self, PredictError> {
        let request = request_schema(spec);
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
            if let StepKind::Model { model, .. } = &step.kind {
                let signature = signature_of(model).map_err(|error| super::of_step(step, error))?;
                typed.models[*place] = Some(signature);
            }
            typed.gives[*place] = typed.step(spec, *place)?;
        }
        let output = typed.output(spec, shape.output)?;
        typed.signature.output = Arc::new(output);
        Ok(typed)
    }

    /// Whether a step generates text.
    pub(super) fn generates(&self, place: usize) -> bool {
        let signature = self.models[place].as_ref();
        signature.is_some_and(|signature| signature.task == Task::Generate)
    }

    /// The type of a column; `None` for a parameter, which may be of any.
    fn column(
        &self,
        spec: &PipelineSpec,
        step: &PipelineStep,
        column: &ColumnRef,
    ) -> Result<Option<DataType>, PredictError> {
        let found = match column.step.as_str() {
            PARAMETERS => return Ok(None),
            REQUEST if spec.task == Task::Generate && column.column == QUESTION => {
                Some(DataType::Utf8)
            }
            REQUEST => {
                let field = self.signature.input.field_with_name(&column.column);
                field.ok().map(|field| field.data_type().clone())
            }
            name => {
                let place = spec.step(name);
                place.and_then(|place| self.gives[place].get(&column.column).cloned())
            }
        };
        let missing = || wrong(step, format_args!("takes '{column}', which is not there"));
        found.map(Some).ok_or_else(missing)
    }

    fn step(
        &self,
        spec: &PipelineSpec,
        place: usize,
    ) -> Result<BTreeMap<String, DataType>, PredictError> {
        let step = &spec.steps[place];
        for column in step.columns() {
            self.column(spec, step, column)?;
        }
        let one = |name: &str, kind| Ok(BTreeMap::from([(name.to_owned(), kind)]));
        match &step.kind {
            StepKind::Model { inputs, .. } => self.model(spec, place, inputs),
            StepKind::Explode { list, column } => match self.column(spec, step, list)? {
                None => one(column, DataType::Utf8),
                Some(DataType::List(item)) => one(column, item.data_type().clone()),
                Some(kind) => Err(wrong(
                    step,
                    format_args!("takes a list apart, and '{list}' is {kind}"),
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
            StepKind::TopK { by, .. } => match self.column(spec, step, by)? {
                Some(DataType::Float32 | DataType::Float64) => Ok(BTreeMap::new()),
                _ => Err(wrong(
                    step,
                    format_args!("ranks by '{by}', which is no score"),
                )),
            },
            StepKind::Branch(Branch::When { .. } | Branch::Otherwise(_)) => Ok(BTreeMap::new()),
            StepKind::Select(columns) => {
                let columns = columns.iter().map(|(name, column)| {
                    let kind = self.column(spec, step, column)?;
                    // The same for every row: a text.
                    Ok((name.clone(), kind.unwrap_or(DataType::Utf8)))
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
        match self.column(spec, step, column)? {
            Some(DataType::List(item) | DataType::FixedSizeList(item, _))
                if *item.data_type() == DataType::Float32 =>
            {
                Ok(())
            }
            _ => Err(wrong(
                step,
                format_args!("compares vectors, and '{column}' is none"),
            )),
        }
    }

    /// What a model gives, if it takes what it is given.
    fn model(
        &self,
        spec: &PipelineSpec,
        place: usize,
        inputs: &Inputs,
    ) -> Result<BTreeMap<String, DataType>, PredictError> {
        let step = &spec.steps[place];
        let Some(signature) = &self.models[place] else {
            return Ok(BTreeMap::new());
        };
        let fields = inputs.iter().map(|(name, column)| {
            let kind = self.column(spec, step, column)?;
            let kind = kind.unwrap_or(DataType::Utf8);
            let declared = signature.input.field_with_name(name).ok();
            let declared = declared.map(|field| field.data_type().clone());
            // A text is a conversation of one message.
            let kind = match declared {
                Some(declared) if is_messages(&declared) && kind == DataType::Utf8 => declared,
                _ => kind,
            };
            Ok(Field::new(name, kind, true))
        });
        let fields: Vec<_> = fields.collect::<Result<_, PredictError>>()?;
        let given = Schema::new(fields);
        let checked = signature.check_input(&given);
        checked.map_err(|error| super::of_step(step, error))?;
        if signature.task == Task::Generate {
            return Ok([(TEXT.to_owned(), DataType::Utf8)].into());
        }
        let gives = signature.output.fields().iter();
        Ok(gives
            .map(|field| (field.name().clone(), field.data_type().clone()))
            .collect())
    }

    /// The columns that all branches have.
    fn merge(
        &self,
        spec: &PipelineSpec,
        step: &PipelineStep,
        of: &[String],
    ) -> Result<BTreeMap<String, DataType>, PredictError> {
        let mut branches = of.iter().filter_map(|name| spec.step(name));
        let mut common = branches
            .next()
            .map_or_else(BTreeMap::new, |first| self.gives[first].clone());
        for branch in branches {
            let other = &self.gives[branch];
            common.retain(|name, kind| other.get(name) == Some(kind));
        }
        match common.is_empty() {
            true => Err(wrong(step, "merges steps that have no column in common")),
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
                        "answers with the task '{}', and the pipeline's is '{}'",
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
            Task::Tensors => &[],
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
            // A column of the request may have gaps.
            .map(|(name, kind)| Field::new(name, kind.clone(), spec.task == Task::Tensors))
            .collect();
        if spec.task != Task::Tensors {
            fields.push(Field::new(TOKENS, DataType::UInt32, false));
        }
        Ok(Schema::new(fields))
    }
}
