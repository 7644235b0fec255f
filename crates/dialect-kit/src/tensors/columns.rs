//! Conversion between flat values and tensor columns, independent of the dialect.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int32Type;
use arrow_array::{Array, ArrayRef, FixedSizeListArray, Int32Array, ListArray, StructArray};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{DataType, Field, Fields};
use volley_types::PredictError;

use super::fixed_shape;

/// Layout of a row in a column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TensorLayout {
    /// One value.
    Scalar,
    /// A tensor of this shape.
    Fixed(Vec<usize>),
    /// A list of any length.
    List,
    /// A tensor with this number of dimensions.
    Variable(usize),
}

impl TensorLayout {
    /// Number of dimensions of one row.
    pub fn rank(&self) -> usize {
        match self {
            Self::Scalar => 0,
            Self::Fixed(shape) => shape.len(),
            Self::List => 1,
            Self::Variable(rank) => *rank,
        }
    }
}

/// The layout of `field`, and the field of single values; `None` if it is not a tensor.
pub fn form(field: &Field) -> Option<(&Field, TensorLayout)> {
    match field.data_type() {
        DataType::FixedSizeList(item, size) => {
            Some((item, TensorLayout::Fixed(fixed_shape(field, *size))))
        }
        DataType::List(item) => Some((item, TensorLayout::List)),
        DataType::Struct(fields) => {
            let (item, _, rank) = parts(fields)?;
            Some((item, TensorLayout::Variable(usize::try_from(rank).ok()?)))
        }
        _ => Some((field, TensorLayout::Scalar)),
    }
}

/// The items, the dimensions and the rank of a struct that is a tensor of any shape.
fn parts(fields: &Fields) -> Option<(&Arc<Field>, &Arc<Field>, i32)> {
    let (_, data) = fields.find("data")?;
    let (_, shape) = fields.find("shape")?;
    match (data.data_type(), shape.data_type()) {
        (DataType::List(item), DataType::FixedSizeList(dim, rank)) => Some((item, dim, *rank)),
        _ => None,
    }
}

/// Builds the column of `field` with `rows` rows of one shape from all their values.
///
/// # Errors
/// `InvalidInput` when the model takes rows of another shape.
pub fn column(
    field: &Field,
    values: ArrayRef,
    rows: usize,
    row_shape: &[usize],
) -> Result<ArrayRef, PredictError> {
    let wrong = |what: String| PredictError::invalid(format!("input '{}': {what}", field.name()));
    match field.data_type() {
        DataType::FixedSizeList(item, size) => {
            let shape = fixed_shape(field, *size);
            // A single value counts as a row of one value.
            let single = row_shape.is_empty() && *size == 1;
            if shape != row_shape && !single {
                return Err(wrong(format!(
                    "has rows of shape {row_shape:?}, the model takes {shape:?}"
                )));
            }
            fixed(item, *size, rows, values)
        }
        DataType::Struct(fields) => {
            let dims = row_shape.iter().map(|dim| i32::try_from(*dim));
            let dims: Result<Vec<_>, _> = dims.collect();
            let dims = dims.map_err(|_| wrong("is too large".to_owned()))?;
            let lengths = vec![row_shape.iter().product(); rows];
            variable(fields, values, lengths, dims.repeat(rows))
                .ok_or_else(|| wrong("is not a tensor".to_owned()))?
        }
        _ => Ok(values),
    }
}

/// `rows` tensors of `size` values each.
pub(super) fn fixed(
    item: &Arc<Field>,
    size: i32,
    rows: usize,
    values: ArrayRef,
) -> Result<ArrayRef, PredictError> {
    let list = FixedSizeListArray::try_new_with_length(item.clone(), size, values, None, rows);
    Ok(Arc::new(list.map_err(broken)?))
}

/// Tensors of so many values each (`lengths`) and of the shapes `dims`, one after the other;
/// `None` when `fields` are not those of a tensor.
pub(super) fn variable(
    fields: &Fields,
    values: ArrayRef,
    lengths: Vec<usize>,
    dims: Vec<i32>,
) -> Option<Result<ArrayRef, PredictError>> {
    let (item, dim, rank) = parts(fields)?;
    let build = || {
        let rows = lengths.len();
        let total: usize = lengths.iter().sum();
        if i32::try_from(total).is_err() {
            return Err(PredictError::invalid(
                "the inputs have more values than a batch can contain; send fewer rows per request",
            ));
        }
        let offsets = OffsetBuffer::from_lengths(lengths);
        let data = ListArray::try_new(item.clone(), offsets, values, None).map_err(broken)?;
        let dims = Arc::new(Int32Array::from(dims));
        let shapes = FixedSizeListArray::try_new_with_length(dim.clone(), rank, dims, None, rows);
        let (data, shapes): (ArrayRef, ArrayRef) =
            (Arc::new(data), Arc::new(shapes.map_err(broken)?));
        let columns = fields.iter().map(|field| match field.name().as_str() {
            "data" => data.clone(),
            _ => shapes.clone(),
        });
        let tensors = StructArray::try_new(fields.clone(), columns.collect(), None);
        Ok(Arc::new(tensors.map_err(broken)?) as ArrayRef)
    };
    Some(build())
}

