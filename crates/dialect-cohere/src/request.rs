//! Parses the body of `/v2/chat`. Pure.

use serde_json::{Map, Value, json};
use volley_types::{ChatMessage, Native, PredictError};

use super::FORMAT;

use volley_dialect_kit::{beside, chat};
use volley_http_edge::body::take_flag;

/// Cohere's names of parameters with the internal names.
const NAMES: [(&str, &str); 3] = [("k", "top_k"), ("p", "top_p"), ("stop_sequences", "stop")];

/// A parsed body.
#[derive(Debug)]
pub(super) struct ChatRequest {
    pub(super) messages: Vec<ChatMessage>,
    pub(super) parameters: Map<String, Value>,
    pub(super) stream: bool,
    /// The original request, for an upstream of the same format.
    pub(super) native: Native,
}

/// Parses a body whose `model` has been removed.
///
/// # Errors
/// `InvalidInput` naming the field.
pub(super) fn read(mut body: Map<String, Value>) -> Result<ChatRequest, PredictError> {
    let mut native = Native {
        format: FORMAT.to_owned(),
        body: body.clone(),
        ..Native::default()
    };
    native.body.remove("stream");
    let messages = match body.remove("messages") {
        Some(Value::Array(messages)) if !messages.is_empty() => messages,
        _ => {
            return Err(PredictError::invalid(
                "field 'messages' must be a list of at least one message",
            ));
        }
    };
    let messages = convert_messages(&messages, &mut native)?;
    let stream = take_flag(&mut body, "stream")?;
    // 0 is the default. Models that do not support another priority reject it by name.
    if body.get("priority").is_some_and(|priority| priority == 0) {
        body.remove("priority");
    }
    // In Cohere's interface, 0 disables the limit.
    if body.get("k").is_some_and(|k| k == 0) {
        body.remove("k");
    }
    convert_parameters(&mut body)?;
    Ok(ChatRequest {
        messages,
        parameters: body,
        stream,
        native,
    })
}

/// Converts the messages. Content without a column goes into `native.lost`.
fn convert_messages(
    messages: &[Value],
    native: &mut Native,
) -> Result<Vec<ChatMessage>, PredictError> {
    let mut read = Vec::with_capacity(messages.len());
    for (index, given) in messages.iter().enumerate() {
        match (message(given), unheld(given)) {
            (Some(mut message), _) => {
                beside::note(&mut message, unknown(given));
                read.push(message);
            }
            (None, Some(kind)) => {
                native.lost.get_or_insert_with(|| {
                    format!("field 'messages' has content of the type '{kind}' at index {index}")
                });
            }
            (None, None) => return Err(wrong_message(index)),
        }
    }
    Ok(read)
}

/// Known fields of a message. Clients send back the citations of answers.
const FIELDS: [&str; 6] = [
    "role",
    "content",
    "citations",
    "tool_call_id",
    "tool_calls",
    "tool_plan",
];

/// The first field of a message that only servers of this dialect know.
fn unknown(message: &Value) -> Option<String> {
    let parts = message["content"].as_array().into_iter().flatten();
    let of_documents = || {
        let mut documents = parts.map(|part| &part["document"]);
        let field = documents.find_map(|document| {
            // A document without `data` is all data.
            let with_data = document.get("data").and(Some(document))?;
            beside::unknown(with_data, &["id", "data"])
        })?;
        Some(format!("content[].document.{field}"))
    };
    let of_parts = ["type", "text", "thinking", "document"];
    beside::unknown(message, &FIELDS)
        .or_else(|| beside::unknown_in(&message["content"], "content", &of_parts))
        .or_else(of_documents)
        .or_else(|| beside::of_calls(&message["tool_calls"]))
}

/// Replaces Cohere's names and values of parameters by the internal ones, and checks the tools.
fn convert_parameters(body: &mut Map<String, Value>) -> Result<(), PredictError> {
    for (theirs, ours) in NAMES {
        if let Some(value) = body.remove(theirs) {
            body.insert(ours.to_owned(), value);
        }
    }
    if let Some(choice) = body
        .remove("tool_choice")
        .filter(|choice| !choice.is_null())
    {
        body.insert("tool_choice".to_owned(), tool_choice(&choice)?.into());
    }
    if let Some(form) = body.remove("response_format")
        && let Some(form) = response_format(&form)?
    {
        body.insert("response_format".to_owned(), form);
    }
    let known = match body.get("tools") {
        None | Some(Value::Null) => true,
        Some(Value::Array(tools)) => tools.iter().all(is_tool),
        Some(_) => false,
    };
    if !known {
        return Err(PredictError::invalid(
            "field 'tools' must be a list of tools of the type 'function', each with a 'function' \
             that has a 'name'",
        ));
    }
    Ok(())
}

