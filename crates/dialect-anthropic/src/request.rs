//! Parses the body of `/v1/messages`. Pure.

mod turn;

use http::HeaderMap;
use serde_json::{Map, Value, json};
use volley_types::{ChatMessage, ModelRef, Native, PredictError};

use super::FORMAT;
use volley_dialect_kit::beside;
use volley_dialect_kit::tools::{hosted, shown, unknown_field};
use volley_http_edge::body::{Fields, take_flag};

/// A parsed body.
#[derive(Debug)]
pub(crate) struct MessagesRequest {
    pub(crate) name: String,
    pub(crate) model: ModelRef,
    pub(crate) messages: Vec<ChatMessage>,
    pub(crate) parameters: Map<String, Value>,
    pub(crate) stream: bool,
    /// The original request, for an upstream of the same format.
    pub(crate) native: Option<Native>,
}

/// Whether a body must have `max_tokens`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    Needed,
    Open,
}

/// Headers that belong to the request and are forwarded to an upstream.
const HEADERS: [&str; 2] = ["anthropic-version", "anthropic-beta"];

/// Parses a body.
///
/// # Errors
/// `InvalidInput` naming the field.
pub(crate) fn read(
    mut body: Map<String, Value>,
    limit: Limit,
    headers: &HeaderMap,
) -> Result<MessagesRequest, PredictError> {
    let name = body.required("model")?.to_owned();
    let model = volley_dialect_kit::requests::reference(&name)?;
    if body.count("max_tokens")?.is_none() && limit == Limit::Needed {
        return Err(PredictError::invalid("field 'max_tokens' is missing"));
    }
    let mut native = native(&body, headers);
    let Conversation {
        messages,
        mut lost,
        mut beyond,
    } = take_conversation(&mut body)?;
    let stream = take_flag(&mut body, "stream")?;
    body.remove("model");
    output_config(&mut body)?;
    if let Some(stop) = body.remove("stop_sequences") {
        body.insert("stop".to_owned(), stop);
    }
    if let Some(tools) = body.remove("tools").filter(|tools| !tools.is_null()) {
        match of_provider(&tools) {
            Some(tool) => {
                lost.get_or_insert(tool);
                beyond = true;
            }
            None => _ = body.insert("tools".to_owned(), self::tools(&tools)?),
        }
        if let Some(field) = beyond_functions(&tools) {
            lost = Some(field);
            beyond = true;
        }
    }
    if let Some(choice) = body
        .remove("tool_choice")
        .filter(|choice| !choice.is_null())
    {
        if choice["disable_parallel_tool_use"] == true {
            body.insert("parallel_tool_calls".to_owned(), false.into());
        }
        if let Some(field) = beside::unknown(&choice, &OF_CHOICES) {
            lost = Some(format!("field 'tool_choice.{field}' cannot be translated"));
            beyond = true;
        }
        body.insert("tool_choice".to_owned(), tool_choice(&choice)?);
    }
    native.in_parts = lost.is_some() && !beyond;
    native.lost = lost;
    Ok(MessagesRequest {
        name,
        model,
        messages,
        parameters: body,
        stream,
        native: Some(native),
    })
}

/// The messages of a body as chat messages.
struct Conversation {
    messages: Vec<ChatMessage>,
    /// Description of the first block that they cannot carry.
    lost: Option<String>,
    /// Whether a block is in no part of them either.
    beyond: bool,
}

/// Removes the system text and the messages from a body.
fn take_conversation(body: &mut Map<String, Value>) -> Result<Conversation, PredictError> {
    let (mut messages, mut lost, mut beyond) = (Vec::new(), None, false);
    match body.remove("system") {
        None | Some(Value::Null) => {}
        Some(system) => {
            let message = turn::system(&system).ok_or_else(|| {
                PredictError::invalid("field 'system' must be a text or a list of text blocks")
            })?;
            messages.push(message);
        }
    }
    let given = body.remove("messages");
    let given = given.as_ref().and_then(Value::as_array);
    let given = given.filter(|list| !list.is_empty()).ok_or_else(|| {
        PredictError::invalid("field 'messages' must be a list of at least one message")
    })?;
    for (index, message) in given.iter().enumerate() {
        let read = turn::messages(message).ok_or_else(|| wrong_message(index))?;
        messages.extend(read.messages);
        beyond |= read.beyond;
        lost = lost.or(read.lost.map(|kind| {
            format!(
                "field 'messages' has a block of the type '{}' at index {index}",
                shown(&kind)
            )
        }));
    }
    Ok(Conversation {
        messages,
        lost,
        beyond,
    })
}

