//! Fields of a row that only some dialects support.

use serde_json::{Map, Value};

/// Name of the field of [`Details::fields`] with a warning about the translation of the request. It
/// is in the first row and in the last one.
pub const WARNING: &str = "volley-warning";

/// The details of one row: a JSON object in the column `details`. A dialect without a matching
/// field omits it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Details {
    /// Format of the JSON values: the stable name of a provider.
    pub format: Option<String>,
    /// Whether a block of text begins with this row.
    pub begins: bool,
    /// Signature at the end of a reasoning block. Without reasoning before it, the block has no
    /// text.
    pub signature: Option<String>,
    /// An encrypted reasoning block, unchanged.
    pub redacted: Option<String>,
    /// Whether the row's reasoning is a summary.
    pub summary: bool,
    /// The provider's id of the reasoning block.
    pub item: Option<String>,
    /// Whether the row's text is a refusal.
    pub refusal: bool,
    /// Complete parts of an answer of types that only `format` defines.
    pub blocks: Vec<Value>,
    /// Stream events of such parts, in `format`.
    pub events: Vec<Value>,
    /// The stop string that ended the answer.
    pub stop_sequence: Option<String>,
    /// The finish reason in the provider's own terms.
    pub stop_reason: Option<String>,
    /// The provider's details of a refusal.
    pub stop_details: Option<Value>,
    /// The usage in the provider's own format.
    pub usage: Option<Value>,
    /// Other fields of the provider's response.
    pub fields: Option<Value>,
    /// The complete answer in the provider's own format, for a caller of the same dialect.
    pub answer: Option<Value>,
    /// Whether the stream had a finish reason but ended without its terminator.
    pub unterminated: bool,
    /// Reason of a failed row: the name of an [`ErrorReason`](crate::ErrorReason).
    pub reason: Option<String>,
    /// Retry delay of a failed row in milliseconds.
    pub retry_after_ms: Option<u64>,
}

impl Details {
    /// Whether the row has no details.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let unsaid = Self {
            format: self.format.clone(),
            ..Self::default()
        };
        *self == unsaid
    }

    /// Parses the details of a chunk's column. Malformed values are skipped.
    #[must_use]
    pub fn from_json(json: &str) -> Self {
        let Ok(Value::Object(mut given)) = serde_json::from_str(json) else {
            return Self::default();
        };
        let mut text = |name: &str| match given.remove(name) {
            Some(Value::String(text)) => Some(text),
            _ => None,
        };
        let format = text("format");
        let (signature, redacted, item) = (text("signature"), text("redacted"), text("item"));
        let (stop_sequence, stop_reason) = (text("stop_sequence"), text("stop_reason"));
        let reason = text("reason");
        let flag = |name: &str| given.get(name) == Some(&Value::Bool(true));
        let (begins, summary) = (flag("begins"), flag("summary"));
        let (refusal, unterminated) = (flag("refusal"), flag("unterminated"));
        let mut list = |name: &str| match given.remove(name) {
            Some(Value::Array(list)) => list,
            _ => Vec::new(),
        };
        let (blocks, events) = (list("blocks"), list("events"));
        Self {
            format,
            begins,
            signature,
            redacted,
            summary,
            item,
            refusal,
            blocks,
            events,
            stop_sequence,
            stop_reason,
            stop_details: given.remove("stop_details"),
            usage: given.remove("usage"),
            fields: given.remove("fields"),
            answer: given.remove("answer"),
            unterminated,
            reason,
            retry_after_ms: given.get("retry_after_ms").and_then(Value::as_u64),
        }
    }

    /// Serializes details for a chunk's column; `None` if they are empty.
    #[must_use]
    pub fn to_json(&self) -> Option<String> {
        if self.is_empty() {
            return None;
        }
        let mut told = Map::new();
        let texts = [
            ("format", &self.format),
            ("signature", &self.signature),
            ("redacted", &self.redacted),
            ("item", &self.item),
            ("stop_sequence", &self.stop_sequence),
            ("stop_reason", &self.stop_reason),
            ("reason", &self.reason),
        ];
        for (name, text) in texts {
            if let Some(text) = text {
                told.insert(name.to_owned(), text.as_str().into());
            }
        }
        let flags = [
            ("begins", self.begins),
            ("summary", self.summary),
            ("refusal", self.refusal),
            ("unterminated", self.unterminated),
        ];
        for (name, _) in flags.iter().filter(|(_, set)| *set) {
            told.insert((*name).to_owned(), true.into());
        }
        let values = [
            ("stop_details", &self.stop_details),
            ("usage", &self.usage),
            ("fields", &self.fields),
            ("answer", &self.answer),
        ];
        for (name, value) in values {
            if let Some(value) = value {
                told.insert(name.to_owned(), value.clone());
            }
        }
        if let Some(ms) = self.retry_after_ms {
            told.insert("retry_after_ms".to_owned(), ms.into());
        }
        if !self.blocks.is_empty() {
            told.insert("blocks".to_owned(), self.blocks.clone().into());
        }
        if !self.events.is_empty() {
            told.insert("events".to_owned(), self.events.clone().into());
        }
        Some(Value::Object(told).to_string())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let details = Details {
            format: Some("anthropic".to_owned()),
            begins: true,
            signature: Some("c2ln".to_owned()),
            redacted: Some("ZGF0YQ==".to_owned()),
            summary: true,
            item: Some("rs_1".to_owned()),
            refusal: true,
            blocks: vec![json!({ "type": "new" })],
            events: vec![json!({ "type": "new.begun" })],
            stop_sequence: Some("END".to_owned()),
            stop_reason: Some("pause_turn".to_owned()),
            stop_details: Some(json!({ "category": "x" })),
            usage: Some(json!({ "input_tokens": 1 })),
            fields: Some(json!({ "system_fingerprint": "fp" })),
            answer: Some(json!({ "content": [] })),
            unterminated: true,
            reason: Some("content_filter".to_owned()),
            retry_after_ms: Some(1_500),
        };
        assert_eq!(Details::from_json(&details.to_json().unwrap()), details);
        let named = Details {
            format: Some("openai".to_owned()),
            ..Details::default()
        };
        assert!(named.is_empty() && named.to_json().is_none());
        for none in [
            "",
            "[]",
            "7",
            "{\"refusal\":1,\"signature\":2,\"blocks\":{}}",
        ] {
            assert_eq!(Details::from_json(none), Details::default(), "{none}");
        }
    }
}
