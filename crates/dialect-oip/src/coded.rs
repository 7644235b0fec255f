//! BYTES tensors in JSON whose elements are not plain texts: base64, as in MLServer. Pure.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{ArrayRef, StringArray};
use arrow_schema::{DataType, Field};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use volley_types::octets;
use volley_types::signature::takes_octets;

/// Decodes the elements of a BYTES tensor in JSON: base64, which MLServer's clients declare in
/// `content_type`, or texts that start with the mark of encoded bytes. `None` if all elements are
/// plain texts.
pub(super) fn bytes_of_texts(
    input: &Value,
    field: &Field,
    item: &Field,
    texts: &[&Value],
) -> Result<Option<ArrayRef>, String> {
    if !matches!(item.data_type(), DataType::Utf8) {
        return Ok(None);
    }
    let coded = is_base64(input.get("parameters"));
    let marked = |text: &&Value| text.as_str().is_some_and(|it| it.starts_with(octets::MARK));
    if !coded && !texts.iter().any(marked) {
        return Ok(None);
    }
    let any_bytes = takes_octets(field);
    let read = |(index, text): (usize, &&Value)| {
        let text = text
            .as_str()
            .ok_or_else(|| format!("element {index} must be a string"))?;
        if !coded {
            let bytes = octets::to_text(text.as_bytes()).into_owned();
            return Ok(if any_bytes { bytes } else { text.to_owned() });
        }
        let bytes = STANDARD.decode(text);
        let bytes = bytes.map_err(|_| format!("element {index} is not base64"))?;
        match String::from_utf8(bytes) {
            Ok(text) if !any_bytes => Ok(text),
            Ok(text) => Ok(octets::to_text(text.as_bytes()).into_owned()),
            Err(other) if any_bytes => Ok(octets::to_text(other.as_bytes()).into_owned()),
            Err(_) => Err(format!(
                "element {index} is not UTF-8; this model takes text"
            )),
        }
    };
    let read: Result<Vec<String>, String> = texts.iter().enumerate().map(read).collect();
    Ok(Some(Arc::new(StringArray::from(read?))))
}

/// Whether the parameters of a tensor declare base64.
pub(super) fn is_base64(parameters: Option<&Value>) -> bool {
    let told = parameters.and_then(|given| given.get("content_type"));
    told.and_then(Value::as_str) == Some("base64")
}

/// Encodes the texts of `parts` as JSON. They are base64 if requested, or if one is not plain text;
/// the flag reports this. `None` if all are plain texts and base64 is not requested.
pub(super) fn json_of_texts(parts: &[ArrayRef], wanted: bool) -> Option<(Vec<Value>, bool)> {
    let are_texts = |part: &ArrayRef| *part.data_type() == DataType::Utf8;
    if parts.is_empty() || !parts.iter().all(are_texts) {
        return None;
    }
    let texts = || {
        let texts = parts.iter().filter_map(|part| part.as_string_opt::<i32>());
        texts.flat_map(|part| part.iter().map(Option::unwrap_or_default))
    };
    if !wanted && !texts().any(|text| text.starts_with(octets::MARK)) {
        return None;
    }
    let bytes: Vec<_> = texts().map(octets::to_bytes).collect();
    if !wanted {
        let plain = bytes.iter().map(|bytes| std::str::from_utf8(bytes).ok());
        if let Some(plain) = plain.collect::<Option<Vec<&str>>>() {
            return Some((plain.into_iter().map(Value::from).collect(), false));
        }
    }
    let coded = bytes.iter().map(|bytes| STANDARD.encode(bytes).into());
    Some((coded.collect(), true))
}

#[cfg(test)]
mod tests;
