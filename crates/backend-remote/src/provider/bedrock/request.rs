//! Requests in the form of Converse. Pure.

use serde_json::{Map, Value, json};
use volley_backend::items::Item;
use volley_types::{ChatMessage, PredictError};

use crate::provider::conversation::{arguments, calls, is_system, messages};
use crate::provider::tidy::{Choice, nest, take_choice, tidy};
use crate::signing;

const SETTINGS: [(&str, &str); 10] = [
    ("max_tokens", "maxTokens"),
    ("max_completion_tokens", "maxTokens"),
    ("max_new_tokens", "maxTokens"),
    ("maxTokens", "maxTokens"),
    ("temperature", "temperature"),
    ("top_p", "topP"),
    ("topP", "topP"),
    ("stop", "stopSequences"),
    ("stop_sequences", "stopSequences"),
    ("stopSequences", "stopSequences"),
];

/// The fields of a request that are Converse's own. All others are the model's.
const OWN: [&str; 11] = [
    "additionalModelRequestFields",
    "additionalModelResponseFieldPaths",
    "guardrailConfig",
    "inferenceConfig",
    "messages",
    "outputConfig",
    "performanceConfig",
    "promptVariables",
    "requestMetadata",
    "serviceTier",
    "toolConfig",
];

/// The body of a request. The model is in the URL.
///
/// # Errors
/// `InvalidInput` where tools are forbidden that the talk has called.
pub(super) fn body(
    _: &str,
    item: &Item,
    mut body: Map<String, Value>,
) -> Result<Value, PredictError> {
    tidy(&mut body);
    body.retain(|name, _| name != "stream" && !signing::PARAMETERS.contains(&name.as_str()));
    let talk = messages(item);
    nest(&mut body, "inferenceConfig", &SETTINGS)?;
    tools(&mut body, &talk)?;
    let system = body.remove("system");
    let names = body.keys().filter(|name| !OWN.contains(&name.as_str()));
    let names: Vec<_> = names.cloned().collect();
    let names: Vec<_> = names
        .iter()
        .map(|name| (name.as_str(), name.as_str()))
        .collect();
    nest(&mut body, "additionalModelRequestFields", &names)?;
    let told = talk.iter().filter(|message| is_system(message));
    let told: Vec<_> = told
        .map(|message| json!({ "text": message.content }))
        .collect();
    match system {
        Some(Value::String(text)) => {
            _ = body.insert("system".to_owned(), json!([{ "text": text }]))
        }
        Some(blocks) => _ = body.insert("system".to_owned(), blocks),
        None if told.is_empty() => {}
        None => _ = body.insert("system".to_owned(), told.into()),
    }
    body.insert("messages".to_owned(), turns(&talk).into());
    Ok(Value::Object(body))
}

fn tools(body: &mut Map<String, Value>, talk: &[ChatMessage]) -> Result<(), PredictError> {
    let choice = match take_choice(body) {
        None | Some(Choice::Auto) => None,
        Some(Choice::Required) => Some(json!({ "any": {} })),
        Some(Choice::Named(name)) => Some(json!({ "tool": { "name": name } })),
        Some(Choice::None) => {
            if talk.iter().any(|message| !calls(message).is_empty()) {
                return Err(PredictError::invalid(
                    "parameter 'tool_choice' cannot be 'none' after tools were called: the remote \
                     model's server wants their definitions, and cannot be told not to call them",
                ));
            }
            body.remove("tools");
            None
        }
    };
    let Some(Value::Array(given)) = body.remove("tools") else {
        return Ok(());
    };
    let mut config = json!({ "tools": given.into_iter().map(tool).collect::<Vec<_>>() });
    if let Some(choice) = choice {
        config["toolChoice"] = choice;
    }
    body.entry("toolConfig").or_insert(config);
    Ok(())
}

/// A tool in OpenAI's form becomes one in Converse's; one that is already stays.
fn tool(mut tool: Value) -> Value {
    let Some(function) = tool.get_mut("function").map(Value::take) else {
        return tool;
    };
    let schema = function.get("parameters").cloned();
    let schema = schema.unwrap_or_else(|| json!({ "type": "object" }));
    let mut made = json!({ "name": function["name"], "inputSchema": { "json": schema } });
    if let Some(description) = function.get("description") {
        made["description"] = description.clone();
    }
    json!({ "toolSpec": made })
}

