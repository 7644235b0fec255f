//! Accessors of conversations for the request formats.

use serde_json::{Value, json};
use volley_backend::items::Item;
use volley_types::{ChatMessage, PredictError, exact};

use crate::reserved::shown;

/// Checks that no message has a field that only servers of the caller's dialect know.
///
/// # Errors
/// `InvalidInput` naming the field.
pub fn check_fields(item: &Item, provider: &str) -> Result<(), PredictError> {
    let Item::Chat(messages) = item else {
        return Ok(());
    };
    for (index, message) in messages.iter().enumerate() {
        let details = details(message);
        if let Some(field) = details["beside"].as_str() {
            let field = shown(field);
            return Err(PredictError::invalid(format!(
                "field 'messages' has '{field}' at index {index}, which servers of the \
                 provider '{provider}' do not support: leave it out"
            )));
        }
        check_images(message, provider)?;
    }
    Ok(())
}

/// The messages of an item for servers without the role `developer`: it becomes `system`.
pub fn messages_without_developer(item: &Item) -> Vec<ChatMessage> {
    let mut messages = messages(item);
    for message in &mut messages {
        if message.role == "developer" {
            "system".clone_into(&mut message.role);
        }
    }
    messages
}

/// The messages of an item. A plain prompt becomes one user message.
pub fn messages(item: &Item) -> Vec<ChatMessage> {
    match item {
        Item::Prompt(prompt) => vec![ChatMessage::new("user", prompt)],
        Item::Chat(messages) => messages.clone(),
    }
}

/// The prompt, for servers that only accept prompts.
///
/// # Errors
/// `InvalidInput` for a conversation.
pub fn prompt(item: &Item) -> Result<&str, PredictError> {
    match item {
        Item::Prompt(prompt) => Ok(prompt),
        Item::Chat(_) => Err(PredictError::invalid(
            "the remote model's server accepts 'prompt' only, not 'messages'; if it also has \
             OpenAI's chat completions, give the connector their URL",
        )),
    }
}

