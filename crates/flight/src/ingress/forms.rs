//! Columns with other encodings than plain values: dictionary indices and text views. They are
//! converted to plain values; the rest of Volley only supports plain values.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::UInt64Type;
use arrow_array::{
    Array, ArrayRef, FixedSizeListArray, ListArray, RecordBatch, RecordBatchOptions, StructArray,
};
use arrow_ipc::Schema as Header;
use arrow_schema::{ArrowError, DataType, Field, FieldRef, Fields, Schema, SchemaRef};
use arrow_select::take::{TakeOptions, take};
use volley_types::{ErrorCode, PredictError};

use super::malformed;

/// Maximum growth of a batch in bytes by its conversion to plain values, and maximum size of an
/// exchange's dictionaries.
const MAX_BYTES: usize = 64 << 20;

/// Encodings of the columns of one exchange.
#[derive(Debug)]
pub(super) struct Forms {
    /// The schema of the messages, with indices instead of dictionary values.
    pub(super) sent: SchemaRef,
    /// The schema of the decoded rows.
    pub(super) plain: SchemaRef,
    /// The dictionary of each column that has one.
    columns: Vec<Option<i64>>,
    dictionaries: HashMap<i64, Dictionary>,
}

#[derive(Debug)]
struct Dictionary {
    /// A schema with one column for the dictionary's values.
    schema: SchemaRef,
    values: Option<ArrayRef>,
}

impl Forms {
    /// The encodings of a schema; `None` if all columns are plain values.
    ///
    /// # Errors
    /// `InvalidInput` if a dictionary has values of two types.
    pub(super) fn of(header: Header<'_>, schema: &Schema) -> Result<Option<Self>, PredictError> {
        let headers = header.fields().into_iter().flatten();
        let ids: Vec<_> = headers
            .map(|field| field.dictionary().map(|dictionary| dictionary.id()))
            .collect();
        let (mut sent, mut plain) = (Vec::new(), Vec::new());
        let mut dictionaries: HashMap<i64, Dictionary> = HashMap::new();
        for (field, id) in schema.fields().iter().zip(&ids) {
            let (DataType::Dictionary(index, values), Some(id)) = (field.data_type(), id) else {
                sent.push(field.clone());
                plain.push(plain_field(field));
                continue;
            };
            let retyped = |kind: &DataType| field.as_ref().clone().with_data_type(kind.clone());
            sent.push(Arc::new(retyped(index)));
            plain.push(Arc::new(retyped(values)));
            let of_values = Field::new("values", values.as_ref().clone(), true);
            let schema = Arc::new(Schema::new(vec![of_values]));
            let known = dictionaries.entry(*id).or_insert_with(|| Dictionary {
                schema: schema.clone(),
                values: None,
            });
            if known.schema != schema {
                return Err(malformed("a dictionary whose values are of two types"));
            }
        }
        let (sent, plain) = (Schema::new(sent), Schema::new(plain));
        let forms = Self {
            plain: Arc::new(plain.with_metadata(schema.metadata().clone())),
            sent: Arc::new(sent),
            columns: ids,
            dictionaries,
        };
        Ok((forms.sent.fields() != forms.plain.fields()).then_some(forms))
    }

    /// The schema of a dictionary's values.
    ///
    /// # Errors
    /// `InvalidInput` for a dictionary that no column has.
    pub(super) fn values_of(&self, id: i64) -> Result<SchemaRef, PredictError> {
        let known = self.dictionaries.get(&id);
        let known = known.ok_or_else(|| malformed("a dictionary that no column has"))?;
        Ok(known.schema.clone())
    }

    /// Stores a dictionary's values: replaces the previous values or appends to them.
    ///
    /// # Errors
    /// `InvalidInput` for appended values without a dictionary, `TooLarge` if the dictionaries
    /// exceed their limit.
    pub(super) fn keep(
        &mut self,
        id: i64,
        batch: &RecordBatch,
        behind: bool,
    ) -> Result<(), PredictError> {
        let others = self.dictionaries.iter().filter(|(other, _)| **other != id);
        let others: usize = others.map(|(_, dictionary)| dictionary.bytes()).sum();
        let dictionary = self.dictionaries.get_mut(&id);
        let dictionary = dictionary.ok_or_else(|| malformed("a dictionary that no column has"))?;
        let mut bytes = batch.get_array_memory_size();
        let mut values = batch.column(0).clone();
        if behind {
            bytes = bytes.saturating_add(dictionary.bytes());
            check_bytes(bytes.saturating_add(others))?;
            let before = dictionary.values.as_ref();
            let before =
                before.ok_or_else(|| malformed("a dictionary update without a dictionary"))?;
            values = arrow_select::concat::concat(&[before, &values]).map_err(unreadable)?;
        }
        check_bytes(bytes.saturating_add(others))?;
        dictionary.values = Some(values);
        Ok(())
    }

    /// Converts the rows of `batch`, which has the schema of the messages, to plain values.
    ///
    /// # Errors
    /// `InvalidInput` for an index outside its dictionary, `TooLarge` if the plain values exceed
    /// their limit.
    pub(super) fn plain(&self, batch: &RecordBatch) -> Result<RecordBatch, PredictError> {
        let mut bytes = 0;
        let columns = batch.columns().iter().zip(&self.columns);
        let columns = columns.zip(self.plain.fields());
        let columns = columns.map(|((column, id), field)| match id {
            None => plain_values(column, &mut bytes),
            Some(id) => {
                let dictionary = self.dictionaries.get(id).and_then(|it| it.values.as_ref());
                let values = match dictionary {
                    Some(values) => values.clone(),
                    // A dictionary may be missing if all rows are null.
                    None => arrow_array::new_empty_array(field.data_type()),
                };
                looked_up(&values, column, &mut bytes)
            }
        });
        let columns = columns.collect::<Result<Vec<_>, _>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        RecordBatch::try_new_with_options(self.plain.clone(), columns, &options).map_err(unreadable)
    }
}

