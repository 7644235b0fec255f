//! Columns into ONNX tensors.

use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type,
    Int64Type, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef};
use arrow_schema::DataType;
use ort::value::{DynValue, PrimitiveTensorElementType, Tensor};
use volley_types::PredictError;

use super::internal;
use crate::columns::{Layout, Port};

/// The shape of one row; checked against the model where the column does not fix it.
pub(super) fn row_shape(
    port: &Port,
    column: &ArrayRef,
    row: usize,
) -> Result<Vec<usize>, PredictError> {
    let Layout::Variable(_) = port.layout else {
        return Ok(port
            .row_shape
            .iter()
            .map(|dim| usize::try_from(*dim).unwrap_or(0))
            .collect());
    };
    let wrong = |what: &str| {
        PredictError::invalid(format!("input column '{}', row {row}: {what}", port.name))
    };
    let tensors = column
        .as_struct_opt()
        .ok_or_else(|| wrong("is no tensor"))?;
    if tensors.is_null(row) {
        return Err(wrong("is null"));
    }
    let parts = tensors
        .column_by_name("data")
        .zip(tensors.column_by_name("shape"));
    let parts = parts.and_then(|(data, shape)| {
        Some((data.as_list_opt::<i32>()?, shape.as_fixed_size_list_opt()?))
    });
    let (data, shapes) = parts.ok_or_else(|| wrong("has no 'data' and 'shape'"))?;
    let dims = shapes.value(row);
    let dims = dims
        .as_primitive_opt::<Int32Type>()
        .ok_or_else(|| wrong("has no shape"))?;
    let shape: Option<Vec<usize>> = dims
        .values()
        .iter()
        .map(|dim| usize::try_from(*dim).ok())
        .collect();
    let shape = shape.ok_or_else(|| wrong("has a negative dimension"))?;
    let elements = shape
        .iter()
        .try_fold(1_usize, |product, dim| product.checked_mul(*dim));
    let found = data.value_length(row);
    if elements != usize::try_from(found).ok() {
        return Err(wrong(&format!(
            "has {found} values, which do not make the shape {shape:?}"
        )));
    }
    if !port.takes(&shape) {
        return Err(wrong(&format!(
            "has shape {shape:?}, the model takes {:?}",
            port.row_shape
        )));
    }
    Ok(shape)
}

/// The tensor of `rows`, which all have one shape.
pub(super) fn tensor(
    port: &Port,
    column: &ArrayRef,
    rows: &[usize],
    batched: bool,
) -> Result<DynValue, PredictError> {
    if column.null_count() != 0 {
        return Err(PredictError::invalid(format!(
            "input column '{}' has nulls; the model takes none",
            port.name
        )));
    }
    let mut shape: Vec<i64> = if batched {
        vec![rows.len() as i64]
    } else {
        Vec::new()
    };
    let first = row_shape(port, column, rows.first().copied().unwrap_or(0))?;
    shape.extend(first.iter().map(|dim| *dim as i64));
    let size: usize = first.iter().product();
    let leaves = leaves(port, column, rows, size)?;
    match port.element {
        DataType::Float16 => primitive::<Float16Type>(&leaves, shape),
        DataType::Float32 => primitive::<Float32Type>(&leaves, shape),
        DataType::Float64 => primitive::<Float64Type>(&leaves, shape),
        DataType::Int8 => primitive::<Int8Type>(&leaves, shape),
        DataType::Int16 => primitive::<Int16Type>(&leaves, shape),
        DataType::Int32 => primitive::<Int32Type>(&leaves, shape),
        DataType::Int64 => primitive::<Int64Type>(&leaves, shape),
        DataType::UInt8 => primitive::<UInt8Type>(&leaves, shape),
        DataType::UInt16 => primitive::<UInt16Type>(&leaves, shape),
        DataType::UInt32 => primitive::<UInt32Type>(&leaves, shape),
        DataType::UInt64 => primitive::<UInt64Type>(&leaves, shape),
        DataType::Boolean => {
            let values: Vec<bool> = leaves
                .iter()
                .flat_map(|part| part.as_boolean().values().iter())
                .collect();
            Ok(Tensor::from_array((shape, values))
                .map_err(refused)?
                .into_dyn())
        }
        DataType::Utf8 => {
            let mut texts: Vec<String> = Vec::new();
            for part in &leaves {
                match part.as_string_opt::<i32>() {
                    Some(small) => texts.extend(small.iter().flatten().map(str::to_owned)),
                    None => {
                        texts.extend(part.as_string::<i64>().iter().flatten().map(str::to_owned))
                    }
                }
            }
            if texts.iter().any(|text| text.contains('\0')) {
                return Err(PredictError::invalid(format!(
                    "input column '{}' has a text with a zero byte",
                    port.name
                )));
            }
            let tensor = Tensor::from_string_array((shape, texts.as_slice()));
            Ok(tensor.map_err(refused)?.into_dyn())
        }
        _ => Err(internal(
            "an input's type is not served",
            port.element.to_string(),
        )),
    }
}

fn refused(error: ort::Error) -> PredictError {
    internal("an input tensor could not be made", error.to_string())
}

/// The values of `rows`, as few slices of the column's leaves as possible.
fn leaves(
    port: &Port,
    column: &ArrayRef,
    rows: &[usize],
    size: usize,
) -> Result<Vec<ArrayRef>, PredictError> {
    let (values, offset_of): (ArrayRef, Box<dyn Fn(usize) -> usize>) = match port.layout {
        Layout::Scalar => (column.clone(), Box::new(|row| row)),
        Layout::Fixed(size) => {
            let list = column.as_fixed_size_list();
            let base = list.value_offset(0) as usize;
            (
                list.values().clone(),
                Box::new(move |row| base + row * size),
            )
        }
        Layout::Variable(_) => {
            let list = column
                .as_struct()
                .column_by_name("data")
                .map(|data| data.as_list::<i32>());
            let list = list.ok_or_else(|| internal("a tensor column has no data", ""))?;
            let offsets = list.offsets().clone();
            (
                list.values().clone(),
                Box::new(move |row| offsets[row] as usize),
            )
        }
    };
    let mut parts: Vec<ArrayRef> = Vec::new();
    let mut run: Option<(usize, usize)> = None;
    for row in rows {
        let start = offset_of(*row);
        run = match run {
            Some((from, to)) if to == start => Some((from, to + size)),
            Some((from, to)) => {
                parts.push(values.slice(from, to - from));
                Some((start, start + size))
            }
            None => Some((start, start + size)),
        };
    }
    if let Some((from, to)) = run {
        parts.push(values.slice(from, to - from));
    }
    if parts.iter().any(|part| part.null_count() != 0) {
        return Err(PredictError::invalid(format!(
            "input column '{}' has nulls inside a tensor; the model takes none",
            port.name
        )));
    }
    Ok(parts)
}

fn primitive<T>(parts: &[ArrayRef], shape: Vec<i64>) -> Result<DynValue, PredictError>
where
    T: ArrowPrimitiveType,
    T::Native: PrimitiveTensorElementType + std::fmt::Debug + Clone + 'static,
{
    let mut values: Vec<T::Native> = Vec::new();
    for part in parts {
        values.extend_from_slice(part.as_primitive::<T>().values());
    }
    Ok(Tensor::from_array((shape, values))
        .map_err(refused)?
        .into_dyn())
}
