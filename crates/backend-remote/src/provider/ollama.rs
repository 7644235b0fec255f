//! Ollama's chat: JSON by lines, and parameters in `options`.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use volley_backend::items::Item;
use volley_types::{ChatMessage, FinishReason, PredictError};

use super::conversation::{arguments, called, calls as calls_of, messages};
use super::openai::{error_text, place, probabilities};
use super::tidy::{Choice, Form, nest, take_choice, take_form, tidy};
use super::{Calls, Delta, Format, Step, deltas, openai};
use crate::sse::Framing;

pub(super) const FORMAT: Format = Format {
    framing: Framing::Lines,
    media: "application/x-ndjson",
    blames_request: true,
    body,
    read,
    read_whole: |body, calls| match std::str::from_utf8(body) {
        Ok(text) => match read(text, calls)? {
            Step::Delta(_) => Err("an answer that is not done".to_owned()),
            step => Ok(step),
        },
        Err(_) => Err("no UTF-8".to_owned()),
    },
    ..openai::FORMAT
};

const OPTIONS: [(&str, &str); 15] = [
    ("max_tokens", "num_predict"),
    ("max_completion_tokens", "num_predict"),
    ("max_new_tokens", "num_predict"),
    ("num_predict", "num_predict"),
    ("num_ctx", "num_ctx"),
    ("temperature", "temperature"),
    ("top_k", "top_k"),
    ("top_p", "top_p"),
    ("min_p", "min_p"),
    ("seed", "seed"),
    ("stop", "stop"),
    ("repetition_penalty", "repeat_penalty"),
    ("repeat_penalty", "repeat_penalty"),
    ("presence_penalty", "presence_penalty"),
    ("frequency_penalty", "frequency_penalty"),
];

fn body(model: &str, item: &Item, mut body: Map<String, Value>) -> Result<Value, PredictError> {
    tidy(&mut body);
    nest(&mut body, "options", &OPTIONS)?;
    match take_choice(&mut body) {
        Some(Choice::None) => _ = body.remove("tools"),
        Some(Choice::Required | Choice::Named(_)) => {
            return Err(PredictError::invalid(
                "parameter 'tool_choice' must be 'auto' or 'none': the remote model's server \
                 cannot be told to call a tool",
            ));
        }
        Some(Choice::Auto) | None => {}
    }
    match take_form(&mut body) {
        Some(Form::Object) => _ = body.insert("format".to_owned(), "json".into()),
        Some(Form::Schema(schema)) => _ = body.insert("format".to_owned(), schema),
        Some(Form::Text) | None => {}
    }
    body.insert("model".to_owned(), model.into());
    let messages = messages(item);
    let turns = (0..messages.len()).map(|at| turn(&messages, at));
    body.insert("messages".to_owned(), turns.collect());
    Ok(Value::Object(body))
}

fn turn(messages: &[ChatMessage], at: usize) -> Value {
    let message = &messages[at];
    let mut turn = json!({ "role": message.role, "content": message.content });
    let calls = calls_of(message);
    if !calls.is_empty() {
        let calls = calls.iter().map(|call| {
            let name = &call["function"]["name"];
            json!({ "function": { "name": name, "arguments": arguments(call) } })
        });
        turn["tool_calls"] = calls.collect();
    }
    if let Some(name) = called(messages[..at].iter(), message) {
        turn["tool_name"] = name.into();
    }
    turn
}

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(borrow, default)]
    message: Option<Message<'a>>,
    /// The text, where a connector calls `/api/generate`.
    #[serde(borrow, default)]
    response: Option<Cow<'a, str>>,
    /// Already in OpenAI's form.
    #[serde(borrow, default)]
    logprobs: Option<&'a RawValue>,
    #[serde(default)]
    done: Option<bool>,
    #[serde(borrow, default)]
    done_reason: Option<Cow<'a, str>>,
    #[serde(default)]
    prompt_eval_count: Option<u32>,
    #[serde(default)]
    eval_count: Option<u32>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow, default)]
    content: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    thinking: Option<Cow<'a, str>>,
    #[serde(default)]
    tool_calls: Option<Vec<Value>>,
}

