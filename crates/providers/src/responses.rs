//! OpenAI's Responses API. `request` writes requests; this module reads answers.

mod ended;
mod request;
mod rest;
mod usage;

use std::borrow::Cow;

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use volley_provider_kit::blocks::arguments_text;
use volley_provider_kit::calls::{ToolCallAccumulator, deltas};
use volley_provider_kit::citations::{annotation, some};
use volley_provider_kit::fault::{self, json_position};
use volley_provider_kit::names::{IdRule, NameRule, NameRules};
use volley_provider_kit::provider::{Page, Provider};
use volley_provider_kit::step::{Delta, Step};
use volley_types::Details;

use self::ended::ended;
use self::usage::{ResponseTokens, tokens};
use crate::openai::probabilities;

pub(crate) static PROVIDER: Provider = Provider {
    page: Page {
        endpoint: "OpenAI's responses, `…/v1/responses`",
        url: "path ends in `v1/responses`",
        ..Page::NONE
    },
    route: "/v1/responses",
    recognizes: |address| address.path.ends_with("v1/responses"),
    native: &["openai_responses"],
    native_defaults: &[("store", false)],
    names: Some(NameRules {
        tools: NameRule::up_to(64),
        ids: Some(IdRule::Name(NameRule {
            more: "-.:|",
            ..NameRule::up_to(64)
        })),
        domains: &["api.openai.com", "openai.azure.com"],
    }),
    read,
    read_whole,
    ..Provider::new("openai_responses", &request::PARAMETERS, request::body)
};

#[derive(Deserialize)]
struct Event<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(default)]
    output_index: u64,
    #[serde(default)]
    summary_index: u64,
    #[serde(default)]
    content_index: u64,
    /// Whether the event belongs to an output item.
    #[serde(default, rename = "item_id", deserialize_with = "is_some")]
    has_item: bool,
    #[serde(default)]
    annotation: Option<Value>,
    /// A text or argument delta.
    #[serde(borrow, default)]
    delta: Option<Cow<'a, str>>,
    /// The whole part, in the event that ends it.
    #[serde(borrow, default)]
    text: Option<&'a RawValue>,
    #[serde(borrow, default)]
    refusal: Option<&'a RawValue>,
    #[serde(borrow, default)]
    arguments: Option<&'a RawValue>,
    #[serde(borrow, default)]
    part: Option<&'a RawValue>,
    #[serde(borrow, default)]
    logprobs: Option<&'a RawValue>,
    #[serde(borrow, default)]
    item: Option<&'a RawValue>,
    #[serde(borrow, default)]
    response: Option<Response<'a>>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
    #[serde(borrow, default)]
    code: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    message: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct Item<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    id: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    call_id: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    name: Option<Cow<'a, str>>,
    /// Text or, from some servers, an object.
    #[serde(default)]
    arguments: Value,
}

/// A response at the end of a stream. Its output was read from earlier events.
#[derive(Deserialize)]
struct Response<'a> {
    #[serde(borrow, default)]
    status: Option<Cow<'a, str>>,
    #[serde(default)]
    usage: Option<ResponseTokens>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
    #[serde(borrow, default)]
    incomplete_details: Option<Incomplete<'a>>,
}

#[derive(Deserialize)]
struct Incomplete<'a> {
    #[serde(borrow, default)]
    reason: Option<Cow<'a, str>>,
}

