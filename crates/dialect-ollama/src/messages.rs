//! Converts the messages of a chat to OpenAI's format. Pure.

use std::collections::HashSet;

use serde_json::{Map, Value, json};
use volley_dialect_kit::{beside, chat};
use volley_types::{ChatMessage, PredictError, exact};

/// Known fields of a message.
const FIELDS: [&str; 8] = [
    "role",
    "content",
    "images",
    "name",
    "thinking",
    "tool_call_id",
    "tool_calls",
    "tool_name",
];

/// A call of the assistant's last turn that has no result yet.
struct OpenCall {
    id: String,
    name: String,
    /// Whether the caller gave the id.
    is_given: bool,
}

/// The calls of a conversation so far.
#[derive(Default)]
struct Calls {
    /// Ids that the caller gave.
    given: HashSet<String>,
    made: usize,
    open: Vec<OpenCall>,
}

/// Converts messages to OpenAI's format. Calls without an id are numbered. A tool's message answers
/// the call of the assistant's last turn with its id, or else the first open call of its tool, or
/// else the first open call.
///
/// # Errors
/// `InvalidInput` naming the field.
pub(super) fn conversation(messages: &[Value]) -> Result<Vec<ChatMessage>, PredictError> {
    let mut calls = Calls::of(messages);
    let mut conversation = Vec::with_capacity(messages.len());
    let mut last_is_assistant = false;
    for (index, given) in messages.iter().enumerate() {
        let mut message = given.as_object().ok_or_else(no_messages)?.clone();
        no_images(message.get("images"))?;
        let role = message.get("role").and_then(Value::as_str);
        let (is_assistant, is_result) = (role == Some("assistant"), role == Some("tool"));
        if let Some(made) = message.get_mut("tool_calls").and_then(Value::as_array_mut) {
            if !last_is_assistant {
                calls.open.clear();
            }
            for call in made {
                calls.begin(call)?;
            }
        }
        last_is_assistant = is_assistant;
        if is_result && let Some(id) = calls.answered(&message, index)? {
            message.insert("tool_call_id".to_owned(), id.into());
        }
        let thinking = message.get("thinking").and_then(Value::as_str);
        let thinking = thinking.filter(|text| !text.is_empty()).map(str::to_owned);
        let read = chat::openai_message(&Value::Object(message));
        let mut read = read.ok_or_else(no_messages)?;
        if let Some(thinking) = thinking {
            read.details = Some(json!({ "thinking": [{ "text": thinking }] }).to_string());
        }
        beside::note(&mut read, unknown(given));
        conversation.push(read);
    }
    Ok(conversation)
}

impl Calls {
    fn of(messages: &[Value]) -> Self {
        let calls = messages
            .iter()
            .filter_map(|message| message.get("tool_calls")?.as_array());
        let ids = calls.flatten().filter_map(given_id).map(str::to_owned);
        Self {
            given: ids.collect(),
            ..Self::default()
        }
    }

    /// Converts a call to OpenAI's format and keeps it open.
    fn begin(&mut self, call: &mut Value) -> Result<(), PredictError> {
        let given = given_id(call).map(str::to_owned);
        let is_given = given.is_some();
        let id = given.unwrap_or_else(|| self.number());
        let name = openai_call(call, &id)?;
        self.open.push(OpenCall { id, name, is_given });
        Ok(())
    }

    /// An id that the caller gave to no call.
    fn number(&mut self) -> String {
        loop {
            let id = format!("call_{}", self.made);
            self.made += 1;
            if !self.given.contains(&id) {
                return id;
            }
        }
    }

    /// The id of the call that a tool's message answers; `None` to leave the message as it is.
    fn answered(
        &mut self,
        message: &Map<String, Value>,
        index: usize,
    ) -> Result<Option<String>, PredictError> {
        let text = |name: &str| {
            let text = message.get(name).and_then(Value::as_str);
            text.filter(|text| !text.is_empty())
        };
        let id = text("tool_call_id");
        let with_id = |call: &OpenCall| id.is_some_and(|id| call.id == id);
        if let Some(place) = self.open.iter().position(with_id) {
            return Ok(Some(self.open.remove(place).id));
        }
        // A call with an id of its own is not the call of another id.
        let may_answer = |call: &OpenCall| id.is_none() || !call.is_given;
        let name = text("tool_name").or_else(|| text("name"));
        let is_called = |call: &OpenCall| name.is_none_or(|name| call.name == name);
        let mut open = self.open.iter();
        if let Some(place) = open.position(|call| may_answer(call) && is_called(call)) {
            return Ok(Some(self.open.remove(place).id));
        }
        match name {
            Some(_) if id.is_none() && !self.open.is_empty() => {
                Err(PredictError::invalid(format!(
                    "field 'messages' has a result at index {index} whose 'tool_name' is that of \
                     no unanswered call in the assistant's last message; name its tool, or give \
                     its 'tool_call_id'"
                )))
            }
            _ => Ok(None),
        }
    }
}

fn given_id(call: &Value) -> Option<&str> {
    call.get("id")?.as_str().filter(|id| !id.is_empty())
}

/// The first field of a message that only servers of this dialect know.
fn unknown(message: &Value) -> Option<String> {
    beside::unknown(message, &FIELDS).or_else(|| beside::of_calls(&message["tool_calls"]))
}

pub(super) fn no_messages() -> PredictError {
    PredictError::invalid(
        "field 'messages' must be a list of objects with the strings 'role' and 'content'",
    )
}

