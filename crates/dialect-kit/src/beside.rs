//! Fields of messages that only servers of the caller's dialect know. Servers of other dialects
//! reject them by name. Pure.

use serde_json::{Value, json};
use volley_types::ChatMessage;

use crate::tools::shown;

/// The first field of an object that is set and not in `known`.
#[must_use]
pub fn unknown(object: &Value, known: &[&str]) -> Option<String> {
    let mut fields = object.as_object()?.iter();
    let (name, _) =
        fields.find(|(name, value)| !value.is_null() && !known.contains(&name.as_str()))?;
    Some(shown(name))
}

/// The first field of the objects in a list that is set and not in `known`, with the name of the
/// list, such as `content[].newest`.
#[must_use]
pub fn unknown_in(list: &Value, name: &str, known: &[&str]) -> Option<String> {
    let mut objects = list.as_array()?.iter();
    let field = objects.find_map(|object| unknown(object, known))?;
    Some(format!("{name}[].{field}"))
}

/// The first unknown field of the calls in OpenAI's format in a list, such as `tool_calls[].newest`.
/// Clients send back positions and signatures of answers.
#[must_use]
pub fn of_calls(calls: &Value) -> Option<String> {
    let known = [
        "id",
        "type",
        "index",
        "function",
        "custom",
        "extra_content",
        "cache_control",
    ];
    let of_functions = || {
        let mut calls = calls.as_array()?.iter();
        let known = ["name", "arguments", "index"];
        let field = calls.find_map(|call| unknown(&call["function"], &known))?;
        Some(format!("tool_calls[].function.{field}"))
    };
    unknown_in(calls, "tool_calls", &known).or_else(of_functions)
}

/// Notes a field in the details of its message. The first noted field of a message stays.
pub fn note(message: &mut ChatMessage, field: Option<String>) {
    let Some(field) = field else {
        return;
    };
    let details = message.details.as_deref();
    let details = details.and_then(|details| serde_json::from_str(details).ok());
    let mut details: Value = details.unwrap_or_else(|| json!({}));
    if details["beside"].is_null() {
        details["beside"] = field.into();
        message.details = Some(details.to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_unknown_field_is_noted() {
        let part = json!({ "type": "text", "nothing": null, "new\u{7}est": 1 });
        assert_eq!(unknown(&part, &["type"]).as_deref(), Some("newest"));
        assert_eq!(unknown(&json!("text"), &[]), None);
        let list = json!(["text", { "type": "text" }, part]);
        let field = unknown_in(&list, "content", &["type"]);
        assert_eq!(field.as_deref(), Some("content[].newest"));
        let call = json!({ "id": "c", "index": 0, "function": { "name": "f", "newest": 1 } });
        let field = of_calls(&json!([call]));
        assert_eq!(field.as_deref(), Some("tool_calls[].function.newest"));
        assert_eq!(
            of_calls(&json!([{ "older": 1 }])).as_deref(),
            Some("tool_calls[].older")
        );
        let field = unknown_in(&list, "content", &["type"]);
        let mut message = ChatMessage {
            details: Some(r#"{"refusal":"No."}"#.to_owned()),
            ..ChatMessage::new("user", "a")
        };
        for noted in [None, field, Some("later".to_owned())] {
            note(&mut message, noted);
        }
        let details: Value = serde_json::from_str(message.details.as_deref().unwrap()).unwrap();
        let expected = json!({ "beside": "content[].newest", "refusal": "No." });
        assert_eq!(details, expected);
    }
}
