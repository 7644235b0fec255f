//! OpenAI chat completions, and the many servers that speak them.

use std::borrow::Cow;
use std::fmt;

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use volley_backend::items::Item;
use volley_types::{Citation, FinishReason};

use super::calls::numbered;
use super::citations::{annotations, some};
use super::{Delta, Ending, Format, Step, message, messages};
use crate::sse::Framing;

pub(super) const FORMAT: Format = Format {
    framing: Framing::Sse,
    media: "text/event-stream",
    key_prefix: "Bearer ",
    headers: &[],
    stream_field: Some(true),
    ending: Ending::Event,
    blames_request: false,
    body: |model, item, fields| Ok(body(model, item, fields)),
    read: |data, calls| read(data).and_then(|step| numbered(step, calls)),
    read_whole: |body, calls| read_whole(body).and_then(|step| numbered(step, calls)),
};

fn body(model: &str, item: &Item, mut body: Map<String, Value>) -> Value {
    talk(model, item, &mut body);
    // `false` is for servers that know no such field.
    if body.get("stream_options") == Some(&Value::Bool(false)) {
        body.remove("stream_options");
    } else {
        body.entry("stream_options")
            .or_insert_with(|| json!({ "include_usage": true }));
    }
    Value::Object(body)
}

/// The model and the messages.
pub(super) fn talk(model: &str, item: &Item, body: &mut Map<String, Value>) {
    body.insert("model".to_owned(), model.into());
    let messages: Vec<_> = messages(item).iter().map(message).collect();
    body.insert("messages".to_owned(), messages.into());
}

/// Servers differ in whether they leave a field out or send null; both read the same.
#[derive(Deserialize)]
struct Chunk<'a> {
    #[serde(borrow, default)]
    choices: Option<Vec<Choice<'a>>>,
    #[serde(default)]
    usage: Option<UsageField>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
    /// `error` for one that is not in a field, but is the event.
    #[serde(borrow, default)]
    object: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    message: Option<&'a RawValue>,
}

impl<'a> Chunk<'a> {
    fn failure(&self) -> Option<&'a RawValue> {
        let bare = || {
            self.message
                .filter(|_| self.object.as_deref() == Some("error"))
        };
        self.error.or_else(bare)
    }
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(borrow, default, alias = "message")]
    delta: Option<Content<'a>>,
    #[serde(borrow, default)]
    finish_reason: Option<Cow<'a, str>>,
    #[serde(default)]
    index: Option<u32>,
    #[serde(borrow, default)]
    logprobs: Option<Logprobs<'a>>,
}

#[derive(Deserialize)]
struct Logprobs<'a> {
    #[serde(borrow, default)]
    content: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
struct Content<'a> {
    #[serde(borrow, default)]
    content: Option<Said<'a>>,
    #[serde(borrow, default)]
    reasoning_content: Option<Cow<'a, str>>,
    /// What newer servers call the former; some send both.
    #[serde(borrow, default)]
    reasoning: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    tool_calls: Option<&'a RawValue>,
    #[serde(default)]
    annotations: Option<Vec<Value>>,
}

/// Content is text or, with some servers, a list of typed parts.
enum Said<'a> {
    Text(Cow<'a, str>),
    Parts(Vec<Value>),
}

impl<'de: 'a, 'a> Deserialize<'de> for Said<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SaidVisitor)
    }
}

struct SaidVisitor;

impl<'de> Visitor<'de> for SaidVisitor {
    type Value = Said<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("text or a list of parts")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Said::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Said::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Self::Value, A::Error> {
        let mut all = Vec::new();
        while let Some(part) = parts.next_element()? {
            all.push(part);
        }
        Ok(Said::Parts(all))
    }
}

#[derive(Deserialize)]
struct UsageField {
    #[serde(default)]
    prompt_tokens: Option<u32>,
    #[serde(default)]
    completion_tokens: Option<u32>,
    #[serde(default)]
    prompt_tokens_details: Option<PromptTokens>,
}

#[derive(Deserialize)]
struct PromptTokens {
    #[serde(default)]
    cached_tokens: Option<u32>,
}

pub(super) fn read(data: &str) -> Result<Step, String> {
    if data == "[DONE]" {
        return Ok(Step::End);
    }
    let chunk: Chunk<'_> = serde_json::from_str(data).map_err(|error| place(&error))?;
    step(chunk)
}