fn read(data: &str, calls: &mut ToolCallAccumulator) -> Result<Step, String> {
    // Not part of the format, but some proxies append it to all streams.
    if data == "[DONE]" {
        return Ok(Step::Delta(Delta::default()));
    }
    let event: Event<'_> = serde_json::from_str(data).map_err(|error| json_position(&error))?;
    rest::hear(&event, calls);
    let mut delta = Delta::default();
    match event.kind.as_ref() {
        "response.output_text.delta" => {
            delta.text = event.delta.map(Cow::into_owned);
            let told = event.logprobs.map(RawValue::get);
            delta.logprobs = told.and_then(probabilities);
        }
        "response.output_text.annotation.added" => {
            let cited = event.annotation.as_ref().and_then(annotation);
            delta.citations = cited.map(|cited| vec![cited]);
        }
        "response.refusal.delta" => {
            delta.text = event.delta.map(Cow::into_owned);
            delta.details().refusal = true;
        }
        "response.reasoning_text.delta" => {
            delta.thinking = event.delta.map(Cow::into_owned);
        }
        "response.reasoning_summary_text.delta" => {
            delta.thinking = event.delta.map(Cow::into_owned);
            delta.details().summary = true;
        }
        "response.reasoning_summary_part.added" if 0 < event.summary_index => {
            delta.thinking = Some("\n\n".to_owned());
            delta.details().summary = true;
        }
        "response.output_item.done" => {
            if let Some(item) = event.item {
                delta = rest::of_item(event.output_index, &whole(item)?, calls);
            }
        }
        "response.output_item.added" => delta = begin_item(&event, data, calls)?,
        "response.function_call_arguments.delta" => {
            let more = event.delta.unwrap_or_default();
            delta.tool_calls = rest::more(event.output_index, &more, calls);
        }
        "response.completed" | "response.incomplete" | "response.cancelled" => {
            let mut last = end(event.response, calls);
            if event.kind == "response.cancelled" {
                last.finish("cancelled", None);
            }
            last.end = beside(data).map(Box::new);
            rest::of_answer(&mut last, calls);
            return Ok(Step::Last(last));
        }
        "response.failed" => {
            let error = event.response.and_then(|response| response.error);
            return Ok(fault::step(error.map_or("null", RawValue::get)));
        }
        "error" => return Ok(read_failure(&event)),
        "" => match event.error {
            Some(error) => return Ok(fault::step(error.get())),
            None => return Err("the event has no 'type'".to_owned()),
        },
        kind if kind.ends_with(".done") && is_told_otherwise(kind) => {
            delta = rest::of_part(&event, calls)?;
        }
        // Tools that run at the provider, and events of later versions.
        kind if event.has_item && !is_told_otherwise(kind) => pass_on(&mut delta, data),
        _ => {}
    }
    Ok(Step::Delta(delta))
}

/// Reads the beginning of an item: of reasoning its identity, of a function call its first delta.
fn begin_item(
    event: &Event<'_>,
    data: &str,
    calls: &mut ToolCallAccumulator,
) -> Result<Delta, String> {
    let mut delta = Delta::default();
    let item = event.item.map(one).transpose()?;
    if let Some(begun) = item.as_ref().filter(|item| item.kind == "reasoning") {
        let details = delta.details();
        details.format = Some("openai_responses".to_owned());
        details.item = begun.id.as_deref().map(str::to_owned);
    }
    if 0 < event.output_index && item.as_ref().is_some_and(|item| item.kind == "message") {
        begin_message(&mut delta);
    }
    let read = ["message", "reasoning", "function_call"];
    if item
        .as_ref()
        .is_some_and(|item| !read.contains(&&*item.kind))
    {
        pass_on(&mut delta, data);
    }
    let item = item.filter(|item| item.kind == "function_call");
    let call = item.map(|item| {
        let name = item.name.unwrap_or_default();
        let arguments = arguments_text(&item.arguments);
        rest::begin(
            event.output_index,
            item.call_id.as_deref(),
            &name,
            &arguments,
            calls,
        )
    });
    delta.tool_calls = deltas(call.into_iter().collect());
    Ok(delta)
}

/// Marks the beginning of a message, so that it is not joined with the one before it.
fn begin_message(delta: &mut Delta) {
    let details = delta.details();
    details.format = Some("openai_responses".to_owned());
    details.begins = true;
}

/// Reads the failure of an `error` event, which stands in an object or beside the type.
fn read_failure(event: &Event<'_>) -> Step {
    match event.error {
        Some(error) => fault::step(error.get()),
        None => {
            let told = json!({ "code": event.code, "message": event.message });
            fault::step(&told.to_string())
        }
    }
}

fn is_some<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Option::<IgnoredAny>::deserialize(deserializer).map(|given| given.is_some())
}

/// Whether an event starts or ends a part that is read from its deltas.
fn is_told_otherwise(kind: &str) -> bool {
    const READ: [&str; 5] = [
        "response.content_part.",
        "response.output_text.",
        "response.refusal.",
        "response.reasoning_",
        "response.function_call_arguments.",
    ];
    READ.iter().any(|start| kind.starts_with(start))
}

/// Keeps an event unchanged for callers of the same dialect.
fn pass_on(delta: &mut Delta, data: &str) {
    if let Ok(event) = serde_json::from_str(data) {
        let details = delta.details();
        details.format = Some("openai_responses".to_owned());
        details.events.push(event);
    }
}

fn one<'a>(item: &'a RawValue) -> Result<Item<'a>, String> {
    serde_json::from_str(item.get()).map_err(|error| json_position(&error))
}

fn whole(item: &RawValue) -> Result<Value, String> {
    serde_json::from_str(item.get()).map_err(|error| json_position(&error))
}

