//! Pipelines: a directed acyclic graph of steps behind one name. A step is a model (or whatever
//! name stands for one) or something small and pure that the coordinator does itself.
//!
//! A pipeline is data: nothing here calls a model. [`PipelineSpec::shape`] says in which order
//! steps can run and over which rows each of them goes; the coordinator does the rest.

mod shape;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

pub use self::shape::{Domain, DomainKind, ROOT, Shape};
use crate::error::{ErrorCode, PredictError};
use crate::ids::{MAX_ID_LEN, ModelName, ModelRef, Revision};
use crate::params::Parameters;
use crate::signature::Task;

/// The most steps of a pipeline.
pub const MAX_STEPS: usize = 32;
/// The most columns that one step takes.
pub const MAX_STEP_INPUTS: usize = 32;
/// The longest template, in bytes.
pub const MAX_STEP_TEMPLATE: usize = 64 << 10;
/// The longest expression, in bytes.
pub const MAX_EXPRESSION: usize = 4 << 10;
/// The most rows that a step keeps of each request row.
pub const MAX_TOP_K: u32 = 1_024;

/// The request's own columns, where a step's name could stand.
pub const REQUEST: &str = "request";
/// The request's parameters, where a step's name could stand.
pub const PARAMETERS: &str = "parameters";

/// A column of the request or of a step, written `step.column`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ColumnRef {
    /// The step, or [`REQUEST`] or [`PARAMETERS`].
    pub step: String,
    /// The column.
    pub column: String,
}

impl ColumnRef {
    /// Whether it is a parameter: the same for every row.
    #[must_use]
    pub fn is_parameter(&self) -> bool {
        self.step == PARAMETERS
    }
}

impl fmt::Display for ColumnRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.step, self.column)
    }
}

impl FromStr for ColumnRef {
    type Err = PredictError;

    fn from_str(text: &str) -> Result<Self, PredictError> {
        let parts = text.split_once('.');
        let parts = parts.filter(|(step, column)| !step.is_empty() && !column.is_empty());
        let (step, column) = parts.ok_or_else(|| {
            PredictError::invalid(
                "a column must have the form 'step.column', 'request.column' or 'parameters.name'",
            )
        })?;
        Ok(Self {
            step: step.to_owned(),
            column: column.to_owned(),
        })
    }
}

/// What a column of a pipeline of tensors holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ColumnType {
    /// Text.
    Text,
    /// 64-bit whole numbers.
    Int,
    /// 32-bit numbers with a fraction.
    Float,
    /// Booleans.
    Bool,
    /// Lists of 32-bit numbers with a fraction.
    Floats,
    /// What the first model that takes it takes: a tensor of that model's element type and shape.
    Tensor,
}

impl ColumnType {
    /// All types.
    pub const ALL: [Self; 6] = [
        Self::Text,
        Self::Int,
        Self::Float,
        Self::Bool,
        Self::Floats,
        Self::Tensor,
    ];

    /// The stable name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Int => "int",
            Self::Float => "float",
            Self::Bool => "bool",
            Self::Floats => "floats",
            Self::Tensor => "tensor",
        }
    }

    /// The type of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }
}

/// Columns by the names that a step knows them by.
pub type Inputs = BTreeMap<String, ColumnRef>;

