//! Conversion between tensors of fixed and variable shape. Pure.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int32Type;
use arrow_array::{Array, ArrayRef, FixedSizeListArray, Int32Array, ListArray, StructArray};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{DataType, Field, FieldRef, Fields};
use volley_types::PredictError;

/// How the rows of a column are tensors.
enum RowForm<'f> {
    /// All of this shape.
    Fixed(&'f FieldRef, Vec<i32>),
    /// Each of its own shape.
    Variable(&'f FieldRef, &'f FieldRef, usize),
}

/// How the rows of a column are tensors; `None` where they are something else.
fn form(field: &Field) -> Option<RowForm<'_>> {
    match field.data_type() {
        DataType::FixedSizeList(item, size) => {
            let told = field.metadata().get("ARROW:extension:metadata");
            let told = told.and_then(|text| serde_json::from_str::<serde_json::Value>(text).ok());
            let shape = told.as_ref().and_then(|told| told.get("shape")?.as_array());
            let dim = |dim: &serde_json::Value| i32::try_from(dim.as_i64()?).ok();
            let shape = shape.and_then(|dims| dims.iter().map(dim).collect::<Option<Vec<_>>>());
            let fits = |shape: &Vec<i32>| shape.iter().product::<i32>() == *size;
            let shape = shape.filter(fits).unwrap_or_else(|| vec![*size]);
            Some(RowForm::Fixed(item, shape))
        }
        DataType::Struct(fields) => {
            let (item, dim, rank) = parts(fields)?;
            Some(RowForm::Variable(item, dim, rank))
        }
        _ => None,
    }
}

fn parts(fields: &Fields) -> Option<(&FieldRef, &FieldRef, usize)> {
    let (_, data) = fields.find("data")?;
    let (_, shape) = fields.find("shape")?;
    match (data.data_type(), shape.data_type()) {
        (DataType::List(item), DataType::FixedSizeList(dim, rank)) => {
            Some((item, dim, usize::try_from(*rank).ok()?))
        }
        _ => None,
    }
}

/// Whether [`adapt`] can convert columns of type `given` to `declared`.
pub(super) fn adapts(given: &Field, declared: &Field) -> bool {
    match (form(given), form(declared)) {
        (Some(RowForm::Fixed(item, shape)), Some(RowForm::Variable(other, _, rank)))
        | (Some(RowForm::Variable(other, _, rank)), Some(RowForm::Fixed(item, shape))) => {
            shape.len() == rank && item.data_type() == other.data_type()
        }
        _ => false,
    }
}

/// Converts a column of type `given` to `declared`.
///
/// # Errors
/// `InvalidInput` with the row whose shape differs from the model's.
pub(super) fn adapt(
    column: &ArrayRef,
    given: &Field,
    declared: &Field,
) -> Result<ArrayRef, PredictError> {
    let lost = || PredictError::internal("a tensor could not be passed on", "forms do not fit");
    let rows = column.len();
    match (
        form(given).ok_or_else(lost)?,
        form(declared).ok_or_else(lost)?,
    ) {
        (RowForm::Fixed(_, shape), RowForm::Variable(item, dim, _)) => {
            let DataType::Struct(fields) = declared.data_type() else {
                return Err(lost());
            };
            let size: i32 = shape.iter().product();
            let lengths = std::iter::repeat_n(usize::try_from(size).unwrap_or(0), rows);
            let values = column.as_fixed_size_list().values().clone();
            let data = ListArray::try_new(
                item.clone(),
                OffsetBuffer::from_lengths(lengths),
                values,
                None,
            );
            let rank = i32::try_from(shape.len()).unwrap_or(i32::MAX);
            let dims: ArrayRef = Arc::new(Int32Array::from(shape.repeat(rows)));
            let shapes =
                FixedSizeListArray::try_new_with_length(dim.clone(), rank, dims, None, rows);
            let columns: Vec<ArrayRef> = vec![
                Arc::new(data.map_err(broken)?),
                Arc::new(shapes.map_err(broken)?),
            ];
            let made = StructArray::try_new(fields.clone(), columns, None);
            Ok(Arc::new(made.map_err(broken)?))
        }
        (RowForm::Variable(..), RowForm::Fixed(item, shape)) => {
            let tensors = column.as_struct();
            let (data, shapes) = (
                tensors.column_by_name("data"),
                tensors.column_by_name("shape"),
            );
            let data = data.ok_or_else(lost)?.as_list::<i32>();
            let shapes = shapes.ok_or_else(lost)?.as_fixed_size_list();
            for row in 0..rows {
                let own = shapes.value(row);
                let own = own.as_primitive::<Int32Type>().values();
                if **own != shape {
                    return Err(PredictError::invalid(format!(
                        "input column '{}', row {row}: has the shape {own:?}, the model takes \
                         {shape:?}",
                        declared.name()
                    )));
                }
            }
            let size: i32 = shape.iter().product();
            let first = data.value_offsets().first().copied().unwrap_or(0);
            let all = usize::try_from(size).unwrap_or(0) * rows;
            let first = usize::try_from(first).unwrap_or(0);
            if data.values().len() < first + all {
                return Err(lost());
            }
            let values = data.values().slice(first, all);
            let made =
                FixedSizeListArray::try_new_with_length(item.clone(), size, values, None, rows);
            Ok(Arc::new(made.map_err(broken)?))
        }
        _ => Err(lost()),
    }
}

fn broken(error: arrow_schema::ArrowError) -> PredictError {
    PredictError::internal("a tensor could not be passed on", error)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use arrow_array::Float32Array;

    use super::*;

    fn item() -> FieldRef {
        Arc::new(Field::new("item", DataType::Float32, false))
    }

    fn fixed(shape: &str, size: i32) -> Field {
        let extension = ("ARROW:extension:metadata".to_owned(), shape.to_owned());
        let kind = DataType::FixedSizeList(item(), size);
        Field::new("x", kind, false).with_metadata(HashMap::from([extension]))
    }

    fn variable(rank: i32) -> Field {
        let dim = Arc::new(Field::new("item", DataType::Int32, false));
        let fields = vec![
            Field::new("data", DataType::List(item()), false),
            Field::new("shape", DataType::FixedSizeList(dim, rank), false),
        ];
        Field::new("y", DataType::Struct(fields.into()), false)
    }

    #[test]
    fn a_fixed_shape_becomes_any_and_comes_back_where_it_fits() {
        let (given, declared) = (fixed(r#"{"shape":[2,3]}"#, 6), variable(2));
        assert!(adapts(&given, &declared) && adapts(&declared, &given));
        assert!(!adapts(&fixed("", 6), &declared) && !adapts(&given, &given));
        let values: ArrayRef = Arc::new(Float32Array::from_iter_values((0..12_u8).map(f32::from)));
        let column: ArrayRef = Arc::new(FixedSizeListArray::new(item(), 6, values, None));
        // A sliced array does not start at the first value.
        let column = column.slice(1, 1);
        let any = adapt(&column, &given, &declared).unwrap();
        assert_eq!(any.data_type(), declared.data_type());
        let back = adapt(&any, &declared, &given).unwrap();
        assert_eq!(back.as_ref(), column.as_ref());
        let other = fixed(r#"{"shape":[3,2]}"#, 6);
        let error = adapt(&any, &declared, &other).unwrap_err();
        assert!(
            error.message.contains("row 0") && error.message.contains("[2, 3]"),
            "{error}"
        );
    }
}
