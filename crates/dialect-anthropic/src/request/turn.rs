//! Converts one message of a body to chat messages. Pure.

use serde_json::{Map, Value, json};
use volley_types::{ChatMessage, exact};

use super::{kind, text_of};
use crate::FORMAT;
use volley_dialect_kit::beside;
use volley_dialect_kit::chat::{self, split_id};
use volley_dialect_kit::envelope;

/// The chat messages of one Anthropic message: several if it has tool results, because each result
/// is a message of its own.
#[derive(Debug, Default)]
pub(super) struct Turn {
    pub(super) messages: Vec<ChatMessage>,
    /// Type of the first block that the messages cannot represent as text.
    pub(super) lost: Option<String>,
    /// Whether a block cannot be represented by `parts` either.
    pub(super) beyond: bool,
}

/// The parts of one message so far.
#[derive(Default)]
struct TurnParts {
    text: String,
    calls: Vec<Value>,
    /// Position of each call in the text, in characters.
    calls_at: Vec<usize>,
    /// Marks for a cache.
    marks: Vec<Value>,
    thinking: Vec<Value>,
    results: Vec<ChatMessage>,
    /// Text and images, if the message has any.
    parts: Vec<Value>,
    lost: Option<String>,
    beyond: bool,
    /// The first field that only servers of this dialect know, except those of results.
    unknown: Option<String>,
}

/// Known fields of the blocks of each type. Clients send back some fields of answers.
const FIELDS: [(&str, &[&str]); 6] = [
    ("text", &["text", "citations"]),
    ("image", &["source"]),
    ("thinking", &["thinking", "signature"]),
    ("redacted_thinking", &["data"]),
    ("tool_use", &["id", "name", "input", "caller"]),
    ("tool_result", &["tool_use_id", "content", "is_error"]),
];

/// The first field of a block, or of a block in its content, that only servers of this dialect
/// know. Blocks of unknown types are no part of the messages.
fn unknown(block: &Value) -> Option<String> {
    let (_, fields) = FIELDS.iter().find(|(it, _)| Some(*it) == kind(block))?;
    let known = [*fields, &["type", "cache_control"][..]].concat();
    let field = beside::unknown(block, &known).or_else(|| {
        let known = ["type", "url", "media_type", "data"];
        let field = beside::unknown(&block["source"], &known)?;
        Some(format!("source.{field}"))
    });
    let field = field.or_else(|| block["content"].as_array()?.iter().find_map(unknown))?;
    Some(format!("content[].{field}"))
}

/// Whether a block may be sent to an upstream of this format. Reasoning that such an upstream has
/// not signed may not.
pub(super) fn is_own(block: &Value) -> bool {
    let (name, given) = match kind(block) {
        Some("thinking") => ("signature", &block["signature"]),
        Some("redacted_thinking") => ("redacted", &block["data"]),
        _ => return true,
    };
    let given = given.as_str().filter(|given| !given.is_empty());
    let opened = given.and_then(|given| envelope::opened(given, name, FORMAT));
    opened.is_some_and(|opened| opened["format"] == FORMAT)
        && given.is_some_and(|given| !envelope::is_sealed(given))
}

/// Converts a message; `None` if it is malformed.
pub(super) fn messages(message: &Value) -> Option<Turn> {
    let role = message.get("role")?.as_str()?;
    if !matches!(role, "user" | "assistant" | "system") {
        return None;
    }
    let mut turn = match message.get("content")? {
        Value::String(text) => Turn {
            messages: vec![ChatMessage::new(role, text)],
            ..Turn::default()
        },
        Value::Array(blocks) => {
            let mut said = TurnParts::default();
            for block in blocks {
                said.block(role, block)?;
            }
            said.turn(role)
        }
        _ => return None,
    };
    if let Some(last) = turn.messages.last_mut() {
        beside::note(last, beside::unknown(message, &["role", "content"]));
    }
    Some(turn)
}

