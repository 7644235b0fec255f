//! Columns of a message: descriptors in the JSON of a frame, buffers in its body.
//!
//! A buffer has Arrow's layout where that is also numpy's: numbers of all rows, one after the
//! other, and texts behind their offsets. A booleans' buffer has one byte per value. Nothing is
//! copied for numbers on their way in; on their way out they are written from the batch's memory.

mod decode;
mod variable;

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, LargeStringArray, RecordBatch, StringArray};
use arrow_buffer::{ArrowNativeType, Buffer};
use arrow_schema::{DataType, Field, FieldRef, Schema, SchemaRef};
use serde::{Deserialize, Serialize};
use volley_types::signature::with_octets;
use volley_types::{PredictError, octets};

pub(crate) use self::decode::{decode, decode_column};

/// Alignment of each buffer in a body, in bytes.
pub(crate) const ALIGN: usize = 64;
/// The extension of a tensor's column; its metadata has the shape of a row.
const TENSOR: &str = "arrow.fixed_shape_tensor";
const EXTENSION_NAME: &str = "ARROW:extension:name";
const EXTENSION_METADATA: &str = "ARROW:extension:metadata";

/// Type of a column's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ValueType {
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    Uint8,
    Uint16,
    Uint32,
    Uint64,
    Fp16,
    Fp32,
    Fp64,
    Utf8,
    Bytes,
    Json,
}

impl ValueType {
    /// The Arrow type of one value.
    fn arrow(self) -> DataType {
        match self {
            Self::Bool => DataType::Boolean,
            Self::Int8 => DataType::Int8,
            Self::Int16 => DataType::Int16,
            Self::Int32 => DataType::Int32,
            Self::Int64 => DataType::Int64,
            Self::Uint8 => DataType::UInt8,
            Self::Uint16 => DataType::UInt16,
            Self::Uint32 => DataType::UInt32,
            Self::Uint64 => DataType::UInt64,
            Self::Fp16 => DataType::Float16,
            Self::Fp32 => DataType::Float32,
            Self::Fp64 => DataType::Float64,
            Self::Utf8 | Self::Bytes | Self::Json => DataType::Utf8,
        }
    }

    /// The type of values of an Arrow type; `None` for types that have no counterpart.
    fn of(data_type: &DataType) -> Option<Self> {
        Some(match data_type {
            DataType::Boolean => Self::Bool,
            DataType::Int8 => Self::Int8,
            DataType::Int16 => Self::Int16,
            DataType::Int32 => Self::Int32,
            DataType::Int64 => Self::Int64,
            DataType::UInt8 => Self::Uint8,
            DataType::UInt16 => Self::Uint16,
            DataType::UInt32 => Self::Uint32,
            DataType::UInt64 => Self::Uint64,
            DataType::Float16 => Self::Fp16,
            DataType::Float32 => Self::Fp32,
            DataType::Float64 => Self::Fp64,
            DataType::Utf8 | DataType::LargeUtf8 => Self::Utf8,
            _ => return None,
        })
    }
}

/// Declaration of an input or output, as the host reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Declared {
    name: String,
    #[serde(rename = "type")]
    value: ValueType,
    /// Shape of one row; empty for one value per row. -1 is a length that differs from row to row.
    #[serde(default)]
    shape: Vec<i64>,
    #[serde(default)]
    nullable: bool,
}

impl Declared {
    /// The column of the signature.
    fn field(&self) -> Field {
        let item = Arc::new(Field::new("item", self.value.arrow(), false));
        let lengths: Option<Vec<usize>> = self.lengths();
        let field = match lengths {
            Some(shape) if shape.is_empty() => {
                Field::new(&self.name, self.value.arrow(), self.nullable)
            }
            Some(shape) => tensor_field(&self.name, &item, &shape, self.nullable),
            None => variable::field(&self.name, &item, &self.shape, self.nullable),
        };
        match self.value {
            ValueType::Bytes => with_octets(field),
            _ => field,
        }
    }

    /// The shape, if it has no open length.
    fn lengths(&self) -> Option<Vec<usize>> {
        let lengths = self
            .shape
            .iter()
            .map(|length| usize::try_from(*length).ok());
        lengths.collect()
    }
}