pub(super) fn no_images(images: Option<&Value>) -> Result<(), PredictError> {
    match images {
        None | Some(Value::Null) => Ok(()),
        Some(Value::Array(images)) if images.is_empty() => Ok(()),
        Some(_) => Err(PredictError::invalid(
            "field 'images' is not supported: models here support text only",
        )),
    }
}

/// Converts a call to OpenAI's format. Returns the name of its function.
fn openai_call(call: &mut Value, id: &str) -> Result<String, PredictError> {
    let wrong = || {
        PredictError::invalid(
            "each of 'tool_calls' must have a 'function' with a 'name' and 'arguments'",
        )
    };
    let function = call
        .get("function")
        .and_then(Value::as_object)
        .ok_or_else(wrong)?;
    let name = function
        .get("name")
        .and_then(Value::as_str)
        .ok_or_else(wrong)?
        .to_owned();
    let arguments = match function.get("arguments") {
        None | Some(Value::Null) => "{}".to_owned(),
        Some(Value::String(text)) => exact::held(text).unwrap_or(text).to_owned(),
        Some(arguments @ Value::Object(_)) => arguments.to_string(),
        Some(_) => return Err(wrong()),
    };
    let function = json!({ "name": name, "arguments": arguments });
    *call = json!({ "id": id, "type": "function", "function": function });
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(name: &str) -> Value {
        json!({ "function": { "name": name, "arguments": { "a": 1 } } })
    }

    fn answered(messages: &Value) -> Vec<Option<String>> {
        let read = conversation(messages.as_array().unwrap()).unwrap();
        let results = read.into_iter().filter(|message| message.role == "tool");
        results.map(|message| message.tool_call_id).collect()
    }

    fn ids<const N: usize>(ids: [&str; N]) -> Vec<Option<String>> {
        ids.into_iter().map(|id| Some(id.to_owned())).collect()
    }

    #[test]
    fn calls_are_given_ids_and_their_answers_take_them() {
        let messages = json!([
            { "role": "user", "content": "x" },
            { "role": "assistant", "content": "", "tool_calls": [call("f"), call("g")] },
            { "role": "tool", "content": "5", "tool_name": "g" },
            { "role": "tool", "content": "4", "tool_name": "f" },
        ]);
        let read = conversation(messages.as_array().unwrap()).unwrap();
        let calls: Value = serde_json::from_str(read[1].tool_calls.as_deref().unwrap()).unwrap();
        assert_eq!(calls[1]["id"], "call_1");
        assert_eq!(calls[1]["function"]["arguments"], "{\"a\":1}");
        assert_eq!(answered(&messages), ids(["call_1", "call_0"]));
        let unnamed = json!([
            { "role": "assistant", "tool_calls": [call("f"), call("f")] },
            { "role": "tool", "content": "4" },
            { "role": "tool", "content": "5", "tool_name": "f" },
        ]);
        assert_eq!(answered(&unnamed), ids(["call_0", "call_1"]));
    }

    #[test]
    fn given_ids_are_kept_and_no_turn_shifts_the_next() {
        let with_id = |id: &str, name: &str| {
            let mut call = call(name);
            call["id"] = id.into();
            call
        };
        let messages = json!([
            { "role": "assistant", "content": "",
              "tool_calls": [with_id("call_0", "f"), with_id("b", "f"), call("f")] },
            { "role": "tool", "content": "5", "tool_call_id": "b" },
            { "role": "tool", "content": "4", "tool_call_id": "elsewhere" },
            { "role": "user", "content": "again" },
            { "role": "assistant", "content": "", "tool_calls": [call("f")] },
            { "role": "tool", "content": "6" },
            { "role": "tool", "content": "7", "tool_call_id": "late" },
        ]);
        assert_eq!(answered(&messages), ids(["b", "call_1", "call_2", "late"]));
    }

    #[test]
    fn a_result_of_another_tool_is_refused() {
        let messages = json!([
            { "role": "assistant", "content": "", "tool_calls": [call("f")] },
            { "role": "tool", "content": "5", "tool_name": "g" },
        ]);
        let error = conversation(messages.as_array().unwrap()).unwrap_err();
        assert!(error.message.contains("'tool_name'") && error.message.contains("index 1"));
    }

    #[test]
    fn unknown_fields_are_noted() {
        let noted = |message: Value| {
            let read = conversation(&[message]).unwrap().remove(0);
            let details = read.details.unwrap_or_default();
            serde_json::from_str::<Value>(&details).unwrap_or_default()["beside"].take()
        };
        assert_eq!(
            noted(json!({ "role": "user", "content": "a", "newest": 1 })),
            "newest"
        );
        let mut newer = call("f");
        newer["newest"] = 1.into();
        assert_eq!(
            noted(json!({ "role": "assistant", "content": "", "tool_calls": [newer] })),
            "tool_calls[].newest"
        );
        let known = json!({ "role": "tool", "content": "a", "tool_name": "f", "images": [] });
        assert_eq!(noted(known), Value::Null);
    }

    #[test]
    fn numbers_in_arguments_keep_their_text() {
        let arguments = r#"{"a":12345678901234567890123,"e":1e2}"#;
        let text = format!(
            r#"{{"messages":[{{"role":"assistant","content":"","tool_calls":[{{"function":{{"name":"f","arguments":{arguments}}}}}]}}]}}"#
        );
        let mut body = serde_json::from_str(&text).unwrap();
        exact::keep_inputs(&mut body, &text);
        let read = conversation(body["messages"].as_array().unwrap()).unwrap();
        let calls: Value = serde_json::from_str(read[0].tool_calls.as_deref().unwrap()).unwrap();
        assert_eq!(calls[0]["function"]["arguments"], arguments);
    }
}
