//! Parses large JSON tensors directly into bytes, because trees of values need many times the
//! memory. The result is the protocol's binary format. Pure.

mod outline;

use std::fmt;

use bytes::Bytes;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use volley_types::{PredictError, Share};

pub use self::outline::Members;
use self::outline::{Items, Trees};

/// Smaller bodies are parsed as trees, in bytes.
pub const LARGE: usize = 4 << 10;
/// Maximum size of tensors relative to their text: an eight-byte number may be a digit and a comma.
/// A text has four bytes in place of its quotes and comma.
pub const FACTOR: usize = 4;
/// Parameter with the number of an input's bytes after the JSON.
const SIZE: &str = "binary_data_size";

/// A body whose large tensors are in the bytes after it.
type Compact = (Map<String, Value>, Bytes);

/// Returns the body in `text` and the bytes after it: its large tensors, merged with the bytes in
/// `raw` of other inputs. `None` if the body has no large tensors and can be parsed as usual.
///
/// # Errors
/// `InvalidInput` naming the input, the row and what a value should be. `TooLarge` or `Overloaded`
/// if `share` has no room for the parts that are parsed as trees.
pub fn read(text: &Bytes, raw: &Bytes, share: &mut Share) -> Result<Option<Compact>, PredictError> {
    if text.len() < LARGE {
        return Ok(None);
    }
    let Ok(Members(fields)) = serde_json::from_slice(text) else {
        return Ok(None);
    };
    let given = fields.get("inputs").map(|inputs| inputs.get());
    let Some(Ok(Items(given))) = given.map(serde_json::from_str) else {
        return Ok(None);
    };
    let mut behind = TrailingBytes {
        raw,
        out: Vec::new(),
        large: 0,
        trees: Trees::new(text.len(), share),
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
            body.insert(name, behind.trees.parse(value)?);
        }
    }
    body.insert("inputs".to_owned(), inputs.into());
    behind.out.extend_from_slice(behind.raw);
    Ok(Some((body, behind.out.into())))
}

/// Builder of the bytes after the JSON.
struct TrailingBytes<'r, 's> {
    /// Received bytes that are not in `out` yet.
    raw: &'r [u8],
    out: Vec<u8>,
    /// Number of large tensors.
    large: usize,
    trees: Trees<'s>,
}

impl TrailingBytes<'_, '_> {
    /// Returns an input without its data if the data are large; `None` if it is malformed.
    fn add(&mut self, input: &RawValue) -> Result<Option<Value>, PredictError> {
        let Ok(Members(mut fields)) = serde_json::from_str(input.get()) else {
            return Ok(None);
        };
        let data = fields.remove("data");
        let mut head = Map::new();
        for (name, value) in fields {
            head.insert(name, self.trees.parse(value)?);
        }
        let (Some(data), Some(kind)) = (data, data.and_then(|data| Kind::of(&head, data.get())))
        else {
            if let Some(data) = data {
                head.insert("data".to_owned(), self.trees.parse(data)?);
            }
            let input = head.into();
            return Ok(self.pass(&input).then_some(input));
        };
        let shape = shape(&head);
        let before = self.out.len();
        let elements = Elements::read(kind, data.get(), shape.as_deref(), &mut self.out);
        elements.map_err(|what| {
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

/// A type of elements.
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
    Bytes,
}

impl Kind {
    /// The type of an input without its data, if `data` are large and are compacted.
    fn of(head: &Map<String, Value>, data: &str) -> Option<Self> {
        let kind = Self::named(head.get("datatype")?.as_str()?)?;
        let plain = match kind {
            // Base64 is decoded where the model's types are known.
            Self::Bytes => {
                let parameters = head.get("parameters");
                let coded = parameters.and_then(|given| given.get("content_type")?.as_str());
                coded != Some("base64")
            }
            _ => !data.contains('"'),
        };
        (LARGE <= data.len() && plain).then_some(kind)
    }

    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "BOOL" => Self::Bool,
            "INT8" => Self::Int8,
            "INT16" => Self::Int16,
            "INT32" => Self::Int32,
            "INT64" => Self::Int64,
            "UINT8" => Self::Uint8,
            "UINT16" => Self::Uint16,
            "UINT32" => Self::Uint32,
            "UINT64" => Self::Uint64,
            "FP16" => Self::Fp16,
            "BF16" => Self::Bf16,
            "FP32" => Self::Fp32,
            "FP64" => Self::Fp64,
            "BYTES" => Self::Bytes,
            _ => return None,
        })
    }

    /// Bytes of one element; of a text, those of its length.
    fn width(self) -> usize {
        match self {
            Self::Bool | Self::Int8 | Self::Uint8 => 1,
            Self::Int16 | Self::Uint16 | Self::Fp16 | Self::Bf16 => 2,
            Self::Int32 | Self::Uint32 | Self::Fp32 | Self::Bytes => 4,
            Self::Int64 | Self::Uint64 | Self::Fp64 => 8,
        }
    }

    fn wanted(self) -> &'static str {
        match self {
            Self::Bool => "must be true or false",
            Self::Bytes => "must be a string",
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

    /// Appends a text behind its length; `None` if the type is not that of texts.
    fn text(self, text: &str, out: &mut Vec<u8>) -> Option<()> {
        let length = u32::try_from(text.len()).ok()?;
        matches!(self, Self::Bytes).then(|| {
            out.extend(length.to_le_bytes());
            out.extend_from_slice(text.as_bytes());
        })
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

/// Visitor that converts JSON values to bytes.
struct Elements<'o> {
    kind: Kind,
    out: &'o mut Vec<u8>,
    count: usize,
    /// Whether a value did not fit the type.
    wrong: bool,
}

impl<'o> Elements<'o> {
    /// Appends all values in `data`, of any nesting, to `out`.
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
        if matches!(kind, Kind::Bytes) {
            // The commas of texts do not tell their number.
            out.reserve(data.len());
        } else {
            let commas = memchr::memchr_iter(b',', data.as_bytes()).count();
            out.reserve_exact((commas + 1) * kind.width());
        }
        let mut elements = Self {
            kind,
            out,
            count: 0,
            wrong: false,
        };
        let mut text = serde_json::Deserializer::from_str(data);
        let read = (&mut elements).deserialize(&mut text);
        if elements.wrong {
            let rows = shape.and_then(|shape| shape.first().copied());
            let each = size.unwrap_or(0).checked_div(rows.unwrap_or(1));
            let row = elements.count / each.unwrap_or(1).max(1);
            return Err(format!(", row {row}: {}", kind.wanted()));
        }
        read.map_err(|error| format!(": its 'data' is not valid: {error}"))?;
        match size {
            Some(size) if size != elements.count => Err(format!(
                ": has {} values, which does not match its shape {:?}",
                elements.count,
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

impl<'de> DeserializeSeed<'de> for &mut Elements<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for &mut Elements<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("numbers or texts")
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

    fn visit_str<E: Error>(self, value: &str) -> Result<(), E> {
        let pushed = self.kind.text(value, self.out);
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
mod tests;
