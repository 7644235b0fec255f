//! Lossless casts of columns to the types of a model.
//!
//! A number that does not fit the new type is an error with column and row. Floating-point numbers
//! are rounded to the model's width, as in JSON, because the model cannot distinguish them.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Float64Type;
use arrow_array::{
    Array, ArrayRef, FixedSizeListArray, GenericListArray, ListArray, OffsetSizeTrait, RecordBatch,
    RecordBatchOptions, StructArray,
};
use arrow_cast::display::array_value_to_string;
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::{ArrowError, DataType, Field, FieldRef, Schema, SchemaRef};
use futures::StreamExt;

use super::{Signature, is_bfloat16, same_type};
use crate::error::PredictError;
use crate::input::Input;

impl Signature {
    /// As [`Signature::check_input`], for columns that [`Signature::conform`] can cast.
    ///
    /// # Errors
    /// `InvalidInput` with the column, its type and the expected type.
    pub fn check_castable(&self, schema: &Schema) -> Result<(), PredictError> {
        self.check_columns(schema, is_castable)
    }

    /// The casts for columns of this schema; `None` if no column needs one.
    pub(crate) fn casts(&self, schema: &Schema) -> Option<Casts> {
        Casts::of(self, schema)
    }
}

/// Casts `column` to the type of the model's column `declared`, as [`Signature::conform`] does.
///
/// # Errors
/// `InvalidInput` with the column and, for a value that cannot be cast, the row.
pub fn cast_column(column: &ArrayRef, declared: &Field) -> Result<ArrayRef, PredictError> {
    if !is_castable(declared, column.data_type()) {
        return Err(super::other_type(declared, column.data_type()));
    }
    cast(column, declared).map_err(|loss| loss.of(declared.name()))
}

/// Casts by column.
pub(crate) struct Casts {
    schema: SchemaRef,
    /// The model's field for each column that needs a cast.
    fields: Vec<Option<FieldRef>>,
}

impl Casts {
    /// `None` if no column needs a cast.
    fn of(signature: &Signature, given: &Schema) -> Option<Self> {
        let cast = |field: &FieldRef| {
            let (_, declared) = signature.input.column_with_name(field.name())?;
            let same = same_type(declared.data_type(), field.data_type());
            (!same).then(|| Arc::new(declared.clone()))
        };
        let fields: Vec<_> = given.fields().iter().map(cast).collect();
        if fields.iter().all(Option::is_none) {
            return None;
        }
        let columns = given.fields().iter().zip(&fields);
        let columns = columns.map(|(given, declared)| match declared {
            Some(declared) => Arc::new(declared.as_ref().clone().with_nullable(true)),
            None => given.clone(),
        });
        Some(Self {
            schema: Arc::new(Schema::new(columns.collect::<Vec<_>>())),
            fields,
        })
    }

    /// The rows of `input` with their columns cast.
    ///
    /// # Errors
    /// `InvalidInput` for a value that cannot be cast without loss. For a stream, the stream yields
    /// the error.
    pub(crate) fn apply(self, input: Input) -> Result<Input, PredictError> {
        Ok(match input {
            Input::Batch(batch) => Input::Batch(self.batch(&batch)?),
            Input::Stream { batches, .. } => Input::Stream {
                schema: self.schema.clone(),
                batches: Box::pin(batches.map(move |batch| self.batch(&batch?))),
            },
        })
    }

    fn batch(&self, batch: &RecordBatch) -> Result<RecordBatch, PredictError> {
        let columns = batch.columns().iter().zip(&self.fields);
        let columns = columns.map(|(column, declared)| match declared {
            Some(declared) => cast(column, declared).map_err(|loss| loss.of(declared.name())),
            None => Ok(column.clone()),
        });
        let columns: Vec<_> = columns.collect::<Result<_, _>>()?;
        // Casts produce nullable items, but the model's items are not nullable.
        let fields = self
            .schema
            .fields()
            .iter()
            .zip(&columns)
            .map(|(field, column)| {
                let field = field.as_ref().clone();
                Arc::new(field.with_data_type(column.data_type().clone()))
            });
        let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        RecordBatch::try_new_with_options(schema, columns, &options).map_err(|error| {
            PredictError::invalid("the input's columns cannot be cast to the model's types")
                .with_source(error)
        })
    }
}

