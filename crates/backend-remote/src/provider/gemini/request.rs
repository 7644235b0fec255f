//! Requests in Gemini's form. Pure.

use serde_json::{Map, Value, json};
use volley_backend::items::Item;
use volley_types::{ChatMessage, PredictError};

use crate::provider::conversation::{arguments, called, calls, messages, without_system};
use crate::provider::tidy::{Choice, Form, nest, take_choice, take_form, tidy};

const SETTINGS: [(&str, &str); 12] = [
    ("responseMimeType", "responseMimeType"),
    ("responseJsonSchema", "responseJsonSchema"),
    ("max_tokens", "maxOutputTokens"),
    ("max_completion_tokens", "maxOutputTokens"),
    ("max_new_tokens", "maxOutputTokens"),
    ("temperature", "temperature"),
    ("top_p", "topP"),
    ("top_k", "topK"),
    ("stop", "stopSequences"),
    ("seed", "seed"),
    ("presence_penalty", "presencePenalty"),
    ("frequency_penalty", "frequencyPenalty"),
];

/// The body of a request. The model is in the URL.
pub(super) fn body(
    _: &str,
    item: &Item,
    mut body: Map<String, Value>,
) -> Result<Value, PredictError> {
    tidy(&mut body);
    let form = form(&mut body);
    body.extend(form);
    nest(&mut body, "generationConfig", &SETTINGS)?;
    if let Some(Value::Array(given)) = body.remove("tools") {
        body.insert("tools".to_owned(), tools(given));
    }
    if let Some(choice) = take_choice(&mut body) {
        let config = json!({ "functionCallingConfig": calling(choice) });
        body.entry("toolConfig").or_insert(config);
    }
    let (system, rest) = without_system(messages(item));
    if let Some(system) = system {
        let system = json!({ "parts": [{ "text": system }] });
        body.entry("systemInstruction").or_insert(system);
    }
    body.insert("contents".to_owned(), contents(&rest)?.into());
    Ok(Value::Object(body))
}

/// What the answer's form is called among the settings.
fn form(body: &mut Map<String, Value>) -> Map<String, Value> {
    let (schema, is_json) = match take_form(body) {
        Some(Form::Object) => (None, true),
        Some(Form::Schema(schema)) => (Some(schema), true),
        Some(Form::Text) | None => (None, false),
    };
    let media = is_json.then(|| ("responseMimeType".to_owned(), "application/json".into()));
    let schema = schema.map(|schema| ("responseJsonSchema".to_owned(), schema));
    media.into_iter().chain(schema).collect()
}

/// Functions are declared together; tools in the server's own form stay.
fn tools(given: Vec<Value>) -> Value {
    let (functions, mut tools): (Vec<_>, Vec<_>) = given
        .into_iter()
        .partition(|tool| tool["function"].is_object());
    let declared = functions.iter().map(|tool| {
        let function = &tool["function"];
        let mut made = json!({ "name": function["name"] });
        for (from, to) in [
            ("description", "description"),
            ("parameters", "parametersJsonSchema"),
        ] {
            if let Some(value) = function.get(from) {
                made[to] = value.clone();
            }
        }
        made
    });
    let declared: Vec<_> = declared.collect();
    if !declared.is_empty() {
        tools.push(json!({ "functionDeclarations": declared }));
    }
    tools.into()
}

fn calling(choice: Choice) -> Value {
    match choice {
        Choice::Auto => json!({ "mode": "AUTO" }),
        Choice::None => json!({ "mode": "NONE" }),
        Choice::Required => json!({ "mode": "ANY" }),
        Choice::Named(name) => json!({ "mode": "ANY", "allowedFunctionNames": [name] }),
    }
}

/// Messages as turns; results of tools that follow one another are one turn of the user.
fn contents(messages: &[ChatMessage]) -> Result<Vec<Value>, PredictError> {
    let mut turns: Vec<Value> = Vec::new();
    let mut after_result = false;
    for (at, message) in messages.iter().enumerate() {
        let result = message.role == "tool";
        if result {
            let part = result_part(&messages[..at], message)?;
            let open = turns.last_mut().filter(|_| after_result);
            match open.and_then(|turn| turn["parts"].as_array_mut()) {
                Some(parts) => parts.push(part),
                None => turns.push(json!({ "role": "user", "parts": [part] })),
            }
        } else {
            let role = match message.role.as_str() {
                "assistant" => "model",
                role => role,
            };
            turns.push(json!({ "role": role, "parts": parts(message) }));
        }
        after_result = result;
    }
    Ok(turns)
}