/// Converts the response format and the reasoning effort to OpenAI's fields. Other fields of
/// `output_config` are only meant for an upstream of the same format.
fn output_config(body: &mut Map<String, Value>) -> Result<(), PredictError> {
    let older = body.remove("output_format").filter(|form| !form.is_null());
    let mut config = body.object("output_config")?.cloned().unwrap_or_default();
    body.remove("output_config");
    let form = config.remove("format").filter(|form| !form.is_null());
    if let Some(form) = form.or(older) {
        let schema = form.get("schema").filter(|schema| schema.is_object());
        let Some(schema) = schema.filter(|_| form["type"] == "json_schema") else {
            return Err(PredictError::invalid(
                "field 'output_config.format' must have the type 'json_schema' and a 'schema'",
            ));
        };
        let schema = json!({ "name": "answer", "schema": schema });
        let form = json!({ "type": "json_schema", "json_schema": schema });
        body.insert("response_format".to_owned(), form);
    }
    if let Some(effort) = config.remove("effort").filter(|effort| !effort.is_null()) {
        body.insert("reasoning_effort".to_owned(), effort);
    }
    config.retain(|_, value| !value.is_null());
    if !config.is_empty() {
        body.insert("output_config".to_owned(), config.into());
    }
    Ok(())
}

/// The request for an upstream of the same format. Reasoning blocks that such an upstream has not
/// signed are removed, because it could not verify them.
fn native(body: &Map<String, Value>, headers: &HeaderMap) -> Native {
    let mut body = body.clone();
    body.remove("model");
    body.remove("stream");
    let messages = body.get_mut("messages").and_then(Value::as_array_mut);
    for message in messages.into_iter().flatten() {
        let role_is_assistant = message["role"] == "assistant";
        let blocks = message.get_mut("content").and_then(Value::as_array_mut);
        if let Some(blocks) = blocks.filter(|_| role_is_assistant) {
            blocks.retain(turn::is_own);
        }
    }
    let known = HEADERS.iter().filter_map(|name| {
        let all = headers.get_all(*name).iter();
        let all: Vec<_> = all.filter_map(|value| value.to_str().ok()).collect();
        (!all.is_empty()).then(|| ((*name).to_owned(), all.join(",")))
    });
    Native {
        format: FORMAT.to_owned(),
        headers: known.collect(),
        body,
        ..Native::default()
    }
}

/// Describes the first tool that runs at the provider, for an error.
fn of_provider(tools: &Value) -> Option<String> {
    let mut tools = tools.as_array()?.iter();
    let tool = tools.find(|tool| {
        let kind = tool.get("type").and_then(Value::as_str);
        kind.is_some_and(|kind| kind != "custom") && tool.get("input_schema").is_none()
    })?;
    Some(hosted(tool["type"].as_str().unwrap_or_default()))
}

/// Fields of a tool that rows represent, or that change nothing in the answer.
const OF_FUNCTIONS: [&str; 6] = [
    "cache_control",
    "description",
    "input_schema",
    "name",
    "strict",
    "type",
];

/// Known fields of a `tool_choice`.
const OF_CHOICES: [&str; 3] = ["type", "name", "disable_parallel_tool_use"];

/// Describes the first field of a function that only a server of this format may know, for an
/// error.
fn beyond_functions(tools: &Value) -> Option<String> {
    let is_function = |tool: &Value| tool.get("input_schema").is_some();
    let path = unknown_field(tools, is_function, &OF_FUNCTIONS)?;
    Some(format!("field '{path}' cannot be translated"))
}

fn wrong_message(index: usize) -> PredictError {
    PredictError::invalid(format!(
        "field 'messages' has no message at index {index}: a message has the role 'user' or \
         'assistant', and a 'content' of text or of blocks, each with a 'type'"
    ))
}

