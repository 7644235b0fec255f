//! Parses large JSON tensors directly into bytes, because trees of values need many times the
//! memory. The result is the protocol's binary format. Pure.

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use volley_types::PredictError;

/// Smaller bodies are parsed as trees, in bytes.
pub const LARGE: usize = 4 << 10;
/// Maximum size of tensors relative to their text: an eight-byte number may be a digit and a comma.
pub const FACTOR: usize = 4;
/// Parameter with the number of an input's bytes after the JSON.
const SIZE: &str = "binary_data_size";

/// A body whose large numeric tensors are in the bytes after it.
type Compact = (Map<String, Value>, Bytes);

/// Returns the body in `text` and the bytes after it: its large tensors, merged with the bytes in
/// `raw` of other inputs. `None` if the body has no large tensors and can be parsed as usual.
///
/// # Errors
/// `InvalidInput` naming the input, the row and what a value should be.
pub fn read(text: &Bytes, raw: &Bytes) -> Result<Option<Compact>, PredictError> {
    if text.len() < LARGE {
        return Ok(None);
    }
    let Ok(fields) = serde_json::from_slice::<BTreeMap<String, &RawValue>>(text) else {
        return Ok(None);
    };
    let given = fields.get("inputs").map(|inputs| inputs.get());
    let Some(Ok(given)) = given.map(serde_json::from_str::<Vec<&RawValue>>) else {
        return Ok(None);
    };
    let mut behind = TrailingBytes {
        raw,
        out: Vec::new(),
        large: 0,
    };
    let mut inputs = Vec::with_capacity(given.len().min(LARGE));
    for input in given {
        match behind.add(input)? {
            Some(input) => inputs.push(input),
            // It is malformed; the tree parser returns the error.
            None => return Ok(None),
        }
    }
    if behind.large == 0 {
        return Ok(None);
    }
    let mut body = Map::new();
    for (name, value) in fields {
        if name != "inputs" {
            body.insert(name, tree(value)?);
        }
    }
    body.insert("inputs".to_owned(), inputs.into());
    behind.out.extend_from_slice(behind.raw);
    Ok(Some((body, behind.out.into())))
}

fn tree(value: &RawValue) -> Result<Value, PredictError> {
    serde_json::from_str(value.get()).map_err(|error| {
        PredictError::invalid(format!("the request's body is not valid JSON: {error}"))
    })
}

/// Builder of the bytes after the JSON.
struct TrailingBytes<'r> {
    /// Received bytes that are not in `out` yet.
    raw: &'r [u8],
    out: Vec<u8>,
    /// Number of large tensors.
    large: usize,
}

impl TrailingBytes<'_> {
    /// Returns an input without its data if the data are large; `None` if it is malformed.
    fn add(&mut self, input: &RawValue) -> Result<Option<Value>, PredictError> {
        let Ok(mut fields) = serde_json::from_str::<BTreeMap<String, &RawValue>>(input.get())
        else {
            return Ok(None);
        };
        let data = fields.get("data").map(|data| data.get());
        let data = data.filter(|data| LARGE <= data.len() && !data.contains('"'));
        let kind = fields.get("datatype").and_then(|it| Kind::of(it.get()));
        let (Some(data), Some(kind)) = (data, kind) else {
            let input = tree(input)?;
            return Ok(self.pass(&input).then_some(input));
        };
        fields.remove("data");
        let mut head = Map::new();
        for (name, value) in fields {
            head.insert(name, tree(value)?);
        }
        let shape = shape(&head);
        let before = self.out.len();
        let numbers = Numbers::read(kind, data, shape.as_deref(), &mut self.out);
        numbers.map_err(|what| {
            let name = head.get("name").and_then(Value::as_str).unwrap_or_default();
            let name: String = name.chars().filter(|c| !c.is_control()).take(64).collect();
            PredictError::invalid(format!("input '{name}'{what}"))
        })?;
        let size = self.out.len() - before;
        let parameters = head.entry("parameters").or_insert_with(|| json!({}));
        let Some(parameters) = parameters.as_object_mut() else {
            return Ok(None);
        };
        if parameters.insert(SIZE.to_owned(), size.into()).is_some() {
            return Ok(None);
        }
        self.large += 1;
        Ok(Some(head.into()))
    }

    /// Copies the bytes of a small input; returns false if they are missing.
    fn pass(&mut self, input: &Value) -> bool {
        let size = input.get("parameters").and_then(|given| given.get(SIZE));
        let Some(size) = size else {
            return true;
        };
        let size = size.as_u64().and_then(|size| usize::try_from(size).ok());
        let cut = size.and_then(|size| self.raw.split_at_checked(size));
        let Some((own, rest)) = cut else {
            return false;
        };
        self.out.extend_from_slice(own);
        self.raw = rest;
        true
    }
}

