//! Anthropic's Messages API. `request` writes requests; this module reads answers.

pub(super) mod claude;
mod request;

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use volley_provider_kit::calls::{ToolCallAccumulator, deltas};
use volley_provider_kit::citations::{number, stretch, text};
use volley_provider_kit::fault::{self, json_position};
use volley_provider_kit::names::{IdRule, NameRule, NameRules};
use volley_provider_kit::provider::{AnswerForm, Page, Provider};
use volley_provider_kit::step::{Delta, Step};
use volley_types::{Citation, FinishReason, SpanUnit};

pub(crate) static PROVIDER: Provider = Provider {
    page: Page {
        endpoint: "messages, `…/v1/messages`",
        key: "`x-api-key`, and `anthropic-version: 2023-06-01` unless `headers` has another",
        url: "path ends in `/messages`",
    },
    route: "/v1/messages",
    recognizes: |address| address.path.ends_with("/messages"),
    key_header: "x-api-key",
    key_prefix: "",
    headers: &[("anthropic-version", "2023-06-01")],
    native: &["anthropic"],
    flat_body: true,
    answer_form: Some(AnswerForm::Anthropic),
    keeps_schemas: false,
    names: Some(NameRules {
        tools: NameRule::up_to(128),
        ids: Some(IdRule::Name(NameRule::up_to(128))),
        domains: &[],
    }),
    read,
    read_whole,
    ..Provider::new("anthropic", &request::PARAMETERS, request::body)
};

#[derive(Deserialize)]
struct Body<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    /// Index of the block.
    #[serde(default)]
    index: u64,
    #[serde(borrow, default)]
    delta: Option<Inner<'a>>,
    #[serde(borrow, default)]
    message: Option<Start<'a>>,
    #[serde(default)]
    content_block: Option<Value>,
    #[serde(default)]
    usage: Option<Value>,
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
    signature: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    partial_json: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    stop_reason: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    stop_sequence: Option<Cow<'a, str>>,
    #[serde(default)]
    stop_details: Option<Value>,
    #[serde(default)]
    citation: Option<Value>,
}

#[derive(Deserialize)]
struct Start<'a> {
    #[serde(default)]
    usage: Option<Value>,
    #[serde(borrow, default)]
    stop_reason: Option<Cow<'a, str>>,
}

#[derive(Default, Deserialize)]
struct Tokens {
    #[serde(default)]
    input_tokens: Option<u32>,
    #[serde(default)]
    cache_creation_input_tokens: Option<u32>,
    #[serde(default)]
    cache_read_input_tokens: Option<u32>,
    #[serde(default)]
    output_tokens: Option<u32>,
    #[serde(default)]
    output_tokens_details: Option<OutputTokens>,
}

#[derive(Deserialize)]
struct OutputTokens {
    #[serde(default, alias = "reasoning_tokens")]
    thinking_tokens: Option<u32>,
}

fn read(data: &str, calls: &mut ToolCallAccumulator) -> Result<Step, String> {
    let body: Body<'_> = serde_json::from_str(data).map_err(|error| json_position(&error))?;
    let mut delta = Delta::default();
    match body.kind.as_ref() {
        "message_stop" => return Ok(Step::End),
        "error" => return Ok(failed(body.error)),
        "message_start" => {
            let start = body.message.as_ref();
            let usage = start.and_then(|start| start.usage.as_ref());
            tokens(&mut delta, usage, calls);
            if let Some(told) = start.and_then(|start| start.stop_reason.as_deref()) {
                delta.finish(told, reason(told));
            }
        }
        "content_block_start" => {
            let block = body.content_block.unwrap_or_default();
            begin(&mut delta, body.index, block, calls);
        }
        "content_block_delta" => {
            extend(data, body.index, calls);
            if let Some(inner) = body.delta {
                piece(&mut delta, body.index, inner, calls);
            }
        }
        "message_delta" => {
            tokens(&mut delta, body.usage.as_ref(), calls);
            if let Some(inner) = body.delta {
                stopped(&mut delta, &inner.end());
                delta.end().fields = beside(data);
                named(&mut delta);
            }
        }
        "content_block_stop" => end(&mut delta, body.index, calls),
        // Pings, and events of later versions.
        _ => {}
    }
    Ok(Step::Delta(delta))
}

