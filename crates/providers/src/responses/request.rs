//! Requests in the format of OpenAI's Responses API. Pure.

use serde_json::{Value, json};
use volley_backend::items::Item;
use volley_provider_kit::conversation::{calls, is_error, messages, parts, reasoned, refusal};
use volley_provider_kit::parameters::{ParameterTable, RequestFields};
use volley_types::{ChatMessage, Dialect, PredictError};

use crate::openai::request::translated;

pub(super) static PARAMETERS: ParameterTable = ParameterTable {
    server: "OpenAI's responses",
    dialects: &[Dialect::OpenAiResponses, Dialect::Own],
    names: &[
        ("max_output_tokens", "max_output_tokens"),
        ("max_tokens", "max_output_tokens"),
        ("max_completion_tokens", "max_output_tokens"),
        ("max_new_tokens", "max_output_tokens"),
    ],
    own: &[
        "include",
        "instructions",
        "max_tool_calls",
        "metadata",
        "moderation",
        "parallel_tool_calls",
        "prompt_cache_key",
        "prompt_cache_retention",
        "reasoning",
        "safety_identifier",
        "service_tier",
        "store",
        "temperature",
        "text",
        "tool_choice",
        "tools",
        "top_logprobs",
        "top_p",
        "truncation",
        "user",
    ],
    ranges: &[("temperature", 0.0, 2.0), ("top_p", 0.0, 1.0)],
    stops: usize::MAX,
};

/// Builds the body of a request. The response is not stored unless the caller asks for it.
///
/// # Errors
/// `InvalidInput` naming an unsupported parameter.
pub(super) fn body(
    model: &str,
    item: &Item,
    mut request: RequestFields<'_>,
) -> Result<Value, PredictError> {
    let reasons = keeps_reasoning(&request);
    translated(&mut request)?;
    let logprobs = request.take("logprobs") == Some(Value::Bool(true));
    let effort = request.take("reasoning_effort");
    let verbosity = request.take("verbosity");
    let form = request.take("response_format").map(named_schema);
    let mut body = request.finish()?;
    let wanted = [
        (logprobs, "message.output_text.logprobs"),
        // The response is not stored, so the reasoning only returns if its encrypted content does.
        (reasons, "reasoning.encrypted_content"),
    ];
    for (_, name) in wanted.iter().filter(|(is_wanted, _)| *is_wanted) {
        let include = body.entry("include").or_insert_with(|| json!([]));
        if let Value::Array(include) = include
            && !include.contains(&json!(name))
        {
            include.push(json!(name));
        }
    }
    if let Some(effort) = effort {
        let reasoning = body.entry("reasoning").or_insert_with(|| json!({}));
        if reasoning["effort"].is_null() {
            reasoning["effort"] = effort;
        }
    }
    if let Some(form) = form {
        let text = body.entry("text").or_insert_with(|| json!({}));
        if text["format"].is_null() {
            text["format"] = flattened(form, "json_schema");
        }
    }
    if let Some(verbosity) = verbosity {
        let text = body.entry("text").or_insert_with(|| json!({}));
        text["verbosity"] = verbosity;
    }
    if let Some(Value::Array(tools)) = body.get_mut("tools") {
        for tool in tools {
            *tool = flattened(tool.take(), "function");
        }
    }
    if let Some(choice) = body.get_mut("tool_choice") {
        *choice = allowed(flattened(choice.take(), "function"));
    }
    body.entry("store").or_insert_with(|| false.into());
    body.insert("model".to_owned(), model.into());
    let input = messages(item).iter().flat_map(items).collect::<Vec<_>>();
    body.insert("input".to_owned(), input.into());
    Ok(Value::Object(body))
}

/// Whether a request asks for reasoning, and its dialect can return it to the server. Models that do
/// not reason reject a request for encrypted reasoning, so it is not made for every request.
fn keeps_reasoning(request: &RequestFields<'_>) -> bool {
    let thinks = request.fields.get("thinking");
    let thinks = thinks.is_some_and(|thinking| thinking["type"] != "disabled");
    let effort = request.fields.get("reasoning_effort");
    request.dialect() == Dialect::Anthropic
        && (thinks || effort.is_some_and(|effort| effort != "none"))
}

