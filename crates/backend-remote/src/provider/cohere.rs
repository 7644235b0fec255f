//! Cohere's chat, version 2.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use volley_backend::items::Item;
use volley_types::{Citation, FinishReason};

use super::citations::{number, some, text};
use super::conversation::{calls as calls_of, message, messages};
use super::openai::{error_text, place};
use super::tidy::{Choice, Form, only_tool, rename, take_choice, take_form, tidy};
use super::{Calls, Delta, Format, Step, deltas, openai};

pub(super) const FORMAT: Format = Format {
    blames_request: true,
    body: |model, item, fields| Ok(body(model, item, fields)),
    read,
    read_whole,
    ..openai::FORMAT
};

fn body(model: &str, item: &Item, mut body: Map<String, Value>) -> Value {
    tidy(&mut body);
    let names = [
        ("max_completion_tokens", "max_tokens"),
        ("max_new_tokens", "max_tokens"),
        ("stop", "stop_sequences"),
        ("top_k", "k"),
        ("top_p", "p"),
    ];
    rename(&mut body, &names);
    match take_choice(&mut body) {
        Some(Choice::None) => _ = body.insert("tool_choice".to_owned(), "NONE".into()),
        Some(Choice::Required) => _ = body.insert("tool_choice".to_owned(), "REQUIRED".into()),
        Some(Choice::Named(name)) => {
            only_tool(&mut body, &name);
            body.insert("tool_choice".to_owned(), "REQUIRED".into());
        }
        Some(Choice::Auto) | None => {}
    }
    let form = match take_form(&mut body) {
        Some(Form::Object) => Some(json!({ "type": "json_object" })),
        Some(Form::Schema(schema)) => Some(json!({ "type": "json_object", "json_schema": schema })),
        Some(Form::Text) | None => None,
    };
    if let Some(form) = form {
        body.insert("response_format".to_owned(), form);
    }
    body.insert("model".to_owned(), model.into());
    let messages = messages(item);
    let turns = messages.iter().map(|sent| {
        let mut turn = message(sent);
        // What an assistant says beside its calls is its plan for them.
        if !calls_of(sent).is_empty() {
            let content = turn["content"].take();
            turn.as_object_mut().map(|turn| turn.remove("content"));
            if content.is_string() {
                turn["tool_plan"] = content;
            }
        }
        turn
    });
    body.insert("messages".to_owned(), turns.collect());
    Value::Object(body)
}

#[derive(Deserialize)]
struct Body<'a> {
    /// Which part of the message, or which call, it is about.
    #[serde(default)]
    index: Option<u64>,
    #[serde(borrow, default, rename = "type")]
    kind: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    delta: Option<Inner<'a>>,
    /// Of an error, which has no type.
    #[serde(borrow, default)]
    message: Option<Cow<'a, str>>,
}

#[derive(Default, Deserialize)]
struct Inner<'a> {
    #[serde(borrow, default)]
    message: Option<Message<'a>>,
    #[serde(borrow, default)]
    finish_reason: Option<Cow<'a, str>>,
    #[serde(default)]
    usage: Option<Tokens>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

/// Each field is an object, a list or null by the event's type.
#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow, default)]
    content: Option<&'a RawValue>,
    #[serde(borrow, default)]
    tool_plan: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    tool_calls: Option<&'a RawValue>,
    #[serde(borrow, default)]
    citations: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Content<'a> {
    #[serde(borrow, default)]
    text: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    thinking: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct Call<'a> {
    #[serde(borrow, default)]
    id: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    function: Option<Function<'a>>,
}

#[derive(Deserialize)]
struct Function<'a> {
    #[serde(borrow, default)]
    name: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    arguments: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct Tokens {
    #[serde(default)]
    tokens: Option<Counts>,
    #[serde(default)]
    billed_units: Option<Counts>,
    #[serde(default)]
    cached_tokens: Option<f64>,
}

