//! Anthropic messages: [`request`] writes them, and here is what answers mean.

mod request;

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::Value;
use volley_types::{Citation, ErrorCode, FinishReason, PlaceUnit};

use super::citations::{number, some, stretch, text};
use super::openai::{error_text, place};
use super::{Calls, Delta, Ending, Format, Step, deltas};
use crate::sse::Framing;

pub(super) const FORMAT: Format = Format {
    framing: Framing::Sse,
    media: "text/event-stream",
    key_prefix: "",
    headers: &[("anthropic-version", "2023-06-01")],
    stream_field: Some(true),
    ending: Ending::Event,
    blames_request: false,
    body: |model, item, fields| Ok(request::body(model, item, fields)),
    read,
    read_whole,
};

#[derive(Deserialize)]
struct Body<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    /// Which block it is about.
    #[serde(default)]
    index: u64,
    #[serde(borrow, default)]
    delta: Option<Inner<'a>>,
    #[serde(borrow, default)]
    message: Option<Start<'a>>,
    #[serde(default)]
    content_block: Option<Value>,
    #[serde(default)]
    usage: Option<Tokens>,
    #[serde(default)]
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Inner<'a> {
    #[serde(borrow, default)]
    text: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    thinking: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    partial_json: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    stop_reason: Option<Cow<'a, str>>,
    #[serde(default)]
    citation: Option<Value>,
}

#[derive(Deserialize)]
struct Start<'a> {
    #[serde(default)]
    usage: Option<Tokens>,
    #[serde(borrow, default)]
    stop_reason: Option<Cow<'a, str>>,
}

#[derive(Clone, Copy, Deserialize)]
struct Tokens {
    #[serde(default)]
    input_tokens: Option<u32>,
    #[serde(default)]
    cache_creation_input_tokens: Option<u32>,
    #[serde(default)]
    cache_read_input_tokens: Option<u32>,
    #[serde(default)]
    output_tokens: Option<u32>,
}

fn read(data: &str, calls: &mut Calls) -> Result<Step, String> {
    let body: Body<'_> = serde_json::from_str(data).map_err(|error| place(&error))?;
    let mut delta = Delta::default();
    match body.kind.as_ref() {
        "message_stop" => return Ok(Step::End),
        "error" => return Ok(failed(body.error)),
        "message_start" => {
            let start = body.message.as_ref();
            tokens(&mut delta, start.and_then(|start| start.usage));
            delta.finish_reason = start.and_then(|start| reason(start.stop_reason.as_deref()));
        }
        "content_block_start" => {
            let block = body.content_block.unwrap_or_default();
            calls.passages.enter(body.index);
            // It is a list where citations of this block may come.
            let begun = block["citations"].as_array();
            delta.citations = begun.map(|_| Vec::new());
            for told in begun.into_iter().flatten() {
                calls.passages.hold(citation(told));
            }
            delta.text = block["text"].as_str().map(str::to_owned);
            if block["type"] == "tool_use" {
                let name = block["name"].as_str().unwrap_or_default();
                let call = calls.begin_in(body.index, block["id"].as_str(), name, "");
                delta.tool_calls = deltas(vec![call]);
            }
        }
        "content_block_delta" | "message_delta" => {
            tokens(&mut delta, body.usage);
            if let Some(inner) = body.delta {
                delta.text = inner.text.map(Cow::into_owned);
                delta.thinking = inner.thinking.map(Cow::into_owned);
                if let Some(told) = inner.citation {
                    calls.passages.enter(body.index);
                    calls.passages.hold(citation(&told));
                }
                let json = inner.partial_json;
                let more = json.and_then(|json| calls.more_in(body.index, &json));
                delta.tool_calls = deltas(more.into_iter().collect());
                delta.finish_reason = reason(inner.stop_reason.as_deref());
            }
        }
        "content_block_stop" => delta.citations = calls.passages.leave(),
        // Pings, and what later versions add.
        _ => {}
    }
    Ok(Step::Delta(delta))
}

