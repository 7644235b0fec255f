//! Rows of generation requests.

use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, StringArray};
use arrow_schema::DataType;
use serde_json::{Value, json};
use volley_types::chat::{check_roles, conversations};
use volley_types::native::PARTS;
use volley_types::signature::{MESSAGES, PROMPT};
use volley_types::{ChatMessage, Native, PredictError, Signature};

/// One row for each prompt.
pub fn prompts<S: AsRef<str>>(prompts: &[S]) -> Result<RecordBatch, PredictError> {
    let texts: StringArray = prompts.iter().map(|text| Some(text.as_ref())).collect();
    batch(PROMPT, Arc::new(texts))
}

/// One row: this conversation.
///
/// # Errors
/// `InvalidInput` when a message has an unknown role.
pub fn conversation(messages: &[ChatMessage]) -> Result<RecordBatch, PredictError> {
    check_roles(messages)?;
    batch(MESSAGES, conversations([Some(messages)]))
}

fn batch(name: &str, column: ArrayRef) -> Result<RecordBatch, PredictError> {
    RecordBatch::try_from_iter_with_nullable([(name, column, true)])
        .map_err(|error| PredictError::internal("the request's row cannot be built", error))
}

/// The row of a conversation for a model with this signature, and the native request if the model
/// supports it.
///
/// # Errors
/// `InvalidInput` with the part that only the native request can represent, if the model does not
/// support it.
pub fn native_rows(
    signature: &Signature,
    messages: &[ChatMessage],
    native: Option<Native>,
) -> Result<(RecordBatch, Option<Native>), PredictError> {
    let native = native.map(|mut native| {
        if native.in_parts && signature.takes_native(PARTS) && takes_details(signature) {
            native.lost = None;
        }
        native
    });
    let native = match native {
        Some(native) if signature.takes_native(&native.format) => Some(native),
        Some(Native {
            lost: Some(lost), ..
        }) => {
            return Err(PredictError::invalid(format!(
                "{lost}: this model supports text only"
            )));
        }
        _ => None,
    };
    if native.as_ref().is_some_and(|native| native.lost.is_some()) {
        // A worker must not treat the remaining part as the complete message.
        return Ok((conversation(&[])?, native));
    }
    if takes_details(signature) {
        return Ok((conversation(messages)?, native));
    }
    let plain = messages.iter().map(|message| ChatMessage {
        details: None,
        ..message.clone()
    });
    Ok((conversation(&plain.collect::<Vec<_>>())?, native))
}

/// Whether messages may have details, which workers of the previous version do not support.
fn takes_details(signature: &Signature) -> bool {
    let field = signature.input.field_with_name(MESSAGES);
    let item = field.ok().and_then(|field| match field.data_type() {
        DataType::List(item) => Some(item.data_type().clone()),
        _ => None,
    });
    matches!(item, Some(DataType::Struct(fields)) if fields.find("details").is_some())
}

/// Separator between the id of a call and its provider's signature.
const SIGNED: &str = "__ts_";

/// The id of a call with its signature, for clients that only keep ids. The base64 signature is
/// written with characters that are allowed in ids.
pub fn signed_id(id: &str, signature: &str) -> String {
    let signature = signature.trim_end_matches('=').replace('+', "-");
    format!("{id}{SIGNED}{}", signature.replace('/', "_"))
}

/// Splits the result of [`signed_id`] into the id and the signature.
pub fn split_id(id: &str) -> (&str, Option<String>) {
    let Some((id, signature)) = id.split_once(SIGNED) else {
        return (id, None);
    };
    let mut signature = signature.replace('-', "+").replace('_', "/");
    while !signature.len().is_multiple_of(4) {
        signature.push('=');
    }
    (id, Some(signature))
}