fn parts(message: &ChatMessage) -> Vec<Value> {
    let calls = calls(message);
    let says = calls.is_empty() || !message.content.is_empty();
    let text = says.then(|| json!({ "text": message.content }));
    let called = calls.iter().map(|call| {
        let name = &call["function"]["name"];
        let mut part = json!({ "functionCall": { "name": name, "args": arguments(call) } });
        if let Some(signature) = call.pointer("/extra_content/google/thought_signature") {
            part["thoughtSignature"] = signature.clone();
        }
        part
    });
    text.into_iter().chain(called).collect()
}

fn result_part(before: &[ChatMessage], message: &ChatMessage) -> Result<Value, PredictError> {
    let name = called(before.iter(), message).ok_or_else(|| {
        PredictError::invalid(
            "a message of the role 'tool' needs the 'tool_call_id' of a call in a message before \
             it: the remote model's server wants the function's name",
        )
    })?;
    let content = serde_json::from_str(&message.content).unwrap_or_default();
    let response = match content {
        Value::Object(_) => content,
        _ => json!({ "result": message.content }),
    };
    Ok(json!({ "functionResponse": { "name": name, "response": response } }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(item: &Item, fields: &Value) -> Result<Value, PredictError> {
        body("m", item, fields.as_object().cloned().unwrap())
    }

    #[test]
    fn parameters_and_the_form_are_settings() {
        let item = Item::Chat(vec![
            ChatMessage::new("system", "be brief"),
            ChatMessage::new("user", "hi"),
            ChatMessage::new("assistant", "ho"),
        ]);
        let fields = json!({
            "max_tokens": 9, "top_k": 3, "stop": ["x"], "user": "u",
            "generationConfig": { "thinkingConfig": { "thinkingBudget": 0 } },
            "response_format": { "type": "json_schema", "json_schema": { "schema": { "a": 1 } } },
        });
        let expected = json!({
            "systemInstruction": { "parts": [{ "text": "be brief" }] },
            "contents": [
                { "role": "user", "parts": [{ "text": "hi" }] },
                { "role": "model", "parts": [{ "text": "ho" }] },
            ],
            "generationConfig": {
                "maxOutputTokens": 9, "topK": 3, "stopSequences": ["x"],
                "thinkingConfig": { "thinkingBudget": 0 },
                "responseMimeType": "application/json", "responseJsonSchema": { "a": 1 },
            },
        });
        assert_eq!(made(&item, &fields).unwrap(), expected);
    }

    #[test]
    fn settings_that_are_no_object_are_refused() {
        let item = Item::Prompt("hi".to_owned());
        let form = json!({ "type": "json_object" });
        let fields = json!({ "generationConfig": "hot", "response_format": form });
        let error = made(&item, &fields).unwrap_err();
        assert!(error.message.contains("'generationConfig'"));
    }

    #[test]
    fn tools_their_calls_and_their_results_are_parts() {
        let call = |id: &str, name: &str| {
            json!({ "id": id, "function": { "name": name, "arguments": "{\"a\":1}" },
                    "extra_content": { "google": { "thought_signature": "sig" } } })
        };
        let result = |id: &str, content: &str| ChatMessage {
            tool_call_id: Some(id.to_owned()),
            ..ChatMessage::new("tool", content)
        };
        let talk = vec![
            ChatMessage {
                tool_calls: Some(json!([call("x", "f"), call("y", "g")]).to_string()),
                ..ChatMessage::default()
            },
            result("x", "21"),
            result("y", "{\"b\":2}"),
        ];
        let schema = json!({ "type": "object", "additionalProperties": false });
        let fields = json!({
            "tools": [{ "type": "function", "function": {
                "name": "f", "description": "d", "parameters": schema } }, { "googleSearch": {} }],
            "tool_choice": { "type": "function", "function": { "name": "f" } },
        });
        let body = made(&Item::Chat(talk.clone()), &fields).unwrap();
        let declared = json!({ "name": "f", "description": "d", "parametersJsonSchema": schema });
        assert_eq!(
            body["tools"],
            json!([{ "googleSearch": {} }, { "functionDeclarations": [declared] }])
        );
        assert_eq!(
            body["toolConfig"],
            json!({ "functionCallingConfig": { "mode": "ANY", "allowedFunctionNames": ["f"] } })
        );
        let used = |name: &str| json!({ "functionCall": { "name": name, "args": { "a": 1 } }, "thoughtSignature": "sig" });
        let told = |name: &str, response: Value| json!({ "functionResponse": { "name": name, "response": response } });
        assert_eq!(body["contents"][0]["parts"], json!([used("f"), used("g")]));
        assert_eq!(
            body["contents"][1],
            json!({ "role": "user", "parts": [
                told("f", json!({ "result": "21" })), told("g", json!({ "b": 2 })) ] })
        );
        let error = made(&Item::Chat(talk[1..].to_vec()), &json!({})).unwrap_err();
        assert!(error.message.contains("'tool_call_id'"));
    }
}