fn failed(error: Option<Value>) -> Step {
    let error = error.unwrap_or(Value::Null);
    let message = error_text(&error.to_string());
    match error["type"].as_str() {
        Some("overloaded_error" | "rate_limit_error") => {
            Step::Refused(ErrorCode::Overloaded, message)
        }
        Some("invalid_request_error") => Step::Refused(ErrorCode::InvalidInput, message),
        _ => Step::Failed(message),
    }
}

/// What was read from a cache or written to one was part of the prompt as well.
fn tokens(delta: &mut Delta, tokens: Option<Tokens>) {
    let Some(tokens) = tokens else { return };
    let cached = [
        tokens.cache_creation_input_tokens,
        tokens.cache_read_input_tokens,
    ];
    let cached = cached.into_iter().flatten().fold(0, u32::saturating_add);
    delta.prompt_tokens = tokens
        .input_tokens
        .map(|tokens| tokens.saturating_add(cached));
    delta.completion_tokens = tokens.output_tokens;
    delta.cached_tokens = tokens.cache_read_input_tokens;
}

fn tool_call(block: &Value, calls: &mut Calls) -> Value {
    let name = block["name"].as_str().unwrap_or_default();
    calls.begin(block["id"].as_str(), name, &block["input"].to_string())
}

/// Its place in the answer is that of its block.
fn citation(told: &Value) -> Option<Citation> {
    let kind = told["type"].as_str()?;
    let place = match kind {
        "page_location" => stretch(
            PlaceUnit::Pages,
            told,
            "start_page_number",
            "end_page_number",
        ),
        "content_block_location" => stretch(
            PlaceUnit::Blocks,
            told,
            "start_block_index",
            "end_block_index",
        ),
        "search_result_location" => stretch(
            PlaceUnit::Passages,
            told,
            "start_block_index",
            "end_block_index",
        ),
        _ => stretch(
            PlaceUnit::Characters,
            told,
            "start_char_index",
            "end_char_index",
        ),
    };
    let source = text(told, "source");
    let is_url = |source: &String| source.contains("://");
    Some(Citation {
        url: text(told, "url").or_else(|| source.clone().filter(is_url)),
        title: text(told, "title").or_else(|| text(told, "document_title")),
        quote: text(told, "cited_text"),
        source: source.or_else(|| text(told, "file_id")),
        document: number(told, "document_index").or_else(|| number(told, "search_result_index")),
        place,
        token: text(told, "encrypted_index"),
        ..Citation::default()
    })
}

/// Those of a whole message's blocks, each of which spans its block's text.
fn citations(blocks: &[Value]) -> Option<Vec<Citation>> {
    let (mut said, mut all) = (0, Vec::new());
    for block in blocks {
        let text = block["text"].as_str().unwrap_or_default();
        let end = said + u32::try_from(text.chars().count()).unwrap_or(u32::MAX - said);
        let told = block["citations"].as_array().into_iter().flatten();
        all.extend(told.filter_map(citation).map(|citation| Citation {
            start: Some(said),
            end: Some(end),
            ..citation
        }));
        said = end;
    }
    some(all)
}

fn reason(reason: Option<&str>) -> Option<FinishReason> {
    Some(match reason? {
        "max_tokens" | "model_context_window_exceeded" => FinishReason::Length,
        "tool_use" => FinishReason::ToolCalls,
        "refusal" => FinishReason::ContentFilter,
        _ => FinishReason::Stop,
    })
}

