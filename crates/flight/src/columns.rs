//! Omission of blank columns. Most messages of a generation have values in two of 21 columns;
//! encoding, sending, checking and decoding the others is most of the cost of a message. If the
//! caller supports it, a message only has the columns with values, and its application metadata
//! lists their indices. The reader restores the blank columns.

use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_schema::{ArrowError, Schema, SchemaRef};
use bytes::Bytes;
use volley_types::PredictError;
use volley_types::chunk::{blank, is_blank};

/// Prefix of the application metadata of such a message. The columns follow as a bit set of eight
/// bytes; the schema's first column is the lowest bit of the first byte.
const MARK: &[u8] = b"col";

/// A set of a schema's columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Columns(u64);

impl Columns {
    /// The columns of `batch` with values; `None` if all have values, none has, or the schema has
    /// too many columns for the set.
    pub(crate) fn said(batch: &RecordBatch) -> Option<Self> {
        let all = batch.num_columns();
        if u64::BITS as usize <= all {
            return None;
        }
        let schema = batch.schema_ref();
        let columns = schema.fields().iter().zip(batch.columns());
        let said = columns
            .enumerate()
            .filter(|(_, (field, column))| !is_blank(field, column));
        let said = said.fold(0, |said, (index, _)| said | 1 << index);
        (said != 0 && said != (1 << all) - 1).then_some(Self(said))
    }

    /// Parses the set in a message's application metadata; `None` if it has none.
    pub(crate) fn named(metadata: &[u8]) -> Option<Self> {
        let bits = metadata.strip_prefix(MARK)?.try_into().ok()?;
        Some(Self(u64::from_le_bytes(bits)))
    }

    /// Encodes the set as application metadata.
    pub(crate) fn name(self) -> Bytes {
        [MARK, &self.0.to_le_bytes()].concat().into()
    }

    fn has(self, index: usize) -> bool {
        index < u64::BITS as usize && self.0 >> index & 1 == 1
    }

    /// The batch with only these columns.
    ///
    /// # Errors
    /// None if the batch has these columns.
    pub(crate) fn of(self, batch: &RecordBatch) -> Result<RecordBatch, ArrowError> {
        let indices: Vec<_> = (0..batch.num_columns())
            .filter(|it| self.has(*it))
            .collect();
        batch.project(&indices)
    }

    /// The schema with only these columns.
    ///
    /// # Errors
    /// `InvalidInput` when `schema` lacks one of them, or an omitted column cannot be blank.
    pub(crate) fn schema(self, schema: &Schema) -> Result<SchemaRef, PredictError> {
        let fields = schema.fields();
        if self
            .0
            .checked_shr(u32::try_from(fields.len()).unwrap_or(u32::MAX))
            .unwrap_or(0)
            != 0
        {
            return Err(malformed("columns that its schema does not have"));
        }
        let mut kept = Vec::with_capacity(self.0.count_ones() as usize);
        for (index, field) in fields.iter().enumerate() {
            if self.has(index) {
                kept.push(field.clone());
            } else if blank(field, 0).is_none() {
                return Err(malformed("too few columns for its schema"));
            }
        }
        Ok(Arc::new(Schema::new(kept)))
    }

    /// Restores the other columns of `schema` in a `batch` with only these columns.
    ///
    /// # Errors
    /// `InvalidInput` when a column cannot be restored.
    pub(crate) fn fill(
        self,
        batch: &RecordBatch,
        schema: &SchemaRef,
    ) -> Result<RecordBatch, PredictError> {
        let rows = batch.num_rows();
        let mut said = batch.columns().iter();
        let column = |(index, field): (usize, &Arc<_>)| match self.has(index) {
            true => said.next().cloned(),
            false => blank(field, rows),
        };
        let columns: Option<Vec<ArrayRef>> =
            schema.fields().iter().enumerate().map(column).collect();
        let columns = columns.ok_or_else(|| malformed("too few columns for its schema"))?;
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(schema.clone(), columns, &options)
            .map_err(|error| malformed("columns that do not fit its schema").with_source(error))
    }
}

/// Concatenates `batches` of `schema`. A column that is blank in all of them is not copied.
///
/// # Errors
/// Arrow's error if a batch has another schema.
pub(crate) fn concat(
    schema: &SchemaRef,
    batches: &[RecordBatch],
) -> Result<RecordBatch, ArrowError> {
    let rows = batches.iter().map(RecordBatch::num_rows).sum();
    let columns = schema.fields().iter().enumerate().map(|(index, field)| {
        if batches
            .iter()
            .all(|batch| is_blank(field, batch.column(index)))
            && let Some(blank) = blank(field, rows)
        {
            return Ok(blank);
        }
        let parts: Vec<_> = batches
            .iter()
            .map(|batch| batch.column(index).as_ref())
            .collect();
        arrow_select::concat::concat(&parts)
    });
    let columns = columns.collect::<Result<_, _>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    RecordBatch::try_new_with_options(schema.clone(), columns, &options)
}

/// The error of a message whose parts contradict each other.
pub(crate) fn malformed(what: &str) -> PredictError {
    PredictError::invalid(format!("malformed Flight message: it has {what}"))
}

#[cfg(test)]
mod tests;
