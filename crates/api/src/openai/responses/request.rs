//! A body of `/v1/responses` in the pipeline's form. Pure.

use serde_json::{Map, Value, json};
use volley_types::{ChatMessage, PredictError};

use super::tools;
use crate::body::{Fields, take_flag};

/// What a body asks for, its model aside.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) messages: Vec<ChatMessage>,
    /// As a chat completion has them.
    pub(super) parameters: Map<String, Value>,
    /// Fields of the request that its response repeats.
    pub(super) echo: Map<String, Value>,
    pub(super) stream: bool,
}

/// What needs something that was stored, or work after the answer.
const REFUSED: [(&str, &str); 5] = [
    (
        "previous_response_id",
        "responses are not stored here; send the whole conversation in 'input'",
    ),
    (
        "conversation",
        "conversations are not stored here; send the whole conversation in 'input'",
    ),
    (
        "prompt",
        "prompts are not stored here; send 'instructions' and 'input'",
    ),
    (
        "context_management",
        "the context is the caller's to manage; send a shorter 'input'",
    ),
    (
        "moderation",
        "answers are not moderated here; leave the field out",
    ),
];

/// What says something to OpenAI's own servers alone.
const UNUSED: [&str; 9] = [
    "store",
    "stream_options",
    "max_tool_calls",
    "prompt_cache_retention",
    "prompt_cache_options",
    "access_programs",
    "image",
    "metadata",
    "truncation",
];

/// Reads a body.
///
/// # Errors
/// `InvalidInput` naming the field.
pub(super) fn read(mut body: Map<String, Value>) -> Result<Asked, PredictError> {
    for (name, reason) in REFUSED {
        if body.remove(name).is_some_and(|value| !value.is_null()) {
            return Err(refused(name, reason));
        }
    }
    if take_flag(&mut body, "background")? {
        let reason = "a response is made while its caller waits; stream it instead";
        return Err(refused("background", reason));
    }
    if body.text("truncation")?.is_some_and(|it| it != "disabled") {
        let reason = "what does not fit is refused, as with 'disabled'; send a shorter 'input'";
        return Err(refused("truncation", reason));
    }
    if body.count("n")?.is_some_and(|answers| answers != 1) {
        let reason = "a response is one answer; chat completions can have several";
        return Err(refused("n", reason));
    }
    body.object("metadata")?;
    let echo = echo(&body);
    let messages = take_messages(&mut body)?;
    let stream = take_flag(&mut body, "stream")?;
    for name in UNUSED {
        body.remove(name);
    }
    take_limit(&mut body)?;
    take_text(&mut body)?;
    take_reasoning(&mut body)?;
    take_logprobs(&mut body)?;
    tools::take(&mut body)?;
    Ok(Asked {
        messages,
        parameters: body,
        echo,
        stream,
    })
}

fn refused(name: &str, reason: &str) -> PredictError {
    PredictError::invalid(format!("field '{name}' is not supported: {reason}"))
}

/// What the response says again of its request.
fn echo(body: &Map<String, Value>) -> Map<String, Value> {
    let plain = [
        ("instructions", Value::Null),
        ("max_output_tokens", Value::Null),
        ("metadata", json!({})),
        ("parallel_tool_calls", true.into()),
        ("prompt_cache_key", Value::Null),
        ("reasoning", json!({ "effort": null, "summary": null })),
        ("safety_identifier", Value::Null),
        ("temperature", Value::Null),
        ("text", json!({ "format": { "type": "text" } })),
        ("tool_choice", "auto".into()),
        ("tools", json!([])),
        ("top_logprobs", 0.into()),
        ("top_p", Value::Null),
        ("user", Value::Null),
    ];
    let said = plain.into_iter().map(|(name, default)| {
        let given = body.get(name).filter(|value| !value.is_null());
        (name.to_owned(), given.cloned().unwrap_or(default))
    });
    said.collect()
}

fn take_messages(body: &mut Map<String, Value>) -> Result<Vec<ChatMessage>, PredictError> {
    let mut messages = Vec::new();
    match body.remove("instructions") {
        None | Some(Value::Null) => {}
        Some(Value::String(text)) => messages.push(ChatMessage::new("system", text)),
        Some(_) => return Err(PredictError::invalid("field 'instructions' must be a text")),
    }
    match body.remove("input") {
        Some(Value::String(text)) => messages.push(ChatMessage::new("user", text)),
        Some(Value::Array(items)) if !items.is_empty() => {
            for (index, item) in items.iter().enumerate() {
                add(&mut messages, item).map_err(|what| {
                    PredictError::invalid(format!(
                        "field 'input' has {what} at place {index}; an item is a message of text, \
                         a 'function_call', a 'function_call_output' or a 'reasoning'"
                    ))
                })?;
            }
        }
        None | Some(Value::Null) => return Err(PredictError::invalid("field 'input' is missing")),
        Some(_) => {
            return Err(PredictError::invalid(
                "field 'input' must be a text or a list of at least one item",
            ));
        }
    }
    Ok(messages)
}

