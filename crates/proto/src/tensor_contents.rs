//! Converts typed contents to the bytes of a binary tensor, from which rows are built, and back.

use bytes::{BufMut, Bytes, BytesMut};
use volley_types::PredictError;

use crate::inference::triton::InferTensorContents;

/// Encodes the elements of a tensor of `datatype` as bytes.
///
/// # Errors
/// `InvalidInput` if the elements are in the list of another datatype or exceed the range of this
/// one. The message does not name the input.
pub fn to_raw(datatype: &str, given: &InferTensorContents) -> Result<Bytes, PredictError> {
    let lists = [
        ("bool_contents", given.bool_contents.len()),
        ("int_contents", given.int_contents.len()),
        ("int64_contents", given.int64_contents.len()),
        ("uint_contents", given.uint_contents.len()),
        ("uint64_contents", given.uint64_contents.len()),
        ("fp32_contents", given.fp32_contents.len()),
        ("fp64_contents", given.fp64_contents.len()),
        ("bytes_contents", given.bytes_contents.len()),
    ];
    let own = match datatype {
        "BOOL" => "bool_contents",
        "INT8" | "INT16" | "INT32" => "int_contents",
        "INT64" => "int64_contents",
        "UINT8" | "UINT16" | "UINT32" => "uint_contents",
        "UINT64" => "uint64_contents",
        "FP32" => "fp32_contents",
        "FP64" => "fp64_contents",
        "BYTES" => "bytes_contents",
        "FP16" | "BF16" => {
            let message = format!("{datatype} has no typed contents; use raw_input_contents");
            return Err(PredictError::invalid(message));
        }
        _ => return Err(PredictError::invalid("its 'datatype' is not known")),
    };
    let other = lists.iter().find(|(list, len)| *list != own && *len != 0);
    if let Some((list, _)) = other {
        let message = format!("{datatype} belongs in {own}, but {list} has elements");
        return Err(PredictError::invalid(message));
    }
    let mut out = BytesMut::new();
    match datatype {
        "BOOL" => out.extend(given.bool_contents.iter().map(|value| u8::from(*value))),
        "INT8" => narrow(&given.int_contents, &mut out, |v: i8, out| out.put_i8(v))?,
        "INT16" => narrow(&given.int_contents, &mut out, |v: i16, out| {
            out.put_i16_le(v)
        })?,
        "INT32" => put(&given.int_contents, &mut out, |v, out| out.put_i32_le(v)),
        "INT64" => put(&given.int64_contents, &mut out, |v, out| out.put_i64_le(v)),
        "UINT8" => narrow(&given.uint_contents, &mut out, |v: u8, out| out.put_u8(v))?,
        "UINT16" => narrow(&given.uint_contents, &mut out, |v: u16, out| {
            out.put_u16_le(v)
        })?,
        "UINT32" => put(&given.uint_contents, &mut out, |v, out| out.put_u32_le(v)),
        "UINT64" => put(&given.uint64_contents, &mut out, |v, out| out.put_u64_le(v)),
        "FP32" => put(&given.fp32_contents, &mut out, |v, out| out.put_f32_le(v)),
        "FP64" => put(&given.fp64_contents, &mut out, |v, out| out.put_f64_le(v)),
        _ => {
            for element in &given.bytes_contents {
                put_element(element, &mut out)?;
            }
        }
    }
    Ok(out.freeze())
}

fn put<T: Copy>(values: &[T], out: &mut BytesMut, put: fn(T, &mut BytesMut)) {
    for value in values {
        put(*value, out);
    }
}

fn narrow<T, U: TryFrom<T>>(
    values: &[T],
    out: &mut BytesMut,
    put: fn(U, &mut BytesMut),
) -> Result<(), PredictError>
where
    T: Copy + std::fmt::Display,
{
    for value in values {
        let fits = U::try_from(*value);
        let fits = fits.map_err(|_| PredictError::invalid(format!("{value} does not fit")))?;
        put(fits, out);
    }
    Ok(())
}

/// Appends one element of a BYTES tensor: its length as a little-endian `u32`, then its bytes.
///
/// # Errors
/// `InvalidInput` if the length exceeds a `u32`.
pub fn put_element(element: &[u8], out: &mut BytesMut) -> Result<(), PredictError> {
    let length = u32::try_from(element.len());
    out.put_u32_le(length.map_err(|_| PredictError::invalid("an element is too large"))?);
    out.put_slice(element);
    Ok(())
}

/// The typed contents of a tensor of `datatype`; `None` if the datatype has no typed form.
#[must_use]
pub fn to_typed(datatype: &str, data: &Bytes) -> Option<InferTensorContents> {
    let mut typed = InferTensorContents::default();
    match datatype {
        "BOOL" => typed.bool_contents = data.iter().map(|byte| *byte != 0).collect(),
        "INT8" => typed.int_contents = all(data, |v| i8::from_le_bytes(v).into()),
        "INT16" => typed.int_contents = all(data, |v| i16::from_le_bytes(v).into()),
        "INT32" => typed.int_contents = all(data, i32::from_le_bytes),
        "INT64" => typed.int64_contents = all(data, i64::from_le_bytes),
        "UINT8" => typed.uint_contents = all(data, |v| u8::from_le_bytes(v).into()),
        "UINT16" => typed.uint_contents = all(data, |v| u16::from_le_bytes(v).into()),
        "UINT32" => typed.uint_contents = all(data, u32::from_le_bytes),
        "UINT64" => typed.uint64_contents = all(data, u64::from_le_bytes),
        "FP32" => typed.fp32_contents = all(data, f32::from_le_bytes),
        "FP64" => typed.fp64_contents = all(data, f64::from_le_bytes),
        "BYTES" => typed.bytes_contents = elements(data)?,
        _ => return None,
    }
    Some(typed)
}

fn all<const N: usize, T>(data: &[u8], read: fn([u8; N]) -> T) -> Vec<T> {
    let (values, _) = data.as_chunks::<N>();
    values.iter().map(|value| read(*value)).collect()
}

/// The elements of a BYTES tensor, without copying. `None` if a length exceeds the remaining bytes.
#[must_use]
pub fn elements(data: &Bytes) -> Option<Vec<Bytes>> {
    let (mut elements, mut at) = (Vec::new(), 0);
    while at < data.len() {
        let start = at + 4;
        let length = data.get(at..start)?.try_into().ok()?;
        let end = start.checked_add(usize::try_from(u32::from_le_bytes(length)).ok()?)?;
        if data.len() < end {
            return None;
        }
        elements.push(data.slice(start..end));
        at = end;
    }
    Some(elements)
}

#[cfg(test)]
mod tests;