/// Whether a column of type `given` can be cast to the `declared` type if all its values fit.
fn is_castable(declared: &Field, given: &DataType) -> bool {
    use DataType::{Dictionary, FixedSizeList, LargeList, List, Struct, Utf8, Utf8View};
    if same_type(declared.data_type(), given) {
        return true;
    }
    if is_bfloat16(declared) {
        return false;
    }
    match (declared.data_type(), given) {
        (_, Dictionary(_, values)) => is_castable(declared, values),
        (Utf8, Utf8View) => true,
        (FixedSizeList(declared, size), FixedSizeList(given, same)) => {
            size == same && is_castable(declared, given.data_type())
        }
        (FixedSizeList(declared, _) | List(declared), List(given) | LargeList(given)) => {
            is_castable(declared, given.data_type())
        }
        (FixedSizeList(item, 1), single) => is_castable(item, single),
        (Struct(declared), Struct(given)) => {
            let known = |field: &FieldRef| {
                let declared = declared.find(field.name());
                declared.is_some_and(|(_, declared)| is_castable(declared, field.data_type()))
            };
            let there =
                |field: &FieldRef| field.is_nullable() || given.find(field.name()).is_some();
            given.iter().all(known) && declared.iter().all(there)
        }
        (single, FixedSizeList(item, 1)) if !single.is_nested() => {
            is_castable(declared, item.data_type())
        }
        (declared, given) => is_number(declared) && is_number(given),
    }
}

fn is_number(kind: &DataType) -> bool {
    kind.is_integer() || kind.is_floating()
}

/// The error for a value that cannot be cast.
struct CastError {
    index: usize,
    what: String,
}

impl CastError {
    fn whole(error: ArrowError) -> Self {
        Self {
            index: 0,
            what: error.to_string(),
        }
    }

    /// The same error at another row.
    fn at(self, row: impl FnOnce(usize) -> usize) -> Self {
        Self {
            index: row(self.index),
            ..self
        }
    }

    fn of(self, column: &str) -> PredictError {
        PredictError::invalid(format!(
            "input column '{column}', row {}: {}",
            self.index, self.what
        ))
    }
}

/// Casts `column`, whose type must satisfy [`is_castable`], to the type of `declared`.
fn cast(column: &ArrayRef, declared: &Field) -> Result<ArrayRef, CastError> {
    use DataType::{Dictionary, FixedSizeList, LargeList, List, Struct, Utf8View};
    if same_type(declared.data_type(), column.data_type()) {
        return Ok(column.clone());
    }
    match (declared.data_type(), column.data_type()) {
        (_, Dictionary(_, values)) => cast(&plainly(column, values)?, declared),
        (to, Utf8View) => plainly(column, to),
        (FixedSizeList(item, size), FixedSizeList(_, _)) => {
            let list = column.as_fixed_size_list();
            let per_row = usize::try_from(*size).unwrap_or(1).max(1);
            let values = cast(list.values(), item).map_err(|loss| loss.at(|it| it / per_row))?;
            fixed(item, *size, values, list)
        }
        (FixedSizeList(item, size), List(_)) => sized(column.as_list::<i32>(), item, *size),
        (FixedSizeList(item, size), LargeList(_)) => sized(column.as_list::<i64>(), item, *size),
        (List(item), List(_)) => {
            let list = column.as_list::<i32>();
            let values =
                cast(list.values(), item).map_err(|loss| loss.at(|it| row_of(list, it)))?;
            let (offsets, nulls) = (list.offsets().clone(), list.nulls().cloned());
            let list = ListArray::try_new(nullable(item, &values), offsets, values, nulls);
            Ok(Arc::new(list.map_err(CastError::whole)?))
        }
        (List(_), LargeList(_)) => plainly(column, &small(column)),
        (FixedSizeList(item, 1), _) => {
            let values = cast(column, item)?;
            // List elements must have exactly the item type. A column of large texts is accepted as
            // it is.
            let values = match same_type(item.data_type(), values.data_type()) {
                true if item.data_type() != values.data_type() => {
                    plainly(&values, item.data_type())?
                }
                _ => values,
            };
            let nulls = values.nulls().cloned();
            let list = FixedSizeListArray::try_new(nullable(item, &values), 1, values, nulls);
            Ok(Arc::new(list.map_err(CastError::whole)?))
        }
        (Struct(fields), Struct(_)) => {
            let given = column.as_struct();
            let mut columns = Vec::new();
            let mut kinds: Vec<FieldRef> = Vec::new();
            for (field, values) in given.fields().iter().zip(given.columns()) {
                let Some((_, declared)) = fields.find(field.name()) else {
                    continue;
                };
                let values = cast(values, declared)?;
                let kind = field.as_ref().clone();
                kinds.push(Arc::new(kind.with_data_type(values.data_type().clone())));
                columns.push(values);
            }
            let made = StructArray::try_new(kinds.into(), columns, given.nulls().cloned());
            Ok(Arc::new(made.map_err(CastError::whole)?))
        }
        (_, FixedSizeList(_, 1)) if column.null_count() == 0 => {
            cast(column.as_fixed_size_list().values(), declared)
        }
        (_, FixedSizeList(_, 1)) => Err(CastError {
            index: (0..column.len())
                .find(|it| column.is_null(*it))
                .unwrap_or(0),
            what: "is null; the model accepts no nulls".to_owned(),
        }),
        (to, _) => numbers(column, to),
    }
}

