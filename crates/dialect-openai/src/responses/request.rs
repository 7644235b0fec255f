//! Parses the body of `/v1/responses`. Pure.

use serde_json::{Map, Value, json};
use volley_types::{ChatMessage, Native, PredictError};

use super::{FORMAT, items, nested, tools};
use volley_dialect_kit::envelope;
use volley_http_edge::body::{Fields, take_flag};

/// A parsed body without its model.
#[derive(Debug)]
pub(super) struct ParsedRequest {
    pub(super) messages: Vec<ChatMessage>,
    /// Parameters in the format of chat completions.
    pub(super) parameters: Map<String, Value>,
    /// Fields of the request that the response repeats.
    pub(super) echo: Map<String, Value>,
    pub(super) stream: bool,
    /// All items of the conversation: the earlier ones and those of this request.
    pub(super) items: Vec<Value>,
    /// The original request, for an upstream of the same format.
    pub(super) native: Native,
    /// Description of a nested field that only such an upstream may know.
    pub(super) unknown: Option<String>,
}

/// Unsupported fields with their reasons: they need stored objects, or work after the response.
const REFUSED: [(&str, &str); 4] = [
    (
        "conversation",
        "conversations are not stored here; set 'previous_response_id' to the previous response, \
         or send the whole conversation in 'input'",
    ),
    (
        "prompt",
        "prompts are not stored here; send 'instructions' and 'input'",
    ),
    (
        "context_management",
        "the context is not managed here; send a shorter 'input'",
    ),
    (
        "moderation",
        "responses are not moderated here; leave the field out",
    ),
];

/// Fields that this module handles itself or that only concern tools at the provider.
const UNUSED: [&str; 5] = [
    "store",
    "stream_options",
    "max_tool_calls",
    "metadata",
    "truncation",
];

/// Parses a body that continues after the `earlier` items.
///
/// # Errors
/// `InvalidInput` naming the field.
pub(super) fn read(
    mut body: Map<String, Value>,
    earlier: Vec<Value>,
) -> Result<ParsedRequest, PredictError> {
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
        let reason =
            "an input that is too long is rejected, as with 'disabled'; send a shorter 'input'";
        return Err(refused("truncation", reason));
    }
    if body.count("n")?.is_some_and(|answers| answers != 1) {
        let reason = "a response is one answer; chat completions can have several";
        return Err(refused("n", reason));
    }
    body.object("metadata")?;
    body.object("stream_options")?;
    let unknown = nested::unknown(&body);
    let echo = echo(&body);
    body.remove("previous_response_id");
    let given = body.clone();
    let talk = items::take(&mut body, earlier)?;
    let mut native = native(given, &talk.items);
    let hosted = tools::of_provider(&body);
    native.in_parts = talk.in_parts && hosted.is_none() && unknown.is_none();
    native.lost = unknown.clone().or(talk.lost).or(hosted);
    let stream = take_flag(&mut body, "stream")?;
    for name in UNUSED {
        body.remove(name);
    }
    take_limit(&mut body)?;
    take_text(&mut body)?;
    take_reasoning(&mut body)?;
    take_logprobs(&mut body)?;
    match &native.lost {
        // The native request has the tools.
        Some(_) if !native.in_parts => {
            body.retain(|name, _| name != "tools" && name != "tool_choice")
        }
        _ => tools::take(&mut body)?,
    }
    Ok(ParsedRequest {
        messages: talk.messages,
        parameters: body,
        echo,
        stream,
        items: talk.items,
        native,
        unknown,
    })
}

/// Fields that the native request omits: Volley sets them, or they only matter to a server that
/// stores responses.
const OURS: [&str; 5] = ["model", "stream", "store", "background", "n"];

/// The request for an upstream of the same format. Encrypted reasoning of other providers is
/// removed, because such an upstream cannot read it.
fn native(mut body: Map<String, Value>, items: &[Value]) -> Native {
    body.insert("input".to_owned(), items.into());
    body.retain(|name, value| !OURS.contains(&name.as_str()) && !value.is_null());
    if let Some(Value::Array(items)) = body.get_mut("input") {
        items.retain(|item| {
            let encrypted = item["encrypted_content"].as_str();
            !encrypted.is_some_and(envelope::is_sealed)
        });
    }
    Native {
        format: FORMAT.to_owned(),
        body,
        ..Native::default()
    }
}

fn refused(name: &str, reason: &str) -> PredictError {
    PredictError::invalid(format!("field '{name}' is not supported: {reason}"))
}

