//! One batch through the session: rows of equal shapes together, the answer in the rows' order.

use std::collections::BTreeMap;

use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions, UInt32Array};
use ort::session::{Session, SessionInputValue};
use ort::value::DynValue;
use volley_types::{ErrorOrigin, PredictError};

use super::{Options, Ports, decode, encode, internal};

/// Owns a session.
pub(super) struct Runner {
    session: Session,
    ports: Ports,
}

impl Runner {
    pub(super) fn new(session: Session, ports: Ports) -> Self {
        Self { session, ports }
    }

    pub(super) fn run(
        &mut self,
        rows: &RecordBatch,
        options: &Options,
    ) -> Result<RecordBatch, PredictError> {
        let columns = self.columns(rows)?;
        let groups = self.groups(&columns, rows.num_rows())?;
        let mut answers = Vec::with_capacity(groups.len());
        for group in &groups {
            answers.push(self.run_group(&columns, group, options)?);
        }
        if let [whole] = answers.as_slice() {
            return Ok(whole.clone());
        }
        let joined = arrow_select::concat::concat_batches(&self.ports.output_schema, &answers)
            .map_err(|error| {
                internal("the answer's rows do not fit together", error.to_string())
            })?;
        let order: Vec<usize> = groups.concat();
        let mut back = vec![0_u32; order.len()];
        for (place, row) in order.iter().enumerate() {
            back[*row] = u32::try_from(place).unwrap_or(u32::MAX);
        }
        arrow_select::take::take_record_batch(&joined, &UInt32Array::from(back)).map_err(|error| {
            internal(
                "the answer's rows cannot be put in order",
                error.to_string(),
            )
        })
    }

    /// The columns in the order of the model's inputs.
    fn columns(&self, rows: &RecordBatch) -> Result<Vec<ArrayRef>, PredictError> {
        let find = |name: &str| {
            let column = rows.column_by_name(name).cloned();
            column.ok_or_else(|| PredictError::invalid(format!("input column '{name}' is missing")))
        };
        self.ports
            .inputs
            .iter()
            .map(|port| find(&port.name))
            .collect()
    }

    /// Rows that can run together: all of them, or those whose shapes are equal. A model
    /// without a batch dimension takes one at a time.
    fn groups(&self, columns: &[ArrayRef], rows: usize) -> Result<Vec<Vec<usize>>, PredictError> {
        if !self.ports.batched {
            return Ok((0..rows).map(|row| vec![row]).collect());
        }
        let mut groups: BTreeMap<Vec<Vec<usize>>, Vec<usize>> = BTreeMap::new();
        for row in 0..rows {
            let shapes = self.ports.inputs.iter().zip(columns);
            let shapes = shapes.map(|(port, column)| decode::row_shape(port, column, row));
            groups
                .entry(shapes.collect::<Result<_, _>>()?)
                .or_default()
                .push(row);
        }
        Ok(groups.into_values().collect())
    }

    fn run_group(
        &mut self,
        columns: &[ArrayRef],
        rows: &[usize],
        options: &Options,
    ) -> Result<RecordBatch, PredictError> {
        let mut inputs: Vec<(String, SessionInputValue<'_>)> = Vec::with_capacity(columns.len());
        for (port, column) in self.ports.inputs.iter().zip(columns) {
            let value: DynValue = decode::tensor(port, column, rows, self.ports.batched)?;
            inputs.push((port.name.clone(), value.into()));
        }
        let outputs = self
            .session
            .run_with_options(inputs, options)
            .map_err(|error| {
                // Shapes that only the graph can tell to be wrong arrive here; so do its defects.
                PredictError::invalid("the model could not run on these inputs; check their shapes")
                    .with_origin(ErrorOrigin::Model)
                    .with_source(error.to_string())
            })?;
        let mut arrays = Vec::with_capacity(self.ports.outputs.len());
        for port in &self.ports.outputs {
            let value = outputs
                .get(port.name.as_str())
                .ok_or_else(|| internal("the model gave no such output", port.name.clone()))?;
            arrays.push(encode::column(port, value, rows.len(), self.ports.batched)?);
        }
        let count = RecordBatchOptions::new().with_row_count(Some(rows.len()));
        RecordBatch::try_new_with_options(self.ports.output_schema.clone(), arrays, &count).map_err(
            |error| {
                internal(
                    "the model's outputs do not fit their schema",
                    error.to_string(),
                )
            },
        )
    }
}
