//! Requests in Gemini's format. Pure.

use serde_json::{Map, Value, json};
use volley_backend::items::Item;
use volley_provider_kit::conversation::{
    self, Image, arguments, called, calls, check_system, is_error, messages, reasoned,
    without_system,
};
use volley_provider_kit::normalize::{
    ResponseFormat, ToolChoice, allowed_only, check_tool_choice, is_one_call, take_response_format,
    take_tool_choice,
};
use volley_provider_kit::parameters::{ParameterTable, RequestFields};
use volley_provider_kit::tools::check_functions;
use volley_types::{ChatMessage, Dialect, PredictError};

use super::thinking;

pub(super) static PARAMETERS: ParameterTable = ParameterTable {
    server: "Gemini",
    dialects: &[Dialect::Own],
    names: &[
        ("responseMimeType", "generationConfig.responseMimeType"),
        ("responseJsonSchema", "generationConfig.responseJsonSchema"),
        ("responseModalities", "generationConfig.responseModalities"),
        ("thinkingConfig", "generationConfig.thinkingConfig"),
        ("maxOutputTokens", "generationConfig.maxOutputTokens"),
        ("topP", "generationConfig.topP"),
        ("topK", "generationConfig.topK"),
        ("stopSequences", "generationConfig.stopSequences"),
        ("max_tokens", "generationConfig.maxOutputTokens"),
        ("max_completion_tokens", "generationConfig.maxOutputTokens"),
        ("max_new_tokens", "generationConfig.maxOutputTokens"),
        ("temperature", "generationConfig.temperature"),
        ("top_p", "generationConfig.topP"),
        ("top_k", "generationConfig.topK"),
        ("stop", "generationConfig.stopSequences"),
        ("stop_sequences", "generationConfig.stopSequences"),
        ("seed", "generationConfig.seed"),
        ("presence_penalty", "generationConfig.presencePenalty"),
        ("frequency_penalty", "generationConfig.frequencyPenalty"),
        ("metadata", "labels"),
    ],
    own: &[
        "cachedContent",
        "generationConfig",
        "labels",
        "safetySettings",
        "serviceTier",
        "systemInstruction",
        "toolConfig",
        "tools",
    ],
    ranges: &[
        ("temperature", 0.0, 2.0),
        ("top_p", 0.0, 1.0),
        ("presence_penalty", -2.0, 2.0),
        ("frequency_penalty", -2.0, 2.0),
    ],
    stops: 5,
};

/// Builds the body of a request. The model is in the URL.
///
/// # Errors
/// `InvalidInput` naming an unsupported parameter.
pub(super) fn body(
    model: &str,
    item: &Item,
    mut request: RequestFields<'_>,
) -> Result<Value, PredictError> {
    check_tool_choice(&request.fields)?;
    allowed_only(&mut request.fields);
    if request.fields.get("parallel_tool_calls") == Some(&Value::Bool(false)) {
        if !is_one_call(&request.fields) {
            let why = "name the tool in 'tool_choice', or send one tool";
            return Err(request.refused("parallel_tool_calls", why));
        }
        request.take("parallel_tool_calls");
    }
    let tier = tier(&mut request)?;
    let form = form(&mut request.fields);
    request.fields.extend(form);
    let thinking = thinking::of(model, &mut request)?;
    let choice = take_tool_choice(&mut request.fields);
    let mut body = request.finish()?;
    if let Some(tier) = tier {
        body.insert("serviceTier".to_owned(), tier.into());
    }
    if let Some(thinking) = thinking {
        let config = body.entry("generationConfig").or_insert_with(|| json!({}));
        if config["thinkingConfig"].is_null() {
            config["thinkingConfig"] = thinking;
        }
    }
    let mut strict = false;
    if let Some(Value::Array(given)) = body.remove("tools") {
        check_functions(&given)?;
        strict = given.iter().any(|tool| tool["function"]["strict"] == true);
        body.insert("tools".to_owned(), tools(given));
    }
    if choice.is_some() || strict {
        let config = json!({ "functionCallingConfig": calling(choice, strict) });
        body.entry("toolConfig").or_insert(config);
    }
    let talk = messages(item);
    check_system(&talk, "Gemini")?;
    let (system, rest) = without_system(talk);
    if let Some(system) = system {
        let system = json!({ "parts": [{ "text": system }] });
        body.entry("systemInstruction").or_insert(system);
    }
    body.insert(
        "contents".to_owned(),
        contents(&rest, thinking::needs_signatures(model))?.into(),
    );
    Ok(Value::Object(body))
}