/// Casts a column to another encoding of the same values with Arrow.
fn plainly(column: &ArrayRef, to: &DataType) -> Result<ArrayRef, CastError> {
    cast_with_options(column, to, &strict()).map_err(CastError::whole)
}

fn strict() -> CastOptions<'static> {
    CastOptions {
        safe: false,
        ..CastOptions::default()
    }
}

/// The list type that corresponds to a large list type.
fn small(column: &ArrayRef) -> DataType {
    match column.data_type() {
        DataType::LargeList(item) => DataType::List(item.clone()),
        other => other.clone(),
    }
}

/// A fixed-size list with the nulls of another list.
fn fixed(
    item: &FieldRef,
    size: i32,
    values: ArrayRef,
    like: &FixedSizeListArray,
) -> Result<ArrayRef, CastError> {
    let (nulls, rows) = (like.nulls().cloned(), like.len());
    let item = nullable(item, &values);
    let list = FixedSizeListArray::try_new_with_length(item, size, values, nulls, rows);
    Ok(Arc::new(list.map_err(CastError::whole)?))
}

/// Casts lists to fixed-size lists; each list must have `size` values.
fn sized<O: OffsetSizeTrait>(
    list: &GenericListArray<O>,
    item: &FieldRef,
    size: i32,
) -> Result<ArrayRef, CastError> {
    let wanted = usize::try_from(size).unwrap_or(0);
    for row in 0..list.len() {
        let found = list.value_length(row).as_usize();
        if list.is_null(row) || found != wanted {
            return Err(CastError {
                index: row,
                what: match list.is_null(row) {
                    true => "is null; the model accepts no nulls".to_owned(),
                    false => format!("has {found} values, the model takes {wanted}"),
                },
            });
        }
    }
    let first = list.value_offsets().first().map_or(0, |it| it.as_usize());
    let values = list.values().slice(first, list.len() * wanted);
    let values = cast(&values, item).map_err(|loss| loss.at(|it| it / wanted.max(1)))?;
    let item = nullable(item, &values);
    let made = FixedSizeListArray::try_new_with_length(item, size, values, None, list.len());
    Ok(Arc::new(made.map_err(CastError::whole)?))
}

/// The row of the list that contains the value at `index`.
fn row_of(list: &ListArray, index: usize) -> usize {
    let begins_before = |offset: &i32| usize::try_from(*offset).is_ok_and(|it| it <= index);
    let begun = list.value_offsets().partition_point(begins_before);
    begun.saturating_sub(1)
}

/// The field of the items, nullable if some of the `values` are null.
fn nullable(item: &FieldRef, values: &ArrayRef) -> FieldRef {
    let item = item.as_ref().clone();
    let nullable = item.is_nullable() || values.null_count() != 0;
    Arc::new(item.with_nullable(nullable))
}

/// Casts numbers to another number type without loss.
fn numbers(column: &ArrayRef, to: &DataType) -> Result<ArrayRef, CastError> {
    let from = column.data_type();
    let lossy = |index: usize| CastError {
        index,
        what: format!(
            "{} of type {from} cannot be converted without loss to {to}, the model's type",
            array_value_to_string(column, index).unwrap_or_else(|_| "a value".to_owned()),
        ),
    };
    // The cast converts values out of range to null.
    let made = cast_with_options(column, to, &CastOptions::default()).map_err(CastError::whole)?;
    if made.null_count() != column.null_count() {
        let lost = |index: &usize| column.is_valid(*index) && made.is_null(*index);
        return Err(lossy((0..column.len()).find(lost).unwrap_or(0)));
    }
    let lost = if from.is_integer() && to.is_integer() {
        None
    } else if from.is_integer() {
        let back =
            cast_with_options(&made, from, &CastOptions::default()).map_err(CastError::whole)?;
        let differs = |index: &usize| back.slice(*index, 1) != column.slice(*index, 1);
        match *back == **column {
            true => None,
            false => (0..column.len()).find(differs),
        }
    } else {
        let wide = |array: &ArrayRef| plainly(array, &DataType::Float64);
        let (before, after) = (wide(column)?, wide(&made)?);
        let before = before.as_primitive::<Float64Type>();
        let after = after.as_primitive::<Float64Type>();
        let mut pairs = before.iter().zip(after.iter());
        let rounds = to.is_floating();
        pairs.position(|pair| match pair {
            (Some(before), Some(after)) if rounds => is_beyond(before, after),
            (before, after) => before != after,
        })
    };
    match lost {
        Some(index) => Err(lossy(index)),
        None => Ok(made),
    }
}

/// Whether a number exceeds the range of its new type.
fn is_beyond(before: f64, after: f64) -> bool {
    (before.is_finite() && !after.is_finite()) || (before != 0.0 && after == 0.0)
}

#[cfg(test)]
mod tests;