/// The fields of a complete item that its deltas did not have.
fn done(item: &Value) -> Option<Details> {
    let mut details = Details {
        format: Some("openai_responses".to_owned()),
        ..Details::default()
    };
    match item["type"].as_str()? {
        "message" | "function_call" => return None,
        "reasoning" => {
            let text = |name: &str| item[name].as_str().map(str::to_owned);
            (details.signature, details.item) = (text("encrypted_content"), text("id"));
        }
        _ => details.blocks.push(item.clone()),
    }
    Some(details).filter(|details| !details.is_empty())
}

fn end(response: Option<Response<'_>>, calls: &ToolCallAccumulator) -> Delta {
    let mut delta = Delta::default();
    if let Some(response) = response {
        tokens(&mut delta, response.usage);
        let why = response.incomplete_details.and_then(|why| why.reason);
        ended(
            &mut delta,
            response.status.as_deref(),
            why.as_deref(),
            calls,
        );
    }
    delta
}

/// The complete response, without the fields that repeat the request.
fn beside(data: &str) -> Option<Details> {
    let mut event: Value = serde_json::from_str(data).ok()?;
    let mut response = event.get_mut("response")?.take();
    let fields = response.as_object_mut()?;
    for name in ["instructions", "tools", "input"] {
        fields.remove(name);
    }
    Some(Details {
        format: Some("openai_responses".to_owned()),
        answer: Some(response),
        ..Details::default()
    })
}

/// Reads the items of a whole response in order.
fn read_whole(body: &[u8], calls: &mut ToolCallAccumulator) -> Result<Step, String> {
    let body: Value = serde_json::from_slice(body).map_err(|error| json_position(&error))?;
    if !body["error"].is_null() {
        return Ok(fault::step(&body["error"].to_string()));
    }
    let items = body["output"].as_array().ok_or("no output")?;
    let mut all = Vec::new();
    for (index, item) in items.iter().enumerate() {
        match item["type"].as_str() {
            Some("function_call") => {
                let name = item["name"].as_str().unwrap_or_default();
                let arguments = arguments_text(&item["arguments"]);
                let call = calls.begin(item["call_id"].as_str(), name, &arguments);
                all.push(Delta {
                    tool_calls: deltas(vec![call]),
                    ..Delta::default()
                });
            }
            Some("message") => {
                if 0 < index {
                    let mut begun = Delta::default();
                    begin_message(&mut begun);
                    all.push(begun);
                }
                let parts = item["content"].as_array().into_iter().flatten();
                all.extend(parts.map(said));
            }
            Some(kind) => {
                if kind == "reasoning" {
                    let mut begun = Delta::default();
                    let details = begun.details();
                    details.format = Some("openai_responses".to_owned());
                    details.item = item["id"].as_str().map(str::to_owned);
                    all.push(begun);
                    all.extend(reasoned(item));
                }
                if let Some(details) = done(item) {
                    all.push(Delta {
                        details: Some(Box::new(details)),
                        ..Delta::default()
                    });
                }
            }
            None => {}
        }
    }
    let mut last = Delta::default();
    tokens(&mut last, ResponseTokens::deserialize(&body["usage"]).ok());
    let why = body.pointer("/incomplete_details/reason");
    let why = why.and_then(Value::as_str);
    ended(&mut last, body["status"].as_str(), why, calls);
    all.push(last);
    Ok(Step::All(all))
}

/// Reads a part of a message.
fn said(part: &Value) -> Delta {
    let noted = part["annotations"].as_array().into_iter().flatten();
    let told = part["logprobs"].as_array().filter(|told| !told.is_empty());
    let mut delta = Delta {
        citations: some(noted.filter_map(annotation).collect()),
        text: part["text"].as_str().map(str::to_owned),
        logprobs: told.map(|told| Value::from(told.as_slice()).to_string()),
        ..Delta::default()
    };
    if let Some(refusal) = part["refusal"].as_str() {
        delta.text = Some(refusal.to_owned());
        delta.details().refusal = true;
    }
    delta
}

/// Reads a reasoning item: its summary, its text or both.
fn reasoned(item: &Value) -> Option<Delta> {
    let texts = |name: &str| {
        let parts = item[name].as_array().into_iter().flatten();
        let texts: Vec<_> = parts.filter_map(|part| part["text"].as_str()).collect();
        (!texts.is_empty()).then(|| texts.join("\n\n"))
    };
    let (summary, content) = (texts("summary"), texts("content"));
    let mut delta = Delta::default();
    if summary.is_some() && content.is_none() {
        delta.details().summary = true;
    }
    delta.thinking = match (summary, content) {
        (Some(summary), Some(content)) => Some(format!("{summary}\n\n{content}")),
        (summary, content) => summary.or(content),
    };
    delta.thinking.is_some().then_some(delta)
}