/// What a step does.
#[derive(Clone, Debug, PartialEq)]
pub enum StepKind {
    /// Calls a model. It gives the model's columns; a generation gives `text`.
    Model {
        /// A model, a version of one, an alias, or another pipeline.
        model: ModelRef,
        /// The model's columns.
        inputs: Inputs,
        /// Parameters of the call.
        parameters: Parameters,
    },
    /// Makes a row of each element of a list.
    Explode {
        /// A parameter that is a list of texts, or of objects with a `text`; or a column of lists.
        list: ColumnRef,
        /// The column of the elements.
        column: String,
    },
    /// Renders a text for each row, or for each request row out of all rows that are of it.
    Template {
        /// In the syntax of Jinja; knows its inputs, or with `gather` the list `rows`.
        template: String,
        /// What the template knows.
        inputs: Inputs,
        /// Whether it is rendered for each request row.
        gather: bool,
        /// The column of the texts.
        column: String,
    },
    /// Chooses and renames columns, of several steps too.
    Select(Inputs),
    /// Goes on with some rows.
    Branch(Branch),
    /// Puts the rows of branches together: each row is the first's that has it.
    Merge(Vec<String>),
    /// Goes on with the rows of the highest score, for each request row.
    TopK {
        /// How many.
        k: u32,
        /// The score.
        by: ColumnRef,
    },
    /// The cosine of two vectors.
    Similarity {
        /// One column of vectors.
        left: ColumnRef,
        /// The other.
        right: ColumnRef,
        /// The column of the cosines.
        column: String,
    },
    /// A number for each row.
    Compute {
        /// In the syntax of Jinja's expressions.
        expression: String,
        /// What it knows.
        inputs: Inputs,
        /// The column of the numbers.
        column: String,
    },
}

/// Which rows a branch goes on with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Branch {
    /// Those for which an expression holds.
    When {
        /// In the syntax of Jinja's expressions.
        expression: String,
        /// What it knows.
        inputs: Inputs,
    },
    /// Those that none of these steps goes on with.
    Otherwise(Vec<String>),
}

/// One step.
#[derive(Clone, Debug, PartialEq)]
pub struct PipelineStep {
    /// Its name within the pipeline.
    pub name: String,
    /// The step whose rows it goes over, where those are not the rows of its columns.
    pub over: Option<String>,
    /// What it does.
    pub kind: StepKind,
}

/// What makes a pipeline an ensemble of a Triton repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ensemble {
    /// Its configuration: an object in JSON, in Triton's words.
    pub config: String,
    /// Whether it answers. One that was unloaded does not, whatever its models do.
    pub loaded: bool,
}

/// A pipeline as it is asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct PipelineSpec {
    /// The name, which no model and no alias has.
    pub name: ModelName,
    /// What it does, seen from outside.
    pub task: Task,
    /// The request's columns, where the task is [`Task::Tensors`]; else the task's own.
    pub inputs: BTreeMap<String, ColumnType>,
    /// The steps, in any order.
    pub steps: Vec<PipelineStep>,
    /// The step that answers.
    pub output: String,
    /// A sentence for people.
    pub description: String,
    /// What it was made of, where that is an ensemble.
    pub ensemble: Option<Ensemble>,
}

/// A pipeline as it stands in the registry.
#[derive(Clone, Debug, PartialEq)]
pub struct PipelineEntry {
    /// What was asked for; shared, because registries are copied.
    pub spec: Arc<PipelineSpec>,
    /// The revision at which it was written last.
    pub revision: Revision,
}

impl PipelineStep {
    /// Every column that it takes.
    #[must_use]
    pub fn columns(&self) -> Vec<&ColumnRef> {
        match &self.kind {
            StepKind::Model { inputs, .. }
            | StepKind::Template { inputs, .. }
            | StepKind::Select(inputs)
            | StepKind::Branch(Branch::When { inputs, .. })
            | StepKind::Compute { inputs, .. } => inputs.values().collect(),
            StepKind::Explode { list, .. } => vec![list],
            StepKind::TopK { by, .. } => vec![by],
            StepKind::Similarity { left, right, .. } => vec![left, right],
            StepKind::Branch(Branch::Otherwise(_)) | StepKind::Merge(_) => Vec::new(),
        }
    }

    /// Every step that must have run before it.
    #[must_use]
    pub fn needs(&self) -> BTreeSet<&str> {
        let columns = self.columns().into_iter().map(|it| it.step.as_str());
        let mut needs: BTreeSet<_> = columns.chain(self.over.as_deref()).collect();
        if let StepKind::Merge(steps) | StepKind::Branch(Branch::Otherwise(steps)) = &self.kind {
            needs.extend(steps.iter().map(String::as_str));
        }
        needs.remove(REQUEST);
        needs.remove(PARAMETERS);
        needs
    }