/// Concatenates the text of a string, or of a list of text blocks.
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

/// Converts tools to OpenAI's format.
fn tools(tools: &Value) -> Result<Value, PredictError> {
    let translate = |tool: &Value| {
        let name = tool.get("name")?.as_str()?;
        let schema = tool.get("input_schema")?;
        let mut function = json!({ "name": name, "parameters": schema });
        for name in ["description", "strict"] {
            if let Some(value) = tool.get(name).filter(|value| !value.is_null()) {
                function[name] = value.clone();
            }
        }
        let mut made = json!({ "type": "function", "function": function });
        if let Some(control) = tool.get("cache_control").filter(|it| it.is_object()) {
            made["cache_control"] = control.clone();
        }
        Some(made)
    };
    let tools = tools.as_array().map(|tools| tools.iter().map(translate));
    tools
        .and_then(Iterator::collect::<Option<Vec<_>>>)
        .map(Value::Array)
        .ok_or_else(|| {
            PredictError::invalid(
                "field 'tools' must be a list of tools with a 'name' and an 'input_schema'",
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

    fn asked(body: Value) -> Result<MessagesRequest, PredictError> {
        read(
            body.as_object().unwrap().clone(),
            Limit::Needed,
            &HeaderMap::new(),
        )
    }

    #[test]
    fn blocks_become_messages_and_tools_openais() {
        let body = json!({
            "model": "m:2", "max_tokens": 9, "stream": true, "temperature": 0.5,
            "system": [{ "type": "text", "text": "Be brief." }],
            "stop_sequences": ["x"], "metadata": { "user_id": "u" },
            "tools": [{ "name": "f", "description": "d", "input_schema": { "type": "object" } }],
            "tool_choice": { "type": "any", "disable_parallel_tool_use": true },
            "output_config": { "effort": "low", "format": {
                "type": "json_schema", "schema": { "type": "object" } } },
            "service_tier": "auto",
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
                "parallel_tool_calls": false, "reasoning_effort": "low", "service_tier": "auto",
                "metadata": { "user_id": "u" },
                "response_format": { "type": "json_schema", "json_schema": {
                    "name": "answer", "schema": { "type": "object" } } },
                "tools": [{ "type": "function", "function": {
                    "name": "f", "description": "d", "parameters": { "type": "object" } } }],
            })
        );
    }

    #[test]
    fn marks_for_a_cache_keep_their_places() {
        let mark = json!({ "type": "ephemeral" });
        let text = |text: &str| json!({ "type": "text", "text": text, "cache_control": mark });
        let asked = asked(json!({
            "model": "m", "max_tokens": 9, "system": [text("ab"), { "type": "text", "text": "c" }],
            "tools": [{ "name": "f", "input_schema": {}, "cache_control": mark }],
            "messages": [
                { "role": "user", "content": [
                    { "type": "tool_result", "tool_use_id": "c", "cache_control": mark },
                    text("de"), { "type": "text", "text": "f" },
                ] },
            ],
        }));
        let asked = asked.unwrap();
        let marks = asked.messages.iter().map(|message| {
            let details: Value = serde_json::from_str(message.details.as_ref().unwrap()).unwrap();
            (message.role.clone(), details["cache"][0]["at"].clone())
        });
        let expected = [("system", 2), ("tool", 0), ("user", 2)];
        let expected = expected.map(|(role, at)| (role.to_owned(), json!(at)));
        assert_eq!(marks.collect::<Vec<_>>(), expected);
        assert_eq!(asked.parameters["tools"][0]["cache_control"], mark);
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
        assert!(body("messages", json!([{ "role": "tool", "content": "a" }])).contains("index 0"));
        assert!(body("system", json!(1)).contains("'system'"));
        assert!(body("stream", json!("yes")).contains("'stream'"));
        assert!(body("tools", json!([{ "name": "f" }])).contains("'tools'"));
        assert!(body("tool_choice", json!("auto")).contains("'tool_choice'"));
    }

    #[test]
    fn what_rows_cannot_hold_is_in_the_request_itself_and_named() {
        let image = json!({ "type": "image", "source": { "type": "url", "url": "x" } });
        let result = json!({ "type": "tool_result", "tool_use_id": "t", "content": [image],
                             "is_error": true });
        for (content, named) in [(image.clone(), "'image'"), (result, "'image'")] {
            let body = json!({
                "model": "m", "max_tokens": 1, "metadata": { "user_id": "u" },
                "messages": [{ "role": "user", "content": [content] }],
            });
            let native = asked(body.clone()).unwrap().native.unwrap();
            assert!(native.lost.unwrap().contains(named));
            assert_eq!(native.body["messages"], body["messages"]);
            assert_eq!(native.body["metadata"], body["metadata"]);
            assert!(!native.body.contains_key("model"));
        }
        let tool = json!([{ "type": "web_search_20260209", "name": "web_search" }]);
        let body = json!({ "model": "m", "max_tokens": 1, "tools": tool,
                           "messages": [{ "role": "user", "content": "a" }] });
        let lost = asked(body).unwrap().native.unwrap().lost.unwrap();
        assert!(lost.contains("'tools'") && lost.contains("web_search_20260209"));
    }

    #[test]
    fn fields_of_tools_that_only_this_format_has_are_named() {
        let lost = |field: &str, value: Value| {
            let mut tool = json!({ "name": "f", "input_schema": {}, "strict": true,
                                   "cache_control": { "type": "ephemeral" } });
            tool[field] = value;
            let body = json!({ "model": "m", "max_tokens": 1, "tools": [tool],
                               "messages": [{ "role": "user", "content": "a" }] });
            asked(body).unwrap().native.unwrap().lost
        };
        for (field, default, given) in [
            ("defer_loading", json!(false), json!(true)),
            ("eager_input_streaming", json!(false), json!(true)),
            ("input_examples", json!([]), json!([{ "a": 1 }])),
            (
                "allowed_callers",
                json!(["direct"]),
                json!(["code_execution_20250825"]),
            ),
            ("newest", json!(null), json!(1)),
        ] {
            assert_eq!(lost(field, default), None, "{field}");
            let lost = lost(field, given).unwrap();
            assert!(lost.contains(&format!("{field}'")), "{lost}");
        }
    }

    #[test]
    fn an_unknown_field_of_the_choice_is_named() {
        let body = json!({ "model": "m", "max_tokens": 1,
                           "tool_choice": { "type": "auto", "newest": 1 },
                           "messages": [{ "role": "user", "content": "a" }] });
        let native = asked(body).unwrap().native.unwrap();
        assert!(native.lost.unwrap().contains("'tool_choice.newest'") && !native.in_parts);
        assert_eq!(native.body["tool_choice"]["newest"], 1);
    }

    #[test]
    fn reasoning_goes_back_to_who_signed_it() {
        let of_another = volley_types::Details {
            format: Some("openai_responses".to_owned()),
            signature: Some("enc".to_owned()),
            ..Default::default()
        };
        let sealed = volley_dialect_kit::envelope::signature(&of_another, FORMAT).unwrap();
        let thinking = |signature: &str| json!({ "type": "thinking", "thinking": "hm", "signature": signature });
        let own = thinking("c2ln");
        let blocks = json!([own, thinking(&sealed), thinking(""),
                            { "type": "redacted_thinking", "data": "eA==" },
                            { "type": "text", "text": "hi" }]);
        let body = json!({ "model": "m", "max_tokens": 1,
                           "messages": [{ "role": "assistant", "content": blocks }] });
        let asked = asked(body).unwrap();
        let sent = &asked.native.unwrap().body["messages"][0]["content"];
        assert_eq!(sent, &json!([blocks[0], blocks[3], blocks[4]]));
        let details: Value =
            serde_json::from_str(asked.messages[0].details.as_deref().unwrap()).unwrap();
        assert_eq!(
            details["thinking"],
            json!([
                { "text": "hm", "signature": "c2ln", "format": "anthropic" },
                { "text": "hm", "signature": "enc", "format": "openai_responses", "item": null },
                { "text": "hm" },
                { "redacted": "eA==", "format": "anthropic" },
            ])
        );
    }
}