/// A call in OpenAI's format with its arguments as text. The provider's signature is in Google's
/// field. `None` if it is not a call.
pub fn openai_call(call: &Value) -> Option<Value> {
    let mut call = call.clone();
    let fields = call.as_object_mut()?;
    if let Some(function) = fields.get_mut("function") {
        let function = function.as_object_mut()?;
        let arguments = match function.get("arguments") {
            None | Some(Value::Null) => "{}".to_owned(),
            Some(Value::String(text)) if text.trim().is_empty() => "{}".to_owned(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        };
        function.insert("arguments".to_owned(), arguments.into());
    }
    let id = fields.get("id").and_then(Value::as_str).map(str::to_owned);
    if let Some((id, Some(signature))) = id.as_deref().map(split_id) {
        fields.insert("id".to_owned(), id.into());
        let extra = json!({ "google": { "thought_signature": signature } });
        fields.entry("extra_content").or_insert(extra);
    }
    Some(call)
}

/// Parses a message in OpenAI's format, which most dialects share: a `role`, a `content` (text,
/// text parts, or null), and optionally `tool_calls` or a `tool_call_id`. `None` if it is
/// malformed.
pub fn openai_message(message: &Value) -> Option<ChatMessage> {
    let mut content = match message.get("content") {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(content)) => content.clone(),
        Some(Value::Array(parts)) => text_parts(parts)?,
        Some(_) => return None,
    };
    let mut refusal = refused_parts(message.get("content"));
    if let Some(told) = message.get("refusal").and_then(Value::as_str) {
        content.push_str(told);
        refusal.push_str(told);
    }
    let tool_calls = match (message.get("tool_calls"), message.get("function_call")) {
        (None | Some(Value::Null), None | Some(Value::Null)) => None,
        (None | Some(Value::Null), Some(call)) => {
            let name = call.get("name")?.as_str()?;
            let call = json!({ "id": legacy_id(name), "type": "function", "function": call });
            Some(json!([openai_call(&call)?]).to_string())
        }
        (Some(Value::Array(calls)), _) => {
            let calls = calls.iter().map(openai_call);
            Some(Value::Array(calls.collect::<Option<_>>()?).to_string())
        }
        (Some(_), _) => return None,
    };
    let role = message.get("role")?.as_str()?;
    let tool_call_id = match message.get("tool_call_id") {
        None | Some(Value::Null) if role == "function" => {
            Some(legacy_id(message.get("name")?.as_str()?))
        }
        None | Some(Value::Null) => None,
        Some(id) => Some(split_id(id.as_str()?).0.to_owned()),
    };
    let reasoning = ["reasoning_content", "reasoning"];
    let reasoning = reasoning
        .iter()
        .find_map(|name| message.get(name)?.as_str());
    let reasoning = reasoning.filter(|text| !text.is_empty());
    let mut read = ChatMessage {
        // The role `function` is the old name of `tool`.
        role: if role == "function" { "tool" } else { role }.to_owned(),
        content,
        tool_calls,
        tool_call_id,
        details: reasoning.map(|text| json!({ "thinking": [{ "text": text }] }).to_string()),
    };
    mark_refusal(&mut read, &refusal);
    Some(read)
}

/// The refusals among the parts of a content.
pub fn refused_parts(content: Option<&Value>) -> String {
    let parts = content.and_then(Value::as_array).into_iter().flatten();
    let told = parts.filter_map(|part| part.get("refusal")?.as_str());
    told.collect()
}

/// Marks a part of a message's content as a refusal, for providers with a field for it.
pub fn mark_refusal(message: &mut ChatMessage, refusal: &str) {
    if refusal.is_empty() {
        return;
    }
    let details = message.details.as_deref();
    let details = details.and_then(|details| serde_json::from_str(details).ok());
    let mut details: Value = details.unwrap_or_else(|| json!({}));
    details["refusal"] = refusal.into();
    message.details = Some(details.to_string());
}

/// Parses a message with text and images, in parts of OpenAI's format; `None` if it has other parts
/// or no image.
pub fn shown_message(message: &Value) -> Option<ChatMessage> {
    let given = message.get("content")?.as_array()?;
    let parts: Vec<_> = given.iter().map(shown_part).collect::<Option<_>>()?;
    let mut plain = message.as_object()?.clone();
    plain.insert("content".to_owned(), "".into());
    let read = openai_message(&Value::Object(plain))?;
    with_parts(read, &parts)
}

/// Parses a part of OpenAI's chat completions or responses: text, or an image with its URL.
fn shown_part(part: &Value) -> Option<Value> {
    match part["type"].as_str()? {
        "text" | "input_text" => Some(json!({ "type": "text", "text": part["text"].as_str()? })),
        "image_url" => {
            let image = &part["image_url"];
            let url = image.as_str().or_else(|| image["url"].as_str())?;
            Some(image_part(url, image["detail"].as_str()))
        }
        "input_image" => Some(image_part(
            part["image_url"].as_str()?,
            part["detail"].as_str(),
        )),
        _ => None,
    }
}