/// Writes a schema in llama.cpp's form, beside the type `json_object`, as a named schema.
fn named_schema(mut form: Value) -> Value {
    if form["type"] != "json_object" || form["schema"].is_null() {
        return form;
    }
    let schema = form["schema"].take();
    json!({ "type": "json_schema", "json_schema": { "name": "answer", "schema": schema } })
}

/// Flattens a choice among some tools, and those tools.
fn allowed(choice: Value) -> Value {
    let mut choice = flattened(choice, "allowed_tools");
    if let Some(Value::Array(tools)) = choice.get_mut("tools") {
        for tool in tools {
            *tool = flattened(tool.take(), "function");
        }
    }
    choice
}

/// Moves the fields of the object `name` up one level:
/// `{"type": "function", "function": {"name": …}}` becomes `{"type": "function", "name": …}`.
fn flattened(mut value: Value, name: &str) -> Value {
    let inner = value.as_object_mut().and_then(|fields| fields.remove(name));
    if let (Some(outer), Some(Value::Object(inner))) = (value.as_object_mut(), inner) {
        outer.extend(inner);
    }
    value
}

/// Converts a message to items: its text, and one for each tool call.
fn items(message: &ChatMessage) -> Vec<Value> {
    let shown = shown(message);
    if message.role == "tool" {
        return vec![json!({
            "type": "function_call_output",
            "call_id": message.tool_call_id,
            "output": shown.unwrap_or_else(|| message.content.clone().into()),
        })];
    }
    if let Some(content) = shown {
        return vec![json!({ "role": message.role, "content": content })];
    }
    let thoughts = reasoned(message, "openai_responses");
    let thoughts = thoughts.iter().map(reasoning);
    let calls = calls(message);
    let text = (!message.content.is_empty() || calls.is_empty())
        .then(|| json!({ "role": message.role, "content": said(message) }));
    let uses = calls.iter().map(|call| {
        let function = &call["function"];
        json!({
            "type": "function_call",
            "call_id": call["id"],
            "name": function["name"],
            "arguments": function["arguments"],
        })
    });
    thoughts.chain(text).chain(uses).collect()
}

/// The content of a message without images. A refusal is a part of its own.
fn said(message: &ChatMessage) -> Value {
    let Some((text, refusal)) = refusal(message) else {
        return message.content.as_str().into();
    };
    let text = (!text.is_empty()).then(|| json!({ "type": "output_text", "text": text }));
    let refusal = json!({ "type": "refusal", "refusal": refusal });
    text.into_iter().chain([refusal]).collect()
}

/// The content of a message with images.
fn shown(message: &ChatMessage) -> Option<Value> {
    let mut parts = parts(message)?;
    // The format has no field for it; messages without images have the mark in their text.
    if is_error(message) {
        parts.insert(0, json!({ "type": "text", "text": "Error:" }));
    }
    let parts = parts.into_iter().map(|part| {
        let image = &part["image_url"];
        if image.is_null() {
            return json!({ "type": "input_text", "text": part["text"] });
        }
        let detail = image["detail"].as_str().unwrap_or("auto");
        json!({ "type": "input_image", "image_url": image["url"], "detail": detail })
    });
    Some(parts.collect())
}