/// The server writes counts as fractions at times.
#[derive(Clone, Copy, Deserialize)]
struct Counts {
    #[serde(default)]
    input_tokens: Option<f64>,
    #[serde(default)]
    output_tokens: Option<f64>,
}

fn read(data: &str, calls: &mut Calls) -> Result<Step, String> {
    // Some proxies add this after the end; it is none.
    if data == "[DONE]" {
        return Ok(Step::Delta(Delta::default()));
    }
    let body: Body<'_> = serde_json::from_str(data).map_err(|error| place(&error))?;
    let (inner, mut delta) = (body.delta.unwrap_or_default(), Delta::default());
    match (body.kind.as_deref(), body.message) {
        (Some("message-end"), _) => return end(&inner),
        (Some("content-start" | "content-delta"), _) => {
            if let Some(content) = inner.message.and_then(|message| message.content) {
                let content: Content<'_> = one(content)?;
                delta.text = content.text.map(Cow::into_owned);
                delta.thinking = content.thinking.map(Cow::into_owned);
            }
        }
        (Some("tool-plan-delta"), _) => {
            let plan = inner.message.and_then(|message| message.tool_plan);
            delta.thinking = plan.map(Cow::into_owned);
        }
        (Some("tool-call-start" | "tool-call-delta"), _) => {
            if let Some(call) = inner.message.and_then(|message| message.tool_calls) {
                let call = tool_call(one(call)?, body.index, calls);
                delta.tool_calls = deltas(call.into_iter().collect());
            }
        }
        (Some("citation-start"), _) => {
            if let Some(cited) = inner.message.and_then(|message| message.citations) {
                delta.citations = some(citations(&one(cited)?));
            }
        }
        // Beginnings and ends of parts, and what later versions add.
        (Some(_), _) => {}
        (None, Some(message)) => return Ok(Step::Failed(message.into_owned())),
        (None, None) => return Err("no type".to_owned()),
    }
    Ok(Step::Delta(delta))
}

fn one<'a, T: Deserialize<'a>>(raw: &'a RawValue) -> Result<T, String> {
    serde_json::from_str(raw.get()).map_err(|error| place(&error))
}

/// One for each source, or for each of a list.
fn citations(told: &Value) -> Vec<Citation> {
    if let Some(list) = told.as_array() {
        return list.iter().flat_map(citations).collect();
    }
    let sources = told["sources"].as_array().into_iter().flatten();
    let cited = sources.map(|source| {
        // What a tool gave is a document as well.
        let document = match &source["document"] {
            Value::Null => &source["tool_output"],
            document => document,
        };
        let quote = ["snippet", "text", "content"];
        Citation {
            url: text(document, "url"),
            title: text(document, "title"),
            quote: quote.iter().find_map(|name| text(document, name)),
            source: text(source, "id"),
            start: number(told, "start"),
            end: number(told, "end"),
            ..Citation::default()
        }
    });
    cited.collect()
}

fn tool_call(call: Call<'_>, index: Option<u64>, calls: &mut Calls) -> Option<Value> {
    let function = call.function?;
    let arguments = function.arguments.unwrap_or_default();
    let id = call.id.as_deref();
    match (function.name, index) {
        (Some(name), Some(index)) => Some(calls.begin_in(index, id, &name, &arguments)),
        (Some(name), None) => Some(calls.begin(id, &name, &arguments)),
        (None, Some(index)) => calls.more_in(index, &arguments),
        (None, None) => calls.more(&arguments),
    }
}

fn end(inner: &Inner<'_>) -> Result<Step, String> {
    let mut delta = Delta::default();
    tokens(&mut delta, inner.usage.as_ref());
    Ok(match reason(inner.finish_reason.as_deref()) {
        Ok(reason) => {
            delta.finish_reason = reason;
            Step::Last(delta)
        }
        Err(reason) => Step::Failed(match inner.error {
            Some(error) => error_text(error.get()),
            None => reason.to_owned(),
        }),
    })
}

