//! JSON rows into a column.

use std::sync::Arc;

use arrow_array::types::{
    ArrowPrimitiveType, Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type,
    Int64Type, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{ArrayRef, BooleanArray, LargeStringArray, PrimitiveArray, StringArray};
use arrow_schema::{DataType, Field, Fields};
use serde_json::Value;
use volley_types::PredictError;
use volley_types::signature::is_bfloat16;

use super::columns::{self, Form};
use super::fixed_shape;

/// The deepest nesting of one tensor.
const MAX_RANK: usize = 16;

/// Where a value stands, for messages.
struct Place<'a> {
    input: &'a str,
    row: usize,
}

impl Place<'_> {
    fn wrong(&self, what: &str) -> PredictError {
        PredictError::invalid(format!("input '{}', row {}: {what}", self.input, self.row))
    }
}

/// The column that `field` describes.
pub(super) fn column(field: &Field, rows: &[Value]) -> Result<ArrayRef, PredictError> {
    match field.data_type() {
        DataType::FixedSizeList(item, size) => fixed(field, item, *size, rows),
        DataType::Struct(fields) => variable(field, fields, rows),
        _ => {
            let values = rows.iter().enumerate();
            let placed = values.map(|(row, value)| {
                (
                    Place {
                        input: field.name(),
                        row,
                    },
                    value,
                )
            });
            scalars(field, placed.collect())
        }
    }
}

fn fixed(
    field: &Field,
    item: &Arc<Field>,
    size: i32,
    rows: &[Value],
) -> Result<ArrayRef, PredictError> {
    let shape = fixed_shape(field, size);
    let mut flat = Vec::new();
    for (row, value) in rows.iter().enumerate() {
        let place = Place {
            input: field.name(),
            row,
        };
        let start = flat.len();
        let found = flatten(&place, value, &mut flat)?;
        // A flat list of the right length stands for any shape.
        let fits = found == shape || (found.len() == 1 && flat.len() - start == size as usize);
        if !fits {
            return Err(place.wrong(&format!("has shape {found:?}, the model takes {shape:?}")));
        }
    }
    let placed = flat.iter().enumerate().map(|(index, value)| {
        let row = index / usize::try_from(size).unwrap_or(1).max(1);
        (
            Place {
                input: field.name(),
                row,
            },
            *value,
        )
    });
    let values = scalars(item, placed.collect())?;
    columns::fixed(item, size, rows.len(), values)
}

fn variable(field: &Field, fields: &Fields, rows: &[Value]) -> Result<ArrayRef, PredictError> {
    let unsupported =
        || PredictError::invalid(format!("input '{}' cannot be given as JSON", field.name()));
    let Some((item, Form::Variable(rank))) = columns::form(field) else {
        return Err(unsupported());
    };
    let (mut flat, mut lengths, mut dims) = (Vec::new(), Vec::new(), Vec::new());
    for (row, value) in rows.iter().enumerate() {
        let place = Place {
            input: field.name(),
            row,
        };
        let start = flat.len();
        let shape = flatten(&place, value, &mut flat)?;
        if shape.len() != rank {
            let found = shape.len();
            return Err(place.wrong(&format!("has {found} dimensions, the model takes {rank}")));
        }
        for dim in shape {
            dims.push(i32::try_from(dim).map_err(|_| place.wrong("is too large"))?);
        }
        lengths.push(flat.len() - start);
    }
    let row_of = lengths
        .clone()
        .into_iter()
        .enumerate()
        .flat_map(|(row, length)| std::iter::repeat_n(row, length));
    let placed = row_of.zip(&flat).map(|(row, value)| {
        (
            Place {
                input: field.name(),
                row,
            },
            *value,
        )
    });
    let values = scalars(item, placed.collect())?;
    columns::variable(fields, values, lengths, dims).ok_or_else(unsupported)?
}

/// The values of a tensor whose rows have `each` values, as one array of the type of `item`.
///
/// # Errors
/// `InvalidInput` naming the input, the row and what a value should be.
pub(crate) fn flat_values(
    input: &str,
    item: &Field,
    values: &[&Value],
    each: usize,
) -> Result<ArrayRef, PredictError> {
    let place = |index: usize| Place {
        input,
        row: index / each.max(1),
    };
    let placed = values.iter().enumerate();
    scalars(
        item,
        placed
            .map(|(index, value)| (place(index), *value))
            .collect(),
    )
}

