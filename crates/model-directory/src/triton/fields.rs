//! Reads fields of a configuration as specific types.

use std::collections::BTreeSet;

use super::json::is_repeated;
use super::text::{Message, Value};

/// The messages in a field.
pub(crate) fn messages<'a>(message: &'a Message, field: &str) -> Result<Vec<&'a Message>, String> {
    let named = message.0.iter().filter(|(name, _)| name == field);
    let each = named.map(|(_, value)| match value {
        Value::Message(message) => Ok(message),
        Value::Word(_) | Value::Text(_) => Err(format!("'{field}' is not a message")),
    });
    each.collect()
}

/// Rejects a message with more than one of `fields`, which exclude each other.
pub(super) fn one_of(message: &Message, fields: &[&str]) -> Result<(), String> {
    let mut given = fields.iter().filter(|field| message.last(field).is_some());
    match (given.next(), given.next()) {
        (Some(first), Some(second)) => Err(format!(
            "'{first}' and '{second}' exclude each other; leave one out"
        )),
        _ => Ok(()),
    }
}

/// Rejects a field that is set twice and is not a list or a map, here and in nested messages.
pub(super) fn once(message: &Message) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    for (field, value) in &message.0 {
        if !seen.insert(field.as_str()) && !is_repeated(field) {
            let field: String = field.chars().take(64).collect();
            return Err(format!("'{field}' is set twice; set it once"));
        }
        if let Value::Message(inner) = value {
            once(inner)?;
        }
    }
    Ok(())
}

/// The string in a field.
pub(super) fn string(message: &Message, field: &str) -> Result<Option<String>, String> {
    match message.last(field) {
        None => Ok(None),
        Some(Value::Text(text)) => Ok(Some(text.clone())),
        Some(_) => Err(format!("'{field}' is not a string")),
    }
}

/// The enum name in a field.
pub(crate) fn word(message: &Message, field: &str) -> Result<Option<String>, String> {
    match message.last(field) {
        None => Ok(None),
        // JSON encodes enum names as strings.
        Some(Value::Word(word) | Value::Text(word)) => Ok(Some(word.clone())),
        Some(Value::Message(_)) => Err(format!("'{field}' is not a name")),
    }
}

/// The number in a field.
pub(crate) fn number<T: std::str::FromStr>(
    message: &Message,
    field: &str,
) -> Result<Option<T>, String> {
    message
        .last(field)
        .map(|value| plain(value, field))
        .transpose()
}

/// Parses a value as a number.
pub(crate) fn plain<T: std::str::FromStr>(value: &Value, field: &str) -> Result<T, String> {
    let number = match value {
        // JSON encodes 64-bit numbers as strings.
        Value::Word(word) | Value::Text(word) => word.parse().ok(),
        Value::Message(_) => None,
    };
    number.ok_or_else(|| format!("'{field}' is not a number, or is out of range"))
}
