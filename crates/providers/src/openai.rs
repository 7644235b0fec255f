//! OpenAI chat completions and compatible servers. `request` writes requests; this module reads
//! answers.

mod chunk;
pub(super) mod request;

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use volley_provider_kit::calls::numbered;
use volley_provider_kit::citations::{annotations, some};
use volley_provider_kit::fault::{self, json_position};
use volley_provider_kit::names::{IdRule, NameRule, NameRules};
use volley_provider_kit::provider::{AnswerForm, Page, Provider};
use volley_provider_kit::step::{Delta, Step};
use volley_types::{Citation, FinishReason};

use self::chunk::{Choice, Chunk, Content, ContentPart};

pub(crate) static PROVIDER: Provider = CHAT;

/// The common definition of servers with chat completions.
pub(crate) const CHAT: Provider = Provider {
    page: Page {
        endpoint: "OpenAI's chat completions, `…/v1/chat/completions`, and every compatible \
                   server: vLLM, SGLang, llama.cpp, LiteLLM, another Volley",
        url: "all other URLs",
        ..Page::NONE
    },
    route: "/v1/chat/completions",
    other_routes: &[("/v1/completions", false), ("/beta/completions", false)],
    native: &["openai"],
    flat_body: true,
    answer_form: Some(AnswerForm::OpenAi),
    // Compatible servers differ, and most check no names.
    names: Some(NameRules {
        domains: &["api.openai.com"],
        ..NAMES
    }),
    read: |data, calls| read(data).and_then(|step| numbered(step, calls)),
    read_whole: |body, calls| read_whole(body).and_then(|step| numbered(step, calls)),
    ..Provider::new("openai", &request::PARAMETERS, request::body)
};

/// The names that OpenAI's chat completions accept.
pub(crate) const NAMES: NameRules = NameRules {
    tools: NameRule::up_to(64),
    ids: Some(IdRule::Name(NameRule {
        more: "-.:|",
        ..NameRule::up_to(40)
    })),
    domains: &[],
};

#[derive(Deserialize)]
struct UsageField {
    #[serde(default)]
    prompt_tokens: Option<u32>,
    #[serde(default)]
    completion_tokens: Option<u32>,
    #[serde(default)]
    prompt_tokens_details: Option<PromptTokens>,
    #[serde(default)]
    completion_tokens_details: Option<CompletionTokens>,
    /// DeepSeek's field for cached prompt tokens.
    #[serde(default)]
    prompt_cache_hit_tokens: Option<u32>,
    /// The name of some servers for the count in the details.
    #[serde(default)]
    reasoning_tokens: Option<u32>,
}

#[derive(Deserialize)]
struct PromptTokens {
    #[serde(default)]
    cached_tokens: Option<u32>,
    #[serde(default, alias = "cache_creation_tokens")]
    cache_write_tokens: Option<u32>,
}

#[derive(Deserialize)]
struct CompletionTokens {
    #[serde(default)]
    reasoning_tokens: Option<u32>,
}

fn tokens(delta: &mut Delta, told: &RawValue) {
    // Malformed usage is ignored, because the answer is valid without it.
    let Ok(usage) = serde_json::from_str::<UsageField>(told.get()) else {
        return;
    };
    delta.prompt_tokens = usage.prompt_tokens;
    delta.completion_tokens = usage.completion_tokens;
    let details = usage.prompt_tokens_details;
    let cached = details.as_ref().and_then(|details| details.cached_tokens);
    delta.cached_tokens = cached.or(usage.prompt_cache_hit_tokens);
    delta.cache_write_tokens = details.and_then(|details| details.cache_write_tokens);
    let details = usage.completion_tokens_details;
    let reasoned = details.and_then(|details| details.reasoning_tokens);
    delta.reasoning_tokens = reasoned.or(usage.reasoning_tokens);
    if delta.has_usage() {
        delta.end().usage = serde_json::from_str(told.get()).ok();
    }
}

/// The stop string that ended the answer, which vLLM and SGLang report beside the finish reason. A
/// number there is the id of a stop token.
fn matched(choice: &Choice<'_>) -> Option<String> {
    let names = ["stop_reason", "matched_stop"];
    let mut told = choice.rest.iter();
    let (_, told) = told.find(|(name, _)| names.contains(&name.as_str()))?;
    let told: String = serde_json::from_str(told.get()).ok()?;
    let reason = choice.finish_reason.as_deref();
    (reason == Some("stop") && !told.is_empty() && told != "stop").then_some(told)
}

