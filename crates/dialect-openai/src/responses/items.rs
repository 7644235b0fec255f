//! Converts the items of a request to messages. Pure.

use serde_json::{Map, Value, json};
use volley_types::{ChatMessage, PredictError};

use super::{FORMAT, nested};
use volley_dialect_kit::beside;
use volley_dialect_kit::chat;
use volley_dialect_kit::envelope;
use volley_dialect_kit::tools::shown;

/// Why an item cannot be converted.
enum ItemError {
    /// The item is malformed or incomplete. The text describes the fault.
    Wrong(String),
    /// The item has content of this type, which rows cannot represent.
    Unheld(String),
}

/// The messages of a conversation, and its original items.
pub(super) struct Conversation {
    pub(super) messages: Vec<ChatMessage>,
    /// Description of the content that the messages lack.
    pub(super) lost: Option<String>,
    /// Whether the missing content is in the details of the messages.
    pub(super) in_parts: bool,
    pub(super) items: Vec<Value>,
}

/// Removes `instructions` and `input` and converts them.
///
/// # Errors
/// `InvalidInput` naming the field.
pub(super) fn take(
    body: &mut Map<String, Value>,
    earlier: Vec<Value>,
) -> Result<Conversation, PredictError> {
    let (mut messages, mut lost, mut all) = (Vec::new(), None, earlier);
    let mut in_parts = true;
    match body.remove("instructions") {
        None | Some(Value::Null) => {}
        Some(Value::String(text)) => messages.push(ChatMessage::new("system", text)),
        Some(_) => return Err(PredictError::invalid("field 'instructions' must be a text")),
    }
    for item in &all {
        match add(&mut messages, item) {
            Ok(()) => {}
            Err(ItemError::Wrong(what)) => {
                let message = format!("the response before this one has {what}");
                return Err(PredictError::invalid(message));
            }
            Err(ItemError::Unheld(kind)) => {
                in_parts &= show(&mut messages, item);
                lost.get_or_insert_with(|| {
                    format!("the response before this one has the type '{kind}'")
                });
            }
        }
    }
    match body.remove("input") {
        Some(Value::String(text)) => {
            all.push(json!({
                "type": "message", "role": "user",
                "content": [{ "type": "input_text", "text": text }],
            }));
            messages.push(ChatMessage::new("user", text));
        }
        Some(Value::Array(items)) if !items.is_empty() => {
            for (index, item) in items.iter().enumerate() {
                match add(&mut messages, item) {
                    Ok(()) => {}
                    Err(ItemError::Wrong(what)) => return Err(wrong(&what, index)),
                    Err(ItemError::Unheld(kind)) => {
                        in_parts &= show(&mut messages, item);
                        lost.get_or_insert_with(|| {
                            format!("field 'input' has the type '{kind}' at index {index}")
                        });
                    }
                }
                if let Some(message) = messages.last_mut() {
                    let field = nested::of_item(item);
                    beside::note(
                        message,
                        field.map(|field| format!("input[{index}].{field}")),
                    );
                }
            }
            all.extend(items);
        }
        None | Some(Value::Null) => return Err(PredictError::invalid("field 'input' is missing")),
        Some(_) => {
            return Err(PredictError::invalid(
                "field 'input' must be a text or a list of at least one item",
            ));
        }
    }
    Ok(Conversation {
        messages,
        in_parts: in_parts && lost.is_some(),
        lost,
        items: all,
    })
}

/// Adds an item with images to the parts of a message. Returns whether the item could be converted.
fn show(messages: &mut Vec<ChatMessage>, item: &Value) -> bool {
    let made = match item["type"].as_str() {
        None | Some("message") if item["role"] == "user" => chat::shown_message(item),
        Some("function_call_output") => {
            let plain = json!({
                "role": "tool", "content": item["output"],
                "tool_call_id": item["call_id"],
            });
            chat::shown_message(&plain)
        }
        _ => None,
    };
    let is_made = made.is_some();
    messages.extend(made);
    is_made
}

fn wrong(what: &str, index: usize) -> PredictError {
    PredictError::invalid(format!(
        "field 'input' has {what} at index {index}; an item is a message of text, a \
         'function_call', a 'function_call_output' or a 'reasoning'"
    ))
}

