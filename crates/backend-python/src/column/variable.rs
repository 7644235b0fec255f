//! Tensors whose rows have shapes of their own: a struct of the values and the shape of each row,
//! with the extension `arrow.variable_shape_tensor`.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int32Type;
use arrow_array::{Array, ArrayRef, FixedSizeListArray, Int32Array, ListArray, StructArray};
use arrow_buffer::{ArrowNativeType, NullBuffer, OffsetBuffer};
use arrow_schema::{DataType, Field, FieldRef, Fields};

use super::{EXTENSION_METADATA, EXTENSION_NAME};

const TENSOR: &str = "arrow.variable_shape_tensor";
const DATA: &str = "data";
const SHAPE: &str = "shape";

/// The column of tensors whose rows have `shape`; negative lengths are open.
pub(super) fn field(name: &str, item: &FieldRef, shape: &[i64], is_nullable: bool) -> Field {
    let rank = i32::try_from(shape.len()).unwrap_or(i32::MAX);
    let length = Arc::new(Field::new("item", DataType::Int32, false));
    let fields = Fields::from(vec![
        Field::new(DATA, DataType::List(item.clone()), false),
        Field::new(SHAPE, DataType::FixedSizeList(length, rank), false),
    ]);
    let uniform = shape.iter().map(|length| (0 <= *length).then_some(*length));
    let uniform: Vec<_> = uniform.collect();
    let metadata = serde_json::json!({ "uniform_shape": uniform }).to_string();
    let extension = [
        (EXTENSION_NAME, TENSOR.to_owned()),
        (EXTENSION_METADATA, metadata),
    ];
    let extension = extension.map(|(name, value)| (name.to_owned(), value));
    Field::new(name, DataType::Struct(fields), is_nullable).with_metadata(extension.into())
}

/// The item and the number of dimensions of such a column's type; `None` for other types.
pub(super) fn parts(data_type: &DataType) -> Option<(&FieldRef, usize)> {
    let DataType::Struct(fields) = data_type else {
        return None;
    };
    let (_, data) = fields.find(DATA)?;
    let (_, shape) = fields.find(SHAPE)?;
    match (data.data_type(), shape.data_type()) {
        (DataType::List(item), DataType::FixedSizeList(_, rank)) => Some((item, rank.as_usize())),
        _ => None,
    }
}

/// The values of all rows, one after the other, with the shapes of the rows.
pub(super) struct Tensors {
    pub(super) values: ArrayRef,
    pub(super) dims: Vec<i64>,
    pub(super) rank: usize,
}

impl Tensors {
    /// Reads a column of such a type, whose rows must have shapes that `declared` allows; `None` if
    /// they do not.
    pub(super) fn of(array: &ArrayRef, declared: &Field) -> Option<Self> {
        let (_, rank) = parts(array.data_type())?;
        let columns = array.as_struct_opt()?;
        let data = columns.column_by_name(DATA)?.as_list_opt::<i32>()?;
        let shapes = columns.column_by_name(SHAPE)?.as_fixed_size_list_opt()?;
        let first = match shapes.is_empty() {
            true => 0,
            false => shapes.value_offset(0).as_usize(),
        };
        let dims = shapes.values().slice(first, shapes.len() * rank);
        let dims = dims.as_primitive_opt::<Int32Type>()?.values().iter();
        let dims: Vec<i64> = dims.map(|length| i64::from(*length)).collect();
        let (declared, open) = (uniform(declared)?, vec![None; rank]);
        let fits = (0..data.len()).all(|row| {
            let allowed = match array.is_null(row) {
                true => &open,
                false => &declared,
            };
            let size = size(&dims[row * rank..(row + 1) * rank], allowed);
            size == Some(data.value_length(row).as_usize())
        });
        let (start, end) = (data.value_offsets().first()?, data.value_offsets().last()?);
        let (start, end) = (start.as_usize(), end.as_usize());
        fits.then(|| Self {
            values: data.values().slice(start, end - start),
            dims,
            rank,
        })
    }
}

/// The declared lengths of a row; `None` for open ones.
fn uniform(field: &Field) -> Option<Vec<Option<i64>>> {
    let declared = field.metadata().get(EXTENSION_METADATA)?;
    let declared: serde_json::Value = serde_json::from_str(declared).ok()?;
    serde_json::from_value(declared.get("uniform_shape")?.clone()).ok()
}

/// The number of values of a row of `shape`; `None` if it is not of the `declared` one.
fn size(shape: &[i64], declared: &[Option<i64>]) -> Option<usize> {
    if shape.len() != declared.len() {
        return None;
    }
    let mut lengths = shape.iter().zip(declared).map(|(length, declared)| {
        let is_declared = declared.is_none_or(|declared| declared == *length);
        usize::try_from(*length).ok().filter(|_| is_declared)
    });
    lengths.try_fold(1_usize, |size, length| size.checked_mul(length?))
}

/// The lengths of all rows for their shapes, if they fit `rows` rows of the column `field`.
pub(super) fn lengths(field: &Field, dims: &[i64], rows: usize) -> Option<Vec<usize>> {
    let (_, rank) = parts(field.data_type())?;
    let declared = uniform(field)?;
    if Some(dims.len()) != rows.checked_mul(rank) {
        return None;
    }
    let rows = (0..rows).map(|row| size(&dims[row * rank..(row + 1) * rank], &declared));
    rows.collect()
}

/// A column of `values`, with the lengths of `lengths`; `None` if they do not fit together.
pub(super) fn column(
    field: &Field,
    values: ArrayRef,
    lengths: &[usize],
    dims: &[i64],
    nulls: Option<NullBuffer>,
) -> Option<ArrayRef> {
    let DataType::Struct(fields) = field.data_type() else {
        return None;
    };
    let (item, rank) = parts(field.data_type())?;
    let total = lengths
        .iter()
        .try_fold(0_usize, |total, length| total.checked_add(*length))?;
    i32::try_from(total).ok()?;
    let offsets = OffsetBuffer::from_lengths(lengths.iter().copied());
    let data = ListArray::try_new(item.clone(), offsets, values, None).ok()?;
    let dims: Result<Vec<i32>, _> = dims.iter().map(|length| i32::try_from(*length)).collect();
    let width = i32::try_from(rank).ok()?;
    let DataType::FixedSizeList(length, _) = fields.find(SHAPE)?.1.data_type() else {
        return None;
    };
    let shapes = FixedSizeListArray::try_new_with_length(
        length.clone(),
        width,
        Arc::new(Int32Array::from(dims.ok()?)),
        None,
        lengths.len(),
    );
    let columns: Vec<ArrayRef> = vec![Arc::new(data), Arc::new(shapes.ok()?)];
    let tensors = StructArray::try_new(fields.clone(), columns, nulls).ok()?;
    Some(Arc::new(tensors))
}