/// Reasoning as the server sent it.
fn reasoning(stretch: &Value) -> Value {
    let text = stretch["text"].as_str().filter(|text| !text.is_empty());
    let summary = text.map(|text| json!({ "type": "summary_text", "text": text }));
    json!({
        "type": "reasoning", "id": stretch["item"],
        "summary": summary.into_iter().collect::<Vec<_>>(),
        "encrypted_content": stretch["signature"],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{asking, asking_in};

    #[test]
    fn a_refusal_in_the_history_stays_one() {
        let refused = |content: &str| ChatMessage {
            details: Some(json!({ "refusal": "No." }).to_string()),
            ..ChatMessage::new("assistant", content)
        };
        let part = json!({ "type": "refusal", "refusal": "No." });
        assert_eq!(items(&refused("No."))[0]["content"], json!([part]));
        let text = json!({ "type": "output_text", "text": "Hm. " });
        assert_eq!(
            items(&refused("Hm. No."))[0]["content"],
            json!([text, part])
        );
    }

    #[test]
    fn a_failed_result_with_an_image_is_marked() {
        let image =
            json!({ "type": "image_url", "image_url": { "url": "data:image/png;base64,eA==" } });
        let result = |details: Value| ChatMessage {
            tool_call_id: Some("1".to_owned()),
            details: Some(details.to_string()),
            ..ChatMessage::new("tool", "")
        };
        let failed = items(&result(json!({ "is_error": true, "parts": [image] })));
        let mark = json!({ "type": "input_text", "text": "Error:" });
        assert_eq!(failed[0]["output"][0], mark);
        assert_eq!(failed[0]["output"][1]["type"], "input_image");
        let fine = items(&result(json!({ "parts": [image] })));
        assert_eq!(fine[0]["output"].as_array().unwrap().len(), 1);
    }

    #[test]
    fn a_schema_beside_the_type_is_a_named_one() {
        let form = json!({ "type": "json_object", "schema": { "a": 1 } });
        let fields = json!({ "response_format": form })
            .as_object()
            .cloned()
            .unwrap();
        let item = Item::Prompt("hi".to_owned());
        let made = asking(&PARAMETERS, fields, |request| body("m", &item, request)).unwrap();
        let named = json!({ "type": "json_schema", "name": "answer", "schema": { "a": 1 } });
        assert_eq!(made["text"]["format"], named);
    }

    #[test]
    fn chat_settings_become_those_of_responses() {
        let fields = json!({
            "max_tokens": 9, "n": 1, "stream_options": {}, "logprobs": true, "top_logprobs": 2,
            "reasoning_effort": "low", "store": true,
            "tool_choice": { "type": "function", "function": { "name": "f" } },
            "response_format": { "type": "json_schema", "json_schema": {
                "name": "s", "schema": { "type": "object" }, "strict": true } },
        });
        let item = Item::Prompt("hi".to_owned());
        let fields = fields.as_object().cloned().unwrap();
        let made = asking(&PARAMETERS, fields, |request| body("m", &item, request)).unwrap();
        let expected = json!({
            "model": "m", "input": [{ "role": "user", "content": "hi" }], "max_output_tokens": 9,
            "include": ["message.output_text.logprobs"], "top_logprobs": 2, "store": true,
            "reasoning": { "effort": "low" },
            "tool_choice": { "type": "function", "name": "f" },
            "text": { "format": {
                "type": "json_schema", "name": "s", "schema": { "type": "object" }, "strict": true } },
        });
        assert_eq!(made, expected);
    }

    #[test]
    fn reasoning_is_asked_for_where_it_can_return() {
        let item = Item::Prompt("hi".to_owned());
        let enabled = json!({ "type": "enabled", "budget_tokens": 2_048 });
        let include = |dialect: Dialect, fields: Value| {
            let fields = fields.as_object().cloned().unwrap();
            let made = asking_in(dialect, &PARAMETERS, fields, |request| {
                body("m", &item, request)
            });
            made.unwrap()["include"].take()
        };
        for (dialect, fields, expected) in [
            (
                Dialect::Anthropic,
                json!({ "thinking": enabled }),
                json!(["reasoning.encrypted_content"]),
            ),
            (
                Dialect::Anthropic,
                json!({ "thinking": { "type": "adaptive" }, "include": ["a"] }),
                json!(["a", "reasoning.encrypted_content"]),
            ),
            (
                Dialect::Anthropic,
                json!({ "reasoning_effort": "low", "include": ["reasoning.encrypted_content"] }),
                json!(["reasoning.encrypted_content"]),
            ),
            (Dialect::Anthropic, json!({}), Value::Null),
            (
                Dialect::Anthropic,
                json!({ "thinking": { "type": "disabled" } }),
                Value::Null,
            ),
            (
                Dialect::OpenAi,
                json!({ "reasoning_effort": "low" }),
                Value::Null,
            ),
        ] {
            assert_eq!(include(dialect, fields.clone()), expected, "{fields}");
        }
    }

    #[test]
    fn what_responses_do_not_have_is_refused_by_name() {
        let item = Item::Prompt("hi".to_owned());
        for (name, value) in [
            ("stop", json!(["x"])),
            ("seed", json!(7)),
            ("presence_penalty", json!(1)),
            ("logit_bias", json!({ "1": 2 })),
            ("top_k", json!(4)),
        ] {
            let fields = json!({ name: value }).as_object().cloned().unwrap();
            let error =
                asking(&PARAMETERS, fields, |request| body("m", &item, request)).unwrap_err();
            assert!(error.message.contains(&format!("'{name}'")), "{error}");
        }
    }
}