/// The fields of a choice that other dialects cannot express.
fn beside(choice: &Choice<'_>, content: &Content<'_>) -> Option<Value> {
    if choice.rest.is_empty() && content.rest.is_empty() {
        return None;
    }
    let (choice, delta) = (chunk::values(&choice.rest), chunk::values(&content.rest));
    Some(json!({ "choice": choice, "delta": delta }))
}

pub(super) fn read(data: &str) -> Result<Step, String> {
    if data == "[DONE]" {
        return Ok(Step::End);
    }
    let chunk: Chunk<'_> = serde_json::from_str(data).map_err(|error| json_position(&error))?;
    step(chunk)
}

pub(super) fn read_whole(body: &[u8]) -> Result<Step, String> {
    let chunk: Chunk<'_> = serde_json::from_slice(body).map_err(|error| json_position(&error))?;
    if chunk.failure().is_none() && chunk.choices.as_ref().is_none_or(Vec::is_empty) {
        return Err("no choices".to_owned());
    }
    let mut choices = chunk.choices.iter().flatten();
    if chunk.failure().is_none() && choices.any(|choice| choice.delta.is_none()) {
        return Err("a choice without a message".to_owned());
    }
    step(chunk)
}

fn step(chunk: Chunk<'_>) -> Result<Step, String> {
    if let Some(error) = chunk.failure() {
        return Ok(fault::step(error.get()));
    }
    let mut delta = Delta::default();
    let ended = |choice: &Choice<'_>| choice.finish_reason.is_some();
    let choices = chunk.choices.iter().flatten();
    // Fields about the whole answer come in its first or last chunks.
    let ends = choices.clone().next().is_none() || choices.clone().any(ended);
    if let Some(usage) = chunk.usage {
        tokens(&mut delta, usage);
    }
    if (ends || chunk.usage.is_some()) && !chunk.rest.is_empty() {
        delta.end().fields = Some(chunk::values(&chunk.rest).into());
    }
    if let Some(end) = &mut delta.end {
        end.format = Some("openai".to_owned());
    }
    // Requests ask for one choice.
    let mut choices = chunk.choices.into_iter().flatten();
    let Some(mut choice) = choices.find(|choice| choice.index.unwrap_or(0) == 0) else {
        return Ok(Step::Delta(delta));
    };
    if choice.delta.is_none() && choice.text.is_some() {
        return Err("a choice with 'text' instead of a message".to_owned());
    }
    // The server's own failures.
    let failures = ["error", "network_error", "insufficient_system_resource"];
    let failure = choice.finish_reason.as_deref();
    if let Some(reason) = failure.filter(|reason| failures.contains(reason)) {
        let message = format!("the server returned the finish reason '{reason}'");
        return Ok(Step::Failed(message));
    }
    if let Some(matched) = matched(&choice) {
        let end = delta.end();
        (end.format, end.stop_sequence) = (Some("openai".to_owned()), Some(matched));
    }
    let content = choice.delta.take().unwrap_or_default();
    if let Some(told) = beside(&choice, &content) {
        let details = delta.details();
        details.format = Some("openai".to_owned());
        details.blocks.push(told);
    }
    add_content(&mut delta, content);
    // Some servers send an empty reason instead of null.
    if let Some(told) = choice.finish_reason.filter(|told| !told.is_empty()) {
        delta.finish(&told, reason_of(&told));
    }
    if let Some(told) = choice.logprobs {
        let of = |list: Option<&RawValue>| list.map(RawValue::get).and_then(probabilities);
        delta.logprobs = of(told.content).or_else(|| of(told.refusal));
    }
    Ok(Step::Delta(delta))
}

/// Adds the text, the reasoning, the citations, the calls and the refusal of a message.
fn add_content(delta: &mut Delta, content: Content<'_>) {
    match content.content {
        Some(ContentPart::Text(text)) => delta.text = Some(text.into_owned()),
        Some(ContentPart::Parts(parts)) => split(&parts, delta),
        None => {}
    }
    let cited = annotations(content.annotations.as_deref().unwrap_or_default());
    delta.citations = cited.or(delta.citations.take());
    let thinking = content.reasoning_content.or(content.reasoning);
    delta.thinking = thinking.map(Cow::into_owned).or(delta.thinking.take());
    delta.tool_calls = content
        .tool_calls
        .map(RawValue::get)
        .filter(|calls| *calls != "[]")
        .map(str::to_owned);
    let legacy = content.function_call.map(RawValue::get);
    if let (None, Some(call)) = (&delta.tool_calls, legacy) {
        delta.tool_calls = Some(format!("[{{\"index\":0,\"function\":{call}}}]"));
    }
    if let Some(refusal) = content.refusal.filter(|text| !text.is_empty()) {
        delta.text.get_or_insert_default().push_str(&refusal);
        delta.details().refusal = true;
    }
}

