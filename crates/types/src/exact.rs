//! JSON objects whose numbers a [`Value`] cannot hold, such as integers of more than 64 bits. Such
//! an object is part of a body as its text, and [`write()`] restores it.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

use serde_json::value::RawValue;
use serde_json::{Deserializer, Map, Value};

/// Prefix of the text of such an object. It differs between processes and is never sent, so that no
/// text of a caller or an upstream can have it.
static MARK: LazyLock<String> = LazyLock::new(|| {
    let part = |seed: u8| RandomState::new().hash_one(seed);
    format!("volley-exact-{:016x}{:016x}:", part(0), part(1))
});

/// The object of a JSON text, for a body that [`write()`] serializes; `None` for any other text. The
/// value is a string if it stands for an object with inexact numbers.
#[must_use]
pub fn object(text: &str) -> Option<Value> {
    let value: Value = serde_json::from_str(text).ok()?;
    let (text, is_exact) = compacted(text);
    value.is_object().then(|| match is_exact {
        true => value,
        false => format!("{}{text}", *MARK).into(),
    })
}

/// The text of an object that a string of [`object()`] stands for; `None` for every other string.
#[must_use]
pub fn held(text: &str) -> Option<&str> {
    text.strip_prefix(MARK.as_str())
}

/// Makes the inputs of calls exact, in the messages of a body in Anthropic's or Ollama's format.
/// `text` is the JSON of the body.
pub fn keep_inputs(body: &mut Map<String, Value>, text: &str) {
    if !text.contains("tool_use") && !text.contains("tool_calls") {
        return;
    }
    let given = fields(text).and_then(|fields| items(fields.get("messages")?.get()));
    let messages = body.get_mut("messages").and_then(Value::as_array_mut);
    let pairs = messages
        .into_iter()
        .flatten()
        .zip(given.into_iter().flatten());
    for (message, given) in pairs {
        let Some(given) = fields(given.get()) else {
            continue;
        };
        let blocks = given.get("content").and_then(|list| items(list.get()));
        for (block, given) in paired(message, "content", blocks) {
            if block.get("type").is_none_or(|kind| kind != "tool_use") {
                continue;
            }
            let exact = fields(given.get()).and_then(|fields| object(fields.get("input")?.get()));
            if let Some(exact) = exact {
                block["input"] = exact;
            }
        }
        let calls = given.get("tool_calls").and_then(|list| items(list.get()));
        for (call, given) in paired(message, "tool_calls", calls) {
            let function = fields(given.get());
            let function = function.and_then(|call| fields(call.get("function")?.get()));
            let exact = function.and_then(|fields| object(fields.get("arguments")?.get()));
            let place = call.pointer_mut("/function/arguments");
            if let (Some(place), Some(exact)) = (place, exact) {
                *place = exact;
            }
        }
    }
}

/// The items of a message's list, each with its text.
fn paired<'a, 'b>(
    message: &'a mut Value,
    name: &str,
    texts: Option<Vec<&'b RawValue>>,
) -> impl Iterator<Item = (&'a mut Value, &'b RawValue)> {
    let items = message.get_mut(name).and_then(Value::as_array_mut);
    items.into_iter().flatten().zip(texts.into_iter().flatten())
}

/// The texts of an object's fields.
pub(crate) fn fields(text: &str) -> Option<BTreeMap<String, &RawValue>> {
    serde_json::from_str(text).ok()
}

/// The texts of a list's items.
fn items(text: &str) -> Option<Vec<&RawValue>> {
    serde_json::from_str(text).ok()
}

/// Serializes a body with values of [`object`].
#[must_use]
pub fn write(body: &Value) -> String {
    let text = body.to_string();
    let quoted = format!("\"{}", *MARK);
    let mut made = String::new();
    let mut rest = text.as_str();
    while let Some(at) = rest.find(&quoted) {
        let (before, held) = rest.split_at(at);
        let mut strings = Deserializer::from_str(held).into_iter::<String>();
        let Some(Ok(string)) = strings.next() else {
            break;
        };
        made.push_str(before);
        made.push_str(string.strip_prefix(MARK.as_str()).unwrap_or_default());
        rest = &held[strings.byte_offset()..];
    }
    if made.is_empty() {
        return text;
    }
    made.push_str(rest);
    made
}

/// The text of a valid JSON value without white space between its tokens, and whether a [`Value`]
/// holds all of its numbers exactly.
fn compacted(text: &str) -> (String, bool) {
    let (mut made, mut is_exact) = (String::with_capacity(text.len()), true);
    let (mut in_string, mut escaped) = (false, false);
    // Start of the open number in the text that was made.
    let mut number = None;
    for character in text.chars() {
        if let Some(start) = number
            && !matches!(character, '0'..='9' | '+' | '-' | '.' | 'e' | 'E')
        {
            is_exact &= holds(&made[start..]);
            number = None;
        }
        match character {
            _ if escaped => escaped = false,
            '\\' if in_string => escaped = true,
            '"' => in_string = !in_string,
            _ if in_string => {}
            ' ' | '\t' | '\n' | '\r' => continue,
            '-' | '0'..='9' => _ = number.get_or_insert(made.len()),
            _ => {}
        }
        made.push(character);
    }
    (made, is_exact)
}

/// Whether a [`Value`] keeps the text of a number.
fn holds(number: &str) -> bool {
    let read = serde_json::from_str::<Value>(number);
    let written = read.map(|value| value.to_string());
    written.is_ok_and(|written| written == number)
}

#[cfg(test)]
mod tests;
