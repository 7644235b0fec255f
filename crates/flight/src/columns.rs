//! Columns left out. Most messages of a generation say something in two of its 21 columns; to
//! write, send, check and read the others is most of what such a message costs. Where the
//! caller understands it, a message holds the columns that say something, and its application
//! metadata says which of the schema's those are. Whoever reads it makes the others again.

use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_schema::{ArrowError, Schema, SchemaRef};
use bytes::Bytes;
use volley_types::PredictError;
use volley_types::chunk::{blank, is_blank};

/// What the application metadata of such a message begins with; the columns follow as the bits of
/// eight bytes, the schema's first column as the lowest bit of the first byte.
const MARK: &[u8] = b"col";

/// Columns of a schema, as a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Columns(u64);

impl Columns {
    /// Those of `batch` that say something; `None` where all do, where none does, or where there
    /// are too many to tell them so.
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

    /// The set that a message's application metadata names; `None` where it names none.
    pub(crate) fn named(metadata: &[u8]) -> Option<Self> {
        let bits = metadata.strip_prefix(MARK)?.try_into().ok()?;
        Some(Self(u64::from_le_bytes(bits)))
    }

    /// As application metadata.
    pub(crate) fn name(self) -> Bytes {
        [MARK, &self.0.to_le_bytes()].concat().into()
    }

    fn has(self, index: usize) -> bool {
        index < u64::BITS as usize && self.0 >> index & 1 == 1
    }

    /// The batch of these columns alone.
    ///
    /// # Errors
    /// None, for columns that the batch has.
    pub(crate) fn of(self, batch: &RecordBatch) -> Result<RecordBatch, ArrowError> {
        let indices: Vec<_> = (0..batch.num_columns())
            .filter(|it| self.has(*it))
            .collect();
        batch.project(&indices)
    }

    /// The schema of these columns alone.
    ///
    /// # Errors
    /// `InvalidInput` when `schema` does not have them all, or one that is left out cannot be.
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

    /// `batch` of these columns alone, with the others of `schema` made again.
    ///
    /// # Errors
    /// `InvalidInput` when they cannot be.
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

/// `batches` of `schema` as one. A column that says nothing in any of them is not copied.
///
/// # Errors
/// Arrow's, where they are not of that schema.
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