impl TurnParts {
    fn block(&mut self, role: &str, block: &Value) -> Option<()> {
        match kind(block)? {
            "text" => {
                let text = block.get("text")?.as_str()?;
                self.text.push_str(text);
                self.parts.push(json!({ "type": "text", "text": text }));
            }
            "image" if role == "user" => {
                self.lost.get_or_insert_with(|| "image".to_owned());
                match image(block) {
                    Some(part) => self.parts.push(part),
                    None => self.beyond = true,
                }
            }
            "thinking" if role == "assistant" => {
                let text = block.get("thinking")?.as_str()?;
                self.thinking(text, block["signature"].as_str().unwrap_or_default());
            }
            "redacted_thinking" if role == "assistant" => {
                let data = block.get("data")?.as_str()?;
                self.thinking
                    .extend(envelope::opened(data, "redacted", FORMAT));
            }
            "tool_use" if role == "assistant" => {
                self.calls.push(call(block)?);
                self.calls_at.push(self.text.chars().count());
            }
            "tool_result" if role == "user" => self.result(block)?,
            // An upstream of this format receives the block unchanged.
            other => {
                self.lost.get_or_insert_with(|| other.to_owned());
                self.beyond = true;
            }
        }
        let mark = cache_mark(block, self.text.chars().count(), self.calls.len());
        match self
            .results
            .last_mut()
            .filter(|_| kind(block) == Some("tool_result"))
        {
            Some(result) => {
                add_marks(result, mark.into_iter().collect());
                beside::note(result, unknown(block));
            }
            None => {
                self.marks.extend(mark);
                self.unknown = self.unknown.take().or_else(|| unknown(block));
            }
        }
        Some(())
    }

    /// Adds reasoning with its signature, or without one if the model does not sign reasoning.
    /// Reasoning whose signature does not verify is dropped, because it was changed in transit.
    fn thinking(&mut self, text: &str, signature: &str) {
        if signature.is_empty() {
            self.thinking.push(json!({ "text": text }));
            return;
        }
        match envelope::opened(signature, "signature", FORMAT) {
            Some(mut opened) => {
                opened["text"] = text.into();
                self.thinking.push(opened);
            }
            None => tracing::warn!("reasoning block dropped: its signature does not verify"),
        }
    }

    fn result(&mut self, block: &Value) -> Option<()> {
        let failed = block.get("is_error") == Some(&Value::Bool(true));
        let mut shown = None;
        let mut content = match block.get("content") {
            None | Some(Value::Null) => String::new(),
            Some(content) => match text_of(content) {
                Some(text) => text,
                None => {
                    let mut parts = content.as_array()?.iter().map(kind);
                    let other = parts.find(|kind| *kind != Some("text"))??;
                    self.lost.get_or_insert_with(|| other.to_owned());
                    shown = parts_of(content);
                    self.beyond |= shown.is_none();
                    let texts = shown.iter().flatten();
                    let texts = texts.filter_map(|part| part["text"].as_str());
                    texts.collect()
                }
            },
        };
        if failed && !content.to_ascii_lowercase().starts_with("error") {
            // Marks the error in the text, for models without another field for it.
            content = format!("Error: {content}");
        }
        let id = block.get("tool_use_id")?.as_str()?;
        let result = ChatMessage {
            tool_call_id: Some(split_id(id).0.to_owned()),
            details: failed.then(|| json!({ "is_error": true }).to_string()),
            ..ChatMessage::new("tool", content.clone())
        };
        let result = match shown {
            Some(parts) => {
                let mut result = chat::with_parts(result, &parts)?;
                result.content = content;
                result
            }
            None => result,
        };
        self.results.push(result);
        Some(())
    }

    fn turn(self, role: &str) -> Turn {
        let mut messages = self.results;
        let tool_calls = (!self.calls.is_empty()).then(|| Value::Array(self.calls).to_string());
        let mut details = Map::new();
        if !self.thinking.is_empty() {
            details.insert("thinking".to_owned(), self.thinking.into());
        }
        // Calls follow the text unless the message says otherwise.
        let length = self.text.chars().count();
        if self.calls_at.iter().any(|at| *at < length) {
            details.insert("calls_at".to_owned(), self.calls_at.into());
        }
        let details = (!details.is_empty()).then(|| Value::Object(details).to_string());
        let shows = self.parts.iter().any(|part| part["type"] != "text");
        let says = shows || !self.text.is_empty() || tool_calls.is_some() || details.is_some();
        if says || messages.is_empty() {
            let message = ChatMessage {
                tool_calls,
                details,
                ..ChatMessage::new(role, self.text)
            };
            let shown = chat::with_parts(message.clone(), &self.parts);
            let mut message = shown.unwrap_or(message);
            add_marks(&mut message, self.marks);
            messages.push(message);
        }
        if let Some(last) = messages.last_mut() {
            beside::note(last, self.unknown);
        }
        Turn {
            messages,
            lost: self.lost,
            beyond: self.beyond,
        }
    }
}

