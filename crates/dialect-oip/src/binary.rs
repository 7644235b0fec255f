//! Converts binary tensors to JSON for models that take texts. Pure.

use bytes::Bytes;
use serde_json::{Map, Value, json};
use volley_types::PredictError;

use super::describe::TEXT_INPUT;
use super::tensors::{all_read, bytes_of, printable};

/// Maximum number of texts of one input: a text in JSON needs many times the memory of a short one.
const MAX_TEXTS: usize = 1 << 20;

/// Moves the binary data after the JSON of a body into the `data` of its inputs.
///
/// # Errors
/// `InvalidInput` naming the input.
pub(super) fn told(
    mut body: Map<String, Value>,
    mut raw: Bytes,
) -> Result<Map<String, Value>, PredictError> {
    let inputs = body.get_mut("inputs").and_then(Value::as_array_mut);
    for input in inputs.into_iter().flatten() {
        let name = input.get("name").and_then(Value::as_str);
        let name = printable(name.unwrap_or_default());
        let read = read(input, &mut raw);
        read.map_err(|what| PredictError::invalid(format!("input '{name}': {what}")))?;
    }
    all_read(&raw)?;
    Ok(body)
}

/// The body of a request that consists of one text only.
///
/// # Errors
/// `InvalidInput` if the text is not UTF-8.
pub(super) fn text(raw: &[u8]) -> Result<Map<String, Value>, PredictError> {
    let text = std::str::from_utf8(raw);
    let text = text.map_err(|_| PredictError::invalid("the request's text is not UTF-8"))?;
    let input = json!({ "name": TEXT_INPUT, "datatype": "BYTES", "shape": [1], "data": [text] });
    Ok(Map::from_iter([("inputs".to_owned(), json!([input]))]))
}

fn read(input: &mut Value, raw: &mut Bytes) -> Result<(), String> {
    let Some(bytes) = bytes_of(input, raw)? else {
        return Ok(());
    };
    if input.get("data").is_some() {
        return Err("has both 'data' and a 'binary_data_size'".to_owned());
    }
    let datatype = input.get("datatype").and_then(Value::as_str);
    let data = match datatype.unwrap_or_default() {
        "BYTES" => texts(&bytes)?,
        other => vec![single(other, &bytes)?],
    };
    input["data"] = data.into();
    Ok(())
}

/// Parses texts, each of which follows its length as a little-endian `u32`.
fn texts(mut bytes: &[u8]) -> Result<Vec<Value>, String> {
    let mut texts = Vec::new();
    while !bytes.is_empty() {
        let cut = bytes.split_first_chunk::<4>().and_then(|(length, rest)| {
            let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
            rest.split_at_checked(length)
        });
        let (text, rest) = cut.ok_or("has a text whose length exceeds its bytes")?;
        let text = std::str::from_utf8(text).map_err(|_| "has a text that is not UTF-8")?;
        if texts.len() == MAX_TEXTS {
            return Err(format!(
                "has more than {MAX_TEXTS} texts; send fewer at once"
            ));
        }
        texts.push(text.into());
        bytes = rest;
    }
    Ok(texts)
}

/// Parses the single element of a tensor beside the texts, which is a parameter.
fn single(datatype: &str, bytes: &[u8]) -> Result<Value, String> {
    fn of<const N: usize>(bytes: &[u8], read: fn([u8; N]) -> Value) -> Option<Value> {
        bytes.try_into().ok().map(read)
    }
    let value = match datatype {
        "BOOL" => of(bytes, |[byte]| (byte != 0).into()),
        "INT8" => of(bytes, |it| i8::from_le_bytes(it).into()),
        "UINT8" => of(bytes, |it| u8::from_le_bytes(it).into()),
        "INT16" => of(bytes, |it| i16::from_le_bytes(it).into()),
        "UINT16" => of(bytes, |it| u16::from_le_bytes(it).into()),
        "INT32" => of(bytes, |it| i32::from_le_bytes(it).into()),
        "UINT32" => of(bytes, |it| u32::from_le_bytes(it).into()),
        "INT64" => of(bytes, |it| i64::from_le_bytes(it).into()),
        "UINT64" => of(bytes, |it| u64::from_le_bytes(it).into()),
        "FP32" => of(bytes, |it| f32::from_le_bytes(it).into()),
        "FP64" => of(bytes, |it| f64::from_le_bytes(it).into()),
        _ => return Err("has a datatype that must be sent in JSON here".to_owned()),
    };
    value.ok_or_else(|| format!("must have the bytes of one element of {datatype}"))
}

#[cfg(test)]
mod tests;
