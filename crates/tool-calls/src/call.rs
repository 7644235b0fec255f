//! One call, and where reading goes on behind it: what all forms have in common.

use serde::Deserialize;
use serde_json::Value;

/// A function that may be called.
#[derive(Clone, Debug, PartialEq)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// The schema of its arguments.
    pub parameters: Value,
}

/// One call.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct ParsedCall {
    #[serde(alias = "tool_name")]
    pub name: String,
    /// Null where there are none.
    #[serde(alias = "parameters", default)]
    pub arguments: Value,
}

/// What follows a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallEnd {
    /// Another call begins there.
    Next(usize),
    /// Text begins there.
    Text(usize),
    /// That is open.
    Open,
}

/// The calls of a text that is nothing but JSON: one, or a list.
pub(crate) fn json(text: &str) -> Option<Vec<ParsedCall>> {
    Some(match serde_json::from_str(text).ok()? {
        list @ Value::Array(_) => serde_json::from_value(list).ok()?,
        one => vec![serde_json::from_value(one).ok()?],
    })
}
