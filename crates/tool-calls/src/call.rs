//! Common types of all formats of calls.

use serde::Deserialize;
use serde_json::Value;

/// A function that the model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct Function {
    /// The name.
    pub name: String,
    /// The JSON schema of the arguments.
    pub parameters: Value,
}

/// A parsed call.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct ParsedCall {
    #[serde(alias = "tool_name")]
    pub name: String,
    /// The arguments; null if there are none.
    #[serde(alias = "parameters", default)]
    pub arguments: Value,
}

/// What follows a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallEnd {
    /// Another call, from this byte offset.
    Next(usize),
    /// Text, from this byte offset.
    Text(usize),
    /// More input is needed to decide.
    Open,
}

/// Parses a text that is one JSON call or a list of them.
pub(crate) fn json(text: &str) -> Option<Vec<ParsedCall>> {
    Some(match serde_json::from_str(text).ok()? {
        list @ Value::Array(_) => serde_json::from_value(list).ok()?,
        one => vec![serde_json::from_value(one).ok()?],
    })
}
