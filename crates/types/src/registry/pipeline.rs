//! Pipelines: a directed acyclic graph of steps behind one name. A step is a model (or a name that
//! leads to one) or a small pure operation of the coordinator.
//!
//! A pipeline is data, and nothing in this module calls a model. [`PipelineSpec::shape`] returns an
//! order of the steps and the rows of each step. The coordinator runs them.

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

/// Maximum number of steps of a pipeline.
pub const MAX_STEPS: usize = 32;
/// Maximum number of input columns of a step.
pub const MAX_STEP_INPUTS: usize = 32;
/// Maximum length of a template in bytes.
pub const MAX_STEP_TEMPLATE: usize = 64 << 10;
/// Maximum length of an expression in bytes.
pub const MAX_EXPRESSION: usize = 4 << 10;
/// Maximum number of rows that a step keeps for each request row.
pub const MAX_TOP_K: u32 = 1_024;

/// Pseudo-step of the request's columns.
pub const REQUEST: &str = "request";
/// Pseudo-step of the request's parameters.
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
    /// Whether the column is a parameter, which has the same value in every row.
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

/// Type of a column in a pipeline of tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ColumnType {
    /// Text.
    Text,
    /// 64-bit integers.
    Int,
    /// 32-bit floating-point numbers.
    Float,
    /// Booleans.
    Bool,
    /// Lists of 32-bit floating-point numbers.
    Floats,
    /// A tensor with the element type and shape of the first model that uses it.
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

    /// Parses a stable name; `None` if it is unknown.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }
}

/// Columns by the names that a step uses for them.
pub type Inputs = BTreeMap<String, ColumnRef>;

/// Operation of a step.
#[derive(Clone, Debug, PartialEq)]
pub enum StepKind {
    /// Calls a model. It returns the model's columns; a generation returns `text`.
    Model {
        /// A model, a version of one, an alias, or another pipeline.
        model: ModelRef,
        /// The model's input columns.
        inputs: Inputs,
        /// Parameters of the call.
        parameters: Parameters,
    },
    /// Creates a row for each element of a list.
    Explode {
        /// A parameter that is a list of texts, or of objects with a `text`; or a column of lists.
        list: ColumnRef,
        /// The column of the elements.
        column: String,
    },
    /// Renders a text for each row, or for each request row from all its rows.
    Template {
        /// Jinja template. Its variables are the inputs, or with `gather` the list `rows`.
        template: String,
        /// Variables of the template.
        inputs: Inputs,
        /// Whether the template is rendered once for each request row.
        gather: bool,
        /// The column of the texts.
        column: String,
    },
    /// Selects and renames columns of one or several steps.
    Select(Inputs),
    /// Keeps some rows.
    Branch(Branch),
    /// Merges the rows of branches: each row comes from the first branch that has it.
    Merge(Vec<String>),
    /// Keeps the rows with the highest scores for each request row.
    TopK {
        /// Number of rows to keep.
        k: u32,
        /// Column of the scores.
        by: ColumnRef,
    },
    /// Computes the cosine of two vectors for each row.
    Similarity {
        /// First column of vectors.
        left: ColumnRef,
        /// Second column of vectors.
        right: ColumnRef,
        /// The column of the cosines.
        column: String,
    },
    /// Computes a number for each row.
    Compute {
        /// Jinja expression.
        expression: String,
        /// Variables of the expression.
        inputs: Inputs,
        /// The column of the numbers.
        column: String,
    },
}

/// Rows that a branch keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Branch {
    /// Rows for which an expression is true.
    When {
        /// Jinja expression.
        expression: String,
        /// Variables of the expression.
        inputs: Inputs,
    },
    /// Rows that none of these steps keeps.
    Otherwise(Vec<String>),
}

/// One step.
#[derive(Clone, Debug, PartialEq)]
pub struct PipelineStep {
    /// Unique name within the pipeline.
    pub name: String,
    /// The step whose rows this step processes, if they are not the rows of its columns.
    pub over: Option<String>,
    /// Operation of the step.
    pub kind: StepKind,
}

/// Additional data of a pipeline that is an ensemble of a Triton repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ensemble {
    /// Configuration as a JSON object in Triton's format.
    pub config: String,
    /// Whether the ensemble is loaded. An unloaded ensemble rejects requests, even if its models
    /// are ready.
    pub loaded: bool,
}

/// The definition of a pipeline.
#[derive(Clone, Debug, PartialEq)]
pub struct PipelineSpec {
    /// The name, which is unique among models, aliases and pipelines.
    pub name: ModelName,
    /// The task of the pipeline.
    pub task: Task,
    /// The request's columns if the task is [`Task::Tensors`]; other tasks have fixed columns.
    pub inputs: BTreeMap<String, ColumnType>,
    /// The steps, in any order.
    pub steps: Vec<PipelineStep>,
    /// The step whose rows are the response.
    pub output: String,
    /// Description for users, one sentence.
    pub description: String,
    /// The ensemble, if the pipeline is one.
    pub ensemble: Option<Ensemble>,
}

/// A pipeline in the registry.
#[derive(Clone, Debug, PartialEq)]
pub struct PipelineEntry {
    /// The definition. It is shared because registries are cloned.
    pub spec: Arc<PipelineSpec>,
    /// Revision of the last write.
    pub revision: Revision,
}

impl PipelineStep {
    /// All input columns.
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

    /// Names of all steps that must run before this step.
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
    /// Checks the definition without the models: names, references, order, rows and limits.
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
        if self.task == Task::Events {
            return Err(PredictError::invalid(
                "a pipeline cannot have the task 'events': its steps answer once, and do not stream",
            ));
        }
        if (self.task == Task::Tensors) == self.inputs.is_empty() {
            return Err(PredictError::invalid(
                "only a pipeline of the task 'tensors' must name its inputs; every other task has \
                 fixed inputs",
            ));
        }
        self.shape()
    }

    /// Checks that an ensemble is loaded.
    ///
    /// # Errors
    /// `NotDeployed` if the ensemble is not loaded.
    pub fn check_loaded(&self) -> Result<(), PredictError> {
        let ensemble = self.ensemble.as_ref();
        if ensemble.is_none_or(|ensemble| ensemble.loaded) {
            return Ok(());
        }
        let message = format!("ensemble '{}' is not loaded", self.name);
        Err(PredictError::new(ErrorCode::NotDeployed, message))
    }

    /// All names that steps call.
    pub fn names(&self) -> impl Iterator<Item = &ModelRef> {
        self.steps.iter().filter_map(|step| match &step.kind {
            StepKind::Model { model, .. } => Some(model),
            _ => None,
        })
    }

    /// Index of the step with this name.
    #[must_use]
    pub fn step(&self, name: &str) -> Option<usize> {
        self.steps.iter().position(|step| step.name == name)
    }
}

#[cfg(test)]
mod tests;
