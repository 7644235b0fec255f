//! The messages of a body, in Volley's format and unchanged for upstreams of the same dialect.
//! Pure.

use serde_json::{Map, Value, json};
use volley_types::{ChatMessage, Native, PredictError};

use crate::{beside, chat};

/// Fields of a message that Volley's format has unchanged.
const HELD: [&str; 4] = ["role", "content", "tool_calls", "tool_call_id"];

/// Known fields of a part of a message's content.
const OF_PARTS: [&str; 6] = [
    "type",
    "text",
    "image_url",
    "refusal",
    "cache_control",
    "prompt_cache_breakpoint",
];

/// A conversation.
pub struct Conversation {
    /// The messages in Volley's format.
    pub messages: Vec<ChatMessage>,
    /// The unchanged messages, if Volley's format cannot represent all of them.
    pub native: Option<Native>,
}

/// The conversation of a body.
///
/// # Errors
/// `InvalidInput` naming the field.
pub fn take_messages(body: &mut Map<String, Value>) -> Result<Vec<ChatMessage>, PredictError> {
    let talk = take(body)?;
    match talk.native.and_then(|native| native.lost) {
        Some(lost) => Err(PredictError::invalid(lost)),
        None => Ok(talk.messages),
    }
}

/// Removes the messages from the body and parses them.
///
/// # Errors
/// `InvalidInput` naming the field.
pub fn take(body: &mut Map<String, Value>) -> Result<Conversation, PredictError> {
    let given = match body.remove("messages") {
        Some(Value::Array(messages)) if !messages.is_empty() => messages,
        None | Some(Value::Null) => {
            return Err(PredictError::invalid("field 'messages' is missing"));
        }
        Some(_) => {
            return Err(PredictError::invalid(
                "field 'messages' must be a list of at least one message",
            ));
        }
    };
    let mut messages = Vec::with_capacity(given.len());
    let mut lost = custom(body);
    let mut in_parts = lost.is_none();
    for (index, message) in given.iter().enumerate() {
        if let Some(mut read) = chat::openai_message(message) {
            beside::note(&mut read, unknown(message));
            messages.push(read);
            if calls_custom(message) {
                in_parts = false;
                lost.get_or_insert_with(|| {
                    format!("field 'messages' has a call of the type 'custom' at index {index}")
                });
            }
        } else if let Some(kind) = unheld(message) {
            match chat::shown_message(message) {
                Some(mut read) => {
                    beside::note(&mut read, unknown(message));
                    messages.push(read);
                }
                None => in_parts = false,
            }
            lost.get_or_insert_with(|| {
                format!("field 'messages' has content of the type '{kind}' at index {index}")
            });
        } else {
            return Err(wrong(index));
        }
    }
    let native = (lost.is_some() || !given.iter().all(is_held)).then(|| Native {
        format: "openai".to_owned(),
        body: [("messages".to_owned(), given.into())]
            .into_iter()
            .collect(),
        in_parts: in_parts && lost.is_some(),
        lost,
        ..Native::default()
    });
    Ok(Conversation { messages, native })
}

/// The first field of a message that only servers of this dialect know. Clients send back some
/// fields of answers, and servers that find cached prefixes by content need no marks for them.
fn unknown(message: &Value) -> Option<String> {
    let role = message["role"].as_str().unwrap_or_default();
    let mut known = vec![
        "annotations",
        "function_call",
        "refusal",
        "reasoning",
        "reasoning_content",
        "cache_control",
    ];
    known.extend(HELD);
    // The name of a tool is also that of its call.
    if matches!(role, "tool" | "function") {
        known.push("name");
    }
    beside::unknown(message, &known)
        .or_else(|| beside::unknown_in(&message["content"], "content", &OF_PARTS))
        .or_else(|| unknown_of_images(&message["content"]))
        .or_else(|| beside::of_calls(&message["tool_calls"]))
}

/// The first unknown field of the images in a content.
fn unknown_of_images(content: &Value) -> Option<String> {
    let mut parts = content.as_array()?.iter();
    let known = ["url", "detail"];
    let field = parts.find_map(|part| beside::unknown(&part["image_url"], &known))?;
    Some(format!("content[].image_url.{field}"))
}

/// Describes a custom tool (with free text as input), which only servers of this dialect support.
fn custom(body: &Map<String, Value>) -> Option<String> {
    let mut tools = body.get("tools")?.as_array()?.iter();
    let custom = tools.any(|tool| tool["type"] == "custom");
    custom.then(|| "field 'tools' has a tool of the type 'custom'".to_owned())
}

fn calls_custom(message: &Value) -> bool {
    let calls = message.get("tool_calls").and_then(Value::as_array);
    let mut calls = calls.into_iter().flatten();
    calls.any(|call| call["type"] == "custom")
}

