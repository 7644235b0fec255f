//! What a model takes and gives.

use std::sync::Arc;

use arrow_schema::{DataType, Field, Fields, Schema, SchemaRef};

use crate::chunk;
use crate::error::PredictError;

/// What a model does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Task {
    /// Text in, text out, token by token.
    Generate,
    /// Tensors in, tensors out: one output row for each input row, in order.
    Tensors,
}

impl Task {
    /// The stable name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Generate => "generate",
            Self::Tensors => "tensors",
        }
    }

    /// The task of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Generate, Self::Tensors]
            .into_iter()
            .find(|task| task.as_str() == name)
    }
}

/// The schemas of a model's request and response rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// What the model does.
    pub task: Task,
    /// Request columns.
    pub input: SchemaRef,
    /// Response columns.
    pub output: SchemaRef,
}

/// The name of the plain-text column of a generation request.
pub const PROMPT: &str = "prompt";
/// The name of the chat column of a generation request.
pub const MESSAGES: &str = "messages";

/// The fields of one chat message: `role`, `content`.
#[must_use]
pub fn message_fields() -> Fields {
    Fields::from(vec![
        Field::new("role", DataType::Utf8, false),
        Field::new("content", DataType::Utf8, true),
    ])
}

impl Signature {
    /// The signature of every generation model: `prompt` or `messages` in, chunks out. Exactly
    /// one of the two columns must have a value in each row.
    #[must_use]
    pub fn generation() -> Self {
        let message = Field::new("item", DataType::Struct(message_fields()), false);
        let input = Schema::new(vec![
            Field::new(PROMPT, DataType::Utf8, true),
            Field::new(MESSAGES, DataType::List(Arc::new(message)), true),
        ]);
        Self {
            task: Task::Generate,
            input: Arc::new(input),
            output: chunk::generation_schema(),
        }
    }

    /// Checks a request's schema against this signature by column name: every column must be
    /// declared, with the declared type, and every declared column that is not nullable must be
    /// there. The order of columns is free. `LargeUtf8` stands for `Utf8`.
    ///
    /// # Errors
    /// `InvalidInput` naming the column, what it is and what it should be.
    pub fn check_input(&self, schema: &Schema) -> Result<(), PredictError> {
        for field in schema.fields() {
            let Ok(declared) = self.input.field_with_name(field.name()) else {
                return Err(PredictError::invalid(format!(
                    "input column '{}' is not an input of this model; its inputs are {}",
                    printable(field.name()),
                    names(&self.input)
                )));
            };
            if !same_type(declared.data_type(), field.data_type()) {
                return Err(PredictError::invalid(format!(
                    "input column '{}' has type {}, the model takes {}",
                    field.name(),
                    field.data_type(),
                    declared.data_type()
                )));
            }
        }
        for declared in self
            .input
            .fields()
            .iter()
            .filter(|field| !field.is_nullable())
        {
            if schema.field_with_name(declared.name()).is_err() {
                return Err(PredictError::invalid(format!(
                    "input column '{}' ({}) is missing",
                    declared.name(),
                    declared.data_type()
                )));
            }
        }
        Ok(())
    }
}

fn printable(name: &str) -> String {
    name.chars().filter(|c| !c.is_control()).take(64).collect()
}

fn names(schema: &Schema) -> String {
    schema
        .fields()
        .iter()
        .map(|f| format!("'{}'", f.name()))
        .collect::<Vec<_>>()
        .join(", ")
}

/// Same type, not looking at field names inside lists nor at nullability, which clients in
/// other languages choose differently.
fn same_type(a: &DataType, b: &DataType) -> bool {
    use DataType::{FixedSizeList, LargeUtf8, List, Struct, Utf8};
    match (a, b) {
        (Utf8 | LargeUtf8, Utf8 | LargeUtf8) => true,
        (List(a), List(b)) => same_type(a.data_type(), b.data_type()),
        (FixedSizeList(a, n), FixedSizeList(b, m)) => {
            n == m && same_type(a.data_type(), b.data_type())
        }
        (Struct(a), Struct(b)) => {
            a.len() == b.len()
                && a.iter()
                    .zip(b)
                    .all(|(a, b)| a.name() == b.name() && same_type(a.data_type(), b.data_type()))
        }
        _ => a == b,
    }
}
