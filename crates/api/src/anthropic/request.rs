//! A body of `/v1/messages` in the pipeline's form. Pure.

use serde_json::{Map, Value, json};
use volley_types::{ChatMessage, ModelRef, PredictError};

use crate::body::{Fields, take_flag};

/// What a body asks for.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) name: String,
    pub(crate) model: ModelRef,
    pub(crate) messages: Vec<ChatMessage>,
    pub(crate) parameters: Map<String, Value>,
    pub(crate) stream: bool,
}

/// Whether a body must say how long the answer may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    Needed,
    Open,
}

/// Reads a body.
///
/// # Errors
/// `InvalidInput` naming the field.
pub(crate) fn read(mut body: Map<String, Value>, limit: Limit) -> Result<Asked, PredictError> {
    let name = body.required("model")?.to_owned();
    let model = name.parse()?;
    if body.count("max_tokens")?.is_none() && limit == Limit::Needed {
        return Err(PredictError::invalid("field 'max_tokens' is missing"));
    }
    let mut messages = Vec::new();
    match body.remove("system") {
        None | Some(Value::Null) => {}
        Some(system) => {
            let text = text_of(&system).ok_or_else(|| {
                PredictError::invalid("field 'system' must be a text or a list of text blocks")
            })?;
            messages.push(ChatMessage::new("system", text));
        }
    }
    let given = body.remove("messages");
    let given = given.as_ref().and_then(Value::as_array);
    let given = given.filter(|list| !list.is_empty()).ok_or_else(|| {
        PredictError::invalid("field 'messages' must be a list of at least one message")
    })?;
    for (index, message) in given.iter().enumerate() {
        messages.extend(self::messages(message).ok_or_else(|| wrong_message(index))?);
    }
    let stream = take_flag(&mut body, "stream")?;
    for unused in ["model", "metadata", "service_tier"] {
        body.remove(unused);
    }
    if let Some(stop) = body.remove("stop_sequences") {
        body.insert("stop".to_owned(), stop);
    }
    if let Some(tools) = body.remove("tools") {
        body.insert("tools".to_owned(), self::tools(&tools)?);
    }
    if let Some(choice) = body.remove("tool_choice") {
        body.insert("tool_choice".to_owned(), tool_choice(&choice)?);
    }
    Ok(Asked {
        name,
        model,
        messages,
        parameters: body,
        stream,
    })
}

fn wrong_message(index: usize) -> PredictError {
    PredictError::invalid(format!(
        "field 'messages' has no message at place {index}: a message has the role 'user' or \
         'assistant', and a 'content' of text or of blocks of the types text, tool_use, \
         tool_result and thinking"
    ))
}

/// The text of a text, or of a list of text blocks.
fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Array(blocks) => blocks
            .iter()
            .map(|block| match kind(block)? {
                "text" => block.get("text")?.as_str(),
                _ => None,
            })
            .collect(),
        _ => None,
    }
}

fn kind(block: &Value) -> Option<&str> {
    block.get("type")?.as_str()
}

/// One message of theirs can be several of ours: each result of a tool is one.
fn messages(message: &Value) -> Option<Vec<ChatMessage>> {
    let role = message.get("role")?.as_str()?;
    if !matches!(role, "user" | "assistant" | "system") {
        return None;
    }
    let blocks = match message.get("content")? {
        Value::String(text) => return Some(vec![ChatMessage::new(role, text)]),
        Value::Array(blocks) => blocks,
        _ => return None,
    };
    let (mut text, mut calls, mut results) = (String::new(), Vec::new(), Vec::new());
    for block in blocks {
        match kind(block)? {
            "text" => text.push_str(block.get("text")?.as_str()?),
            // What the model thought before is not for it to read again.
            "thinking" | "redacted_thinking" => {}
            "tool_use" if role == "assistant" => calls.push(json!({
                "id": block.get("id")?.as_str()?,
                "type": "function",
                "function": {
                    "name": block.get("name")?.as_str()?,
                    "arguments": block.get("input")?.to_string(),
                },
            })),
            "tool_result" if role == "user" => {
                let content = match block.get("content") {
                    None | Some(Value::Null) => String::new(),
                    Some(content) => text_of(content)?,
                };
                results.push(ChatMessage {
                    tool_call_id: Some(block.get("tool_use_id")?.as_str()?.to_owned()),
                    ..ChatMessage::new("tool", content)
                });
            }
            _ => return None,
        }
    }
    let tool_calls = (!calls.is_empty()).then(|| Value::Array(calls).to_string());
    if !text.is_empty() || tool_calls.is_some() || results.is_empty() {
        results.push(ChatMessage {
            tool_calls,
            ..ChatMessage::new(role, text)
        });
    }
    Some(results)
}