#[cfg(test)]
mod tests {
    use volley_types::{ErrorCode, FinishReason};

    use super::*;

    #[test]
    fn failures_say_whose_fault_they_are() {
        let step = |data: &str| read(data, &mut ToolCallAccumulator::default()).unwrap();
        let failed = r#"{"type":"response.failed","response":{"error":{"code":"rate_limit_exceeded","message":"slow"}}}"#;
        let expected = Step::Refused(ErrorCode::Overloaded, "slow".to_owned());
        assert_eq!(step(failed), expected);
        let error = r#"{"type":"error","code":"invalid_prompt","message":"no","param":null,"sequence_number":1}"#;
        let expected = Step::Refused(ErrorCode::InvalidInput, "no".to_owned());
        assert_eq!(step(error), expected);
        let nested = r#"{"type":"error","error":{"type":"server_error","message":"no"}}"#;
        assert_eq!(step(nested), Step::Failed("no".to_owned()));
        let bare = r#"{"error":{"message":"no"}}"#;
        assert_eq!(step(bare), Step::Failed("no".to_owned()));
        assert_eq!(step("[DONE]"), Step::Delta(Delta::default()));
        assert!(read("{}", &mut ToolCallAccumulator::default()).is_err());
        assert!(read_whole(b"{}", &mut ToolCallAccumulator::default()).is_err());
    }

    #[test]
    fn what_is_told_of_tools_that_run_there_is_kept_as_it_is() {
        let read = |data: &str| match read(data, &mut ToolCallAccumulator::default()).unwrap() {
            Step::Delta(delta) => delta,
            step => panic!("{step:?}"),
        };
        for data in [
            r#"{"type":"response.output_item.added","output_index":0,"item":{"type":"web_search_call","id":"ws","status":"in_progress"}}"#,
            r#"{"type":"response.web_search_call.searching","output_index":0,"item_id":"ws","sequence_number":4}"#,
            r#"{"type":"response.code_interpreter_call_code.delta","output_index":0,"item_id":"ci","delta":"1+"}"#,
            r#"{"type":"response.image_generation_call.partial_image","output_index":0,"item_id":"ig","partial_image_b64":"AA=="}"#,
        ] {
            let details = read(data).details.unwrap();
            assert_eq!(details.format.as_deref(), Some("openai_responses"));
            let event: Value = serde_json::from_str(data).unwrap();
            assert_eq!(details.events, [event]);
        }
        for data in [
            r#"{"type":"response.output_item.added","output_index":0,"item":{"type":"message","id":"m"}}"#,
            r#"{"type":"response.content_part.added","item_id":"m","output_index":0}"#,
            r#"{"type":"response.output_text.done","item_id":"m","output_index":0,"text":""}"#,
            r#"{"type":"response.in_progress","response":{}}"#,
        ] {
            assert_eq!(read(data), Delta::default(), "{data}");
        }
    }

    #[test]
    fn a_refusal_is_text_that_says_so_and_probabilities_come_along() {
        let calls = &mut ToolCallAccumulator::default();
        let refusal = r#"{"type":"response.refusal.delta","output_index":0,"delta":"I cannot"}"#;
        let Ok(Step::Delta(delta)) = read(refusal, calls) else {
            panic!()
        };
        assert_eq!(delta.text.as_deref(), Some("I cannot"));
        assert!(delta.details.unwrap().refusal && delta.finish_reason.is_none());
        let text = r#"{"type":"response.output_text.delta","delta":"a","logprobs":[{"token":"a","logprob":-0.1}]}"#;
        let Ok(Step::Delta(delta)) = read(text, calls) else {
            panic!()
        };
        assert_eq!(delta.logprobs.unwrap(), r#"[{"token":"a","logprob":-0.1}]"#);
        let cut = r#"{"type":"response.incomplete","response":{"incomplete_details":{"reason":"max_output_tokens"},"usage":{"input_tokens":2,"output_tokens":3,"input_tokens_details":{"cached_tokens":1}},"output":[{}]}}"#;
        let Ok(Step::Last(delta)) = read(cut, calls) else {
            panic!()
        };
        assert_eq!(delta.finish_reason, Some(FinishReason::Length));
        assert_eq!(
            (delta.prompt_tokens, delta.cached_tokens),
            (Some(2), Some(1))
        );
    }
}
