//! Conversations, as the formats need them.

use serde_json::{Value, json};
use volley_backend::items::Item;
use volley_types::{ChatMessage, PredictError};

/// A plain prompt is one user's message.
pub(crate) fn messages(item: &Item) -> Vec<ChatMessage> {
    match item {
        Item::Prompt(prompt) => vec![ChatMessage::new("user", prompt)],
        Item::Chat(messages) => messages.clone(),
    }
}

/// The prompt, for servers that take nothing else.
///
/// # Errors
/// `InvalidInput` where there is a conversation.
pub(super) fn prompt(item: &Item) -> Result<&str, PredictError> {
    match item {
        Item::Prompt(prompt) => Ok(prompt),
        Item::Chat(_) => Err(PredictError::invalid(
            "the remote model's server takes a 'prompt' and no 'messages'; where it has OpenAI's \
             chat completions too, give the connector their URL",
        )),
    }
}

/// A message in OpenAI's form.
pub(crate) fn message(message: &ChatMessage) -> Value {
    let mut fields = json!({ "role": message.role, "content": message.content });
    let calls = message.tool_calls.as_deref();
    if let Some(calls) = calls.and_then(|calls| serde_json::from_str::<Value>(calls).ok()) {
        if message.content.is_empty() {
            fields["content"] = Value::Null;
        }
        fields["tool_calls"] = calls;
    }
    if let Some(id) = &message.tool_call_id {
        fields["tool_call_id"] = id.as_str().into();
    }
    fields
}

/// The tools that a message calls, in OpenAI's form.
pub(super) fn calls(message: &ChatMessage) -> Vec<Value> {
    let calls = message.tool_calls.as_deref();
    let calls = calls.and_then(|calls| serde_json::from_str(calls).ok());
    calls.unwrap_or_default()
}

/// A call's arguments as the object that their text is; empty where it is none.
pub(super) fn arguments(call: &Value) -> Value {
    let arguments = &call["function"]["arguments"];
    let read = match arguments.as_str() {
        Some(text) => serde_json::from_str(text).unwrap_or_default(),
        None => arguments.clone(),
    };
    if read.is_object() { read } else { json!({}) }
}

/// The name of the function whose result a tool's message is: the call stands before it.
pub(super) fn called<'a>(
    before: impl DoubleEndedIterator<Item = &'a ChatMessage>,
    result: &ChatMessage,
) -> Option<String> {
    let id = result.tool_call_id.as_deref()?;
    before.rev().flat_map(calls).find_map(|call| {
        let name = call["function"]["name"].as_str()?;
        (call["id"] == id).then(|| name.to_owned())
    })
}

/// Whether a message is about how to answer, and not a part of the talk.
pub(super) fn is_system(message: &ChatMessage) -> bool {
    matches!(message.role.as_str(), "system" | "developer")
}

/// The system messages as one text, where there are any, and all others.
pub(super) fn without_system(messages: Vec<ChatMessage>) -> (Option<String>, Vec<ChatMessage>) {
    let (system, rest): (Vec<_>, Vec<_>) = messages.into_iter().partition(is_system);
    let texts: Vec<_> = system.into_iter().map(|message| message.content).collect();
    ((!texts.is_empty()).then(|| texts.join("\n\n")), rest)
}