/// The reason, or what to say where the answer ended in a failure.
fn reason(reason: Option<&str>) -> Result<Option<FinishReason>, &'static str> {
    Ok(Some(match reason {
        None => return Ok(None),
        Some("MAX_TOKENS" | "ERROR_LIMIT") => FinishReason::Length,
        Some("TOOL_CALL") => FinishReason::ToolCalls,
        Some("ERROR_TOXIC") => FinishReason::ContentFilter,
        Some("ERROR") => return Err("it gave 'ERROR' as the reason why the answer ends"),
        Some("TIMEOUT") => return Err("it took too long over the answer"),
        Some(_) => FinishReason::Stop,
    }))
}

fn tokens(delta: &mut Delta, told: Option<&Tokens>) {
    let counts = told.and_then(|told| told.tokens.or(told.billed_units));
    // A float becomes the nearest whole number that there is.
    let count = |count: Option<f64>| count.map(|count| count as u32);
    delta.prompt_tokens = count(counts.and_then(|counts| counts.input_tokens));
    delta.completion_tokens = count(counts.and_then(|counts| counts.output_tokens));
    delta.cached_tokens = count(told.and_then(|told| told.cached_tokens));
}

fn read_whole(body: &[u8], calls: &mut Calls) -> Result<Step, String> {
    let body: Value = serde_json::from_slice(body).map_err(|error| place(&error))?;
    let message = match &body["message"] {
        Value::String(error) => return Ok(Step::Failed(error.clone())),
        Value::Object(message) => message,
        _ => return Err("no message".to_owned()),
    };
    let list = |name: &str| message.get(name).and_then(Value::as_array);
    let texts = |name: &str| -> String {
        let parts = list("content").into_iter().flatten();
        parts.filter_map(|part| part[name].as_str()).collect()
    };
    let mut delta = Delta {
        text: Some(texts("text")),
        ..Delta::default()
    };
    let plan = message.get("tool_plan").and_then(Value::as_str);
    delta.thinking = Some(texts("thinking") + plan.unwrap_or_default());
    let made = list("tool_calls").into_iter().flatten().map(|call| {
        let function = &call["function"];
        let text = |name: &str| function[name].as_str().unwrap_or_default();
        calls.begin(call["id"].as_str(), text("name"), text("arguments"))
    });
    delta.tool_calls = deltas(made.collect());
    delta.citations = some(
        list("citations")
            .into_iter()
            .flatten()
            .flat_map(citations)
            .collect(),
    );
    tokens(
        &mut delta,
        Tokens::deserialize(&body["usage"]).ok().as_ref(),
    );
    match reason(body["finish_reason"].as_str()) {
        Ok(reason) => delta.finish_reason = reason,
        Err(reason) => return Ok(Step::Failed(reason.to_owned())),
    }
    Ok(Step::Delta(delta))
}

#[cfg(test)]
mod tests {
    use volley_types::ChatMessage;

    use super::*;

