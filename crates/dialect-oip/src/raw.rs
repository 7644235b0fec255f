//! Encodes and decodes tensors in the format of the protocol's binary extension: little-endian
//! numbers, one byte for a boolean, and texts after their lengths. Pure.

use std::sync::Arc;

use arrow_array::builder::StringBuilder;
use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type,
    Int64Type, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef, BooleanArray, OffsetSizeTrait, PrimitiveArray};
use arrow_buffer::{ArrowNativeType, Buffer, ScalarBuffer, ToByteSlice};
use arrow_schema::{DataType, Field};
use bytes::Bytes;
use volley_types::octets;

// Arrow uses the byte order of the machine, and the protocol uses little-endian.
const _: () = assert!(cfg!(target_endian = "little"));

/// Size of a value in bytes; `None` for texts, which vary.
pub(super) fn width(data_type: &DataType) -> Option<usize> {
    match data_type {
        DataType::Boolean => Some(1),
        other => other.primitive_width(),
    }
}

/// Decodes the `count` values in `bytes`. Numbers are not copied if the bytes are aligned. With
/// `any_bytes`, texts need not be UTF-8.
///
/// A description of the fault in the bytes.
pub(super) fn decode(
    item: &Field,
    count: usize,
    bytes: Bytes,
    any_bytes: bool,
) -> Result<ArrayRef, String> {
    match item.data_type() {
        DataType::Float16 => numbers::<Float16Type>(count, bytes),
        DataType::Float32 => numbers::<Float32Type>(count, bytes),
        DataType::Float64 => numbers::<Float64Type>(count, bytes),
        DataType::Int8 => numbers::<Int8Type>(count, bytes),
        DataType::Int16 => numbers::<Int16Type>(count, bytes),
        DataType::Int32 => numbers::<Int32Type>(count, bytes),
        DataType::Int64 => numbers::<Int64Type>(count, bytes),
        DataType::UInt8 => numbers::<UInt8Type>(count, bytes),
        DataType::UInt16 => numbers::<UInt16Type>(count, bytes),
        DataType::UInt32 => numbers::<UInt32Type>(count, bytes),
        DataType::UInt64 => numbers::<UInt64Type>(count, bytes),
        DataType::Boolean => {
            fits(count, 1, bytes.len())?;
            let values: BooleanArray = bytes.iter().map(|byte| Some(*byte != 0)).collect();
            Ok(Arc::new(values))
        }
        DataType::Utf8 => Ok(Arc::new(texts(count, &bytes, any_bytes)?)),
        DataType::LargeUtf8 => large_texts(count, &bytes, any_bytes),
        _ => Err("its type is not supported by this protocol".to_owned()),
    }
}

fn numbers<T: ArrowPrimitiveType>(count: usize, bytes: Bytes) -> Result<ArrayRef, String> {
    let width = size_of::<T::Native>();
    fits(count, width, bytes.len())?;
    let aligned = (bytes.as_ptr() as usize).is_multiple_of(align_of::<T::Native>());
    let buffer = if aligned {
        Buffer::from(bytes)
    } else {
        Buffer::from_slice_ref(bytes.as_ref())
    };
    let values = ScalarBuffer::new(buffer, 0, count);
    Ok(Arc::new(PrimitiveArray::<T>::new(values, None)))
}

fn fits(count: usize, width: usize, found: usize) -> Result<(), String> {
    if count.checked_mul(width) == Some(found) {
        Ok(())
    } else {
        Err(format!(
            "has {found} bytes of data, but its shape has {count} values of {width} bytes"
        ))
    }
}

fn texts(
    count: usize,
    mut bytes: &[u8],
    any_bytes: bool,
) -> Result<arrow_array::StringArray, String> {
    // Checks the declared number before allocating: each text has at least its length.
    if bytes.len() / 4 < count || i32::try_from(bytes.len()).is_err() {
        return Err(format!(
            "has {} bytes of data for {count} texts",
            bytes.len()
        ));
    }
    let mut texts = StringBuilder::with_capacity(count, bytes.len() - 4 * count);
    for index in 0..count {
        let cut = || format!("its data ends within text {index}");
        let (length, rest) = bytes.split_first_chunk::<4>().ok_or_else(cut)?;
        let length = usize::try_from(u32::from_le_bytes(*length)).map_err(|_| cut())?;
        let (text, rest) = rest.split_at_checked(length).ok_or_else(cut)?;
        if any_bytes {
            texts.append_value(octets::to_text(text));
        } else {
            let text = std::str::from_utf8(text)
                .map_err(|_| format!("text {index} is not UTF-8; this model takes text"))?;
            texts.append_value(text);
        }
        bytes = rest;
    }
    if bytes.is_empty() {
        Ok(texts.finish())
    } else {
        Err(format!(
            "has {} bytes of data after its {count} texts",
            bytes.len()
        ))
    }
}

fn large_texts(count: usize, bytes: &[u8], any_bytes: bool) -> Result<ArrayRef, String> {
    let values: arrow_array::LargeStringArray = texts(count, bytes, any_bytes)?.iter().collect();
    Ok(Arc::new(values))
}

/// Appends the bytes of all `values`; `None` if their type has no binary form.
pub(super) fn encode(values: &ArrayRef, out: &mut Vec<u8>) -> Option<()> {
    if values.null_count() != 0 {
        return None;
    }
    match values.data_type() {
        DataType::Float16 => append::<Float16Type>(values, out),
        DataType::Float32 => append::<Float32Type>(values, out),
        DataType::Float64 => append::<Float64Type>(values, out),
        DataType::Int8 => append::<Int8Type>(values, out),
        DataType::Int16 => append::<Int16Type>(values, out),
        DataType::Int32 => append::<Int32Type>(values, out),
        DataType::Int64 => append::<Int64Type>(values, out),
        DataType::UInt8 => append::<UInt8Type>(values, out),
        DataType::UInt16 => append::<UInt16Type>(values, out),
        DataType::UInt32 => append::<UInt32Type>(values, out),
        DataType::UInt64 => append::<UInt64Type>(values, out),
        DataType::Boolean => out.extend(values.as_boolean().values().iter().map(u8::from)),
        DataType::Utf8 => append_texts::<i32>(values, out)?,
        DataType::LargeUtf8 => append_texts::<i64>(values, out)?,
        _ => return None,
    }
    Some(())
}

fn append<T: ArrowPrimitiveType>(values: &ArrayRef, out: &mut Vec<u8>)
where
    T::Native: ArrowNativeType,
{
    let values: &[T::Native] = values.as_primitive::<T>().values();
    out.extend_from_slice(values.to_byte_slice());
}

fn append_texts<O: OffsetSizeTrait>(values: &ArrayRef, out: &mut Vec<u8>) -> Option<()> {
    for text in values.as_string::<O>().iter() {
        let bytes = octets::to_bytes(text.unwrap_or_default());
        out.extend_from_slice(&u32::try_from(bytes.len()).ok()?.to_le_bytes());
        out.extend_from_slice(&bytes);
    }
    Some(())
}

#[cfg(test)]
mod tests;