/// A message in OpenAI's format.
pub fn message(message: &ChatMessage) -> Value {
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

/// Messages in OpenAI's format. Tool messages may only contain text there, so their images follow
/// in a user message after all results.
pub fn openai_messages(talk: &[ChatMessage]) -> Vec<Value> {
    let (mut made, mut shown) = (Vec::with_capacity(talk.len()), Vec::new());
    for given in talk {
        if given.role != "tool" && !shown.is_empty() {
            let parts = std::mem::take(&mut shown);
            made.push(json!({ "role": "user", "content": parts }));
        }
        let mut fields = message(given);
        if let Some(mut parts) = parts(given) {
            match given.role == "tool" {
                true => {
                    parts.retain(|part| part["type"] != "text");
                    let said = given.content.trim_end();
                    let said = format!("{said}\n(The image follows in the next message.)");
                    fields["content"] = said.trim_start().into();
                    shown.extend(parts);
                }
                false => fields["content"] = parts.into(),
            }
        }
        made.push(fields);
    }
    if !shown.is_empty() {
        made.push(json!({ "role": "user", "content": shown }));
    }
    made
}

/// The content parts of a message with images, in OpenAI's format.
pub fn parts(message: &ChatMessage) -> Option<Vec<Value>> {
    match details(message)["parts"].take() {
        Value::Array(parts) => Some(parts),
        _ => None,
    }
}

/// The image of a content part.
pub enum Image {
    /// Media type and base64 data.
    Data(String, String),
    /// A URL from which the server fetches the image.
    Address(String),
}

/// The image of a part in OpenAI's format; `None` for other parts.
pub fn image(part: &Value) -> Option<Image> {
    let url = part.pointer("/image_url/url")?.as_str()?;
    let of_data = base64(url).map(|(media, data)| Image::Data(media, data.to_owned()));
    Some(of_data.unwrap_or_else(|| Image::Address(url.to_owned())))
}

/// The media type, in lower case without parameters, and the data of a `data:` URL in base64.
fn base64(url: &str) -> Option<(String, &str)> {
    let (scheme, rest) = url.split_once(':')?;
    let (head, data) = rest.split_once(',')?;
    let (head, coding) = head.rsplit_once(';')?;
    if !scheme.eq_ignore_ascii_case("data") || !coding.trim().eq_ignore_ascii_case("base64") {
        return None;
    }
    let media = head.split(';').next().unwrap_or_default();
    let media = match media.trim().to_ascii_lowercase() {
        media if media == "image/jpg" => "image/jpeg".to_owned(),
        media => media,
    };
    Some((media, data))
}

/// Providers whose part for images also takes other files.
const TAKE_FILES: [&str; 4] = ["openai", "azure", "gemini", "vertex"];

/// Checks that the images of a message have the media type of an image.
fn check_images(message: &ChatMessage, provider: &str) -> Result<(), PredictError> {
    let parts = parts(message).unwrap_or_default();
    let mut other = parts
        .iter()
        .filter_map(image)
        .filter_map(|image| match image {
            Image::Data(media, _) if !media.starts_with("image/") => Some(media),
            _ => None,
        });
    match other.find(|media| media.is_empty() || !TAKE_FILES.contains(&provider)) {
        Some(media) => Err(PredictError::invalid(format!(
            "field 'messages' has an 'image_url' of the media type '{}', which is not an image: \
             send a 'data:' URL such as 'data:image/png;base64,…'",
            shown(&media)
        ))),
        None => Ok(()),
    }
}

/// An assistant's text without its refusal, and the refusal; `None` for messages without one.
pub fn refusal(message: &ChatMessage) -> Option<(String, String)> {
    let details = details(message);
    let refusal = details["refusal"]
        .as_str()
        .filter(|text| !text.is_empty())?;
    let content = message.content.as_str();
    let text = content
        .strip_suffix(refusal)
        .or_else(|| content.strip_prefix(refusal));
    Some((text?.to_owned(), refusal.to_owned()))
}

/// The error for an image URL, for servers that only accept image data.
pub fn no_address(server: &str) -> PredictError {
    PredictError::invalid(format!(
        "field 'messages' has an image by its address: {server} accepts images as 'data:' URLs only"
    ))
}

/// The tool calls of a message, in OpenAI's format.
pub fn calls(message: &ChatMessage) -> Vec<Value> {
    let calls = message.tool_calls.as_deref();
    let calls = calls.and_then(|calls| serde_json::from_str(calls).ok());
    calls.unwrap_or_default()
}

/// A stretch of an assistant's message.
pub enum Stretch {
    /// Text, not empty.
    Text(String),
    /// A tool call, in OpenAI's format.
    Call(Value),
    /// A mark for a cache behind the stretch before it, in Anthropic's format.
    Mark(Value),
}

/// The marks for a cache in a message, in Anthropic's format.
pub fn marks(message: &ChatMessage) -> Vec<Value> {
    let marks = details(message)["cache"].take();
    let marks = marks.as_array().into_iter().flatten();
    marks.map(|mark| mark["control"].clone()).collect()
}

/// The text, the calls and the marks of a message in their order.
pub fn said(message: &ChatMessage) -> Vec<Stretch> {
    let told = in_order(message);
    let details = details(message);
    let marks = details["cache"].as_array().map_or(&[][..], Vec::as_slice);
    if marks.is_empty() {
        return told;
    }
    let number = |mark: &Value, name: &str| {
        let number = mark[name].as_u64().unwrap_or(u64::MAX);
        usize::try_from(number).unwrap_or(usize::MAX)
    };
    let (mut at, mut calls, mut said) = (0, 0, Vec::new());
    let mut left = marks.iter().peekable();
    for one in told {
        match one {
            Stretch::Text(text) => {
                let mut rest = text.chars();
                let end = at + text.chars().count();
                // Marks inside this text split it.
                while let Some(mark) =
                    left.next_if(|it| number(it, "calls") <= calls && number(it, "at") <= end)
                {
                    let before = number(mark, "at").saturating_sub(at);
                    let part: String = rest.by_ref().take(before).collect();
                    at += part.chars().count();
                    said.extend((!part.is_empty()).then_some(Stretch::Text(part)));
                    said.push(Stretch::Mark(mark["control"].clone()));
                }
                at = end;
                let rest: String = rest.collect();
                said.extend((!rest.is_empty()).then_some(Stretch::Text(rest)));
            }
            other => {
                calls += 1;
                said.push(other);
                while let Some(mark) =
                    left.next_if(|it| number(it, "calls") <= calls && number(it, "at") <= at)
                {
                    said.push(Stretch::Mark(mark["control"].clone()));
                }
            }
        }
    }
    said.extend(left.map(|mark| Stretch::Mark(mark["control"].clone())));
    said
}

/// The text and the calls of a message in their order.
fn in_order(message: &ChatMessage) -> Vec<Stretch> {
    let mut text = message.content.chars();
    let mut taken = 0;
    let places = details(message)["calls_at"].take();
    let mut said = Vec::new();
    for (number, call) in calls(message).into_iter().enumerate() {
        let place = places[number]
            .as_u64()
            .and_then(|at| usize::try_from(at).ok());
        let place = place.unwrap_or(usize::MAX);
        let before: String = text.by_ref().take(place.saturating_sub(taken)).collect();
        taken = place.max(taken);
        if !before.is_empty() {
            said.push(Stretch::Text(before));
        }
        said.push(Stretch::Call(call));
    }
    let rest: String = text.collect();
    if !rest.is_empty() {
        said.push(Stretch::Text(rest));
    }
    said
}

/// Whether a system message follows a turn.
pub fn has_later_system(item: &Item) -> bool {
    let Item::Chat(messages) = item else {
        return false;
    };
    let mut later = messages.iter().skip_while(|message| is_system(message));
    later.any(is_system)
}

/// Parses a call's arguments into an object for a body that `exact::write` serializes. No text
/// yields an empty object.
///
/// # Errors
/// `InvalidInput` naming the call if the arguments are not an object. Servers of this kind accept
/// only objects.
pub fn arguments(call: &Value) -> Result<Value, PredictError> {
    let arguments = &call["function"]["arguments"];
    let read = match arguments.as_str().map(str::trim) {
        Some("") => Some(json!({})),
        Some(text) => exact::object(text),
        None if arguments.is_null() => Some(json!({})),
        None => Some(arguments.clone()).filter(Value::is_object),
    };
    read.ok_or_else(|| {
        let name = call["function"]["name"].as_str().unwrap_or_default();
        PredictError::invalid(format!(
            "field 'arguments' of a call of '{name}' in 'messages' must be the text of a JSON \
             object"
        ))
    })
}

/// The earlier reasoning of an assistant message in `format`, unchanged. Reasoning of other formats
/// is omitted.
pub fn reasoned(message: &ChatMessage, format: &str) -> Vec<Value> {
    let mut thinking = thinking(message);
    thinking.retain(|stretch| stretch["format"] == format);
    thinking
}

/// The text of the earlier reasoning of an assistant message, in any format.
pub fn reasoning_text(message: &ChatMessage) -> Option<String> {
    let thinking = thinking(message);
    let texts = thinking.iter().filter_map(|it| it["text"].as_str());
    let text: String = texts.collect();
    (!text.is_empty()).then_some(text)
}

/// The text of the earlier reasoning of an assistant message that no provider signed.
pub fn unsigned_reasoning(message: &ChatMessage) -> Option<String> {
    let mut thinking = thinking(message);
    thinking.retain(|stretch| stretch["signature"].is_null());
    let texts = thinking.iter().filter_map(|it| it["text"].as_str());
    let text: String = texts.collect();
    (!text.is_empty()).then_some(text)
}

fn thinking(message: &ChatMessage) -> Vec<Value> {
    match details(message)["thinking"].take() {
        Value::Array(thinking) => thinking,
        _ => Vec::new(),
    }
}

/// Whether a tool's message reports a failure.
pub fn is_error(message: &ChatMessage) -> bool {
    details(message)["is_error"] == true
}

fn details(message: &ChatMessage) -> Value {
    let details = message.details.as_deref();
    let details = details.and_then(|details| serde_json::from_str(details).ok());
    details.unwrap_or_default()
}

/// The function name of the call in `before` that `result` answers.
pub fn called<'a>(
    before: impl DoubleEndedIterator<Item = &'a ChatMessage>,
    result: &ChatMessage,
) -> Option<String> {
    let id = result.tool_call_id.as_deref()?;
    before.rev().flat_map(calls).find_map(|call| {
        let name = call["function"]["name"].as_str()?;
        (call["id"] == id).then(|| name.to_owned())
    })
}