fn is_tool(tool: &Value) -> bool {
    let named = tool.pointer("/function/name").is_some_and(Value::is_string);
    named && tool.get("type").is_none_or(|kind| kind == "function")
}

fn wrong_message(index: usize) -> PredictError {
    PredictError::invalid(format!(
        "field 'messages' has no message at index {index}: a message has the role 'user', \
         'assistant', 'system' or 'tool', and a 'content' of text or of parts of the types text, \
         thinking and document"
    ))
}

/// Type of the first content part that rows cannot represent.
fn unheld(given: &Value) -> Option<String> {
    let role = given.get("role")?.as_str()?;
    let parts = given.get("content")?.as_array()?;
    let mut parts = parts.iter().filter(|each| part(each, role).is_none());
    let kind = parts.next()?.get("type")?.as_str()?;
    (kind != "text").then(|| kind.chars().filter(|c| !c.is_control()).take(64).collect())
}

fn message(given: &Value) -> Option<ChatMessage> {
    let role = given.get("role")?.as_str()?;
    if !matches!(role, "user" | "assistant" | "system" | "tool") {
        return None;
    }
    let mut content = match given.get("content") {
        None | Some(Value::Null) if role == "assistant" => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => parts
            .iter()
            .map(|each| part(each, role))
            .collect::<Option<_>>()?,
        _ => return None,
    };
    // The plan is the text that the assistant wrote beside its calls.
    let plan = given.get("tool_plan").and_then(Value::as_str);
    if let Some(plan) = plan.filter(|_| content.is_empty()) {
        plan.clone_into(&mut content);
    }
    let mut plain = given.as_object()?.clone();
    plain.insert("content".to_owned(), content.into());
    let mut read = chat::openai_message(&Value::Object(plain))?;
    let thoughts = given["content"].as_array().into_iter().flatten();
    let thoughts: String = thoughts
        .filter_map(|part| part["thinking"].as_str())
        .collect();
    if !thoughts.is_empty() {
        read.details = Some(json!({ "thinking": [{ "text": thoughts }] }).to_string());
    }
    Some(read)
}

/// The text of one part of a message's content; `None` if the part is not supported.
fn part(part: &Value, role: &str) -> Option<String> {
    match part.get("type").and_then(Value::as_str)? {
        "text" => part.get("text")?.as_str().map(str::to_owned),
        // Reasoning is not part of the text; `message` adds it to the details.
        "thinking" if role == "assistant" => Some(String::new()),
        "document" if role == "tool" => {
            let document = part.get("document")?;
            let data = document.get("data").unwrap_or(document);
            Some(match data {
                Value::String(text) => text.clone(),
                data => data.to_string(),
            })
        }
        _ => None,
    }
}

fn tool_choice(choice: &Value) -> Result<&'static str, PredictError> {
    match choice.as_str() {
        Some("REQUIRED") => Ok("required"),
        Some("NONE") => Ok("none"),
        _ => Err(PredictError::invalid(
            "field 'tool_choice' must be 'REQUIRED' or 'NONE'",
        )),
    }
}

