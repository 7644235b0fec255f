//! Types of SQL engines, and conversion of columns.

use std::sync::Arc;

use arrow_array::{Array, ArrayRef, UInt32Array};
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::{ArrowError, DataType, Field};
use arrow_select::take::take;
use volley_types::PredictError;
use volley_types::signature::is_bfloat16;

/// The type of a column that every engine supports: signed integers of at least 16 bits, lists of
/// variable size with nullable items. `None` if there is no such type.
pub(crate) fn engine_type(field: &Field) -> Option<DataType> {
    if is_bfloat16(field) {
        return None;
    }
    let item = |item: &Field| engine_type(item).map(|item| DataType::new_list(item, true));
    Some(match field.data_type() {
        DataType::Int8 | DataType::UInt8 | DataType::Int16 => DataType::Int16,
        DataType::UInt16 | DataType::Int32 => DataType::Int32,
        DataType::UInt32 | DataType::UInt64 | DataType::Int64 => DataType::Int64,
        DataType::Float16 | DataType::Float32 => DataType::Float32,
        DataType::Utf8 | DataType::LargeUtf8 => DataType::Utf8,
        DataType::Binary | DataType::LargeBinary => DataType::Binary,
        DataType::Boolean | DataType::Float64 | DataType::Date32 => field.data_type().clone(),
        DataType::Timestamp(_, _) => field.data_type().clone(),
        DataType::List(of) | DataType::LargeList(of) | DataType::FixedSizeList(of, _) => item(of)?,
        DataType::Struct(fields) => {
            let fields = fields
                .iter()
                .map(|field| engine_type(field).map(|kind| Field::new(field.name(), kind, true)));
            DataType::Struct(fields.collect::<Option<_>>()?)
        }
        _ => return None,
    })
}

/// The type of a model's column in an engine's table; for a tensor with one value, the type of the
/// value.
pub(crate) fn argument_type(field: &Field) -> Option<DataType> {
    match field.data_type() {
        DataType::FixedSizeList(item, 1) => engine_type(item),
        _ => engine_type(field),
    }
}

/// The widest type of the same kind, to which engines cast automatically.
pub(crate) fn widest(kind: &DataType) -> DataType {
    match kind {
        kind if kind.is_integer() => DataType::Int64,
        kind if kind.is_floating() => DataType::Float64,
        DataType::List(item) => DataType::new_list(widest(item.data_type()), item.is_nullable()),
        other => other.clone(),
    }
}

/// Whether an argument of type `given` can be cast losslessly to the engine's type `wanted`. Values
/// out of range are rejected later.
pub(crate) fn fits(given: &DataType, wanted: &DataType) -> bool {
    let field = Field::new("", given.clone(), true);
    let Some(given) = engine_type(&field) else {
        return false;
    };
    match (&given, wanted) {
        (given, wanted) if given == wanted => true,
        (given, wanted) if given.is_integer() => wanted.is_numeric(),
        (given, wanted) if given.is_floating() => wanted.is_floating(),
        (DataType::List(given), DataType::List(wanted)) => {
            fits(given.data_type(), wanted.data_type())
        }
        _ => false,
    }
}

/// Casts `column` to `kind`; a value out of range is an error.
///
/// # Errors
/// `InvalidInput` with Arrow's error.
pub(crate) fn convert(column: &ArrayRef, kind: &DataType) -> Result<ArrayRef, PredictError> {
    if column.data_type() == kind {
        return Ok(column.clone());
    }
    let options = CastOptions {
        safe: false,
        ..CastOptions::default()
    };
    let unfit = |error| {
        PredictError::invalid(format!("a value does not fit the type {kind}")).with_source(error)
    };
    let column = match kind.is_nested() {
        true => &rebased(column).map_err(unfit)?,
        false => column,
    };
    cast_with_options(column, kind, &options).map_err(unfit)
}

/// Rebuilds a sliced list column so that its values start at offset 0, because Arrow's cast to
/// fixed-size lists ignores the offset of a slice.
fn rebased(column: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    let rows = u32::try_from(column.len()).unwrap_or(u32::MAX);
    take(column, &UInt32Array::from_iter_values(0..rows), None)
}

/// The items of a row of a list; `None` if the row is null or the column is not a list.
pub(crate) fn items(column: &ArrayRef, row: usize) -> Option<ArrayRef> {
    let list = column.as_any().downcast_ref::<arrow_array::ListArray>()?;
    list.is_valid(row).then(|| list.value(row))
}

/// A nullable field of an engine's type.
pub(crate) fn engine_field(name: &str, kind: DataType) -> Arc<Field> {
    Arc::new(Field::new(name, kind, true))
}

/// The name of a function's argument, from 0.
pub(crate) fn argument_name(index: usize) -> String {
    format!("arg{}", index + 1)
}

#[cfg(test)]
mod tests {
    use arrow_array::cast::AsArray;
    use arrow_array::types::Float32Type;
    use arrow_array::{Int64Array, ListArray};

    use super::*;

    #[test]
    fn a_slice_of_lists_keeps_its_own_values() {
        let rows = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]];
        let rows = rows.map(|row| Some(row.map(Some)));
        let lists = ListArray::from_iter_primitive::<Float32Type, _, _>(rows);
        let slice: ArrayRef = Arc::new(lists.slice(1, 2));
        let vectors = DataType::new_fixed_size_list(DataType::Float32, 2, true);
        let vectors = convert(&slice, &vectors).unwrap();
        let first = vectors.as_fixed_size_list().value(0);
        assert_eq!(first.as_primitive::<Float32Type>().values(), &[3.0, 4.0]);
    }

    #[test]
    fn every_engine_has_these_types() {
        let vector = DataType::new_fixed_size_list(DataType::Float16, 3, false);
        for (given, wanted) in [
            (DataType::UInt8, Some(DataType::Int16)),
            (DataType::LargeUtf8, Some(DataType::Utf8)),
            (vector, Some(DataType::new_list(DataType::Float32, true))),
            (DataType::Utf8View, None),
        ] {
            assert_eq!(engine_type(&Field::new("f", given, false)), wanted);
        }
    }

    #[test]
    fn a_tensor_of_one_value_is_that_value_in_a_table() {
        let one = DataType::new_fixed_size_list(DataType::Float32, 1, false);
        let two = DataType::new_fixed_size_list(DataType::Int32, 2, false);
        let argument = |kind: &DataType| argument_type(&Field::new("f", kind.clone(), false));
        assert_eq!(argument(&one), Some(DataType::Float32));
        let list = DataType::new_list(DataType::Int32, true);
        assert_eq!(argument(&two), Some(list.clone()));
        assert_eq!(widest(&list), DataType::new_list(DataType::Int64, true));
        assert_eq!(widest(&DataType::Float32), DataType::Float64);
        assert_eq!(widest(&DataType::Utf8), DataType::Utf8);
    }

    #[test]
    fn values_that_do_not_fit_are_refused_not_changed() {
        assert!(fits(&DataType::Int32, &DataType::Float32));
        assert!(fits(&DataType::LargeUtf8, &DataType::Utf8));
        assert!(!fits(&DataType::Float64, &DataType::Int64));
        assert!(!fits(&DataType::Int64, &DataType::Utf8));
        let large: ArrayRef = Arc::new(Int64Array::from(vec![1 << 40]));
        assert!(convert(&large, &DataType::Int32).is_err());
        assert_eq!(convert(&large, &DataType::Float64).unwrap().len(), 1);
    }
}
