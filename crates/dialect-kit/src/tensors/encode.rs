//! Conversion of columns to OpenSearch's tensors.

use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type,
    Int64Type, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::{DataType, Field};
use serde_json::{Value, json};
use volley_types::PredictError;
use volley_types::signature::is_bfloat16;

use super::columns::{self, TensorLayout};
use super::fixed_shape;

/// All rows of `batches` as one list of `{name, data_type, shape, data}`. `data` is flat, and
/// `shape` starts with the number of rows. If the shape differs between rows, `rows` has the
/// `shape` and `data` of each row. NaN and infinities, which JSON cannot represent, are null.
///
/// # Errors
/// `Unimplemented` for a column that JSON cannot represent.
pub fn to_json(batches: &[RecordBatch]) -> Result<Value, PredictError> {
    let Some(first) = batches.first() else {
        return Ok(json!([]));
    };
    let fields = first.schema_ref().fields().clone();
    let mut outputs = Vec::with_capacity(fields.len());
    for (index, field) in fields.iter().enumerate() {
        let columns: Vec<_> = batches.iter().map(|batch| batch.column(index)).collect();
        outputs.push(output(field, &columns)?);
    }
    Ok(Value::Array(outputs))
}

fn output(field: &Field, columns: &[&ArrayRef]) -> Result<Value, PredictError> {
    let rows: usize = columns.iter().map(|column| column.len()).sum();
    let mut data = Vec::new();
    match field.data_type() {
        DataType::FixedSizeList(item, size) => {
            for column in columns {
                let list = column.as_fixed_size_list();
                let from = if list.is_empty() {
                    0
                } else {
                    list.value_offset(0) as usize
                };
                let count = list.len() * usize::try_from(*size).unwrap_or(0);
                append(item, &list.values().slice(from, count), &mut data)?;
            }
            let mut shape = vec![rows];
            shape.extend(fixed_shape(field, *size));
            Ok(tensor(field, item, &shape, data))
        }
        DataType::Struct(fields) if fields.find("data").is_some() => variable(field, columns),
        DataType::List(item) => lists(field, item, columns),
        _ => {
            for column in columns {
                append(field, column, &mut data)?;
            }
            Ok(tensor(field, field, &[rows], data))
        }
    }
}

fn tensor(field: &Field, item: &Field, shape: &[usize], data: Vec<Value>) -> Value {
    json!({ "name": field.name(), "data_type": type_name(item), "shape": shape, "data": data })
}

fn variable(field: &Field, columns: &[&ArrayRef]) -> Result<Value, PredictError> {
    let item = match columns::form(field) {
        Some((item, TensorLayout::Variable(_))) => item,
        _ => return Err(no_json(field.data_type())),
    };
    let dim = Field::new("dim", DataType::Int32, false);
    let mut rows = Vec::new();
    for column in columns {
        let tensors = column.as_struct_opt();
        let parts = tensors.and_then(|tensors| {
            let data = tensors.column_by_name("data")?.as_list_opt::<i32>()?;
            let shape = tensors.column_by_name("shape")?.as_fixed_size_list_opt()?;
            Some((data, shape))
        });
        let Some((data, shape)) = parts else {
            return Err(no_json(field.data_type()));
        };
        for row in 0..data.len() {
            let (values, dims) = (data.value(row), shape.value(row));
            let (mut flat, mut sizes) = (Vec::new(), Vec::new());
            append(item, &values, &mut flat)?;
            append(&dim, &dims, &mut sizes)?;
            rows.push(json!({ "shape": sizes, "data": flat }));
        }
    }
    let data_type = type_name(item);
    Ok(json!({ "name": field.name(), "data_type": data_type, "rows": rows }))
}

fn lists(field: &Field, item: &Field, columns: &[&ArrayRef]) -> Result<Value, PredictError> {
    let mut rows = Vec::new();
    for column in columns {
        let lists = column.as_list::<i32>();
        for row in 0..lists.len() {
            let mut flat = Vec::new();
            append(item, &lists.value(row), &mut flat)?;
            rows.push(json!({ "shape": [flat.len()], "data": flat }));
        }
    }
    let data_type = type_name(item);
    Ok(json!({ "name": field.name(), "data_type": data_type, "rows": rows }))
}

/// Appends the values of `array`, whose field is `item`.
///
/// # Errors
/// `Unimplemented` when JSON cannot represent them.
pub fn append(item: &Field, array: &ArrayRef, out: &mut Vec<Value>) -> Result<(), PredictError> {
    match array.data_type() {
        DataType::UInt16 if is_bfloat16(item) => {
            primitives::<UInt16Type>(array, out, |v| json!(half::bf16::from_bits(v).to_f32()));
        }
        DataType::Float16 => primitives::<Float16Type>(array, out, |v| json!(v.to_f32())),
        DataType::Float32 => primitives::<Float32Type>(array, out, |v| json!(v)),
        DataType::Float64 => primitives::<Float64Type>(array, out, |v| json!(v)),
        DataType::Int8 => primitives::<Int8Type>(array, out, |v| json!(v)),
        DataType::Int16 => primitives::<Int16Type>(array, out, |v| json!(v)),
        DataType::Int32 => primitives::<Int32Type>(array, out, |v| json!(v)),
        DataType::Int64 => primitives::<Int64Type>(array, out, |v| json!(v)),
        DataType::UInt8 => primitives::<UInt8Type>(array, out, |v| json!(v)),
        DataType::UInt16 => primitives::<UInt16Type>(array, out, |v| json!(v)),
        DataType::UInt32 => primitives::<UInt32Type>(array, out, |v| json!(v)),
        DataType::UInt64 => primitives::<UInt64Type>(array, out, |v| json!(v)),
        DataType::Boolean => out.extend(array.as_boolean().iter().map(|value| json!(value))),
        DataType::Utf8 => out.extend(array.as_string::<i32>().iter().map(|value| json!(value))),
        DataType::LargeUtf8 => {
            out.extend(array.as_string::<i64>().iter().map(|value| json!(value)));
        }
        other => return Err(no_json(other)),
    }
    Ok(())
}

fn primitives<T: ArrowPrimitiveType>(
    array: &ArrayRef,
    out: &mut Vec<Value>,
    render: fn(T::Native) -> Value,
) {
    let values = array.as_primitive::<T>().iter();
    out.extend(values.map(|value| value.map_or(Value::Null, render)));
}

fn no_json(data_type: &DataType) -> PredictError {
    PredictError::new(
        volley_types::ErrorCode::Unimplemented,
        format!("an output of type {data_type} cannot be encoded as JSON; use Arrow Flight"),
    )
}

/// OpenSearch's name for a type.
fn type_name(item: &Field) -> String {
    match item.data_type() {
        DataType::UInt16 if is_bfloat16(item) => "BFLOAT16".to_owned(),
        DataType::Utf8 | DataType::LargeUtf8 => "STRING".to_owned(),
        other => other.to_string().to_ascii_uppercase(),
    }
}
