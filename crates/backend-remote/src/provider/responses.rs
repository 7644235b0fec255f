//! OpenAI's responses: [`request`] writes them, and here is what their events mean.

mod request;

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use volley_types::{ErrorCode, FinishReason};

use super::citations::{annotation, some};
use super::openai::{error_text, place, probabilities};
use super::{Calls, Delta, Format, Step, deltas, openai};

pub(super) const FORMAT: Format = Format {
    body: request::body,
    read,
    read_whole,
    ..openai::FORMAT
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
    annotation: Option<Value>,
    /// New text, or new arguments.
    #[serde(borrow, default)]
    delta: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    logprobs: Option<&'a RawValue>,
    #[serde(borrow, default)]
    item: Option<Item<'a>>,
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
    call_id: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    name: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    arguments: Option<Cow<'a, str>>,
}

/// Its output was read already, piece by piece.
#[derive(Deserialize)]
struct Response<'a> {
    #[serde(default)]
    usage: Option<Tokens>,
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

#[derive(Clone, Copy, Deserialize)]
struct Tokens {
    #[serde(default)]
    input_tokens: Option<u32>,
    #[serde(default)]
    output_tokens: Option<u32>,
    #[serde(default)]
    input_tokens_details: Option<InputTokens>,
}

#[derive(Clone, Copy, Deserialize)]
struct InputTokens {
    #[serde(default)]
    cached_tokens: Option<u32>,
}

fn read(data: &str, calls: &mut Calls) -> Result<Step, String> {
    // It is none of this format, but some proxies end all streams so.
    if data == "[DONE]" {
        return Ok(Step::Delta(Delta::default()));
    }
    let event: Event<'_> = serde_json::from_str(data).map_err(|error| place(&error))?;
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
            delta.finish_reason = Some(FinishReason::ContentFilter);
        }
        "response.reasoning_text.delta" | "response.reasoning_summary_text.delta" => {
            delta.thinking = event.delta.map(Cow::into_owned);
        }
        "response.reasoning_summary_part.added" if 0 < event.summary_index => {
            delta.thinking = Some("\n\n".to_owned());
        }
        "response.output_item.added" => {
            let item = event.item.filter(|item| item.kind == "function_call");
            let call = item.map(|item| {
                let name = item.name.unwrap_or_default();
                let arguments = item.arguments.unwrap_or_default();
                calls.begin_in(
                    event.output_index,
                    item.call_id.as_deref(),
                    &name,
                    &arguments,
                )
            });
            delta.tool_calls = deltas(call.into_iter().collect());
        }
        "response.function_call_arguments.delta" => {
            let more = event.delta.unwrap_or_default();
            let more = calls.more_in(event.output_index, &more);
            delta.tool_calls = deltas(more.into_iter().collect());
        }
        "response.completed" | "response.incomplete" => {
            return Ok(Step::Last(end(event.response, calls)));
        }
        "response.failed" => {
            let error = event.response.and_then(|response| response.error);
            return Ok(failed(error.map_or("null", RawValue::get)));
        }
        "error" => {
            return Ok(match event.error {
                Some(error) => failed(error.get()),
                None => fault(
                    event.code.as_deref(),
                    event.message.unwrap_or_default().into_owned(),
                ),
            });
        }
        "" => match event.error {
            Some(error) => return Ok(failed(error.get())),
            None => return Err("no type".to_owned()),
        },
        // Beginnings and ends of parts, tools that run at the provider, and what later versions
        // add.
        _ => {}
    }
    Ok(Step::Delta(delta))
}

fn end(response: Option<Response<'_>>, calls: &Calls) -> Delta {
    let mut delta = Delta::default();
    if let Some(response) = response {
        tokens(&mut delta, response.usage);
        let why = response.incomplete_details.and_then(|why| why.reason);
        delta.finish_reason = why.as_deref().map(incomplete);
    }
    if delta.finish_reason.is_none() && calls.any() {
        delta.finish_reason = Some(FinishReason::ToolCalls);
    }
    delta
}