impl Dictionary {
    fn bytes(&self) -> usize {
        self.values
            .as_ref()
            .map_or(0, |values| values.get_array_memory_size())
    }
}

/// The value of each index.
fn looked_up(
    values: &ArrayRef,
    indices: &ArrayRef,
    bytes: &mut usize,
) -> Result<ArrayRef, PredictError> {
    // Values out of range become null here and are rejected below.
    let wide = arrow_cast::cast(indices, &DataType::UInt64).map_err(unreadable)?;
    let wide = wide.as_primitive::<UInt64Type>();
    let length = |index: u64| usize::try_from(index).map_or(0, |index| length(values, index));
    let more = wide
        .iter()
        .flatten()
        .map(length)
        .fold(0, usize::saturating_add);
    *bytes = bytes.saturating_add(more);
    check_bytes(*bytes)?;
    let options = TakeOptions { check_bounds: true };
    take(values.as_ref(), indices.as_ref(), Some(options))
        .map_err(|error| malformed("an index that its dictionary does not have").with_source(error))
}

/// Bytes of one value.
fn length(values: &ArrayRef, index: usize) -> usize {
    let between = |from: i64, to: i64| usize::try_from(to - from).unwrap_or(0);
    if values.len() <= index {
        return 0;
    }
    match values.data_type() {
        DataType::Utf8 => {
            usize::try_from(values.as_string::<i32>().value_length(index)).unwrap_or(0)
        }
        DataType::LargeUtf8 => {
            let offsets = values.as_string::<i64>().offsets();
            between(offsets[index], offsets[index + 1])
        }
        DataType::Binary => {
            usize::try_from(values.as_binary::<i32>().value_length(index)).unwrap_or(0)
        }
        DataType::LargeBinary => {
            let offsets = values.as_binary::<i64>().offsets();
            between(offsets[index], offsets[index + 1])
        }
        DataType::FixedSizeBinary(width) => usize::try_from(*width).unwrap_or(0),
        flat => flat.primitive_width().unwrap_or(1),
    }
}

/// The field of the same values without views.
fn plain_field(field: &FieldRef) -> FieldRef {
    let kind = match field.data_type() {
        DataType::Utf8View => DataType::Utf8,
        DataType::List(item) => DataType::List(plain_field(item)),
        DataType::FixedSizeList(item, size) => DataType::FixedSizeList(plain_field(item), *size),
        DataType::Struct(fields) => {
            DataType::Struct(fields.iter().map(plain_field).collect::<Fields>())
        }
        _ => return field.clone(),
    };
    match kind == *field.data_type() {
        true => field.clone(),
        false => Arc::new(field.as_ref().clone().with_data_type(kind)),
    }
}

/// The same values without views.
fn plain_values(column: &ArrayRef, bytes: &mut usize) -> Result<ArrayRef, PredictError> {
    let made: ArrayRef = match column.data_type() {
        DataType::Utf8View => {
            let views = column.as_string_view().views().iter();
            // The lowest four bytes of a view are its length.
            let lengths = views.map(|view| (*view & u128::from(u32::MAX)) as usize);
            *bytes = bytes.saturating_add(lengths.fold(0, usize::saturating_add));
            check_bytes(*bytes)?;
            arrow_cast::cast(column, &DataType::Utf8).map_err(unreadable)?
        }
        DataType::List(item) if plain_field(item) != *item => {
            let list = column.as_list::<i32>();
            let values = plain_values(list.values(), bytes)?;
            let (offsets, nulls) = (list.offsets().clone(), list.nulls().cloned());
            Arc::new(
                ListArray::try_new(plain_field(item), offsets, values, nulls)
                    .map_err(unreadable)?,
            )
        }
        DataType::FixedSizeList(item, size) if plain_field(item) != *item => {
            let list = column.as_fixed_size_list();
            let values = plain_values(list.values(), bytes)?;
            let (nulls, rows) = (list.nulls().cloned(), list.len());
            let item = plain_field(item);
            let list = FixedSizeListArray::try_new_with_length(item, *size, values, nulls, rows);
            Arc::new(list.map_err(unreadable)?)
        }
        DataType::Struct(fields) if !fields.is_empty() => {
            let parts = column.as_struct();
            let values = parts.columns().iter().map(|part| plain_values(part, bytes));
            let values = values.collect::<Result<Vec<_>, _>>()?;
            let fields = fields.iter().map(plain_field).collect::<Fields>();
            let made = StructArray::try_new(fields, values, parts.nulls().cloned());
            Arc::new(made.map_err(unreadable)?)
        }
        _ => column.clone(),
    };
    Ok(made)
}

fn check_bytes(bytes: usize) -> Result<(), PredictError> {
    if bytes <= MAX_BYTES {
        return Ok(());
    }
    Err(PredictError::new(
        ErrorCode::TooLarge,
        "dictionaries and views expand to over 64 MiB of values; send fewer rows in one batch",
    ))
}

fn unreadable(error: ArrowError) -> PredictError {
    malformed("columns that cannot be read").with_source(error)
}