/// The column of a tensor whose row has `shape`.
pub(crate) fn tensor_field(
    name: &str,
    item: &FieldRef,
    shape: &[usize],
    is_nullable: bool,
) -> Field {
    let size = i32::try_from(shape.iter().product::<usize>()).unwrap_or(i32::MAX);
    let shape = serde_json::json!({ "shape": shape }).to_string();
    let extension = [
        (EXTENSION_NAME, TENSOR.to_owned()),
        (EXTENSION_METADATA, shape),
    ];
    let extension = extension.map(|(name, value)| (name.to_owned(), value));
    let list = DataType::FixedSizeList(item.clone(), size);
    Field::new(name, list, is_nullable).with_metadata(extension.into())
}

/// The schema of declared columns.
pub(crate) fn schema(declared: &[Declared]) -> SchemaRef {
    let fields: Vec<_> = declared.iter().map(Declared::field).collect();
    Arc::new(Schema::new(fields))
}

/// Descriptor of a column in a frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Column {
    pub(crate) name: String,
    #[serde(rename = "type")]
    value: ValueType,
    #[serde(default)]
    shape: Vec<i64>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    nulls: bool,
    /// Offset and length of each buffer in the body, in bytes: the values, or the offsets and the
    /// bytes of texts; the shapes of all rows where `shape` has a -1; a byte per row where there are
    /// nulls.
    at: Vec<(usize, usize)>,
}

/// The body of a frame that is being built.
#[derive(Debug, Default)]
pub(crate) struct Body {
    buffers: Vec<Buffer>,
    length: usize,
}

impl Body {
    /// Appends a buffer; returns its place.
    fn add(&mut self, buffer: Buffer) -> (usize, usize) {
        let place = (self.length, buffer.len());
        self.length = (self.length + buffer.len()).next_multiple_of(ALIGN);
        self.buffers.push(buffer);
        place
    }

    /// Its length in bytes, with the gaps.
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// The buffers, each with the length of the gap after it.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (&[u8], usize)> {
        self.buffers.iter().map(|buffer| {
            let gap = buffer.len().next_multiple_of(ALIGN) - buffer.len();
            (buffer.as_slice(), gap)
        })
    }
}

/// Encodes a column of texts.
pub(crate) fn texts(name: &str, value: ValueType, array: &StringArray, body: &mut Body) -> Column {
    finish(name, value, array, text_buffers(array), body)
}

/// The offsets and the bytes of texts.
fn text_buffers(array: &StringArray) -> Vec<Buffer> {
    let first = array.value_offsets().first().copied().unwrap_or_default();
    let last = array.value_offsets().last().copied().unwrap_or_default();
    let offsets = array.value_offsets().iter();
    let offsets: Vec<i64> = offsets.map(|offset| i64::from(offset - first)).collect();
    let (start, end) = (first.as_usize(), last.as_usize());
    let values = array.values().slice_with_length(start, end - start);
    vec![Buffer::from_vec(offsets), values]
}

fn finish(
    name: &str,
    value: ValueType,
    array: &dyn Array,
    mut buffers: Vec<Buffer>,
    body: &mut Body,
) -> Column {
    let nulls = array.null_count() != 0;
    if nulls {
        let valid = (0..array.len()).map(|row| u8::from(array.is_valid(row)));
        buffers.push(Buffer::from_vec(valid.collect::<Vec<u8>>()));
    }
    Column {
        name: name.to_owned(),
        value,
        shape: Vec::new(),
        nulls,
        at: buffers.into_iter().map(|buffer| body.add(buffer)).collect(),
    }
}

/// Encodes the columns of a batch.
///
/// # Errors
/// `InvalidInput` for a type that has no counterpart in Python, with the column.
pub(crate) fn encode(
    batch: &RecordBatch,
    declared: &Schema,
    body: &mut Body,
) -> Result<Vec<Column>, PredictError> {
    let schema = batch.schema();
    let columns = schema.fields().iter().zip(batch.columns());
    let encoded = columns.map(|(field, array)| {
        let declared = declared.field_with_name(field.name()).unwrap_or(field);
        encode_column(declared, array, body)
    });
    encoded.collect()
}