pub(super) fn read_whole(body: &[u8]) -> Result<Step, String> {
    let chunk: Chunk<'_> = serde_json::from_slice(body).map_err(|error| place(&error))?;
    if chunk.failure().is_none() && chunk.choices.as_ref().is_none_or(Vec::is_empty) {
        return Err("no choices".to_owned());
    }
    step(chunk)
}

fn step(chunk: Chunk<'_>) -> Result<Step, String> {
    if let Some(error) = chunk.failure() {
        return Ok(Step::Failed(error_text(error.get())));
    }
    let mut delta = Delta::default();
    if let Some(usage) = chunk.usage {
        delta.prompt_tokens = usage.prompt_tokens;
        delta.completion_tokens = usage.completion_tokens;
        let details = usage.prompt_tokens_details;
        delta.cached_tokens = details.and_then(|details| details.cached_tokens);
    }
    // Only the first choice is asked for.
    let mut choices = chunk.choices.into_iter().flatten();
    let Some(choice) = choices.find(|choice| choice.index.unwrap_or(0) == 0) else {
        return Ok(Step::Delta(delta));
    };
    if choice.finish_reason.as_deref() == Some("error") {
        let message = "it gave 'error' as the reason why the answer ends";
        return Ok(Step::Failed(message.to_owned()));
    }
    let content = choice.delta.unwrap_or_default();
    match content.content {
        Some(Said::Text(text)) => delta.text = Some(text.into_owned()),
        Some(Said::Parts(parts)) => split(&parts, &mut delta),
        None => {}
    }
    let cited = annotations(content.annotations.as_deref().unwrap_or_default());
    delta.citations = cited.or(delta.citations);
    let thinking = content.reasoning_content.or(content.reasoning);
    delta.thinking = thinking.map(Cow::into_owned).or(delta.thinking);
    delta.tool_calls = content
        .tool_calls
        .map(RawValue::get)
        .filter(|calls| *calls != "[]")
        .map(str::to_owned);
    delta.finish_reason = choice.finish_reason.and_then(|reason| reason_of(&reason));
    let told = choice.logprobs.and_then(|told| told.content);
    delta.logprobs = told.map(RawValue::get).and_then(probabilities);
    Ok(Step::Delta(delta))
}

/// A list of tokens with their probabilities, unless it is empty or null.
pub(super) fn probabilities(json: &str) -> Option<String> {
    let is_list = json.starts_with('[') && json != "[]";
    is_list.then(|| json.to_owned())
}

/// The text of typed parts, and what was thought among them.
fn split(parts: &[Value], delta: &mut Delta) {
    let texts = |parts: &[Value]| -> String {
        let texts = parts.iter().filter_map(|part| part["text"].as_str());
        texts.collect()
    };
    let inner = parts.iter().filter_map(|part| part["thinking"].as_array());
    let thinking: String = inner.map(|parts| texts(parts)).collect();
    delta.text = Some(texts(parts));
    delta.thinking = Some(thinking);
    delta.citations = some(references(parts));
}

/// References to what tools gave, by its ids, as Mistral has them; each stands behind its passage.
fn references(parts: &[Value]) -> Vec<Citation> {
    let ids = parts
        .iter()
        .filter_map(|part| part["reference_ids"].as_array());
    let cited = ids.flatten().filter_map(|id| {
        let (document, source) = match id {
            Value::Number(number) => (u32::try_from(number.as_u64()?).ok(), None),
            Value::String(id) => (None, Some(id.clone())),
            _ => return None,
        };
        Some(Citation {
            source,
            document,
            ..Citation::default()
        })
    });
    cited.collect()
}

fn reason_of(reason: &str) -> Option<FinishReason> {
    Some(match reason {
        // Where others send null.
        "" => return None,
        "length" | "model_length" => FinishReason::Length,
        "tool_calls" | "function_call" => FinishReason::ToolCalls,
        "content_filter" => FinishReason::ContentFilter,
        _ => FinishReason::Stop,
    })
}

/// Where JSON is not as it should be, without what it says: that is the caller's.
pub(crate) fn place(error: &serde_json::Error) -> String {
    let (kind, line, column) = (error.classify(), error.line(), error.column());
    format!("{kind:?} error in JSON at line {line}, column {column}")
}