/// Tools in OpenAI's form.
fn tools(tools: &Value) -> Result<Value, PredictError> {
    let translate = |tool: &Value| {
        let name = tool.get("name")?.as_str()?;
        let schema = tool.get("input_schema")?;
        let mut function = json!({ "name": name, "parameters": schema });
        if let Some(description) = tool.get("description") {
            function["description"] = description.clone();
        }
        Some(json!({ "type": "function", "function": function }))
    };
    let tools = tools.as_array().map(|tools| tools.iter().map(translate));
    tools
        .and_then(Iterator::collect::<Option<Vec<_>>>)
        .map(Value::Array)
        .ok_or_else(|| {
            PredictError::invalid(
                "field 'tools' must be a list of tools with a 'name' and an 'input_schema'; tools \
                 that run at the provider are not supported",
            )
        })
}

fn tool_choice(choice: &Value) -> Result<Value, PredictError> {
    match kind(choice) {
        Some("auto") => Ok("auto".into()),
        Some("none") => Ok("none".into()),
        Some("any") => Ok("required".into()),
        Some("tool") if choice.get("name").is_some_and(Value::is_string) => Ok(json!({
            "type": "function",
            "function": { "name": choice["name"] },
        })),
        _ => Err(PredictError::invalid(
            "field 'tool_choice' must have the type auto, any, none, or tool with a 'name'",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(body: Value) -> Result<Asked, PredictError> {
        read(body.as_object().unwrap().clone(), Limit::Needed)
    }

    #[test]
    fn blocks_become_messages_and_tools_openais() {
        let body = json!({
            "model": "m:2", "max_tokens": 9, "stream": true, "temperature": 0.5,
            "system": [{ "type": "text", "text": "Be brief." }],
            "stop_sequences": ["x"], "metadata": { "user_id": "u" },
            "tools": [{ "name": "f", "description": "d", "input_schema": { "type": "object" } }],
            "tool_choice": { "type": "any" },
            "messages": [
                { "role": "user", "content": "Weather?" },
                { "role": "assistant", "content": [
                    { "type": "thinking", "thinking": "hm", "signature": "s" },
                    { "type": "text", "text": "Let me see." },
                    { "type": "tool_use", "id": "c", "name": "f", "input": { "a": 1 } },
                ] },
                { "role": "user", "content": [
                    { "type": "tool_result", "tool_use_id": "c", "content": [{ "type": "text", "text": "21" }] },
                    { "type": "text", "text": "So?" },
                ] },
            ],
        });
        let asked = asked(body).unwrap();
        assert!(asked.stream);
        assert_eq!(asked.model.to_string(), "m:2");
        let call =
            r#"[{"id":"c","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}]"#;
        let calls: Value = serde_json::from_str(call).unwrap();
        assert_eq!(asked.messages.len(), 5);
        assert_eq!(asked.messages[0], ChatMessage::new("system", "Be brief."));
        let told = asked.messages[2].tool_calls.as_deref().unwrap();
        assert_eq!(serde_json::from_str::<Value>(told).unwrap(), calls);
        assert_eq!(asked.messages[3].tool_call_id.as_deref(), Some("c"));
        assert_eq!(asked.messages[4], ChatMessage::new("user", "So?"));
        assert_eq!(
            Value::Object(asked.parameters),
            json!({
                "max_tokens": 9, "temperature": 0.5, "stop": ["x"], "tool_choice": "required",
                "tools": [{ "type": "function", "function": {
                    "name": "f", "description": "d", "parameters": { "type": "object" } } }],
            })
        );
    }

    #[test]
    fn what_is_wrong_is_named() {
        let body = |field: &str, value: Value| {
            let mut body = json!({
                "model": "m", "max_tokens": 1, "messages": [{ "role": "user", "content": "a" }],
            });
            body[field] = value;
            asked(body).unwrap_err().message
        };
        assert!(body("max_tokens", Value::Null).contains("'max_tokens'"));
        assert!(body("messages", json!([])).contains("'messages'"));
        assert!(body("messages", json!([{ "role": "tool", "content": "a" }])).contains("place 0"));
        let image = json!([{ "role": "user", "content": [{ "type": "image" }] }]);
        assert!(body("messages", image).contains("place 0"));
        assert!(body("system", json!(1)).contains("'system'"));
        assert!(body("stream", json!("yes")).contains("'stream'"));
        assert!(body("tools", json!([{ "type": "bash_1" }])).contains("'tools'"));
        assert!(body("tool_choice", json!("auto")).contains("'tool_choice'"));
    }
}