fn shape(input: &Map<String, Value>) -> Option<Vec<usize>> {
    let dims = input.get("shape")?.as_array()?.iter();
    dims.map(|dim| usize::try_from(dim.as_u64()?).ok())
        .collect()
}

/// A numeric type.
#[derive(Clone, Copy, Debug)]
enum Kind {
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
    Bf16,
    Fp32,
    Fp64,
}

impl Kind {
    /// Parses a type name from JSON text.
    fn of(text: &str) -> Option<Self> {
        Some(match text {
            "\"BOOL\"" => Self::Bool,
            "\"INT8\"" => Self::Int8,
            "\"INT16\"" => Self::Int16,
            "\"INT32\"" => Self::Int32,
            "\"INT64\"" => Self::Int64,
            "\"UINT8\"" => Self::Uint8,
            "\"UINT16\"" => Self::Uint16,
            "\"UINT32\"" => Self::Uint32,
            "\"UINT64\"" => Self::Uint64,
            "\"FP16\"" => Self::Fp16,
            "\"BF16\"" => Self::Bf16,
            "\"FP32\"" => Self::Fp32,
            "\"FP64\"" => Self::Fp64,
            _ => return None,
        })
    }

    fn width(self) -> usize {
        match self {
            Self::Bool | Self::Int8 | Self::Uint8 => 1,
            Self::Int16 | Self::Uint16 | Self::Fp16 | Self::Bf16 => 2,
            Self::Int32 | Self::Uint32 | Self::Fp32 => 4,
            Self::Int64 | Self::Uint64 | Self::Fp64 => 8,
        }
    }

    fn wanted(self) -> &'static str {
        match self {
            Self::Bool => "must be true or false",
            Self::Fp16 | Self::Bf16 | Self::Fp32 | Self::Fp64 => "must be a number",
            Self::Int8 => "must be a whole number of type Int8",
            Self::Int16 => "must be a whole number of type Int16",
            Self::Int32 => "must be a whole number of type Int32",
            Self::Int64 => "must be a whole number of type Int64",
            Self::Uint8 => "must be a whole number of type UInt8",
            Self::Uint16 => "must be a whole number of type UInt16",
            Self::Uint32 => "must be a whole number of type UInt32",
            Self::Uint64 => "must be a whole number of type UInt64",
        }
    }

    /// Appends a whole number; `None` if the type is not an integer type, or the value is out of
    /// range.
    fn whole(self, value: i128, out: &mut Vec<u8>) -> Option<()> {
        match self {
            Self::Int8 => out.extend(i8::try_from(value).ok()?.to_le_bytes()),
            Self::Int16 => out.extend(i16::try_from(value).ok()?.to_le_bytes()),
            Self::Int32 => out.extend(i32::try_from(value).ok()?.to_le_bytes()),
            Self::Int64 => out.extend(i64::try_from(value).ok()?.to_le_bytes()),
            Self::Uint8 => out.extend(u8::try_from(value).ok()?.to_le_bytes()),
            Self::Uint16 => out.extend(u16::try_from(value).ok()?.to_le_bytes()),
            Self::Uint32 => out.extend(u32::try_from(value).ok()?.to_le_bytes()),
            Self::Uint64 => out.extend(u64::try_from(value).ok()?.to_le_bytes()),
            _ => return self.float(value as f64, out),
        }
        Some(())
    }

    /// Appends a number; `None` if the type is not a floating-point type.
    fn float(self, value: f64, out: &mut Vec<u8>) -> Option<()> {
        match self {
            Self::Fp16 => out.extend(half::f16::from_f64(value).to_le_bytes()),
            Self::Bf16 => out.extend(half::bf16::from_f64(value).to_le_bytes()),
            Self::Fp32 => out.extend((value as f32).to_le_bytes()),
            Self::Fp64 => out.extend(value.to_le_bytes()),
            _ => return None,
        }
        Some(())
    }
}