/// The talk as turns of the user and the assistant: what one says in a row, results of tools
/// included, is one turn.
fn turns(talk: &[ChatMessage]) -> Vec<Value> {
    let mut turns: Vec<(&str, Vec<Value>)> = Vec::new();
    for message in talk.iter().filter(|message| !is_system(message)) {
        let role = match message.role.as_str() {
            "tool" => "user",
            role => role,
        };
        match turns.last_mut() {
            Some((last, blocks)) if *last == role => blocks.extend(content(message)),
            _ => turns.push((role, content(message))),
        }
    }
    let turns = turns.into_iter();
    turns
        .map(|(role, content)| json!({ "role": role, "content": content }))
        .collect()
}

fn content(message: &ChatMessage) -> Vec<Value> {
    if message.role == "tool" {
        let text = json!([{ "text": message.content }]);
        return vec![json!({
            "toolResult": { "toolUseId": message.tool_call_id, "content": text },
        })];
    }
    let calls = calls(message);
    // The server refuses text that is empty.
    let text = (!message.content.is_empty() || calls.is_empty())
        .then(|| json!({ "text": message.content }));
    let uses = calls.iter().map(|call| {
        let (id, name) = (&call["id"], &call["function"]["name"]);
        json!({ "toolUse": { "toolUseId": id, "name": name, "input": arguments(call) } })
    });
    text.into_iter().chain(uses).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(item: &Item, fields: Value) -> Result<Value, PredictError> {
        body("m", item, fields.as_object().cloned().unwrap())
    }

    #[test]
    fn what_is_not_converses_is_the_models() {
        let item = Item::Prompt("hi".to_owned());
        let fields = json!({
            "max_tokens": 9, "top_k": 5, "user": "u", "region": "eu-west-1", "tool_choice": "none",
            "guardrailConfig": { "guardrailIdentifier": "g" }, "tools": [],
            "additionalModelRequestFields": { "top_k": 7 }, "thinking": { "type": "enabled" },
        });
        let expected = json!({
            "messages": [{ "role": "user", "content": [{ "text": "hi" }] }],
            "inferenceConfig": { "maxTokens": 9 },
            "guardrailConfig": { "guardrailIdentifier": "g" },
            "additionalModelRequestFields": { "top_k": 7, "thinking": { "type": "enabled" } },
        });
        assert_eq!(made(&item, fields).unwrap(), expected);
    }

    #[test]
    fn one_sides_messages_in_a_row_are_one_turn() {
        let call = |id: &str| json!({ "id": id, "function": { "name": "f", "arguments": "{}" } });
        let result = |id: &str| ChatMessage {
            tool_call_id: Some(id.to_owned()),
            ..ChatMessage::new("tool", "21")
        };
        let talk = Item::Chat(vec![
            ChatMessage {
                tool_calls: Some(json!([call("a"), call("b")]).to_string()),
                ..ChatMessage::new("assistant", "")
            },
            result("a"),
            result("b"),
            ChatMessage::new("user", "So?"),
        ]);
        let body = made(&talk, json!({})).unwrap();
        assert_eq!(body["messages"].as_array().unwrap().len(), 2);
        assert_eq!(body["messages"][0]["content"].as_array().unwrap().len(), 2);
        assert_eq!(body["messages"][1]["content"][2]["text"], "So?");
        let tools = json!([{ "type": "function", "function": { "name": "f" } }]);
        let error = made(&talk, json!({ "tools": tools, "tool_choice": "none" })).unwrap_err();
        assert!(error.message.contains("'tool_choice'"));
        let named = json!({ "type": "function", "function": { "name": "f" } });
        let body = made(&talk, json!({ "tools": tools, "tool_choice": named })).unwrap();
        assert_eq!(body["toolConfig"]["toolChoice"]["tool"]["name"], "f");
    }
}