/// Reads the start of a block, which may already have content.
fn begin(delta: &mut Delta, index: u64, block: Value, calls: &mut ToolCallAccumulator) {
    calls.passages.enter(index);
    let after_text = std::mem::take(&mut calls.native.after_text);
    let text = |name: &str| block[name].as_str().filter(|text| !text.is_empty());
    match block["type"].as_str() {
        Some("text") => {
            calls.native.after_text = true;
            delta.text = block["text"].as_str().map(str::to_owned);
            // A list here announces citations of this block.
            match block["citations"].as_array() {
                Some(begun) => {
                    delta.citations = Some(Vec::new());
                    for told in begun {
                        calls.passages.hold(citation(told));
                    }
                }
                None if after_text => delta.details().begins = true,
                None => {}
            }
        }
        Some("thinking") => {
            delta.thinking = text("thinking").map(str::to_owned);
            if let Some(signature) = text("signature") {
                delta.details().signature = Some(signature.to_owned());
            }
        }
        Some("redacted_thinking") => {
            delta.details().redacted = text("data").map(str::to_owned);
        }
        Some("tool_use") => {
            let name = block["name"].as_str().unwrap_or_default();
            let mut call = calls.begin_in(index, block["id"].as_str(), name, "");
            if let Some(more) = of_call(&block) {
                call["extra_content"] = json!({ "anthropic": more });
            }
            calls.native.keep_input(index, &block["input"]);
            delta.tool_calls = deltas(vec![call]);
        }
        Some(_) => calls.native.begin(index, block),
        // Some servers omit the type.
        None => delta.text = block["text"].as_str().map(str::to_owned),
    }
    named(delta);
}

/// Adds a delta of a type that only the server defines to its open block.
fn extend(data: &str, index: u64, calls: &mut ToolCallAccumulator) {
    const READ: [&str; 5] = [
        "citations_delta",
        "input_json_delta",
        "signature_delta",
        "text_delta",
        "thinking_delta",
    ];
    if !calls.native.is_open(index) {
        return;
    }
    let event = serde_json::from_str::<Value>(data).unwrap_or_default();
    let kind = event["delta"]["type"].as_str();
    let delta = event["delta"].as_object();
    if let Some(delta) = delta.filter(|_| kind.is_some_and(|kind| !READ.contains(&kind))) {
        calls.native.extend(index, delta);
    }
}

fn piece(delta: &mut Delta, index: u64, inner: Inner<'_>, calls: &mut ToolCallAccumulator) {
    delta.text = inner.text.map(Cow::into_owned);
    delta.thinking = inner.thinking.map(Cow::into_owned);
    if let Some(signature) = inner.signature.filter(|it| !it.is_empty()) {
        delta.details().signature = Some(signature.into_owned());
    }
    if let Some(told) = inner.citation {
        calls.passages.enter(index);
        calls.passages.hold(citation(&told));
    }
    if let Some(json) = inner.partial_json {
        calls.native.more(index, &json);
        let more = calls.more_in(index, &json).filter(|_| !json.is_empty());
        delta.tool_calls = deltas(more.into_iter().collect());
    }
    named(delta);
}

/// The additional fields of a call, such as its caller.
fn of_call(block: &Value) -> Option<Value> {
    let known = ["type", "id", "name", "input"];
    let mut more = block.as_object()?.clone();
    more.retain(|name, value| !known.contains(&name.as_str()) && !value.is_null());
    (!more.is_empty()).then(|| more.into())
}

/// Reads the end of a block.
fn end(delta: &mut Delta, index: u64, calls: &mut ToolCallAccumulator) {
    delta.citations = calls.passages.leave();
    if let Some(block) = calls.native.end(index) {
        delta.details().blocks.push(block);
    }
    let input = calls.native.take_input(index);
    if let Some(input) = input.filter(|_| calls.is_unfilled(index)) {
        let more = calls.more_in(index, &input);
        delta.tool_calls = deltas(more.into_iter().collect());
    }
    named(delta);
}

/// The reason and details of an answer's end.
struct Stop<'a> {
    reason: Option<&'a str>,
    sequence: Option<&'a str>,
    details: Option<Value>,
}

impl Inner<'_> {
    fn end(&self) -> Stop<'_> {
        Stop {
            reason: self.stop_reason.as_deref(),
            sequence: self.stop_sequence.as_deref(),
            details: self.stop_details.clone(),
        }
    }
}

fn stopped(delta: &mut Delta, stop: &Stop<'_>) {
    let Some(why) = stop.reason else { return };
    delta.finish(why, reason(why));
    let end = delta.end();
    end.stop_reason = Some(why.to_owned());
    end.stop_sequence = stop.sequence.map(str::to_owned);
    end.stop_details = stop.details.clone().filter(|it| !it.is_null());
}

/// The fields of a `message_delta` event besides the stop reason and the usage.
fn beside(data: &str) -> Option<Value> {
    let mut event: Value = serde_json::from_str(data).ok()?;
    let delta = event.get_mut("delta").map(Value::take);
    let mut fields = event.as_object()?.clone();
    if let Some(Value::Object(delta)) = delta {
        fields.extend(delta);
    }
    let known = [
        "type",
        "delta",
        "usage",
        "stop_reason",
        "stop_sequence",
        "stop_details",
    ];
    fields.retain(|name, value| !known.contains(&name.as_str()) && !value.is_null());
    (!fields.is_empty()).then(|| fields.into())
}