/// The fields of the request that the response repeats.
fn echo(body: &Map<String, Value>) -> Map<String, Value> {
    let plain = [
        ("instructions", Value::Null),
        ("max_output_tokens", Value::Null),
        ("metadata", json!({})),
        ("parallel_tool_calls", true.into()),
        ("previous_response_id", Value::Null),
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

fn take_limit(body: &mut Map<String, Value>) -> Result<(), PredictError> {
    if let Some(limit) = body.count("max_output_tokens")? {
        if limit == 0 {
            return Err(PredictError::invalid(
                "field 'max_output_tokens' must be at least 1",
            ));
        }
        if body
            .count("max_tokens")?
            .is_some_and(|other| other != limit)
        {
            return Err(PredictError::invalid(
                "field 'max_output_tokens' and field 'max_tokens' contradict each other; send one \
                 of them",
            ));
        }
        body.insert("max_tokens".to_owned(), limit.into());
    }
    body.remove("max_output_tokens");
    Ok(())
}

/// Converts `text.format` to `response_format`, which has one level less.
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

/// Converts `include` and `top_logprobs` to a request for log probabilities.
fn take_logprobs(body: &mut Map<String, Value>) -> Result<(), PredictError> {
    let included = match body.remove("include") {
        None | Some(Value::Null) => false,
        Some(Value::Array(names)) if names.iter().all(Value::is_string) => {
            // The other names only concern tools at the provider, or have no effect here.
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

    fn asked(body: &Value) -> Result<ParsedRequest, PredictError> {
        read(body.as_object().unwrap().clone(), Vec::new())
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
            ("input", json!([{ "role": "tool", "content": "a" }])),
            ("input", json!([{ "type": "function_call", "name": "f" }])),
            ("instructions", json!(1)),
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
        let unknown = asked(&json!({ "input": "Hi", "text": { "bogus": 1 } })).unwrap();
        assert!(unknown.unknown.unwrap().contains("'text.bogus'"));
        assert!(!unknown.native.in_parts && unknown.native.lost.is_some());
        let with_null = json!({ "input": "Hi", "previous_response_id": null, "tools": null });
        assert!(asked(&with_null).unwrap().parameters.is_empty());
    }

    #[test]
    fn an_unknown_field_of_an_item_is_noted_and_kept() {
        let item = json!({ "role": "user", "content": "a", "bogus": 1 });
        let asked = asked(&json!({ "input": [item] })).unwrap();
        let details = asked.messages[0].details.as_deref().unwrap();
        assert_eq!(details, r#"{"beside":"input[0].bogus"}"#);
        assert_eq!(asked.native.body["input"][0], item);
    }

    #[test]
    fn two_lengths_that_differ_are_refused() {
        let of = |other: u64| {
            asked(&json!({ "input": "Hi", "max_output_tokens": 3, "max_tokens": other }))
        };
        let message = of(5).unwrap_err().message;
        assert!(message.contains("'max_output_tokens'") && message.contains("'max_tokens'"));
        assert_eq!(of(3).unwrap().parameters["max_tokens"], 3);
    }

    #[test]
    fn what_rows_cannot_hold_is_in_the_request_itself_and_named() {
        let image = json!([{ "role": "user", "content": [{ "type": "input_image" }] }]);
        let call = json!([{ "type": "custom_tool_call", "call_id": "c", "input": "x" }]);
        for (field, value, name) in [
            ("input", image, "'input_image' at index 0"),
            ("input", call, "'custom_tool_call' at index 0"),
            ("tools", json!([{ "type": "web_search" }]), "'web_search'"),
        ] {
            let mut body = json!({ "input": "Hi", "store": true });
            body[field] = value;
            let native = asked(&body).unwrap().native;
            assert!(native.lost.as_ref().unwrap().contains(name), "{native:?}");
            assert_eq!(native.body[field], body[field]);
            assert!(!native.body.contains_key("store"));
        }
    }

    #[test]
    fn reasoning_goes_back_to_who_keeps_it() {
        let details = volley_types::Details {
            format: Some("anthropic".to_owned()),
            signature: Some("c2ln".to_owned()),
            ..Default::default()
        };
        let sealed = envelope::signature(&details, FORMAT).unwrap();
        let reasoning = |encrypted: &str| {
            json!({ "type": "reasoning", "id": "rs_1", "encrypted_content": encrypted,
                    "summary": [{ "type": "summary_text", "text": "hm" }] })
        };
        let call = json!({ "type": "function_call", "call_id": "c", "name": "f", "arguments": "" });
        let of =
            |encrypted: &str| asked(&json!({ "input": [reasoning(encrypted), call] })).unwrap();
        let thinking = |asked: &ParsedRequest| {
            let details = asked.messages[0].details.as_deref().unwrap_or("{}");
            serde_json::from_str::<Value>(details).unwrap()["thinking"].clone()
        };
        let foreign = of(&sealed);
        assert_eq!(thinking(&foreign)[0]["signature"], "c2ln");
        assert_eq!(thinking(&foreign)[0]["format"], "anthropic");
        assert!(
            foreign.messages[0]
                .tool_calls
                .as_deref()
                .unwrap()
                .contains("{}")
        );
        assert_eq!(foreign.native.body["input"].as_array().unwrap().len(), 1);
        let own = of("gAAA");
        assert_eq!(thinking(&own)[0]["item"], "rs_1");
        assert_eq!(own.native.body["input"].as_array().unwrap().len(), 2);
        let changed = of(&sealed.replace('.', ".A"));
        assert_eq!(thinking(&changed), Value::Null, "it is left out whole");
    }
}