fn read_whole(body: &[u8], calls: &mut Calls) -> Result<Step, String> {
    let mut body: Value = serde_json::from_slice(body).map_err(|error| place(&error))?;
    if body["type"] == "error" {
        return Ok(failed(body.get_mut("error").map(Value::take)));
    }
    let mut delta = Delta {
        finish_reason: reason(body["stop_reason"].as_str()),
        ..Delta::default()
    };
    tokens(&mut delta, Tokens::deserialize(&body["usage"]).ok());
    let blocks = body["content"].as_array().ok_or("no content")?;
    let texts = |name: &str| -> String {
        let texts = blocks.iter().filter_map(|block| block[name].as_str());
        texts.collect()
    };
    delta.text = Some(texts("text"));
    delta.thinking = Some(texts("thinking"));
    delta.citations = citations(blocks);
    let uses = blocks.iter().filter(|block| block["type"] == "tool_use");
    let uses = uses.map(|block| tool_call(block, calls));
    delta.tool_calls = deltas(uses.collect());
    Ok(Step::Delta(delta))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(data: &str) -> Step {
        read(data, &mut Calls::default()).unwrap()
    }

    fn delta(data: &str) -> Delta {
        let Step::Delta(delta) = step(data) else {
            panic!("{data}")
        };
        delta
    }

    #[test]
    fn events_of_every_kind() {
        let start = delta(
            r#"{"type":"message_start","message":{"usage":{"input_tokens":9,"output_tokens":1},"stop_reason":null}}"#,
        );
        assert_eq!(start.prompt_tokens, Some(9));
        assert_eq!(delta(r#"{"type":"ping"}"#), Delta::default());
        let text = delta(
            r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"hi"}}"#,
        );
        assert_eq!(text.text.as_deref(), Some("hi"));
        let thinking = delta(
            r#"{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"hm"}}"#,
        );
        assert_eq!(thinking.thinking.as_deref(), Some("hm"));
        let end = delta(
            r#"{"type":"message_delta","delta":{"stop_reason":"max_tokens"},"usage":{"output_tokens":7}}"#,
        );
        assert_eq!(
            (end.finish_reason, end.completion_tokens),
            (Some(FinishReason::Length), Some(7))
        );
        assert_eq!(step(r#"{"type":"message_stop"}"#), Step::End);
        assert_eq!(
            step(r#"{"type":"error","error":{"type":"overloaded_error","message":"busy"}}"#),
            Step::Refused(ErrorCode::Overloaded, "busy".to_owned())
        );
    }

    #[test]
    fn tool_calls_are_counted_from_zero_whatever_their_blocks_are() {
        let mut begun = Calls::default();
        let mut calls = |data: &str| {
            let Ok(Step::Delta(delta)) = read(data, &mut begun) else {
                panic!("{data}")
            };
            serde_json::from_str::<Value>(&delta.tool_calls.unwrap()).unwrap()[0].take()
        };
        for index in 0..2 {
            let block = index + 1;
            let start = calls(&format!(
                r#"{{"type":"content_block_start","index":{block},"content_block":{{"type":"tool_use","id":"t","name":"f","input":{{}}}}}}"#
            ));
            assert_eq!(start["index"], index);
            assert_eq!(start["function"]["name"], "f");
            let piece = calls(&format!(
                r#"{{"type":"content_block_delta","index":{block},"delta":{{"type":"input_json_delta","partial_json":"{{\"a\""}}}}"#
            ));
            assert_eq!(piece["index"], index);
            assert_eq!(piece["function"]["arguments"], "{\"a\"");
        }
    }

    #[test]
    fn a_whole_message_has_its_text_thinking_tools_and_usage() {
        let body = br#"{"type":"message","content":[{"type":"thinking","thinking":"hm"},{"type":"text","text":"hi"},{"type":"tool_use","id":"t","name":"f","input":{"a":1}}],"stop_reason":"tool_use","usage":{"input_tokens":1,"cache_read_input_tokens":8,"output_tokens":3}}"#;
        let Step::Delta(delta) = read_whole(body, &mut Calls::default()).unwrap() else {
            panic!()
        };
        assert_eq!(delta.text.as_deref(), Some("hi"));
        assert_eq!(delta.thinking.as_deref(), Some("hm"));
        assert!(
            delta
                .tool_calls
                .unwrap()
                .contains(r#""arguments":"{\"a\":1}""#)
        );
        assert_eq!(delta.finish_reason, Some(FinishReason::ToolCalls));
        assert_eq!(delta.prompt_tokens, Some(9), "cached tokens are tokens");
        assert_eq!(
            read_whole(
                br#"{"type":"error","error":{"message":"no"}}"#,
                &mut Calls::default()
            ),
            Ok(Step::Failed("no".to_owned()))
        );
        assert!(read_whole(b"{}", &mut Calls::default()).is_err());
    }
}