/// Visitor that converts JSON numbers to bytes.
struct Numbers<'o> {
    kind: Kind,
    out: &'o mut Vec<u8>,
    count: usize,
    /// Whether a value did not fit the type.
    wrong: bool,
}

impl<'o> Numbers<'o> {
    /// Appends all numbers in `data`, of any nesting, to `out`.
    ///
    /// # Errors
    /// The fault and its position.
    fn read(
        kind: Kind,
        data: &str,
        shape: Option<&[usize]>,
        out: &'o mut Vec<u8>,
    ) -> Result<(), String> {
        let size = shape.and_then(|shape| {
            let mut dims = shape.iter();
            dims.try_fold(1_usize, |size, dim| size.checked_mul(*dim))
        });
        let commas = memchr::memchr_iter(b',', data.as_bytes()).count();
        out.reserve_exact((commas + 1) * kind.width());
        let mut numbers = Self {
            kind,
            out,
            count: 0,
            wrong: false,
        };
        let mut text = serde_json::Deserializer::from_str(data);
        let read = (&mut numbers).deserialize(&mut text);
        if numbers.wrong {
            let rows = shape.and_then(|shape| shape.first().copied());
            let each = size.unwrap_or(0).checked_div(rows.unwrap_or(1));
            let row = numbers.count / each.unwrap_or(1).max(1);
            return Err(format!(", row {row}: {}", kind.wanted()));
        }
        read.map_err(|error| format!(": its 'data' is not valid: {error}"))?;
        match size {
            Some(size) if size != numbers.count => Err(format!(
                ": has {} values, which does not match its shape {:?}",
                numbers.count,
                shape.unwrap_or_default()
            )),
            _ => Ok(()),
        }
    }

    fn push<E: Error>(&mut self, pushed: Option<()>) -> Result<(), E> {
        self.wrong = pushed.is_none();
        self.count += usize::from(!self.wrong);
        pushed.ok_or_else(|| E::custom(self.kind.wanted()))
    }
}