/// Appends the leaves of a nested array and returns its shape; a ragged one is refused.
fn flatten<'a>(
    place: &Place<'_>,
    value: &'a Value,
    out: &mut Vec<&'a Value>,
) -> Result<Vec<usize>, PredictError> {
    fn walk<'a>(
        place: &Place<'_>,
        value: &'a Value,
        depth: usize,
        shape: &mut Vec<usize>,
        known: bool,
        out: &mut Vec<&'a Value>,
    ) -> Result<(), PredictError> {
        let Value::Array(items) = value else {
            if depth == shape.len() {
                out.push(value);
                return Ok(());
            }
            return Err(place.wrong("is a ragged array"));
        };
        if depth == MAX_RANK {
            return Err(place.wrong("is nested too deep"));
        }
        if !known && depth == shape.len() {
            shape.push(items.len());
        }
        if shape.get(depth) != Some(&items.len()) {
            return Err(place.wrong("is a ragged array"));
        }
        for (index, item) in items.iter().enumerate() {
            walk(place, item, depth + 1, shape, known || index != 0, out)?;
        }
        Ok(())
    }
    let mut shape = Vec::new();
    walk(place, value, 0, &mut shape, false, out)?;
    Ok(shape)
}

type Placed<'a> = Vec<(Place<'a>, &'a Value)>;

fn scalars(item: &Field, values: Placed<'_>) -> Result<ArrayRef, PredictError> {
    match item.data_type() {
        DataType::UInt16 if is_bfloat16(item) => {
            floats::<UInt16Type>(values, |v| Some(half::bf16::from_f64(v).to_bits()))
        }
        DataType::Float16 => floats::<Float16Type>(values, |v| Some(half::f16::from_f64(v))),
        DataType::Float32 => floats::<Float32Type>(values, |v| Some(v as f32)),
        DataType::Float64 => floats::<Float64Type>(values, Some),
        DataType::Int8 => wholes::<Int8Type>(values),
        DataType::Int16 => wholes::<Int16Type>(values),
        DataType::Int32 => wholes::<Int32Type>(values),
        DataType::Int64 => wholes::<Int64Type>(values),
        DataType::UInt8 => wholes::<UInt8Type>(values),
        DataType::UInt16 => wholes::<UInt16Type>(values),
        DataType::UInt32 => wholes::<UInt32Type>(values),
        DataType::UInt64 => wholes::<UInt64Type>(values),
        DataType::Boolean => {
            let read = |(place, value): (Place<'_>, &Value)| {
                value
                    .as_bool()
                    .ok_or_else(|| place.wrong("must be true or false"))
            };
            Ok(Arc::new(BooleanArray::from(
                values
                    .into_iter()
                    .map(read)
                    .collect::<Result<Vec<_>, _>>()?,
            )))
        }
        DataType::Utf8 => Ok(Arc::new(StringArray::from(texts(&values)?))),
        DataType::LargeUtf8 => Ok(Arc::new(LargeStringArray::from(texts(&values)?))),
        other => Err(PredictError::invalid(format!(
            "inputs of type {other} cannot be given as JSON; use Arrow Flight"
        ))),
    }
}

fn texts<'a>(values: &'a Placed<'_>) -> Result<Vec<&'a str>, PredictError> {
    let read = |(place, value): &'a (Place<'_>, &Value)| {
        value
            .as_str()
            .ok_or_else(|| place.wrong("must be a string"))
    };
    values.iter().map(read).collect()
}

fn floats<T: ArrowPrimitiveType>(
    values: Placed<'_>,
    cast: fn(f64) -> Option<T::Native>,
) -> Result<ArrayRef, PredictError> {
    let read = |(place, value): (Place<'_>, &Value)| {
        value
            .as_f64()
            .and_then(cast)
            .ok_or_else(|| place.wrong("must be a number"))
    };
    let values: Vec<T::Native> = values.into_iter().map(read).collect::<Result<_, _>>()?;
    Ok(Arc::new(PrimitiveArray::<T>::from_iter_values(values)))
}

fn wholes<T>(values: Placed<'_>) -> Result<ArrayRef, PredictError>
where
    T: ArrowPrimitiveType,
    T::Native: TryFrom<i128>,
{
    let read = |(place, value): (Place<'_>, &Value)| {
        let whole = value
            .as_i64()
            .map(i128::from)
            .or_else(|| value.as_u64().map(i128::from));
        let fits = whole.and_then(|whole| T::Native::try_from(whole).ok());
        fits.ok_or_else(|| place.wrong(&format!("must be a whole number of type {}", T::DATA_TYPE)))
    };
    let values: Vec<T::Native> = values.into_iter().map(read).collect::<Result<_, _>>()?;
    Ok(Arc::new(PrimitiveArray::<T>::from_iter_values(values)))
}
