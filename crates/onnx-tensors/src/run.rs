//! Runs one batch through the session: rows of equal shapes run together, and the answer has the
//! rows' order.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchOptions, UInt32Array};
use volley_onnx_runtime::ort::session::{Session, SessionInputValue};
use volley_types::PredictError;

use super::decode::InputColumn;
use super::{Ports, encode};
use crate::columns::Port;
use volley_onnx_runtime::failure;
use volley_onnx_runtime::failure::internal;
use volley_onnx_runtime::session::SharedRunOptions;

/// A session and its ports.
pub(super) struct Runner {
    session: Session,
    ports: Arc<Ports>,
}

impl Runner {
    pub(super) fn new(session: Session, ports: Arc<Ports>) -> Self {
        Self { session, ports }
    }

    /// Returns one output row for each of `rows`, in order.
    ///
    /// # Errors
    /// `InvalidInput` for inputs that the model does not accept; those of [`failure::classify`] for
    /// a failed run; `Internal` when an output does not fit its declaration.
    pub(super) fn run(
        &mut self,
        rows: &RecordBatch,
        options: &SharedRunOptions,
    ) -> Result<RecordBatch, PredictError> {
        let Self { session, ports } = self;
        let inputs = read(ports, rows)?;
        let groups = groups(ports.batched, &inputs, rows.num_rows());
        let mut answers = Vec::with_capacity(groups.len());
        for group in &groups {
            answers.push(run_group(session, ports, &inputs, group, options)?);
        }
        if let [whole] = answers.as_slice() {
            return Ok(whole.clone());
        }
        let joined = arrow_select::concat::concat_batches(&ports.output_schema, &answers).map_err(
            |error| internal("the answer's rows do not fit together", error.to_string()),
        )?;
        arrow_select::take::take_record_batch(&joined, &back(&groups)).map_err(|error| {
            internal(
                "the answer's rows cannot be put in order",
                error.to_string(),
            )
        })
    }
}

/// Executes one run.
fn run_group(
    session: &mut Session,
    ports: &Ports,
    inputs: &[InputColumn<'_>],
    rows: &[usize],
    options: &SharedRunOptions,
) -> Result<RecordBatch, PredictError> {
    let leaves = inputs.iter().map(|input| input.leaves(rows, ports.batched));
    let leaves: Vec<_> = leaves.collect::<Result<_, _>>()?;
    let mut tensors: Vec<(&str, SessionInputValue<'_>)> = Vec::with_capacity(inputs.len());
    for (port, leaves) in ports.inputs.iter().zip(&leaves) {
        tensors.push((&port.name, leaves.tensor(port)?));
    }
    let mut outputs = session
        .run_with_options(tensors, options)
        .map_err(|error| failure::classify(error.code(), error.message(), ports.are_varied()))?;
    let mut columns = Vec::with_capacity(ports.outputs.len());
    for port in &ports.outputs {
        let value = outputs
            .remove(port.name.as_str())
            .ok_or_else(|| internal("the model did not return this output", port.name.clone()))?;
        columns.push(encode::column(port, value, rows.len(), ports.batched)?);
    }
    let count = RecordBatchOptions::new().with_row_count(Some(rows.len()));
    RecordBatch::try_new_with_options(ports.output_schema.clone(), columns, &count).map_err(
        |error| {
            internal(
                "the model's outputs do not fit their schema",
                error.to_string(),
            )
        },
    )
}

/// The columns in the order of the model's inputs.
fn read<'p>(ports: &'p Ports, rows: &RecordBatch) -> Result<Vec<InputColumn<'p>>, PredictError> {
    let find = |port: &'p Port| {
        let column = rows.column_by_name(&port.name).ok_or_else(|| {
            PredictError::invalid(format!("input column '{}' is missing", port.name))
        })?;
        InputColumn::read(port, column)
    };
    ports.inputs.iter().map(find).collect()
}

/// Groups of rows that can run together: all rows, or those of equal shapes. A model without a
/// batch dimension runs one row at a time.
fn groups(batched: bool, inputs: &[InputColumn<'_>], rows: usize) -> Vec<Vec<usize>> {
    if !batched {
        return (0..rows).map(|row| vec![row]).collect();
    }
    let varied: Vec<_> = inputs.iter().filter_map(InputColumn::shapes).collect();
    if varied.is_empty() {
        return vec![(0..rows).collect()];
    }
    let mut groups: BTreeMap<Vec<&[usize]>, Vec<usize>> = BTreeMap::new();
    for row in 0..rows {
        let shapes = varied.iter().map(|shapes| shapes[row].as_slice()).collect();
        groups.entry(shapes).or_default().push(row);
    }
    groups.into_values().collect()
}

/// The position of each row in the concatenation of the groups.
fn back(groups: &[Vec<usize>]) -> UInt32Array {
    let order = groups.iter().flatten();
    let mut back = vec![0_u32; order.clone().count()];
    for (place, row) in (0_u32..).zip(order) {
        back[*row] = place;
    }
    UInt32Array::from(back)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_find_their_places_again() {
        let groups = [vec![1, 3], vec![0], vec![2]];
        assert_eq!(back(&groups).values(), &[2, 0, 3, 1]);
    }
}