/// Whether a message has instructions (`system` or `developer`) and is not a turn.
pub fn is_system(message: &ChatMessage) -> bool {
    matches!(message.role.as_str(), "system" | "developer")
}

/// Checks that no system message has an image, for servers whose instructions are text.
///
/// # Errors
/// `InvalidInput` naming the message's role.
pub fn check_system(talk: &[ChatMessage], server: &str) -> Result<(), PredictError> {
    let mut system = talk.iter().filter(|message| is_system(message));
    match system.find(|message| {
        parts(message)
            .iter()
            .flatten()
            .any(|it| image(it).is_some())
    }) {
        Some(message) => Err(PredictError::invalid(format!(
            "field 'messages' has an image in a message of the role '{}': {server} accepts only \
             text there; send the image in a message of the role 'user'",
            message.role
        ))),
        None => Ok(()),
    }
}

/// Splits the system messages before the first turn, joined into one text if there are any, from
/// the others, for servers that accept later system messages in place.
pub fn without_first_system(mut messages: Vec<ChatMessage>) -> (Option<String>, Vec<ChatMessage>) {
    let first = messages.iter().take_while(|message| is_system(message));
    // A conversation needs a turn.
    let rest = messages.split_off(first.count());
    let texts: Vec<_> = messages
        .into_iter()
        .map(|message| message.content)
        .collect();
    ((!texts.is_empty()).then(|| texts.join("\n\n")), rest)
}

/// Splits the system messages, joined into one text if there are any, from the others.
pub fn without_system(messages: Vec<ChatMessage>) -> (Option<String>, Vec<ChatMessage>) {
    let (system, rest): (Vec<_>, Vec<_>) = messages.into_iter().partition(is_system);
    let texts: Vec<_> = system.into_iter().map(|message| message.content).collect();
    ((!texts.is_empty()).then(|| texts.join("\n\n")), rest)
}

#[cfg(test)]
mod tests;