/// Marks the details with the format that they belong to.
fn named(delta: &mut Delta) {
    for details in [&mut delta.details, &mut delta.end].into_iter().flatten() {
        details.format = Some("anthropic".to_owned());
    }
}

fn failed(error: Option<Value>) -> Step {
    fault::step(&error.unwrap_or(Value::Null).to_string())
}

/// Merges usage. The server counts tokens read from or written to a cache separately, so that they
/// are added to the prompt. The counts are cumulative, and absent ones keep their last value.
fn tokens(delta: &mut Delta, told: Option<&Value>, calls: &mut ToolCallAccumulator) {
    let Some(told) = told.filter(|told| told.is_object()) else {
        return;
    };
    calls.native.count(told);
    let usage = Value::Object(calls.native.usage.clone());
    let tokens = Tokens::deserialize(&usage).unwrap_or_default();
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
    delta.cache_write_tokens = tokens.cache_creation_input_tokens;
    let details = tokens.output_tokens_details;
    delta.reasoning_tokens = details.and_then(|details| details.thinking_tokens);
    delta.end().usage = Some(usage);
    named(delta);
}

/// Reads a citation. Its position in the answer is that of its block.
fn citation(told: &Value) -> Option<Citation> {
    let kind = told["type"].as_str()?;
    let place = match kind {
        "page_location" => stretch(
            SpanUnit::Pages,
            told,
            "start_page_number",
            "end_page_number",
        ),
        "content_block_location" => stretch(
            SpanUnit::Blocks,
            told,
            "start_block_index",
            "end_block_index",
        ),
        "search_result_location" => stretch(
            SpanUnit::Passages,
            told,
            "start_block_index",
            "end_block_index",
        ),
        _ => stretch(
            SpanUnit::Characters,
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

/// Converts the finish reason; `None` for an unknown one.
fn reason(reason: &str) -> Option<FinishReason> {
    Some(match reason {
        "end_turn" | "stop_sequence" => FinishReason::Stop,
        "max_tokens" | "model_context_window_exceeded" => FinishReason::Length,
        // A paused answer is incomplete.
        "pause_turn" | "compaction" => FinishReason::Length,
        "tool_use" => FinishReason::ToolCalls,
        "refusal" => FinishReason::ContentFilter,
        _ => return None,
    })
}

/// The texts of the objects `input` in the blocks of a whole message.
fn exact_inputs(body: &[u8]) -> Vec<Option<&str>> {
    #[derive(Deserialize)]
    struct Message<'a> {
        #[serde(borrow)]
        content: Vec<Block<'a>>,
    }
    #[derive(Deserialize)]
    struct Block<'a> {
        #[serde(borrow, default)]
        input: Option<&'a RawValue>,
    }
    let Ok(message) = serde_json::from_slice::<Message<'_>>(body) else {
        return Vec::new();
    };
    let texts = message.content.iter().map(|block| block.input);
    let texts = texts.map(|input| input.map(RawValue::get));
    texts
        .map(|input| input.filter(|text| text.starts_with('{')))
        .collect()
}

/// Reads a whole message as the events of a stream, so that its blocks keep their order.
fn read_whole(given: &[u8], calls: &mut ToolCallAccumulator) -> Result<Step, String> {
    let mut body: Value = serde_json::from_slice(given).map_err(|error| json_position(&error))?;
    if body["type"] == "error" {
        return Ok(failed(body.get_mut("error").map(Value::take)));
    }
    let Value::Array(blocks) = body["content"].take() else {
        return Err("no content".to_owned());
    };
    let mut all = Vec::new();
    let mut inputs = exact_inputs(given).into_iter();
    for (index, block) in (0..).zip(blocks) {
        let (mut begun, mut ended) = (Delta::default(), Delta::default());
        begin(&mut begun, index, block, calls);
        if let Some(Some(input)) = inputs.next() {
            calls.native.exact_input(index, input);
        }
        calls
            .passages
            .add(begun.text.as_deref().unwrap_or_default());
        end(&mut ended, index, calls);
        all.extend([begun, ended]);
    }
    let mut last = Delta::default();
    let text = |name: &str| body[name].as_str();
    let stop = Stop {
        reason: text("stop_reason"),
        sequence: text("stop_sequence"),
        details: body.get("stop_details").cloned(),
    };
    stopped(&mut last, &stop);
    let container = body.get("container").filter(|it| !it.is_null());
    last.end().fields = container.map(|container| json!({ "container": container }));
    tokens(&mut last, body.get("usage"), calls);
    named(&mut last);
    all.push(last);
    Ok(Step::All(all))
}

#[cfg(test)]
mod tests;