/// Converts a response format to OpenAI's; `None` for plain text.
fn response_format(form: &Value) -> Result<Option<Value>, PredictError> {
    let schema = form.get("json_schema").filter(|schema| !schema.is_null());
    match (form.get("type").and_then(Value::as_str), schema) {
        (Some("text"), _) => Ok(None),
        (Some("json_object"), None) => Ok(Some(json!({ "type": "json_object" }))),
        (Some("json_object"), Some(schema @ Value::Object(_))) => Ok(Some(json!({
            "type": "json_schema",
            "json_schema": { "name": "answer", "schema": schema },
        }))),
        _ if form.is_null() => Ok(None),
        _ => Err(PredictError::invalid(
            "field 'response_format' must have the type 'text', or 'json_object' and perhaps a \
             'json_schema'",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(body: Value) -> Result<ChatRequest, PredictError> {
        read(body.as_object().unwrap().clone())
    }

    #[test]
    fn bodies_become_messages_and_openais_parameters() {
        let schema = json!({ "type": "object" });
        let tool = json!({ "type": "function", "function": { "name": "f", "parameters": schema } });
        let call = json!({ "id": "c", "type": "function",
                           "function": { "name": "f", "arguments": "{}" } });
        let asked = asked(json!({
            "messages": [
                { "role": "system", "content": "Be brief." },
                { "role": "user", "content": [{ "type": "text", "text": "Weather?" }] },
                { "role": "assistant", "tool_plan": "I look.", "tool_calls": [call] },
                { "role": "tool", "tool_call_id": "c", "content": [
                    { "type": "document", "document": { "id": "1", "data": { "celsius": 21 } } }] },
                { "role": "assistant", "content": [
                    { "type": "thinking", "thinking": "hm" }, { "type": "text", "text": "21" }] },
            ],
            "stream": true, "k": 4, "p": 0.5, "stop_sequences": ["x"], "priority": 3,
            "tools": [tool], "tool_choice": "REQUIRED", "max_tokens": 9,
            "response_format": { "type": "json_object", "json_schema": schema },
        }))
        .unwrap();
        assert!(asked.stream);
        let texts: Vec<_> = asked
            .messages
            .iter()
            .map(|it| it.content.as_str())
            .collect();
        let result = r#"{"celsius":21}"#;
        assert_eq!(texts, ["Be brief.", "Weather?", "I look.", result, "21"]);
        assert!(
            asked.messages[2]
                .tool_calls
                .as_deref()
                .unwrap()
                .contains("\"c\"")
        );
        assert_eq!(asked.messages[3].tool_call_id.as_deref(), Some("c"));
        assert_eq!(
            Value::Object(asked.parameters),
            json!({
                "top_k": 4, "top_p": 0.5, "stop": ["x"], "tools": [tool], "max_tokens": 9,
                "tool_choice": "required", "priority": 3,
                "response_format": { "type": "json_schema",
                                     "json_schema": { "name": "answer", "schema": schema } },
            })
        );
    }

    #[test]
    fn unknown_fields_are_noted_in_their_messages() {
        let noted = |message: Value| {
            let asked = asked(json!({ "messages": [message] })).unwrap();
            let details = asked.messages[0].details.as_deref().unwrap_or("{}");
            serde_json::from_str::<Value>(details).unwrap()["beside"].take()
        };
        assert_eq!(
            noted(json!({ "role": "user", "content": "a", "newest": 1 })),
            "newest"
        );
        let part = json!({ "type": "text", "text": "a", "newest": 1 });
        assert_eq!(
            noted(json!({ "role": "user", "content": [part] })),
            "content[].newest"
        );
        let result = |document: Value| {
            let part = json!({ "type": "document", "document": document });
            json!({ "role": "tool", "tool_call_id": "c", "content": [part] })
        };
        assert_eq!(
            noted(result(json!({ "data": "a", "newest": 1 }))),
            "content[].document.newest"
        );
        assert_eq!(noted(result(json!({ "celsius": 21 }))), Value::Null);
        let call = json!({ "id": "c", "type": "function", "newest": 1,
                           "function": { "name": "f", "arguments": "{}" } });
        assert_eq!(
            noted(json!({ "role": "assistant", "tool_calls": [call] })),
            "tool_calls[].newest"
        );
        let known = json!({ "role": "assistant", "content": "a", "citations": [1] });
        assert_eq!(noted(known), Value::Null);
    }

    #[test]
    fn a_priority_is_a_parameter_unless_it_is_the_default() {
        let of = |priority: i64| {
            let body = json!({ "messages": [{ "role": "user", "content": "a" }],
                               "priority": priority });
            asked(body).unwrap().parameters.get("priority").cloned()
        };
        assert_eq!((of(0), of(3)), (None, Some(3.into())));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let with = |field: &str, value: Value| {
            let mut body = json!({ "messages": [{ "role": "user", "content": "a" }], "k": 0 });
            body[field] = value;
            asked(body)
        };
        for kind in ["image_url", "document"] {
            let parts = json!([{ "role": "user", "content": [{ "type": kind }] }]);
            let lost = with("messages", parts).unwrap().native.lost.unwrap();
            assert!(lost.contains("'messages'") && lost.contains(kind), "{lost}");
        }
        let plain = with("response_format", json!({ "type": "text" })).unwrap();
        assert!(plain.parameters.is_empty() && !plain.stream);
        for (field, value) in [
            ("messages", json!([])),
            ("messages", json!([{ "role": "user" }])),
            ("messages", json!([{ "role": "chatbot", "content": "a" }])),
            ("stream", json!("yes")),
            ("tools", json!([{ "type": "web" }])),
            ("tools", json!("f")),
            ("tool_choice", json!("auto")),
            ("response_format", json!({ "type": "xml" })),
            (
                "response_format",
                json!({ "type": "json_object", "json_schema": 1 }),
            ),
        ] {
            let error = with(field, value).unwrap_err();
            assert!(
                error.message.contains(&format!("'{field}'")),
                "{}",
                error.message
            );
        }
    }
}