/// Adds one item. Calls are added to the assistant's message before them.
fn add(messages: &mut Vec<ChatMessage>, item: &Value) -> Result<(), ItemError> {
    let text = |name: &str| {
        let text = item.get(name).and_then(Value::as_str);
        text.ok_or_else(|| ItemError::Wrong(format!("an item without a text '{name}'")))
    };
    match item.get("type").map(Value::as_str) {
        None | Some(Some("message")) => {
            let role = match text("role")? {
                "developer" => "system",
                role @ ("user" | "assistant" | "system") => role,
                _ => {
                    return Err(ItemError::Wrong(
                        "a message with an unknown 'role'".to_owned(),
                    ));
                }
            };
            let content = text_of(&item["content"], "a message whose 'content' is not text")?;
            let refusal = chat::refused_parts(item.get("content"));
            match messages.last_mut().filter(|_| role == "assistant") {
                Some(turn) if is_bare(turn) => turn.content = content,
                _ => messages.push(ChatMessage::new(role, content)),
            }
            if let Some(turn) = messages.last_mut() {
                chat::mark_refusal(turn, &refusal);
            }
        }
        Some(Some("function_call")) => {
            let (id, signature) = chat::split_id(text("call_id")?);
            let arguments = Some(text("arguments")?).filter(|text| !text.trim().is_empty());
            let arguments = arguments.unwrap_or("{}");
            let mut call = json!({
                "id": id,
                "type": "function",
                "function": { "name": text("name")?, "arguments": arguments },
            });
            if let Some(signature) = signature {
                call["extra_content"] = json!({ "google": { "thought_signature": signature } });
            }
            add_call(messages, call);
        }
        Some(Some("function_call_output")) => {
            let what = "a 'function_call_output' whose 'output' is not text";
            let output = text_of(&item["output"], what)?;
            messages.push(ChatMessage {
                tool_call_id: Some(chat::split_id(text("call_id")?).0.to_owned()),
                ..ChatMessage::new("tool", output)
            });
        }
        Some(Some("reasoning")) => add_reasoning(messages, item),
        Some(Some("item_reference")) => {
            let what = "a reference to an item that is not stored";
            return Err(ItemError::Wrong(what.to_owned()));
        }
        Some(Some(other)) => return Err(ItemError::Unheld(shown(other))),
        Some(None) => {
            return Err(ItemError::Wrong(
                "an item whose 'type' is not text".to_owned(),
            ));
        }
    }
    Ok(())
}

/// Whether a message has reasoning only.
fn is_bare(turn: &ChatMessage) -> bool {
    let bare = turn.content.is_empty() && turn.tool_calls.is_none();
    turn.role == "assistant" && turn.details.is_some() && bare
}

fn add_call(messages: &mut Vec<ChatMessage>, call: Value) {
    if messages.last().is_none_or(|last| last.role != "assistant") {
        messages.push(ChatMessage::new("assistant", ""));
    }
    let Some(turn) = messages.last_mut() else {
        return;
    };
    let calls = turn.tool_calls.take();
    let calls = calls.and_then(|calls| serde_json::from_str(&calls).ok());
    let mut calls: Vec<Value> = calls.unwrap_or_default();
    calls.push(call);
    turn.tool_calls = Some(Value::Array(calls).to_string());
}

/// Adds reasoning to the assistant's next message. Reasoning whose encrypted content does not
/// verify is dropped, because it was changed in transit.
fn add_reasoning(messages: &mut Vec<ChatMessage>, item: &Value) {
    let parts = ["summary", "content"]
        .iter()
        .flat_map(|name| item[*name].as_array());
    let texts = parts.flatten().filter_map(|part| part["text"].as_str());
    let text = texts.collect::<Vec<_>>().join("\n\n");
    let stretch = match item["encrypted_content"].as_str() {
        None if text.is_empty() => return,
        None => json!({}),
        Some(encrypted) => match envelope::opened(encrypted, "signature", FORMAT) {
            Some(mut opened) => {
                if opened["format"] == FORMAT {
                    opened["item"] = item["id"].clone();
                }
                opened
            }
            None => {
                tracing::warn!("reasoning item dropped: its 'encrypted_content' does not verify");
                return;
            }
        },
    };
    let mut stretch = stretch;
    stretch["text"] = text.into();
    match messages.last_mut().filter(|turn| is_bare(turn)) {
        Some(turn) => {
            let details = turn.details.as_deref().unwrap_or_default();
            let mut details: Value = serde_json::from_str(details).unwrap_or_default();
            if let Some(thinking) = details["thinking"].as_array_mut() {
                thinking.push(stretch);
            }
            turn.details = Some(details.to_string());
        }
        None => messages.push(ChatMessage {
            details: Some(json!({ "thinking": [stretch] }).to_string()),
            ..ChatMessage::new("assistant", "")
        }),
    }
}

/// Concatenates the text of a string, or of a list whose parts are all text.
fn text_of(content: &Value, what: &str) -> Result<String, ItemError> {
    let wrong = || ItemError::Wrong(what.to_owned());
    match content {
        Value::String(text) => Ok(text.clone()),
        Value::Array(parts) => {
            let texts = parts.iter().map(|part| {
                let kind = part["type"].as_str().ok_or_else(wrong)?;
                let name = match kind {
                    "input_text" | "output_text" | "text" => "text",
                    "refusal" => "refusal",
                    other => return Err(ItemError::Unheld(shown(other))),
                };
                part[name].as_str().ok_or_else(wrong)
            });
            texts.collect()
        }
        _ => Err(wrong()),
    }
}