impl<'de> DeserializeSeed<'de> for &mut Numbers<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for &mut Numbers<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("numbers")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while items.next_element_seed(&mut *self)?.is_some() {}
        Ok(())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        let pushed = self.kind.whole(value.into(), self.out);
        self.push(pushed)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        let pushed = self.kind.whole(value.into(), self.out);
        self.push(pushed)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<(), E> {
        let pushed = self.kind.float(value, self.out);
        self.push(pushed)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        let pushed = matches!(self.kind, Kind::Bool).then(|| self.out.push(value.into()));
        self.push(pushed)
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        self.push(None)
    }

    fn visit_map<A: MapAccess<'de>>(self, _: A) -> Result<(), A::Error> {
        self.push(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The data of `count` rows of two values, as text.
    fn data(count: usize, value: impl Fn(usize) -> String) -> String {
        let rows = (0..count).map(|row| format!("[{},{}]", value(2 * row), value(2 * row + 1)));
        format!("[{}]", rows.collect::<Vec<_>>().join(","))
    }

    fn body(datatype: &str, rows: usize, data: &str) -> Bytes {
        let input =
            format!(r#"{{"name":"x","datatype":"{datatype}","shape":[{rows},2],"data":{data}}}"#);
        let small = r#"{"name":"k","datatype":"INT8","shape":[1],"data":[1]}"#;
        format!(r#"{{"id":"7","inputs":[{input},{small}],"outputs":[]}}"#).into()
    }

    #[test]
    fn a_large_tensor_becomes_its_bytes_and_the_rest_stays() {
        let rows = 20_000;
        let text = body("FP32", rows, &data(rows, |n| format!("{n}.5")));
        let (body, raw) = read(&text, &Bytes::new()).unwrap().unwrap();
        assert_eq!(raw.len(), rows * 2 * 4);
        let at = |n: usize| f32::from_le_bytes(raw[4 * n..4 * n + 4].try_into().unwrap());
        assert!((0..2 * rows).all(|n| at(n) == n as f32 + 0.5));
        assert_eq!(body["id"], "7");
        let inputs = &body["inputs"];
        assert_eq!(inputs[0]["parameters"]["binary_data_size"], raw.len());
        assert!(inputs[0].get("data").is_none());
        assert_eq!(inputs[1]["data"], json!([1]));
    }

    #[test]
    fn every_type_is_read_as_its_tree_is() {
        let rows = 30_000;
        for (datatype, width) in [
            ("BOOL", 1),
            ("INT8", 1),
            ("UINT8", 1),
            ("INT16", 2),
            ("UINT16", 2),
            ("FP16", 2),
            ("BF16", 2),
            ("INT32", 4),
            ("UINT32", 4),
            ("INT64", 8),
            ("UINT64", 8),
            ("FP64", 8),
        ] {
            let value = |n: usize| match datatype {
                "BOOL" => n.is_multiple_of(2).to_string(),
                _ => (n % 100).to_string(),
            };
            let (_, raw) = read(&body(datatype, rows, &data(rows, value)), &Bytes::new())
                .unwrap()
                .unwrap();
            assert_eq!(raw.len(), 2 * rows * width, "{datatype}");
        }
    }

    #[test]
    fn what_is_wrong_is_said_with_its_row() {
        let rows = 30_000;
        for (datatype, value, sign) in [
            ("FP32", "null", "input 'x', row 3: must be a number"),
            ("FP32", "true", "must be a number"),
            ("FP32", "{}", "must be a number"),
            ("INT8", "128", "must be a whole number of type Int8"),
            ("INT64", "1.5", "must be a whole number of type Int64"),
            ("UINT64", "-1", "must be a whole number of type UInt64"),
            ("BOOL", "1", "must be true or false"),
        ] {
            let good = if datatype == "BOOL" { "true" } else { "1" };
            let value = |n: usize| if n == 6 { value } else { good }.to_owned();
            let text = body(datatype, rows, &data(rows, value));
            let error = read(&text, &Bytes::new()).unwrap_err().message;
            assert!(error.contains(sign), "{error}");
        }
        let text = body("INT8", rows + 1, &data(rows, |_| "1".to_owned()));
        let error = read(&text, &Bytes::new()).unwrap_err().message;
        assert!(error.contains("has 60000 values"), "{error}");
    }

    #[test]
    fn bytes_that_came_stay_in_the_order_of_their_inputs() {
        let rows = 30_000;
        let large = data(rows, |_| "1".to_owned());
        let binary = |name: &str, size: usize| {
            format!(
                r#"{{"name":"{name}","datatype":"INT8","shape":[{size}],
                    "parameters":{{"binary_data_size":{size}}}}}"#
            )
        };
        let text = format!(
            r#"{{"inputs":[{},{{"name":"x","datatype":"INT8","shape":[{rows},2],
                "parameters":{{"content_type":"np"}},"data":{large}}},{}]}}"#,
            binary("a", 2),
            binary("b", 3)
        );
        let raw = Bytes::from_static(&[7, 7, 9, 9, 9]);
        let (body, raw) = read(&text.clone().into(), &raw).unwrap().unwrap();
        assert_eq!(raw.len(), 2 * rows + 5);
        assert_eq!(
            (&raw[..3], &raw[raw.len() - 4..]),
            (&[7, 7, 1][..], &[1, 9, 9, 9][..])
        );
        assert_eq!(body["inputs"][1]["parameters"]["content_type"], "np");
        // The tree parser returns the error for too few values.
        assert!(
            read(&text.into(), &Bytes::from_static(&[7]))
                .unwrap()
                .is_none()
        );
    }

    #[test]
    fn what_is_small_texts_or_malformed_is_left_to_trees() {
        let texts = format!("[{}\"a\"]", "\"a\",".repeat(30_000));
        let long = " ".repeat(LARGE);
        for text in [
            "{}".into(),
            body("BYTES", 1, &texts),
            body("FP99", 1, &data(30_000, |n| n.to_string())),
            format!("{long}[]").into(),
            format!("{long}{{\"inputs\":3}}").into(),
            format!("{long}{{\"inputs\":[3]}}").into(),
            format!("{long}{{\"inputs\":[").into(),
        ] {
            assert!(read(&text, &Bytes::new()).unwrap().is_none());
        }
    }
}