fn encode_column(field: &Field, array: &ArrayRef, body: &mut Body) -> Result<Column, PredictError> {
    let name = field.name();
    let unsupported = || {
        let message = format!(
            "input column '{name}' has the type {}, which Python models do not take",
            array.data_type()
        );
        PredictError::invalid(message)
    };
    let any_bytes = volley_types::signature::takes_octets(field);
    if let Some(list) = array.as_fixed_size_list_opt() {
        let size = list.value_length().as_usize();
        let values = list
            .values()
            .slice(list.value_offset(0).as_usize(), list.len() * size);
        let (value, buffers) = leaves(&values, any_bytes).ok_or_else(unsupported)?;
        let mut column = finish(name, value, array, buffers, body);
        column.shape = signed(&shape(field).unwrap_or_else(|| vec![size]));
        return Ok(column);
    }
    if variable::parts(array.data_type()).is_some() {
        let tensors = variable::Tensors::of(array, field).ok_or_else(|| {
            let message = format!(
                "input column '{name}' has a row whose shape is not the one that the model \
                 declares, or does not fit its values"
            );
            PredictError::invalid(message)
        })?;
        let (value, mut buffers) = leaves(&tensors.values, any_bytes).ok_or_else(unsupported)?;
        let open = vec![-1; tensors.rank];
        buffers.push(Buffer::from_vec(tensors.dims));
        let mut column = finish(name, value, array, buffers, body);
        column.shape = open;
        return Ok(column);
    }
    let (value, buffers) = leaves(array, any_bytes).ok_or_else(unsupported)?;
    Ok(finish(name, value, array, buffers, body))
}

fn signed(shape: &[usize]) -> Vec<i64> {
    let lengths = shape.iter();
    lengths
        .map(|length| i64::try_from(*length).unwrap_or(i64::MAX))
        .collect()
}

/// The buffers of single values; `None` for a type that has no counterpart.
fn leaves(array: &ArrayRef, any_bytes: bool) -> Option<(ValueType, Vec<Buffer>)> {
    let texts = match array.data_type() {
        DataType::Utf8 => array.as_string::<i32>().clone(),
        DataType::LargeUtf8 => narrow(array.as_string::<i64>()),
        _ => return numbers(array).map(|(value, buffer)| (value, vec![buffer])),
    };
    Some(match any_bytes {
        true => (ValueType::Bytes, bytes(&texts)),
        false => (ValueType::Utf8, text_buffers(&texts)),
    })
}

/// Values of a fixed width, with their buffer.
fn numbers(array: &ArrayRef) -> Option<(ValueType, Buffer)> {
    let value = ValueType::of(array.data_type())?;
    if let Some(flags) = array.as_boolean_opt() {
        let flags: Vec<u8> = flags.values().iter().map(u8::from).collect();
        return Some((value, Buffer::from_vec(flags)));
    }
    let width = array.data_type().primitive_width()?;
    let data = array.to_data();
    let values = data.buffers().first()?;
    let values = values.slice_with_length(data.offset() * width, data.len() * width);
    Some((value, values))
}

fn narrow(array: &LargeStringArray) -> StringArray {
    array.iter().collect()
}

/// Texts that stand for any bytes, as these bytes.
fn bytes(array: &StringArray) -> Vec<Buffer> {
    let (mut offsets, mut values) = (vec![0_i64], Vec::new());
    for text in array {
        values.extend_from_slice(&octets::to_bytes(text.unwrap_or_default()));
        offsets.push(i64::try_from(values.len()).unwrap_or(i64::MAX));
    }
    vec![Buffer::from_vec(offsets), Buffer::from_vec(values)]
}

/// The shape of a tensor's row.
fn shape(field: &Field) -> Option<Vec<usize>> {
    let metadata = field.metadata();
    if metadata.get(EXTENSION_NAME)? != TENSOR {
        return None;
    }
    let text = metadata.get(EXTENSION_METADATA)?;
    let parsed: serde_json::Value = serde_json::from_str(text).ok()?;
    serde_json::from_value(parsed.get("shape")?.clone()).ok()
}

#[cfg(test)]
mod tests;