/// The message of an error: an object with one, or text.
pub(crate) fn error_text(json: &str) -> String {
    match serde_json::from_str::<Value>(json) {
        Ok(Value::String(text)) => text,
        Ok(value) => match value.get("message").and_then(Value::as_str) {
            Some(message) => message.to_owned(),
            None => value.to_string(),
        },
        Err(_) => json.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(data: &str) -> Step {
        read(data).unwrap()
    }

    #[test]
    fn chunks_of_every_kind() {
        let text = step(
            r#"{"id":"x","choices":[{"index":0,"delta":{"role":"assistant","content":"a\"b"},"finish_reason":null}],"usage":null}"#,
        );
        assert_eq!(
            text,
            Step::Delta(Delta {
                text: Some("a\"b".into()),
                ..Delta::default()
            })
        );
        let Step::Delta(end) = step(r#"{"choices":[{"delta":{},"finish_reason":"length"}]}"#)
        else {
            panic!()
        };
        assert_eq!(end.finish_reason, Some(FinishReason::Length));
        let Step::Delta(usage) = step(
            r#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":5,"total_tokens":8}}"#,
        ) else {
            panic!()
        };
        assert_eq!(
            (usage.prompt_tokens, usage.completion_tokens),
            (Some(3), Some(5))
        );
        let Step::Delta(tools) = step(
            r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{"}}]}}]}"#,
        ) else {
            panic!()
        };
        assert!(tools.tool_calls.unwrap().starts_with("[{\"index\""));
        assert_eq!(step("[DONE]"), Step::End);
        let Step::Delta(told) = step(
            r#"{"choices":[{"delta":{"content":"a"},"logprobs":{"content":[{"token":"a","logprob":-0.5,"bytes":[97],"top_logprobs":[]}],"refusal":null}}]}"#,
        ) else {
            panic!()
        };
        let told: Value = serde_json::from_str(&told.logprobs.unwrap()).unwrap();
        assert_eq!(told[0]["logprob"], -0.5);
        let none = step(r#"{"choices":[{"delta":{},"logprobs":{"content":null}}]}"#);
        assert_eq!(none, Step::Delta(Delta::default()));
        assert_eq!(
            step(r#"{"error":{"message":"no","code":500}}"#),
            Step::Failed("no".to_owned())
        );
        assert_eq!(step(r#"{"error":"text"}"#), Step::Failed("text".to_owned()));
        let bare = r#"{"object":"error","message":"text","type":"t","code":500}"#;
        assert_eq!(step(bare), Step::Failed("text".to_owned()));
        let reason = step(r#"{"choices":[{"delta":{},"finish_reason":"error"}]}"#);
        assert!(matches!(reason, Step::Failed(_)));
        assert!(read("<html>").is_err());
    }

    #[test]
    fn the_dialects_of_compatible_servers_are_understood() {
        let delta = |data: &str| match step(data) {
            Step::Delta(delta) => delta,
            other => panic!("{other:?}"),
        };
        let both = delta(
            r#"{"choices":[{"index":null,"delta":{"reasoning":"hm","reasoning_content":"hm","content":null},"finish_reason":""}],"error":null}"#,
        );
        assert_eq!(both.thinking.as_deref(), Some("hm"));
        assert_eq!(both.finish_reason, None);
        let parts = delta(
            r#"{"choices":[{"delta":{"content":[{"type":"thinking","thinking":[{"type":"text","text":"hm"}]},{"type":"text","text":"hi"}]}}]}"#,
        );
        assert_eq!(parts.text.as_deref(), Some("hi"));
        assert_eq!(parts.thinking.as_deref(), Some("hm"));
        let second = delta(r#"{"choices":[{"index":1,"delta":{"content":"other"}}]}"#);
        assert!(!second.has_content(), "one choice is asked for");
        let sparse = delta(r#"{"choices":null,"usage":{"prompt_tokens":null}}"#);
        assert_eq!(sparse, Delta::default());
        let wrong = read(r#"{"choices":[{"index":"the caller's text"}]}"#);
        assert!(!wrong.unwrap_err().contains("caller"));
    }

    #[test]
    fn the_body_has_the_parameters_and_asks_for_usage() {
        let fields = |fields: Value| fields.as_object().cloned().unwrap();
        let item = Item::Prompt("hi".into());
        let body = body("gpt", &item, fields(json!({ "temperature": 0.5 })));
        assert_eq!(
            body["messages"],
            json!([{ "role": "user", "content": "hi" }])
        );
        assert_eq!(body["temperature"], 0.5);
        assert_eq!(body["stream_options"]["include_usage"], true);
        assert_eq!(body["model"], "gpt");
        let body = super::body("gpt", &item, fields(json!({ "stream_options": false })));
        assert!(body.get("stream_options").is_none());
    }
}
