//! Tensors of the protocol as JSON ⇄ rows. Pure.
//!
//! The first dimension of a tensor counts the rows. A tensor that has one dimension less than that
//! is one row, without a dimension for it: so a model that takes no batch is called as it is.

use arrow_array::RecordBatch;
use arrow_schema::{DataType, Field, SchemaRef};
use serde_json::{Map, Value, json};
use volley_types::PredictError;

use crate::tensors::{self, fixed_shape};

/// Rows from the `inputs` of a request, and whether they had a dimension of their own.
///
/// # Errors
/// `InvalidInput` naming the input.
pub(super) fn rows(
    inputs: &[Value],
    schema: &SchemaRef,
) -> Result<(RecordBatch, bool), PredictError> {
    let mut columns = Map::new();
    let mut batched = true;
    for input in inputs {
        let name = input.get("name").and_then(Value::as_str);
        let name = name.ok_or_else(|| PredictError::invalid("an input has no 'name'"))?;
        if columns.contains_key(name) {
            let name = printable(name);
            return Err(PredictError::invalid(format!(
                "input '{name}' is given twice"
            )));
        }
        let Ok(field) = schema.field_with_name(name) else {
            let known: Vec<_> = schema
                .fields()
                .iter()
                .map(|field| field.name().as_str())
                .collect();
            return Err(PredictError::invalid(format!(
                "'{}' is not an input of this model; its inputs are {}",
                printable(name),
                known.join(", ")
            )));
        };
        let tensor = Tensor::read(name, input, field)?;
        batched &= tensor.batched;
        columns.insert(name.to_owned(), Value::Array(tensor.rows));
    }
    let rows = tensors::from_json(&Value::Object(columns), schema)?;
    Ok((rows, batched))
}

struct Tensor {
    rows: Vec<Value>,
    batched: bool,
}

impl Tensor {
    fn read(name: &str, input: &Value, field: &Field) -> Result<Self, PredictError> {
        let wrong = |what: String| PredictError::invalid(format!("input '{name}': {what}"));
        let (wanted, rank) = described(field)
            .ok_or_else(|| wrong("it cannot be given in this protocol".to_owned()))?;
        match input.get("datatype").and_then(Value::as_str) {
            Some(given) if given == wanted => {}
            Some(given) => {
                let given = printable(given);
                return Err(wrong(format!(
                    "has datatype {given}, the model takes {wanted}"
                )));
            }
            None => return Err(wrong("has no 'datatype'".to_owned())),
        }
        let shape =
            shape(input).ok_or_else(|| wrong("'shape' must be a list of sizes".to_owned()))?;
        let size = shape
            .iter()
            .try_fold(1_usize, |size, dim| size.checked_mul(*dim));
        let data = input.get("data");
        let data = data.ok_or_else(|| wrong("has no 'data' in JSON".to_owned()))?;
        let mut flat = Vec::new();
        flatten(data, &mut flat);
        if size != Some(flat.len()) {
            return Err(wrong(format!(
                "has {} values, and its shape {shape:?} needs others",
                flat.len()
            )));
        }
        // A column of numbers is sometimes given as a table with one of them.
        let column = rank == 0 && shape.len() == 2 && shape[1] == 1;
        let batched = shape.len() == rank + 1 || column;
        if !batched && shape.len() != rank {
            return Err(wrong(format!(
                "has {} dimensions, the model takes {} with the one of the rows",
                shape.len(),
                rank + 1
            )));
        }
        let (count, row_shape) = match (batched, shape.split_first()) {
            (true, Some((count, rest))) if !column => (*count, rest),
            (true, Some((count, _))) => (*count, &[][..]),
            _ => (1, &shape[..]),
        };
        let each = flat.len().checked_div(count).unwrap_or(0);
        let rows = (0..count).map(|row| nest(&flat[row * each..(row + 1) * each], row_shape));
        Ok(Self {
            rows: rows.collect(),
            batched,
        })
    }
}

/// The protocol's name for a column's type, and the dimensions of one row; `None` when it has no
/// such form.
pub(super) fn described(field: &Field) -> Option<(&'static str, usize)> {
    match field.data_type() {
        DataType::FixedSizeList(item, size) => {
            Some((datatype(item.data_type())?, fixed_shape(field, *size).len()))
        }
        DataType::List(item) => Some((datatype(item.data_type())?, 1)),
        DataType::Struct(fields) => {
            let (_, data) = fields.find("data")?;
            let (_, shape) = fields.find("shape")?;
            match (data.data_type(), shape.data_type()) {
                (DataType::List(item), DataType::FixedSizeList(_, rank)) => {
                    Some((datatype(item.data_type())?, usize::try_from(*rank).ok()?))
                }
                _ => None,
            }
        }
        scalar => Some((datatype(scalar)?, 0)),
    }
}