fn read(data: &str, calls: &mut Calls) -> Result<Step, String> {
    let line: Line<'_> = serde_json::from_str(data).map_err(|error| place(&error))?;
    if let Some(error) = line.error {
        return Ok(Step::Failed(error_text(error.get())));
    }
    if line.message.is_none() && line.response.is_none() && line.done.is_none() {
        return Err("no message".to_owned());
    }
    let mut delta = Delta {
        text: line.response.map(Cow::into_owned),
        prompt_tokens: line.prompt_eval_count,
        completion_tokens: line.eval_count,
        logprobs: line.logprobs.map(RawValue::get).and_then(probabilities),
        ..Delta::default()
    };
    if let Some(message) = line.message {
        delta.text = message.content.map(Cow::into_owned).or(delta.text);
        delta.thinking = message.thinking.map(Cow::into_owned);
        let made = message.tool_calls.into_iter().flatten().map(|call| {
            let name = call["function"]["name"].as_str().unwrap_or_default();
            let arguments = arguments(&call).to_string();
            calls.begin(call["id"].as_str(), name, &arguments)
        });
        delta.tool_calls = deltas(made.collect());
    }
    if line.done != Some(true) {
        return Ok(Step::Delta(delta));
    }
    // The server says `stop` as well where it calls tools.
    delta.finish_reason = Some(match line.done_reason.as_deref() {
        Some("length") => FinishReason::Length,
        _ if calls.any() => FinishReason::ToolCalls,
        _ => FinishReason::Stop,
    });
    Ok(Step::Last(delta))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_options_and_tools_are_called_by_name() {
        let fields = json!({
            "max_tokens": 9, "temperature": 0.5, "options": { "num_ctx": 64 }, "keep_alive": "5m",
            "tools": [1], "tool_choice": "none", "response_format": { "type": "json_object" },
        });
        let call = json!([{ "id": "1", "function": { "name": "f", "arguments": "{\"a\":1}" } }]);
        let item = Item::Chat(vec![
            ChatMessage {
                tool_calls: Some(call.to_string()),
                ..ChatMessage::new("assistant", "")
            },
            ChatMessage {
                tool_call_id: Some("1".to_owned()),
                ..ChatMessage::new("tool", "21")
            },
        ]);
        let made = body("llama", &item, fields.as_object().cloned().unwrap()).unwrap();
        let expected = json!({
            "model": "llama", "keep_alive": "5m", "format": "json",
            "options": { "num_ctx": 64, "num_predict": 9, "temperature": 0.5 },
            "messages": [
                { "role": "assistant", "content": "",
                  "tool_calls": [{ "function": { "name": "f", "arguments": { "a": 1 } } }] },
                { "role": "tool", "content": "21", "tool_name": "f" },
            ],
        });
        assert_eq!(made, expected);
        let forced = json!({ "tool_choice": "required" });
        let error = body("llama", &item, forced.as_object().cloned().unwrap()).unwrap_err();
        assert!(error.message.contains("'tool_choice'"));
    }

    #[test]
    fn lines_of_every_kind() {
        let calls = &mut Calls::new(1);
        let line = r#"{"model":"m","message":{"role":"assistant","content":"","thinking":"hm"},"done":false}"#;
        let Ok(Step::Delta(delta)) = read(line, calls) else {
            panic!()
        };
        assert_eq!(delta.thinking.as_deref(), Some("hm"));
        let line = r#"{"message":{"content":"","tool_calls":[{"function":{"name":"f","arguments":{"a":1}}}]},"done":false}"#;
        let Ok(Step::Delta(delta)) = read(line, calls) else {
            panic!()
        };
        let call: Value = serde_json::from_str(&delta.tool_calls.unwrap()).unwrap();
        assert_eq!(call[0]["function"]["arguments"], "{\"a\":1}");
        assert_eq!(call[0]["id"], "call_0000000000000001_0");
        let line = r#"{"message":{"content":"."},"done":true,"done_reason":"stop","prompt_eval_count":2,"eval_count":3,"total_duration":5}"#;
        let Ok(Step::Last(delta)) = read(line, calls) else {
            panic!()
        };
        assert_eq!(delta.text.as_deref(), Some("."));
        assert_eq!(delta.finish_reason, Some(FinishReason::ToolCalls));
        assert_eq!(delta.completion_tokens, Some(3));
        let failed = read(r#"{"error":"out of memory"}"#, calls);
        assert_eq!(failed, Ok(Step::Failed("out of memory".to_owned())));
        assert!(read("{}", calls).is_err());
    }
}