/// An image part in OpenAI's format.
pub fn image_part(url: &str, detail: Option<&str>) -> Value {
    let mut image = json!({ "url": url });
    if let Some(detail) = detail {
        image["detail"] = detail.into();
    }
    json!({ "type": "image_url", "image_url": image })
}

/// A message with these parts, whose text becomes the content; `None` without an image.
pub fn with_parts(mut message: ChatMessage, parts: &[Value]) -> Option<ChatMessage> {
    if parts.iter().all(|part| part["type"] == "text") {
        return None;
    }
    let texts = parts.iter().filter_map(|part| part["text"].as_str());
    message.content = texts.collect();
    let details = message.details.as_deref();
    let details = details.and_then(|details| serde_json::from_str(details).ok());
    let mut details: Value = details.unwrap_or_else(|| json!({}));
    details["parts"] = parts.into();
    message.details = Some(details.to_string());
    Some(message)
}

/// The id of a legacy call, which only has the function's name.
fn legacy_id(name: &str) -> String {
    format!("call_{name}")
}

/// The text of a content in parts; `None` if a part is not text.
pub fn text_parts(parts: &[Value]) -> Option<String> {
    parts
        .iter()
        .map(|part| match part.get("refusal") {
            Some(refusal) => refusal.as_str(),
            None => part.get("text").and_then(Value::as_str),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_refusal_in_the_history_stays_one() {
        let part = json!({ "role": "assistant", "content": [
            { "type": "text", "text": "Hm. " }, { "type": "refusal", "refusal": "No." }] });
        let field = json!({ "role": "assistant", "content": "Hm. ", "refusal": "No." });
        for message in [part, field] {
            let read = openai_message(&message).unwrap();
            assert_eq!(read.content, "Hm. No.");
            assert_eq!(read.details.as_deref(), Some(r#"{"refusal":"No."}"#));
        }
    }

    #[test]
    fn messages_are_read_and_what_is_none_is_not() {
        let parts = json!({ "role": "user", "content": [{ "type": "text", "text": "a" }, { "text": "b" }] });
        assert_eq!(openai_message(&parts), Some(ChatMessage::new("user", "ab")));
        let calls = json!({ "role": "assistant", "content": null, "tool_calls": [{ "id": "1" }] });
        let calls = openai_message(&calls).unwrap();
        assert_eq!(calls.tool_calls.as_deref(), Some(r#"[{"id":"1"}]"#));
        let legacy =
            json!({ "role": "assistant", "function_call": { "name": "f", "arguments": "" } });
        let legacy = openai_message(&legacy).unwrap().tool_calls.unwrap();
        assert!(
            legacy.contains("\"call_f\"") && legacy.contains("\"{}\""),
            "{legacy}"
        );
        let gave = json!({ "role": "function", "name": "f", "content": "4" });
        let gave = openai_message(&gave).unwrap();
        assert_eq!(
            (gave.role.as_str(), gave.tool_call_id.as_deref()),
            ("tool", Some("call_f"))
        );
        let thought = json!({ "role": "assistant", "content": "a", "reasoning_content": "hm" });
        assert!(
            openai_message(&thought)
                .unwrap()
                .details
                .unwrap()
                .contains("hm")
        );
        let signed = signed_id("c", "ab+/cQ==");
        assert_eq!(split_id(&signed), ("c", Some("ab+/cQ==".to_owned())));
        let signed =
            openai_call(&json!({ "id": signed, "function": { "arguments": { "a": 1 } } })).unwrap();
        assert_eq!(signed["id"], "c");
        assert_eq!(signed["function"]["arguments"], "{\"a\":1}");
        assert_eq!(
            signed["extra_content"]["google"]["thought_signature"],
            "ab+/cQ=="
        );
        let tool = json!({ "role": "tool", "content": "4", "tool_call_id": "1" });
        assert_eq!(
            openai_message(&tool).unwrap().tool_call_id.as_deref(),
            Some("1")
        );
        for bad in [
            json!({ "content": "a" }),
            json!({ "role": 1, "content": "a" }),
            json!({ "role": "user", "content": 1 }),
            json!({ "role": "user", "content": [{ "image_url": "x" }] }),
            json!({ "role": "user", "tool_calls": "x" }),
            json!({ "role": "user", "tool_call_id": 1 }),
            json!("user"),
        ] {
            assert_eq!(openai_message(&bad), None, "{bad}");
        }
    }
}