/// The server's name of a service tier.
fn tier(request: &mut RequestFields<'_>) -> Result<Option<&'static str>, PredictError> {
    let Some(tier) = request.take("service_tier") else {
        return Ok(None);
    };
    Ok(Some(match tier.as_str() {
        Some("default" | "standard") => "STANDARD",
        Some("flex") => "FLEX",
        Some("priority") => "PRIORITY",
        _ => {
            let why = "it must be 'auto', 'default', 'flex' or 'priority'";
            return Err(request.refused("service_tier", why));
        }
    }))
}

/// Converts the answer's format to fields of `generationConfig`.
fn form(body: &mut Map<String, Value>) -> Map<String, Value> {
    let (schema, is_json) = match take_response_format(body) {
        Some(ResponseFormat::Object) => (None, true),
        Some(ResponseFormat::Schema(schema)) => (Some(schema), true),
        Some(ResponseFormat::Text) | None => (None, false),
    };
    let media = is_json.then(|| ("responseMimeType".to_owned(), "application/json".into()));
    let schema = schema.map(|schema| ("responseJsonSchema".to_owned(), undated(schema)));
    media.into_iter().chain(schema).collect()
}

/// Removes `$schema`, which does not affect values.
fn undated(mut schema: Value) -> Value {
    if let Some(fields) = schema.as_object_mut() {
        fields.remove("$schema");
    }
    schema
}

/// Merges functions into one declaration. Tools in the server's format stay unchanged.
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
                made[to] = undated(value.clone());
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

fn calling(choice: Option<ToolChoice>, strict: bool) -> Value {
    match choice {
        // The model decides, and calls match the schemas.
        Some(ToolChoice::Auto) | None if strict => json!({ "mode": "VALIDATED" }),
        Some(ToolChoice::Auto) | None => json!({ "mode": "AUTO" }),
        Some(ToolChoice::None) => json!({ "mode": "NONE" }),
        Some(ToolChoice::Required) => json!({ "mode": "ANY" }),
        Some(ToolChoice::Named(name)) => json!({ "mode": "ANY", "allowedFunctionNames": [name] }),
    }
}

/// Messages as turns. Consecutive tool results are one user turn. If calls need signatures
/// (`signed`), those that came without one get the stand-in.
fn contents(messages: &[ChatMessage], signed: bool) -> Result<Vec<Value>, PredictError> {
    let mut turns: Vec<Value> = Vec::new();
    let mut after_result = false;
    for (at, message) in messages.iter().enumerate() {
        let result = message.role == "tool";
        if result {
            let mut shown = vec![result_part(&messages[..at], message)?];
            let images = shown_parts(message)?.unwrap_or_default().into_iter();
            shown.extend(images.filter(|part| part.get("text").is_none()));
            let open = turns.last_mut().filter(|_| after_result);
            match open.and_then(|turn| turn["parts"].as_array_mut()) {
                Some(parts) => parts.extend(shown),
                None => turns.push(json!({ "role": "user", "parts": shown })),
            }
        } else {
            let role = match message.role.as_str() {
                "assistant" => "model",
                role => role,
            };
            turns.push(json!({ "role": role, "parts": parts(message, signed)? }));
        }
        after_result = result;
    }
    Ok(turns)
}

/// Text and images as parts; `None` for plain text.
fn shown_parts(message: &ChatMessage) -> Result<Option<Vec<Value>>, PredictError> {
    let Some(parts) = conversation::parts(message) else {
        return Ok(None);
    };
    let made = parts.iter().map(|part| match conversation::image(part) {
        None => Ok(json!({ "text": part["text"] })),
        Some(Image::Data(media, data)) => {
            Ok(json!({ "inlineData": { "mimeType": media, "data": data } }))
        }
        Some(Image::Address(_)) => Err(conversation::no_address("Gemini")),
    });
    made.collect::<Result<_, _>>().map(Some)
}

/// A signature that the server accepts for calls of other models, and for calls whose signature the
/// client dropped.
const STAND_IN: &str = "skip_thought_signature_validator";

fn parts(message: &ChatMessage, signed: bool) -> Result<Vec<Value>, PredictError> {
    if let Some(parts) = shown_parts(message)? {
        return Ok(parts);
    }
    let calls = calls(message);
    let (of_text, thoughts): (Vec<_>, Vec<_>) = reasoned(message, "gemini")
        .into_iter()
        .partition(|stretch| stretch["item"] == "text");
    let thoughts = thoughts.iter().map(|stretch| {
        json!({ "text": stretch["text"], "thought": true,
                "thoughtSignature": stretch["signature"] })
    });
    let of_text = of_text.last().map(|stretch| stretch["signature"].clone());
    let says = calls.is_empty() || !message.content.is_empty() || of_text.is_some();
    let text = says.then(|| {
        let mut text = json!({ "text": message.content });
        if let Some(signature) = of_text {
            text["thoughtSignature"] = signature;
        }
        text
    });
    let path = "/extra_content/google/thought_signature";
    // In a batch of calls only the first one has a signature.
    let unsigned = calls.iter().all(|call| call.pointer(path).is_none());
    let called = calls.iter().enumerate().map(|(at, call)| {
        let name = &call["function"]["name"];
        let mut part = json!({ "functionCall": { "name": name, "args": arguments(call)? } });
        if let Some(signature) = call.pointer(path) {
            part["thoughtSignature"] = signature.clone();
        } else if signed && unsigned && at == 0 {
            part["thoughtSignature"] = STAND_IN.into();
        }
        Ok(part)
    });
    let said = thoughts.chain(text).map(Ok);
    said.chain(called).collect()
}

fn result_part(before: &[ChatMessage], message: &ChatMessage) -> Result<Value, PredictError> {
    let name = called(before.iter(), message).ok_or_else(|| {
        PredictError::invalid(
            "a message of the role 'tool' needs the 'tool_call_id' of a call in a message before \
             it: the remote model's server requires the function's name",
        )
    })?;
    let content = serde_json::from_str(&message.content).unwrap_or_default();
    let response = match content {
        _ if is_error(message) => json!({ "error": message.content }),
        Value::Object(_) => content,
        _ => json!({ "result": message.content }),
    };
    Ok(json!({ "functionResponse": { "name": name, "response": response } }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{asking, asking_in};

    fn made(item: &Item, fields: &Value) -> Result<Value, PredictError> {
        let fields = fields.as_object().cloned().unwrap();
        asking(&PARAMETERS, fields, |request| {
            body("gemini-2.5-flash", item, request)
        })
    }

    #[test]
    fn parameters_and_the_form_are_settings() {
        let item = Item::Chat(vec![
            ChatMessage::new("system", "be brief"),
            ChatMessage::new("user", "hi"),
            ChatMessage::new("assistant", "ho"),
        ]);
        let fields = json!({
            "max_tokens": 9, "top_k": 3, "stop": ["x"], "n": 1,
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

    #[test]
    fn signatures_return_to_their_parts_and_unsigned_calls_have_the_stand_in() {
        let call = |extra: Value| {
            let mut call = json!({ "id": "x", "function": { "name": "f", "arguments": "{}" } });
            call["extra_content"] = extra;
            call
        };
        let signed = json!({ "google": { "thought_signature": "sig" } });
        let turn = |calls: Value, thinking: Value| {
            let item = Item::Chat(vec![
                ChatMessage::new("user", "hi"),
                ChatMessage {
                    tool_calls: Some(calls.to_string()),
                    details: Some(json!({ "thinking": thinking }).to_string()),
                    ..ChatMessage::new("assistant", "ho")
                },
            ]);
            let made = |model: &str| {
                let none = Map::new();
                let body = asking(&PARAMETERS, none, |request| body(model, &item, request));
                body.unwrap()["contents"][1]["parts"].take()
            };
            (made("gemini-3-pro-preview"), made("gemini-2.5-flash"))
        };
        let used = json!({ "functionCall": { "name": "f", "args": {} } });
        let with = |signature: &str| {
            let mut used = used.clone();
            used["thoughtSignature"] = signature.into();
            used
        };
        let two = json!([call(Value::Null), call(Value::Null)]);
        let (new, old) = turn(two, json!([{ "text": "hm" }]));
        let stand_in = with("skip_thought_signature_validator");
        assert_eq!(new, json!([{ "text": "ho" }, stand_in, used]));
        assert_eq!(old, json!([{ "text": "ho" }, used, used]));
        let first = json!([call(signed), call(Value::Null)]);
        let thinking = json!([
            { "text": "hm", "format": "gemini", "signature": "t1", "item": "thought" },
            { "text": "", "format": "gemini", "signature": "t2", "item": "text" },
            { "text": "no", "format": "anthropic", "signature": "t3" },
        ]);
        let (new, _) = turn(first, thinking);
        let expected = json!([
            { "text": "hm", "thought": true, "thoughtSignature": "t1" },
            { "text": "ho", "thoughtSignature": "t2" }, with("sig"), used,
        ]);
        assert_eq!(new, expected);
    }

    #[test]
    fn what_the_server_cannot_do_is_refused_by_name() {
        let item = Item::Prompt("hi".to_owned());
        let six = json!(["a", "b", "c", "d", "e", "f"]);
        for (name, value) in [
            ("stop", six),
            ("temperature", json!(2.5)),
            ("logit_bias", json!({ "1": 2 })),
            ("logprobs", json!(true)),
            ("user", json!("u-1")),
            ("service_tier", json!("scale")),
            ("temprature", json!(1)),
        ] {
            let fields = json!({ name: value });
            let made = match name {
                // A caller in the own dialect may name a newer field of the model.
                "temprature" => {
                    let fields = fields.as_object().cloned().unwrap();
                    let dialect = Dialect::OpenAi;
                    asking_in(dialect, &PARAMETERS, fields, |request| {
                        body("m", &item, request)
                    })
                }
                _ => made(&item, &fields),
            };
            let error = made.unwrap_err();
            assert!(error.message.contains(&format!("'{name}'")), "{error}");
        }
        let tools = json!([{ "function": { "name": "f" } }, { "function": { "name": "g" } }]);
        let both = json!({ "tools": tools, "parallel_tool_calls": false });
        assert!(made(&item, &both).is_err());
        let mut one = both;
        one["tool_choice"] = json!({ "type": "function", "function": { "name": "f" } });
        assert!(made(&item, &one).is_ok(), "it has one call, or fails");
    }
}
