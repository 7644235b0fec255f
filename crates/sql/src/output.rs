//! Rendering of query results as text.

use std::io::Write;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use arrow::util::pretty::pretty_format_batches_with_schema;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::SendableRecordBatchStream;
use futures::StreamExt;

/// Maximum number of rows of a table. A table is written after its last row, because its columns
/// are as wide as the widest value.
pub const MAX_TABLE_ROWS: usize = 10_000;

/// The format of results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputFormat {
    /// A table for humans.
    Table,
    /// CSV with a header; lists and structs as text.
    Csv,
    /// One JSON object per line.
    Json,
}

/// Writes `rows` to `out`. CSV and JSON are written batch by batch, a table after the last row. If
/// the future is dropped, the written part remains.
///
/// # Errors
/// The errors of the query and of writing, and an error for a table of more than [`MAX_TABLE_ROWS`]
/// rows.
pub async fn write(
    mut rows: SendableRecordBatchStream,
    format: OutputFormat,
    out: &mut (dyn Write + Send),
) -> Result<()> {
    let schema = rows.schema();
    let mut table = Vec::new();
    let mut count = 0;
    let mut header = true;
    while let Some(batch) = rows.next().await {
        let batch = batch?;
        match format {
            OutputFormat::Json => {
                let mut writer = arrow::json::LineDelimitedWriter::new(&mut *out);
                writer.write(&batch)?;
                writer.finish()?;
            }
            OutputFormat::Csv => {
                let builder = arrow::csv::WriterBuilder::new().with_header(header);
                builder.build(&mut *out).write(&flat(&batch)?)?;
                header = false;
            }
            OutputFormat::Table => {
                count += batch.num_rows();
                table.push(batch);
                if count > MAX_TABLE_ROWS {
                    return Err(DataFusionError::Execution(format!(
                        "a table may have at most {MAX_TABLE_ROWS} rows; choose CSV or JSON, or \
                         add a LIMIT"
                    )));
                }
            }
        }
        out.flush().map_err(DataFusionError::IoError)?;
    }
    if format == OutputFormat::Table {
        let text = pretty_format_batches_with_schema(schema, &table)?;
        writeln!(out, "{text}").map_err(DataFusionError::IoError)?;
    }
    Ok(())
}

/// `batch` with columns as text where CSV has no representation.
fn flat(batch: &RecordBatch) -> Result<RecordBatch> {
    let mut fields = Vec::with_capacity(batch.num_columns());
    let mut columns: Vec<ArrayRef> = Vec::with_capacity(batch.num_columns());
    for (field, column) in batch.schema().fields().iter().zip(batch.columns()) {
        if !column.data_type().is_nested() {
            fields.push(field.as_ref().clone());
            columns.push(column.clone());
            continue;
        }
        let options = FormatOptions::default();
        let formatter = ArrayFormatter::try_new(column, &options)?;
        let text = |row| {
            column
                .is_valid(row)
                .then(|| formatter.value(row).to_string())
        };
        let texts: StringArray = (0..column.len()).map(text).collect();
        fields.push(Field::new(field.name(), DataType::Utf8, true));
        columns.push(Arc::new(texts));
    }
    Ok(RecordBatch::try_new(
        Arc::new(Schema::new(fields)),
        columns,
    )?)
}