/// A list of log probabilities, unless it is empty or null.
pub(super) fn probabilities(json: &str) -> Option<String> {
    let is_list = json.starts_with('[') && json != "[]";
    is_list.then(|| json.to_owned())
}

/// Splits typed parts into text, reasoning and citations.
fn split(parts: &[Value], delta: &mut Delta) {
    let texts = |parts: &[Value]| -> String {
        let texts = parts.iter().filter_map(|part| part["text"].as_str());
        texts.collect()
    };
    let inner = parts.iter().filter_map(|part| part["thinking"].as_array());
    let thinking: String = inner.map(|parts| texts(parts)).collect();
    let has_form = |part: &&Value| {
        part["text"].is_string() || part["thinking"].is_array() || part["reference_ids"].is_array()
    };
    if let Some(part) = parts.iter().find(|part| !has_form(part)) {
        delta.lacks_form(part["type"].as_str().unwrap_or("unknown"));
    }
    delta.text = Some(texts(parts));
    delta.thinking = Some(thinking);
    delta.citations = some(references(parts));
}

/// References to tool outputs by id, in Mistral's format. A reference follows its passage.
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

/// Converts the finish reasons of OpenAI and of compatible servers; `None` for an unknown one.
fn reason_of(reason: &str) -> Option<FinishReason> {
    Some(match reason.to_ascii_lowercase().as_str() {
        "stop" | "stop_sequence" | "end_turn" | "eos" | "eos_token" | "complete" | "completed" => {
            FinishReason::Stop
        }
        "length" | "max_tokens" | "model_length" | "model_context_window_exceeded" => {
            FinishReason::Length
        }
        "tool_calls" | "tool_use" | "function_call" => FinishReason::ToolCalls,
        "content_filter" | "refusal" | "safety" | "sensitive" => FinishReason::ContentFilter,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

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
        let Step::Delta(refused) =
            step(r#"{"choices":[{"delta":{"refusal":"No."},"finish_reason":"stop"}]}"#)
        else {
            panic!()
        };
        assert_eq!(refused.text.as_deref(), Some("No."));
        assert!(refused.details.unwrap().refusal);
        let legacy = r#"{"choices":[{"delta":{"function_call":{"name":"f","arguments":""}},"finish_reason":null}]}"#;
        let Step::Delta(legacy) = step(legacy) else {
            panic!()
        };
        assert!(legacy.tool_calls.unwrap().contains("\"name\":\"f\""));
        let counted = r#"{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":4,"cache_write_tokens":2},"completion_tokens_details":{"reasoning_tokens":3}},"system_fingerprint":"fp"}"#;
        let Step::Delta(counted) = step(counted) else {
            panic!()
        };
        assert_eq!(
            (
                counted.cached_tokens,
                counted.cache_write_tokens,
                counted.reasoning_tokens
            ),
            (Some(4), Some(2), Some(3))
        );
        assert_eq!(
            counted.end.unwrap().fields,
            Some(json!({ "system_fingerprint": "fp" }))
        );
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
    fn a_stop_string_is_told_and_a_stop_token_is_not() {
        for (field, expected) in [
            (r#""stop_reason":"END""#, Some("END")),
            (r#""matched_stop":"END""#, Some("END")),
            (r#""stop_reason":128009"#, None),
            (r#""stop_reason":null"#, None),
        ] {
            let data =
                format!(r#"{{"choices":[{{"delta":{{}},"finish_reason":"stop",{field}}}]}}"#);
            let Step::Delta(delta) = step(&data) else {
                panic!("{data}")
            };
            let end = delta.end.unwrap_or_default();
            assert_eq!(end.stop_sequence.as_deref(), expected, "{data}");
        }
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
        let no_chat = r#"{"choices":[{"index":0,"text":"hi","finish_reason":"stop"}]}"#;
        assert!(read(no_chat).is_err() && read_whole(no_chat.as_bytes()).is_err());
        let filter = delta(r#"{"choices":[{"index":0,"content_filter_results":{"a":1}}]}"#);
        assert_eq!((filter.text, filter.finish_reason), (None, None));
        let second = delta(r#"{"choices":[{"index":1,"delta":{"content":"other"}}]}"#);
        assert!(!second.has_content(), "one choice is asked for");
        let sparse = delta(r#"{"choices":null,"usage":{"prompt_tokens":null}}"#);
        assert_eq!(sparse, Delta::default());
        let wrong = read(r#"{"choices":[{"index":"the caller's text"}]}"#);
        assert!(!wrong.unwrap_err().contains("caller"));
    }
}