fn broken(error: arrow_schema::ArrowError) -> PredictError {
    PredictError::internal("a tensor column cannot be built", error)
}

/// A column's values, and the shape of its rows.
pub struct FlatColumn {
    /// The values of all rows.
    pub values: ArrayRef,
    /// The one shape that all rows have; `None` when there are no rows to tell it.
    pub row_shape: Option<Vec<usize>>,
}

/// All values of `column`, whose field is `field`.
///
/// # Errors
/// `InvalidInput` when its rows have different shapes; `Unimplemented` when it has nulls or is not
/// a tensor column.
pub fn flat(field: &Field, column: &ArrayRef) -> Result<FlatColumn, PredictError> {
    let none = || {
        let message = format!(
            "output '{}' of type {} cannot be encoded in this protocol; use Arrow Flight",
            field.name(),
            field.data_type()
        );
        PredictError::new(volley_types::ErrorCode::Unimplemented, message)
    };
    let (_, form) = form(field).ok_or_else(none)?;
    if column.null_count() != 0 {
        return Err(none());
    }
    Ok(match form {
        TensorLayout::Scalar => FlatColumn {
            values: column.clone(),
            row_shape: Some(Vec::new()),
        },
        TensorLayout::Fixed(shape) => {
            let list = column.as_fixed_size_list_opt().ok_or_else(none)?;
            let size = usize::try_from(list.value_length()).unwrap_or(0);
            // A sliced list keeps the values before the slice.
            let from = if list.is_empty() {
                0
            } else {
                list.value_offset(0) as usize
            };
            FlatColumn {
                values: list.values().slice(from, list.len() * size),
                row_shape: Some(shape),
            }
        }
        TensorLayout::List => {
            let lists = column.as_list_opt::<i32>().ok_or_else(none)?;
            let shapes = (0..lists.len()).map(|row| vec![lists.value_length(row) as usize]);
            FlatColumn {
                values: items(lists),
                row_shape: one_shape(field, shapes)?,
            }
        }
        TensorLayout::Variable(rank) => {
            let tensors = column.as_struct_opt().ok_or_else(none)?;
            let data = tensors
                .column_by_name("data")
                .and_then(|data| data.as_list_opt::<i32>());
            let shapes = tensors
                .column_by_name("shape")
                .and_then(|shape| shape.as_fixed_size_list_opt());
            let (data, shapes) = data.zip(shapes).ok_or_else(none)?;
            let shape_of = |row: usize| {
                let dims = shapes.value(row);
                let dims = dims.as_primitive::<Int32Type>().values();
                dims.iter()
                    .map(|dim| usize::try_from(*dim).unwrap_or(0))
                    .collect()
            };
            let shapes = (0..data.len()).map(shape_of);
            let row_shape = one_shape(field, shapes)?;
            debug_assert!(row_shape.as_ref().is_none_or(|shape| shape.len() == rank));
            FlatColumn {
                values: items(data),
                row_shape,
            }
        }
    })
}

/// The items of all lists, without those around a slice.
fn items(lists: &ListArray) -> ArrayRef {
    let (first, last) = match lists.offsets().as_ref() {
        [first, .., last] => (*first as usize, *last as usize),
        _ => (0, 0),
    };
    lists.values().slice(first, last - first)
}

fn one_shape(
    field: &Field,
    shapes: impl Iterator<Item = Vec<usize>>,
) -> Result<Option<Vec<usize>>, PredictError> {
    let mut first: Option<Vec<usize>> = None;
    for shape in shapes {
        if *first.get_or_insert_with(|| shape.clone()) != shape {
            return Err(different(field));
        }
    }
    Ok(first)
}

/// The error for rows of different shapes.
pub fn different(field: &Field) -> PredictError {
    PredictError::invalid(format!(
        "output '{}' has rows of different shapes, which cannot form a tensor; send one row at a \
         time, or use Arrow Flight",
        field.name()
    ))
}
