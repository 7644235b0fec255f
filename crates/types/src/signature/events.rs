//! Signatures of models that stream events of columns.
//!
//! Such a model answers one request with any number of events. Each event has one or more rows of
//! the columns that the model declares; the rows do not correspond to those of the request.
//!
//! Transports split and merge batches, so the borders of events are in columns: [`EVENT`] and
//! [`EVENT_END`] follow the model's own columns. A reader sends an event on when it has read the row
//! that ends it.

use std::sync::Arc;

use arrow_array::builder::BooleanBuilder;
use arrow_array::cast::AsArray;
use arrow_array::{ArrayRef, RecordBatch, UInt32Array};
use arrow_schema::{DataType, Field, Schema, SchemaRef};

use super::{Signature, Task, printable};
use crate::error::PredictError;

/// Name of the column with the number of an event, from 0.
pub const EVENT: &str = "event";
/// Name of the column that is true in the last row of each event.
pub const EVENT_END: &str = "event_end";

/// Metadata key of the output schema of a model that streams events.
const STREAMS: &str = "volley.events";

impl Signature {
    /// The signature of a model that streams events with the columns of `output`.
    ///
    /// # Errors
    /// `InvalidInput` for an output with the name of a column that marks events.
    pub fn events(input: SchemaRef, output: &Schema) -> Result<Self, PredictError> {
        let taken = output.fields().iter().map(|field| field.name());
        if let Some(name) = taken.into_iter().find(|name| is_mark(name)) {
            return Err(PredictError::invalid(format!(
                "the output '{}' has the name of a column that marks events; rename it",
                printable(name)
            )));
        }
        let marks = [
            Field::new(EVENT, DataType::UInt32, false),
            Field::new(EVENT_END, DataType::Boolean, false),
        ];
        let fields = output.fields().iter().cloned();
        let fields: Vec<_> = fields.chain(marks.map(Arc::new)).collect();
        let mut metadata = output.metadata().clone();
        metadata.insert(STREAMS.to_owned(), "true".to_owned());
        Ok(Self {
            task: Task::Events,
            input,
            output: Arc::new(Schema::new_with_metadata(fields, metadata)),
        })
    }

    /// The columns that the model declares: `output` without the columns that mark events.
    #[must_use]
    pub fn declared_output(&self) -> SchemaRef {
        if self.task != Task::Events {
            return self.output.clone();
        }
        let fields = self.output.fields().iter();
        let fields: Vec<_> = fields
            .filter(|field| !is_mark(field.name()))
            .cloned()
            .collect();
        let metadata = self.output.metadata().clone();
        Arc::new(Schema::new_with_metadata(fields, metadata))
    }

    /// The name of the task between nodes. Earlier versions reject a report with a task that they do
    /// not know, so a model that streams events is a model of tensors with a mark.
    #[must_use]
    pub fn wire_task(&self) -> &'static str {
        match self.task {
            Task::Events => Task::Tensors.as_str(),
            task => task.as_str(),
        }
    }

    /// The signature with a task from another node.
    #[must_use]
    pub fn from_wire(task: Task, input: SchemaRef, output: SchemaRef) -> Self {
        let marked = task == Task::Tensors && output.metadata().contains_key(STREAMS);
        Self {
            task: if marked { Task::Events } else { task },
            input,
            output,
        }
    }
}

fn is_mark(name: &str) -> bool {
    name == EVENT || name == EVENT_END
}

/// The columns that mark the rows of whole events: the number of the first event, and the rows of
/// each.
#[must_use]
pub fn marks(first: u32, events: &[usize]) -> [ArrayRef; 2] {
    let rows = events.iter().sum();
    let mut numbers = Vec::with_capacity(rows);
    let mut ends = BooleanBuilder::with_capacity(rows);
    let mut number = first;
    for event in events.iter().copied().filter(|rows| 0 < *rows) {
        numbers.extend(std::iter::repeat_n(number, event));
        ends.append_n(event - 1, false);
        ends.append_value(true);
        number = number.wrapping_add(1);
    }
    [
        Arc::new(UInt32Array::from(numbers)),
        Arc::new(ends.finish()),
    ]
}

/// Whether the last row of a batch ends an event; `None` without rows or marks.
#[must_use]
pub fn ends_event(batch: &RecordBatch) -> Option<bool> {
    let ends = batch.column_by_name(EVENT_END)?.as_boolean_opt()?;
    let last = ends.len().checked_sub(1)?;
    Some(ends.value(last))
}

#[cfg(test)]
mod tests;