/// Adds one item. Calls belong to the turn of the assistant in front of them.
fn add(messages: &mut Vec<ChatMessage>, item: &Value) -> Result<(), String> {
    let text = |name: &str| {
        let text = item.get(name).and_then(Value::as_str);
        text.ok_or_else(|| format!("an item without a text '{name}'"))
    };
    match item.get("type").map(Value::as_str) {
        None | Some(Some("message")) => {
            let role = match text("role")? {
                "developer" => "system",
                role @ ("user" | "assistant" | "system") => role,
                _ => return Err("a message with an unknown 'role'".to_owned()),
            };
            let content = item.get("content").and_then(text_of);
            let content = content.ok_or("a message whose 'content' is no text")?;
            messages.push(ChatMessage::new(role, content));
        }
        Some(Some("function_call")) => {
            let call = json!({
                "id": text("call_id")?,
                "type": "function",
                "function": { "name": text("name")?, "arguments": text("arguments")? },
            });
            add_call(messages, call);
        }
        Some(Some("function_call_output")) => {
            let output = item.get("output").and_then(text_of);
            let output = output.ok_or("a 'function_call_output' whose 'output' is no text")?;
            messages.push(ChatMessage {
                tool_call_id: Some(text("call_id")?.to_owned()),
                ..ChatMessage::new("tool", output)
            });
        }
        // What the model thought before is not for it to read again.
        Some(Some("reasoning")) => {}
        Some(Some("item_reference")) => {
            return Err("a reference to an item that is not stored".to_owned());
        }
        Some(_) => return Err("an item of another type".to_owned()),
    }
    Ok(())
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

/// The text of a text, or of a list of parts that are all text.
fn text_of(content: &Value) -> Option<String> {
    match content {
        Value::String(text) => Some(text.clone()),
        Value::Array(parts) => {
            let texts = parts.iter().map(|part| {
                let name = match part.get("type")?.as_str()? {
                    "input_text" | "output_text" | "text" => "text",
                    "refusal" => "refusal",
                    _ => return None,
                };
                part.get(name)?.as_str()
            });
            texts.collect()
        }
        _ => None,
    }
}

fn take_limit(body: &mut Map<String, Value>) -> Result<(), PredictError> {
    if let Some(limit) = body.count("max_output_tokens")? {
        if limit == 0 {
            return Err(PredictError::invalid(
                "field 'max_output_tokens' must be at least 1",
            ));
        }
        body.insert("max_tokens".to_owned(), limit.into());
    }
    body.remove("max_output_tokens");
    Ok(())
}

/// `text.format` is `response_format` without its nesting.
fn take_text(body: &mut Map<String, Value>) -> Result<(), PredictError> {
    let Some(text) = body.object("text")?.cloned() else {
        body.remove("text");
        return Ok(());
    };
    body.remove("text");
    if let Some(verbosity) = text.text("verbosity")? {
        body.insert("verbosity".to_owned(), verbosity.into());
    }
    let Some(format) = text.object("format")? else {
        return Ok(());
    };
    let made = match format.text("type")? {
        Some("text") => return Ok(()),
        Some("json_object") => json!({ "type": "json_object" }),
        Some("json_schema") => {
            if format.object("schema")?.is_none() {
                return Err(PredictError::invalid(
                    "field 'text.format.schema' is missing",
                ));
            }
            let mut schema = format.clone();
            schema.remove("type");
            schema.retain(|_, value| !value.is_null());
            json!({ "type": "json_schema", "json_schema": schema })
        }
        _ => {
            return Err(PredictError::invalid(
                "field 'text.format.type' must be 'text', 'json_object' or 'json_schema'",
            ));
        }
    };
    body.insert("response_format".to_owned(), made);
    Ok(())
}

fn take_reasoning(body: &mut Map<String, Value>) -> Result<(), PredictError> {
    let effort = match body.object("reasoning")? {
        Some(reasoning) => reasoning.text("effort")?.map(str::to_owned),
        None => None,
    };
    body.remove("reasoning");
    if let Some(effort) = effort {
        body.insert("reasoning_effort".to_owned(), effort.into());
    }
    Ok(())
}

/// Probabilities are asked for by `include`, and by a number of alternatives.
fn take_logprobs(body: &mut Map<String, Value>) -> Result<(), PredictError> {
    let included = match body.remove("include") {
        None | Some(Value::Null) => false,
        Some(Value::Array(names)) if names.iter().all(Value::is_string) => {
            // What else can be named is of tools that run at the provider, or empty here.
            names
                .iter()
                .any(|name| name == "message.output_text.logprobs")
        }
        Some(_) => {
            return Err(PredictError::invalid(
                "field 'include' must be a list of texts",
            ));
        }
    };
    let alternatives = body.count("top_logprobs")?.unwrap_or(0);
    if alternatives == 0 {
        body.remove("top_logprobs");
    }
    if included || 0 < alternatives {
        body.insert("logprobs".to_owned(), true.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(body: &Value) -> Result<Asked, PredictError> {
        read(body.as_object().unwrap().clone())
    }

    #[test]
    fn items_become_messages_and_fields_those_of_a_chat_completion() {
        let tool = json!({ "type": "function", "name": "f", "parameters": { "type": "object" },
                           "strict": null });
        let format = json!({ "type": "json_schema", "name": "a", "strict": true,
                             "schema": { "type": "null" } });
        let asked = asked(&json!({
            "stream": true, "store": true, "metadata": { "a": "b" }, "seed": 7,
            "instructions": "Be brief.", "max_output_tokens": 9, "top_logprobs": 2,
            "reasoning": { "effort": "low" }, "text": { "format": format },
            "tools": [tool, { "type": "function", "name": "g" }],
            "tool_choice": { "type": "allowed_tools", "mode": "required",
                             "tools": [{ "type": "function", "name": "f" }] },
            "input": [
                { "role": "developer", "content": "In English." },
                { "type": "message", "role": "user",
                  "content": [{ "type": "input_text", "text": "Weather?" }] },
                { "type": "reasoning", "id": "rs", "summary": [] },
                { "type": "message", "role": "assistant", "id": "m", "status": "completed",
                  "content": [{ "type": "output_text", "text": "Let me see.", "annotations": [] }] },
                { "type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}" },
                { "type": "function_call", "call_id": "c2", "name": "f", "arguments": "{}" },
                { "type": "function_call_output", "call_id": "c1", "output": "21" },
            ],
        }))
        .unwrap();
        assert!(asked.stream);
        let said: Vec<_> = asked.messages.iter().map(|it| it.role.as_str()).collect();
        assert_eq!(said, ["system", "system", "user", "assistant", "tool"]);
        assert_eq!(asked.messages[2].content, "Weather?");
        let calls = asked.messages[3].tool_calls.as_deref().unwrap();
        let calls: Value = serde_json::from_str(calls).unwrap();
        assert_eq!(
            (&calls[0]["id"], &calls[1]["id"]),
            (&json!("c1"), &json!("c2"))
        );
        assert_eq!(asked.messages[4].tool_call_id.as_deref(), Some("c1"));
        let function = json!({ "name": "f", "parameters": { "type": "object" } });
        let schema = json!({ "name": "a", "strict": true, "schema": { "type": "null" } });
        assert_eq!(
            Value::Object(asked.parameters),
            json!({
                "seed": 7, "max_tokens": 9, "logprobs": true, "top_logprobs": 2,
                "reasoning_effort": "low", "tool_choice": "required",
                "tools": [{ "type": "function", "function": function }],
                "response_format": { "type": "json_schema", "json_schema": schema },
            })
        );
        assert_eq!(asked.echo["metadata"], json!({ "a": "b" }));
    }

    #[test]
    fn what_is_wrong_or_not_there_is_named() {
        for (field, value) in [
            ("input", Value::Null),
            ("input", json!([])),
            ("input", json!([{ "type": "item_reference", "id": "x" }])),
            (
                "input",
                json!([{ "role": "user", "content": [{ "type": "input_image" }] }]),
            ),
            ("input", json!([{ "role": "tool", "content": "a" }])),
            ("input", json!([{ "type": "function_call", "name": "f" }])),
            ("instructions", json!(1)),
            ("previous_response_id", json!("resp_1")),
            ("conversation", json!("conv_1")),
            ("prompt", json!({ "id": "p" })),
            ("background", json!(true)),
            ("truncation", json!("auto")),
            ("n", json!(2)),
            ("metadata", json!("a")),
            ("max_output_tokens", json!(0)),
            ("text.format.type", json!({ "format": { "type": "xml" } })),
            (
                "text.format.schema",
                json!({ "format": { "type": "json_schema" } }),
            ),
            ("include", json!("all")),
            ("tools", json!([{ "type": "web_search" }])),
            ("tool_choice", json!("required")),
            ("tool_choice", json!({ "type": "mcp" })),
        ] {
            let name = field.split('.').next().unwrap();
            let mut body = json!({ "input": "Hi" });
            body[name] = value.clone();
            let message = asked(&body).unwrap_err().message;
            assert!(
                message.contains(&format!("field '{field}'")),
                "{value}: {message}"
            );
        }
        let with_null = json!({ "input": "Hi", "previous_response_id": null, "tools": null });
        assert!(asked(&with_null).unwrap().parameters.is_empty());
    }
}