fn wrong(index: usize) -> PredictError {
    PredictError::invalid(format!(
        "field 'messages' has no text message at index {index}: a message has a 'role', a \
         'content' (a text, parts of text, or null), and perhaps 'tool_calls' or a 'tool_call_id'"
    ))
}

/// The type of the first content part that is not text, if the message is valid otherwise.
fn unheld(message: &Value) -> Option<String> {
    let parts = message.get("content")?.as_array()?;
    let kinds: Option<Vec<_>> = parts
        .iter()
        .map(|part| part.get("type")?.as_str())
        .collect();
    let kind = kinds?
        .into_iter()
        .find(|kind| !matches!(*kind, "text" | "refusal"))?;
    let mut plain = message.clone();
    plain["content"] = json!("");
    chat::openai_message(&plain)?;
    Some(kind.chars().filter(|c| !c.is_control()).take(64).collect())
}

/// Whether Volley's format can represent the complete message.
fn is_held(message: &Value) -> bool {
    let plain = |(name, value): (&String, &Value)| match name.as_str() {
        "content" => value.is_string() || value.is_null(),
        "tool_calls" => beside::of_calls(value).is_none(),
        name => value.is_null() || HELD.contains(&name),
    };
    message
        .as_object()
        .is_some_and(|fields| fields.iter().all(plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(messages: Value) -> Result<Conversation, PredictError> {
        take(json!({ "messages": messages }).as_object_mut().unwrap())
    }

    #[test]
    fn what_the_pipeline_does_not_hold_is_kept_as_it_is() {
        let plain = json!([{ "role": "user", "content": "a", "name": null }]);
        assert!(taken(plain).unwrap().native.is_none());
        let named = json!([{ "role": "user", "content": "a", "name": "x" }]);
        let talk = taken(named.clone()).unwrap();
        let native = talk.native.unwrap();
        assert_eq!((talk.messages.len(), native.lost), (1, None));
        assert_eq!(native.body["messages"], named);
        let noted = |messages: Value| {
            let mut talk = taken(messages).unwrap();
            let details = talk.messages.remove(0).details.unwrap_or_default();
            serde_json::from_str::<Value>(&details).unwrap_or_default()["beside"].take()
        };
        assert_eq!(noted(named), "name");
        let part = json!({ "type": "text", "text": "a", "newest": 1 });
        assert_eq!(
            noted(json!([{ "role": "user", "content": [part] }])),
            "content[].newest"
        );
        let call = json!({ "id": "c", "type": "function", "newest": 1,
                           "function": { "name": "f", "arguments": "{}" } });
        let called = json!([{ "role": "assistant", "content": null, "tool_calls": [call] }]);
        assert!(taken(called.clone()).unwrap().native.is_some());
        assert_eq!(noted(called), "tool_calls[].newest");
        let shown = json!({ "type": "image_url", "image_url": { "url": "x", "newest": 1 } });
        assert_eq!(
            noted(json!([{ "role": "user", "content": [shown] }])),
            "content[].image_url.newest"
        );
        for known in [
            json!({ "role": "tool", "content": "a", "tool_call_id": "c", "name": "f" }),
            json!({ "role": "assistant", "content": "a", "refusal": null, "annotations": [1] }),
        ] {
            assert_eq!(noted(json!([known])), Value::Null);
        }
        let image = json!([{ "role": "user", "content": [
            { "type": "text", "text": "What?" },
            { "type": "image_url", "image_url": { "url": "x" } } ] }]);
        let talk = taken(image).unwrap();
        let native = talk.native.unwrap();
        let lost = native.lost.unwrap();
        assert!(lost.contains("'image_url' at index 0"), "{lost}");
        assert!(native.in_parts && talk.messages[0].content == "What?");
        assert!(
            talk.messages[0]
                .details
                .as_deref()
                .unwrap()
                .contains("image_url")
        );
        let sound = json!([{ "role": "user", "content": [{ "type": "input_audio" }] }]);
        assert!(!taken(sound).unwrap().native.unwrap().in_parts);
        let call = json!({ "id": "c", "type": "custom", "custom": { "name": "f", "input": "" } });
        let called = json!([{ "role": "assistant", "tool_calls": [call] }]);
        let native = taken(called).unwrap().native.unwrap();
        assert!(native.lost.unwrap().contains("'custom' at index 0") && !native.in_parts);
        let mut body = json!({ "tools": [{ "type": "custom", "custom": { "name": "f" } }],
                               "messages": [{ "role": "user", "content": "a" }] });
        let lost = take(body.as_object_mut().unwrap())
            .unwrap()
            .native
            .unwrap()
            .lost;
        assert!(lost.unwrap().contains("'tools'"));
        for wrong in [
            json!([{ "role": 1, "content": "a" }]),
            json!([{ "role": "user", "content": [{ "text": 1 }] }]),
            json!([]),
        ] {
            assert!(taken(wrong).is_err());
        }
    }
}