/// The shape that the metadata of a model tells for a column: -1 where it is free.
pub(super) fn declared_shape(field: &Field) -> Vec<i64> {
    let mut shape = vec![-1];
    match field.data_type() {
        DataType::FixedSizeList(_, size) => {
            let dims = fixed_shape(field, *size);
            shape.extend(dims.into_iter().map(|dim| dim as i64));
        }
        _ => {
            let rank = described(field).map_or(0, |(_, rank)| rank);
            shape.resize(1 + rank, -1);
        }
    }
    shape
}

fn datatype(data_type: &DataType) -> Option<&'static str> {
    Some(match data_type {
        DataType::Boolean => "BOOL",
        DataType::Int8 => "INT8",
        DataType::Int16 => "INT16",
        DataType::Int32 => "INT32",
        DataType::Int64 => "INT64",
        DataType::UInt8 => "UINT8",
        DataType::UInt16 => "UINT16",
        DataType::UInt32 => "UINT32",
        DataType::UInt64 => "UINT64",
        DataType::Float16 => "FP16",
        DataType::Float32 => "FP32",
        DataType::Float64 => "FP64",
        DataType::Utf8 | DataType::LargeUtf8 => "BYTES",
        _ => return None,
    })
}

fn shape(input: &Value) -> Option<Vec<usize>> {
    let dims = input.get("shape")?.as_array()?.iter();
    dims.map(|dim| usize::try_from(dim.as_u64()?).ok())
        .collect()
}

fn flatten<'v>(data: &'v Value, flat: &mut Vec<&'v Value>) {
    match data {
        Value::Array(values) => values.iter().for_each(|value| flatten(value, flat)),
        value => flat.push(value),
    }
}

fn nest(flat: &[&Value], shape: &[usize]) -> Value {
    match shape.split_first() {
        None => flat.first().map_or(Value::Null, |value| (*value).clone()),
        Some((dim, rest)) => {
            let each = flat.len().checked_div(*dim).unwrap_or(0);
            let parts = (0..*dim).map(|part| nest(&flat[part * each..(part + 1) * each], rest));
            parts.collect()
        }
    }
}

fn printable(name: &str) -> String {
    name.chars().filter(|c| !c.is_control()).take(64).collect()
}

/// The outputs of an answer: all of them, or those that are asked for, in their order.
///
/// # Errors
/// `InvalidInput` when one that is asked for is not there, or rows of different shapes make no
/// tensor; `Unimplemented` for a column that has no such form.
pub(super) fn outputs(
    batches: &[RecordBatch],
    schema: &SchemaRef,
    wanted: Option<&[String]>,
    batched: bool,
) -> Result<Vec<Value>, PredictError> {
    if let Some(name) = wanted
        .into_iter()
        .flatten()
        .find(|name| schema.field_with_name(name).is_err())
    {
        return Err(PredictError::invalid(format!(
            "'{}' is not an output of this model",
            printable(name)
        )));
    }
    let told = tensors::to_json(batches)?;
    let told = told.as_array().cloned().unwrap_or_default();
    let mut outputs = Vec::new();
    for (field, output) in schema.fields().iter().zip(told) {
        if wanted.is_some_and(|wanted| !wanted.contains(field.name())) {
            continue;
        }
        outputs.push(output_of(field, output, batched)?);
    }
    Ok(outputs)
}

fn output_of(field: &Field, output: Value, batched: bool) -> Result<Value, PredictError> {
    let (mut shape, data) = match output.get("rows").and_then(Value::as_array) {
        None => (
            output["shape"].as_array().cloned().unwrap_or_default(),
            output["data"].clone(),
        ),
        Some(rows) => {
            let first = rows.first().map(|row| row["shape"].clone());
            if rows.iter().any(|row| Some(&row["shape"]) != first.as_ref()) {
                return Err(PredictError::invalid(format!(
                    "output '{}' has rows of different shapes, which make no tensor; send one row \
                     at a time, or use Arrow Flight",
                    field.name()
                )));
            }
            let mut shape = vec![Value::from(rows.len())];
            shape.extend(
                first
                    .and_then(|first| first.as_array().cloned())
                    .unwrap_or_default(),
            );
            let data = rows
                .iter()
                .filter_map(|row| row["data"].as_array())
                .flatten();
            (shape, data.cloned().collect())
        }
    };
    if !batched && shape.first() == Some(&Value::from(1)) {
        shape.remove(0);
    }
    let name = described(field).map(|(name, _)| name);
    Ok(json!({ "name": field.name(), "datatype": name, "shape": shape, "data": data }))
}