    fn delta(data: &str, calls: &mut Calls) -> Delta {
        match read(data, calls) {
            Ok(Step::Delta(delta)) => delta,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn parameters_have_the_servers_names() {
        let tool = |name: &str| json!({ "type": "function", "function": { "name": name } });
        let fields = json!({
            "top_k": 4, "top_p": 0.5, "stop": ["x"], "max_new_tokens": 9, "user": "u",
            "tools": [tool("f"), tool("g")], "tool_choice": tool("g"),
            "response_format": { "type": "json_schema", "json_schema": { "schema": { "a": 1 } } },
        });
        let called = ChatMessage {
            tool_calls: Some(
                json!([{ "id": "1", "type": "function",
                "function": { "name": "g", "arguments": "{}" } }])
                .to_string(),
            ),
            ..ChatMessage::new("assistant", "I look")
        };
        let item = Item::Chat(vec![ChatMessage::new("user", "hi"), called]);
        let body = body("command", &item, fields.as_object().cloned().unwrap());
        let expected = json!({
            "model": "command", "k": 4, "p": 0.5, "stop_sequences": ["x"], "max_tokens": 9,
            "tools": [tool("g")], "tool_choice": "REQUIRED",
            "response_format": { "type": "json_object", "json_schema": { "a": 1 } },
            "messages": [{ "role": "user", "content": "hi" }, {
                "role": "assistant", "tool_plan": "I look", "tool_calls": [{ "id": "1",
                "type": "function", "function": { "name": "g", "arguments": "{}" } }] }],
        });
        assert_eq!(body, expected);
    }

    #[test]
    fn events_of_every_kind() {
        let calls = &mut Calls::default();
        let start = r#"{"type":"message-start","id":"x","delta":{"message":{"role":"assistant","content":[],"tool_plan":"","tool_calls":[],"citations":[]}}}"#;
        assert_eq!(delta(start, calls), Delta::default());
        let thinking = r#"{"type":"content-delta","index":0,"delta":{"message":{"content":{"thinking":"hm"}}}}"#;
        assert_eq!(delta(thinking, calls).thinking.as_deref(), Some("hm"));
        let plan = r#"{"type":"tool-plan-delta","delta":{"message":{"tool_plan":"I look"}}}"#;
        assert_eq!(delta(plan, calls).thinking.as_deref(), Some("I look"));
        let begun = r#"{"type":"tool-call-start","index":0,"delta":{"message":{"tool_calls":{"id":"c","type":"function","function":{"name":"f","arguments":""}}}}}"#;
        let begun: Value = serde_json::from_str(&delta(begun, calls).tool_calls.unwrap()).unwrap();
        assert_eq!(
            (&begun[0]["id"], &begun[0]["index"]),
            (&json!("c"), &json!(0))
        );
        let more = r#"{"type":"tool-call-delta","index":0,"delta":{"message":{"tool_calls":{"function":{"arguments":"{}"}}}}}"#;
        let more: Value = serde_json::from_str(&delta(more, calls).tool_calls.unwrap()).unwrap();
        assert_eq!(
            more,
            json!([{ "function": { "arguments": "{}" }, "index": 0 }])
        );
        let cited = r#"{"type":"citation-start","index":0,"delta":{"message":{"citations":{"start":0,"end":1,"text":"h"}}}}"#;
        assert_eq!(
            delta(cited, calls),
            Delta::default(),
            "a citation has sources"
        );
        let end = r#"{"type":"message-end","delta":{"finish_reason":"TOOL_CALL","usage":{"billed_units":{"input_tokens":1.0},"tokens":{"input_tokens":9.0,"output_tokens":4.0}}}}"#;
        let Ok(Step::Last(end)) = read(end, calls) else {
            panic!()
        };
        assert_eq!(end.finish_reason, Some(FinishReason::ToolCalls));
        assert_eq!(
            (end.prompt_tokens, end.completion_tokens),
            (Some(9), Some(4))
        );
        for failed in [
            r#"{"type":"message-end","delta":{"finish_reason":"ERROR","error":"no"}}"#,
            r#"{"message":"no"}"#,
        ] {
            assert_eq!(read(failed, calls), Ok(Step::Failed("no".to_owned())));
        }
        assert!(read("{}", calls).is_err());
    }

    #[test]
    fn a_whole_message_has_all_its_parts() {
        let body = br#"{"id":"x","finish_reason":"MAX_TOKENS","message":{"role":"assistant","content":[{"type":"thinking","thinking":"hm"},{"type":"text","text":"hi"}]},"usage":{"tokens":{"input_tokens":2,"output_tokens":3}}}"#;
        let Ok(Step::Delta(delta)) = read_whole(body, &mut Calls::default()) else {
            panic!()
        };
        assert_eq!(delta.text.as_deref(), Some("hi"));
        assert_eq!(delta.thinking.as_deref(), Some("hm"));
        assert_eq!(delta.finish_reason, Some(FinishReason::Length));
        assert_eq!(delta.completion_tokens, Some(3));
    }
}