/// The mark for a cache behind a block: its place behind this much text, in characters, and this
/// many calls.
fn cache_mark(block: &Value, at: usize, calls: usize) -> Option<Value> {
    let control = block.get("cache_control").filter(|it| it.is_object())?;
    Some(json!({ "at": at, "calls": calls, "control": control }))
}

/// Adds marks for a cache to the details of a message.
fn add_marks(message: &mut ChatMessage, marks: Vec<Value>) {
    if marks.is_empty() {
        return;
    }
    let details = message.details.as_deref();
    let details = details.and_then(|details| serde_json::from_str(details).ok());
    let mut details: Value = details.unwrap_or_else(|| json!({}));
    details["cache"] = marks.into();
    message.details = Some(details.to_string());
}

/// The system message of a text or of text blocks.
pub(super) fn system(system: &Value) -> Option<ChatMessage> {
    let mut message = ChatMessage::new("system", text_of(system)?);
    let (mut at, mut marks) = (0, Vec::new());
    for block in system.as_array().into_iter().flatten() {
        at += block["text"].as_str().unwrap_or_default().chars().count();
        marks.extend(cache_mark(block, at, 0));
        beside::note(&mut message, unknown(block));
    }
    add_marks(&mut message, marks);
    Some(message)
}

/// The parts of a tool result, if all of them are text or images.
fn parts_of(content: &Value) -> Option<Vec<Value>> {
    let parts = content.as_array()?.iter().map(|block| match kind(block)? {
        "text" => Some(json!({ "type": "text", "text": block.get("text")?.as_str()? })),
        "image" => image(block),
        _ => None,
    });
    parts.collect()
}

/// An image as a part in OpenAI's format; `None` if only its provider can read it.
fn image(block: &Value) -> Option<Value> {
    let source = block.get("source")?;
    let text = |name: &str| source[name].as_str();
    let url = match text("type")? {
        "url" => text("url")?.to_owned(),
        "base64" => format!("data:{};base64,{}", text("media_type")?, text("data")?),
        _ => return None,
    };
    Some(chat::image_part(&url, None))
}

fn call(block: &Value) -> Option<Value> {
    let (id, signature) = split_id(block.get("id")?.as_str()?);
    let mut call = json!({
        "id": id,
        "type": "function",
        "function": {
            "name": block.get("name")?.as_str()?,
            "arguments": exact::write(block.get("input")?),
        },
    });
    if let Some(signature) = signature {
        call["extra_content"] = json!({ "google": { "thought_signature": signature } });
    }
    Some(call)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted(message: &ChatMessage) -> Value {
        let details = message.details.as_deref().unwrap_or("{}");
        serde_json::from_str::<Value>(details).unwrap()["beside"].take()
    }

    #[test]
    fn unknown_fields_are_noted_in_their_messages() {
        let of = |message: Value| messages(&message).unwrap().messages;
        let text = |content: Value| json!({ "role": "user", "content": content });
        let mut given = text(json!("a"));
        given["newest"] = 1.into();
        assert_eq!(noted(&of(given)[0]), "newest");
        let part = json!({ "type": "text", "text": "a", "newest": 1 });
        assert_eq!(noted(&of(text(json!([part])))[0]), "content[].newest");
        assert_eq!(noted(&system(&json!([part])).unwrap()), "content[].newest");
        let result = json!({ "type": "tool_result", "tool_use_id": "c", "content": [part] });
        let split = of(text(json!([result, { "type": "text", "text": "b" }])));
        assert_eq!(noted(&split[0]), "content[].content[].newest");
        assert_eq!(noted(&split[1]), Value::Null);
        let call = json!({ "type": "tool_use", "id": "c", "name": "f", "input": {}, "newest": 1 });
        let called = of(json!({ "role": "assistant", "content": [call] }));
        assert_eq!(noted(&called[0]), "content[].newest");
        let known = json!([{ "type": "text", "text": "a", "citations": null,
                             "cache_control": { "type": "ephemeral" } }]);
        assert_eq!(noted(&of(text(known))[0]), Value::Null);
    }
}
