//! Extracts request parameters from the body template of an OpenSearch blueprint. The request body
//! itself is the provider's own, but values that an operator wrote into the template must not be
//! lost.

use serde_json::{Map, Value};
use volley_providers::Provider;

const START: &str = "${parameters.";
/// Fields of the provider's own body.
const OWN: [&str; 8] = [
    "model", "messages", "message", "prompt", "inputs", "input", "system", "stream",
];

/// Adds the fields of `template` to the parameters, unless they are set: fields with a fixed value,
/// and fields whose placeholder has another name or a default.
pub(super) fn adopt(provider: &Provider, template: &str, parameters: &mut Map<String, Value>) {
    let fields = match provider.flat_body {
        true => serde_json::from_str(&quoted(template)),
        false => return,
    };
    // A template that is still not valid JSON contains conditions, which only OpenSearch can
    // evaluate.
    let Ok(Value::Object(fields)) = fields else {
        return;
    };
    for (name, value) in fields {
        if OWN.contains(&name.as_str()) {
            continue;
        }
        let found = match placeholder(&value) {
            Some((from, default)) => {
                let given = match from == name {
                    true => None,
                    false => parameters.remove(from),
                };
                given.or_else(|| default.map(read))
            }
            None if holds_placeholder(&value) => None,
            None => Some(value),
        };
        if let Some(found) = found {
            parameters.entry(name).or_insert(found);
        }
    }
}

/// The parameter of a field's placeholder, and its default.
fn placeholder(value: &Value) -> Option<(&str, Option<&str>)> {
    let inside = value.as_str()?.strip_prefix(START)?.strip_suffix('}')?;
    if inside.contains(['{', '}']) {
        return None;
    }
    Some(match inside.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (inside, None),
    })
}

fn read(default: &str) -> Value {
    serde_json::from_str(default).unwrap_or_else(|_| default.into())
}

fn holds_placeholder(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains(START),
        Value::Array(values) => values.iter().any(holds_placeholder),
        Value::Object(fields) => fields.values().any(holds_placeholder),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Quotes the placeholders that are outside of JSON strings, so that the template becomes valid
/// JSON.
fn quoted(template: &str) -> String {
    let (mut text, mut rest) = (String::with_capacity(template.len() + 16), template);
    let mut inside = false;
    while let Some(start) = rest.find(['"', '\\', '$']) {
        let (before, from) = rest.split_at(start);
        text.push_str(before);
        let taken = match from.as_bytes()[0] {
            b'"' => {
                inside = !inside;
                1
            }
            // The character after a backslash has no special meaning.
            b'\\' => 1 + from[1..].chars().next().map_or(0, char::len_utf8),
            _ if !inside && from.starts_with(START) => {
                let end = from.find('}').map_or(from.len(), |end| end + 1);
                text.push_str(&Value::from(&from[..end]).to_string());
                rest = &from[end..];
                continue;
            }
            _ => 1,
        };
        text.push_str(&from[..taken]);
        rest = &from[taken..];
    }
    text.push_str(rest);
    text
}

#[cfg(test)]
mod tests;
