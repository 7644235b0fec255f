//! Fields of a configuration, as what they should be.

use super::text::{Message, Value};

/// The messages of a field.
pub(crate) fn messages<'a>(message: &'a Message, field: &str) -> Result<Vec<&'a Message>, String> {
    let named = message.0.iter().filter(|(name, _)| name == field);
    let each = named.map(|(_, value)| match value {
        Value::Message(message) => Ok(message),
        Value::Word(_) | Value::Text(_) => Err(format!("'{field}' is not a message")),
    });
    each.collect()
}

/// The text of a field.
pub(super) fn string(message: &Message, field: &str) -> Result<Option<String>, String> {
    match message.last(field) {
        None => Ok(None),
        Some(Value::Text(text)) => Ok(Some(text.clone())),
        Some(_) => Err(format!("'{field}' is not a string")),
    }
}

/// The name that a field has.
pub(crate) fn word(message: &Message, field: &str) -> Result<Option<String>, String> {
    match message.last(field) {
        None => Ok(None),
        // In JSON, names are texts.
        Some(Value::Word(word) | Value::Text(word)) => Ok(Some(word.clone())),
        Some(Value::Message(_)) => Err(format!("'{field}' is not a name")),
    }
}

/// The number of a field.
pub(crate) fn number<T: std::str::FromStr>(
    message: &Message,
    field: &str,
) -> Result<Option<T>, String> {
    message
        .last(field)
        .map(|value| plain(value, field))
        .transpose()
}

/// A value that is a number.
pub(crate) fn plain<T: std::str::FromStr>(value: &Value, field: &str) -> Result<T, String> {
    let number = match value {
        // In JSON, large numbers are texts.
        Value::Word(word) | Value::Text(word) => word.parse().ok(),
        Value::Message(_) => None,
    };
    number.ok_or_else(|| format!("'{field}' is not a number, or is out of range"))
}
