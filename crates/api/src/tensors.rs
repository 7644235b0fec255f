//! Tensors as JSON: nested arrays in, OpenSearch's `{name, data_type, shape, data}` out.
//!
//! A column is one input or output, a row is one item. A column holds one of: a scalar a row
//! (a primitive, text or boolean column), a tensor of a fixed shape a row (`FixedSizeList`, its
//! shape in the `arrow.fixed_shape_tensor` extension), or a tensor of any shape a row (a struct
//! of `data` and `shape`, `arrow.variable_shape_tensor`).

pub(crate) mod columns;
mod decode;
mod encode;

use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchOptions};
use arrow_schema::{Field, Schema, SchemaRef};
use serde_json::{Map, Value};
use volley_types::PredictError;

pub(crate) use decode::flat_values;
pub(crate) use encode::append;
pub use encode::to_json;

/// Rows from `inputs`: an object with one array of rows for each input, or a list of objects
/// with one value for each input. Inputs that may be null may be left out.
///
/// # Errors
/// `InvalidInput` naming the input, the row and what it should be.
pub fn from_json(inputs: &Value, schema: &SchemaRef) -> Result<RecordBatch, PredictError> {
    match inputs {
        // A model without inputs is called once.
        Value::Object(columns) => from_columns(columns, schema, 1),
        Value::Array(rows) => from_columns(&transpose(rows, schema)?, schema, rows.len()),
        _ => Err(PredictError::invalid(
            "'inputs' must be an object with one array of rows for each input, or a list of rows",
        )),
    }
}

fn transpose(rows: &[Value], schema: &Schema) -> Result<Map<String, Value>, PredictError> {
    let mut columns: Map<String, Value> = Map::new();
    for (index, row) in rows.iter().enumerate() {
        let row = row.as_object().ok_or_else(|| {
            PredictError::invalid(format!("'inputs' row {index} must be an object"))
        })?;
        if let Some(name) = row
            .keys()
            .find(|name| schema.field_with_name(name).is_err())
        {
            return Err(unknown(name, schema));
        }
        for field in schema.fields() {
            let value = row.get(field.name()).cloned().unwrap_or(Value::Null);
            if let Value::Array(values) = columns
                .entry(field.name().clone())
                .or_insert_with(|| Value::Array(Vec::new()))
            {
                values.push(value);
            }
        }
    }
    // A column that no row has is left out, not full of nulls.
    columns.retain(|_, values| {
        values
            .as_array()
            .is_some_and(|values| values.iter().any(|value| !value.is_null()))
    });
    Ok(columns)
}

/// `calls` is the number of rows where the model has no inputs to count them by.
fn from_columns(
    columns: &Map<String, Value>,
    schema: &SchemaRef,
    calls: usize,
) -> Result<RecordBatch, PredictError> {
    if let Some(name) = columns
        .keys()
        .find(|name| schema.field_with_name(name).is_err())
    {
        return Err(unknown(name, schema));
    }
    let (mut fields, mut arrays): (Vec<Arc<Field>>, Vec<_>) = (Vec::new(), Vec::new());
    for field in schema.fields() {
        let Some(values) = columns.get(field.name()) else {
            if field.is_nullable() {
                continue;
            }
            return Err(PredictError::invalid(format!(
                "input '{}' is missing",
                field.name()
            )));
        };
        let rows = values.as_array().ok_or_else(|| {
            PredictError::invalid(format!("input '{}' must be an array of rows", field.name()))
        })?;
        arrays.push(decode::column(field, rows)?);
        fields.push(field.clone());
    }
    let rows = match arrays.first() {
        Some(array) => array.len(),
        None if schema.fields().is_empty() => calls,
        None => 0,
    };
    if let Some(index) = arrays.iter().position(|array| array.len() != rows) {
        return Err(PredictError::invalid(format!(
            "input '{}' has {} rows and input '{}' has {rows}; all inputs need the same number",
            fields[index].name(),
            arrays[index].len(),
            fields[0].name(),
        )));
    }
    if rows == 0 {
        return Err(PredictError::invalid("'inputs' has no rows"));
    }
    let schema = Arc::new(Schema::new(fields));
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    RecordBatch::try_new_with_options(schema, arrays, &options).map_err(|error| {
        PredictError::invalid("the inputs do not fit the model").with_source(error)
    })
}

fn unknown(name: &str, schema: &Schema) -> PredictError {
    let known: Vec<_> = schema
        .fields()
        .iter()
        .map(|field| format!("'{}'", field.name()))
        .collect();
    let name: String = name.chars().filter(|c| !c.is_control()).take(64).collect();
    let known = match known.is_empty() {
        true => "it takes none".to_owned(),
        false => format!("its inputs are {}", known.join(", ")),
    };
    PredictError::invalid(format!("'{name}' is not an input of this model; {known}"))
}

/// The extension's `shape`, for a `FixedSizeList` of `size`.
pub(crate) fn fixed_shape(field: &Field, size: i32) -> Vec<usize> {
    let metadata = field.metadata().get("ARROW:extension:metadata");
    let shape = metadata
        .and_then(|text| serde_json::from_str::<Value>(text).ok())
        .and_then(|value| {
            let shape = value.get("shape")?.as_array()?;
            shape
                .iter()
                .map(|dim| usize::try_from(dim.as_u64()?).ok())
                .collect::<Option<Vec<_>>>()
        });
    let size = usize::try_from(size).unwrap_or(0);
    shape
        .filter(|shape| shape.iter().product::<usize>() == size)
        .unwrap_or_else(|| vec![size])
}

#[cfg(test)]
mod tests;