    fn check(&self) -> Result<(), PredictError> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        let name = &self.name;
        let well_formed = !name.is_empty() && name.len() <= MAX_ID_LEN && name.bytes().all(plain);
        if !well_formed || [REQUEST, PARAMETERS].contains(&name.as_str()) {
            return Err(PredictError::invalid(format!(
                "a step's name must be letters, digits, '-' and '_', and neither '{REQUEST}' nor \
                 '{PARAMETERS}'"
            )));
        }
        let wrong = |what: &str| Err(PredictError::invalid(format!("step '{name}' {what}")));
        if MAX_STEP_INPUTS < self.columns().len() {
            return wrong(&format!("takes more than {MAX_STEP_INPUTS} columns"));
        }
        match &self.kind {
            StepKind::Template { template, .. } if MAX_STEP_TEMPLATE < template.len() => {
                wrong("has too long a template")
            }
            StepKind::Compute { expression, .. }
            | StepKind::Branch(Branch::When { expression, .. })
                if MAX_EXPRESSION < expression.len() =>
            {
                wrong("has too long an expression")
            }
            StepKind::TopK { k, .. } if *k == 0 || MAX_TOP_K < *k => {
                wrong(&format!("must keep 1 to {MAX_TOP_K} rows"))
            }
            StepKind::Select(columns) if columns.is_empty() => wrong("selects no column"),
            StepKind::Model { inputs, .. } if inputs.is_empty() => {
                wrong("passes no input to its model")
            }
            StepKind::Merge(steps) if steps.is_empty() => wrong("merges nothing"),
            StepKind::Branch(Branch::Otherwise(steps)) if steps.is_empty() => {
                wrong("is the rest of nothing")
            }
            _ => Ok(()),
        }
    }
}

impl PipelineSpec {
    /// Checks what can be told without the models: names, references, order, rows, bounds.
    ///
    /// # Errors
    /// `InvalidInput`, naming the step.
    pub fn check(&self) -> Result<Shape, PredictError> {
        if self.steps.is_empty() || MAX_STEPS < self.steps.len() {
            return Err(PredictError::invalid(format!(
                "a pipeline must have 1 to {MAX_STEPS} steps"
            )));
        }
        let mut names = BTreeSet::new();
        for step in &self.steps {
            step.check()?;
            if !names.insert(&step.name) {
                let message = format!("two steps have the name '{}'", step.name);
                return Err(PredictError::invalid(message));
            }
        }
        if (self.task == Task::Tensors) == self.inputs.is_empty() {
            return Err(PredictError::invalid(
                "only a pipeline of the task 'tensors' must name its inputs; every other task has \
                 fixed inputs",
            ));
        }
        self.shape()
    }

    /// Refuses an ensemble that was unloaded.
    ///
    /// # Errors
    /// `NotDeployed`.
    pub fn check_loaded(&self) -> Result<(), PredictError> {
        let ensemble = self.ensemble.as_ref();
        if ensemble.is_none_or(|ensemble| ensemble.loaded) {
            return Ok(());
        }
        let message = format!("ensemble '{}' is not loaded", self.name);
        Err(PredictError::new(ErrorCode::NotDeployed, message))
    }

    /// Every name that a step calls.
    pub fn names(&self) -> impl Iterator<Item = &ModelRef> {
        self.steps.iter().filter_map(|step| match &step.kind {
            StepKind::Model { model, .. } => Some(model),
            _ => None,
        })
    }

    /// The step of that name, by its place.
    #[must_use]
    pub fn step(&self, name: &str) -> Option<usize> {
        self.steps.iter().position(|step| step.name == name)
    }
}

#[cfg(test)]
mod tests;
