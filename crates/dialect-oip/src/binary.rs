//! Tensors in binary for models that take texts, told as JSON tells them. Pure.

use bytes::Bytes;
use serde_json::{Map, Value, json};
use volley_types::PredictError;

use super::describe::TEXT_INPUT;
use super::tensors::{all_read, bytes_of, printable};

/// Maximum number of texts of one input: a text in JSON needs many times the memory of a short one.
const MAX_TEXTS: usize = 1 << 20;

/// A body whose inputs have in `data` what they had behind its JSON.
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

/// The body of a request that is nothing but a text.
///
/// # Errors
/// `InvalidInput` when it is none.
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

/// Texts, each behind its length.
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

/// The one element of a tensor beside the texts, which is a parameter.
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
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn input(name: &str, datatype: &str, size: usize) -> Value {
        json!({
            "name": name, "datatype": datatype, "shape": [1],
            "parameters": { "binary_data_size": size },
        })
    }

    fn body(inputs: &[Value]) -> Map<String, Value> {
        Map::from_iter([("inputs".to_owned(), json!(inputs))])
    }

    #[test]
    fn texts_and_parameters_come_in_binary() {
        let inputs = [
            input("text_input", "BYTES", 7),
            input("max_tokens", "INT32", 4),
        ];
        let raw = b"\x03\0\0\0f\xc3\xbc\x0c\0\0\0";
        let told = told(body(&inputs), Bytes::from_static(raw)).unwrap();
        assert_eq!(told["inputs"][0]["data"], json!(["f\u{fc}"]));
        assert_eq!(told["inputs"][1]["data"], json!([12]));
        let whole = text("f\u{fc}".as_bytes()).unwrap();
        assert_eq!(whole["inputs"][0]["data"], json!(["f\u{fc}"]));
    }

    #[test]
    fn what_is_cut_longer_or_twice_is_refused() {
        let text = |size| body(&[input("text_input", "BYTES", size)]);
        for (given, raw) in [
            (text(5), &b"\x03\0\0\0f"[..]),
            (text(5), b"\x01\0\0\0"),
            (text(5), b"\x01\0\0\0ff"),
            (text(5), b"\x01\0\0\0\xff"),
            (body(&[input("x", "FP32", 5)]), b"12345"),
            (body(&[input("x", "BF16", 2)]), b"12"),
            (body(&[]), b"1"),
        ] {
            assert!(told(given, Bytes::from_static(raw)).is_err(), "{raw:?}");
        }
        let mut both = input("text_input", "BYTES", 5);
        both["data"] = json!(["f"]);
        let raw = Bytes::from_static(b"\x01\0\0\0f");
        assert!(told(body(&[both]), raw).is_err());
        assert!(super::text(b"\xff").is_err());
        let many = vec![0; 4 * (MAX_TEXTS + 1)];
        let error = told(
            body(&[input("text_input", "BYTES", many.len())]),
            many.into(),
        );
        assert!(error.unwrap_err().message.contains("send fewer at once"));
    }

    proptest! {
        #[test]
        fn any_bytes_are_told_or_refused(
            raw in proptest::collection::vec(any::<u8>(), 0..40),
            size in 0..40_usize,
            datatype in "BYTES|BOOL|INT64|FP64|BF16|",
        ) {
            let _ = told(body(&[input("x", &datatype, size)]), raw.into());
        }
    }
}