fn incomplete(reason: &str) -> FinishReason {
    match reason {
        "content_filter" => FinishReason::ContentFilter,
        _ => FinishReason::Length,
    }
}

fn failed(error: &str) -> Step {
    let told: Value = serde_json::from_str(error).unwrap_or_default();
    fault(told["code"].as_str(), error_text(error))
}

fn fault(code: Option<&str>, message: String) -> Step {
    match code {
        Some("rate_limit_exceeded") => Step::Refused(ErrorCode::Overloaded, message),
        Some("invalid_prompt" | "invalid_request_error") => {
            Step::Refused(ErrorCode::InvalidInput, message)
        }
        _ => Step::Failed(message),
    }
}

fn tokens(delta: &mut Delta, tokens: Option<Tokens>) {
    let Some(tokens) = tokens else { return };
    delta.prompt_tokens = tokens.input_tokens;
    delta.completion_tokens = tokens.output_tokens;
    let details = tokens.input_tokens_details;
    delta.cached_tokens = details.and_then(|details| details.cached_tokens);
}

fn read_whole(body: &[u8], calls: &mut Calls) -> Result<Step, String> {
    let body: Value = serde_json::from_slice(body).map_err(|error| place(&error))?;
    if !body["error"].is_null() {
        return Ok(failed(&body["error"].to_string()));
    }
    let items = body["output"].as_array().ok_or("no output")?;
    let (mut delta, mut called, mut cited) = (Delta::default(), Vec::new(), Vec::new());
    let (mut text, mut thinking, mut told) = (String::new(), String::new(), Vec::new());
    for item in items {
        let parts = |name: &str| item[name].as_array().into_iter().flatten();
        match item["type"].as_str() {
            Some("function_call") => {
                let name = item["name"].as_str().unwrap_or_default();
                let arguments = item["arguments"].as_str().unwrap_or_default();
                called.push(calls.begin(item["call_id"].as_str(), name, arguments));
            }
            Some("message") => {
                for part in parts("content") {
                    let noted = part["annotations"].as_array().into_iter().flatten();
                    cited.extend(noted.filter_map(annotation));
                    text.push_str(part["text"].as_str().unwrap_or_default());
                    told.extend(part["logprobs"].as_array().into_iter().flatten().cloned());
                    if let Some(refusal) = part["refusal"].as_str() {
                        text.push_str(refusal);
                        delta.finish_reason = Some(FinishReason::ContentFilter);
                    }
                }
            }
            Some("reasoning") => {
                let said = parts("summary").chain(parts("content"));
                let said = said.filter_map(|part| part["text"].as_str());
                thinking.push_str(&said.collect::<Vec<_>>().join("\n\n"));
            }
            _ => {}
        }
    }
    tokens(&mut delta, Tokens::deserialize(&body["usage"]).ok());
    delta.citations = some(cited);
    let why = body.pointer("/incomplete_details/reason");
    let why = why.and_then(Value::as_str).map(incomplete);
    let why = why.or(calls.any().then_some(FinishReason::ToolCalls));
    delta.finish_reason = delta.finish_reason.or(why);
    delta.text = Some(text);
    delta.thinking = Some(thinking);
    delta.tool_calls = deltas(called);
    delta.logprobs = (!told.is_empty()).then(|| Value::Array(told).to_string());
    Ok(Step::Delta(delta))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_say_whose_fault_they_are() {
        let step = |data: &str| read(data, &mut Calls::default()).unwrap();
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
        assert!(read("{}", &mut Calls::default()).is_err());
        assert!(read_whole(b"{}", &mut Calls::default()).is_err());
    }

    #[test]
    fn a_refusal_is_text_that_the_filter_ended_and_probabilities_come_along() {
        let calls = &mut Calls::default();
        let refusal = r#"{"type":"response.refusal.delta","output_index":0,"delta":"I cannot"}"#;
        let Ok(Step::Delta(delta)) = read(refusal, calls) else {
            panic!()
        };
        assert_eq!(delta.text.as_deref(), Some("I cannot"));
        assert_eq!(delta.finish_reason, Some(FinishReason::ContentFilter));
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
