//! Amazon Bedrock's Converse API. `request` writes requests; this module reads answers.

mod model;
mod request;
mod usage;

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use volley_provider_kit::blocks::raw_arguments;
use volley_provider_kit::calls::{ToolCallAccumulator, deltas};
use volley_provider_kit::citations::{number, some, stretch, text};
use volley_provider_kit::fault::{self, json_position, text as error_text};
use volley_provider_kit::framing::Framing;
use volley_provider_kit::names::{IdRule, NameRule, NameRules};
use volley_provider_kit::provider::{AnswerForm, Page, Provider, part_of_url};
use volley_provider_kit::rows::post_process::PostProcess;
use volley_provider_kit::rows::pre_process::PreProcess;
use volley_provider_kit::step::{Delta, Step};
use volley_types::registry::ConnectorSpec;
use volley_types::{Citation, ErrorCode, FinishReason, SpanUnit};

use self::usage::{Tokens, tokens};

pub(crate) static PROVIDER: Provider = Provider {
    aliases: &["aws_sigv4"],
    page: Page {
        endpoint: "Amazon Bedrock's Converse, `…/model/NAME/converse-stream`",
        key: "[signed](#amazon-bedrock), or `Authorization: Bearer`",
        url: "path ends in `/converse-stream` or `/converse`, host `bedrock-runtime…`",
    },
    route: "/model/{model}/converse-stream",
    recognizes: |address| {
        let path = address.path;
        path.ends_with("/converse-stream")
            || path.ends_with("/converse")
            || address.host.starts_with("bedrock-runtime")
    },
    model_of_url: |url| part_of_url(url, "/model/", '/'),
    signing_service: Some("bedrock"),
    framing: Framing::Frames,
    media: "application/vnd.amazon.eventstream",
    stream_field: Some(false),
    whole_route: Some(("/converse-stream", "/converse")),
    answer_form: Some(AnswerForm::Converse),
    limits_calls: false,
    keeps_schemas: false,
    names: Some(NameRules {
        tools: NameRule::up_to(64),
        ids: Some(IdRule::Name(NameRule {
            more: "-.:",
            ..NameRule::up_to(64)
        })),
        domains: &[],
    }),
    rows,
    read,
    read_whole,
    ..Provider::new("bedrock", &request::PARAMETERS, request::body)
};

/// Row formats of embedding models. They use the route `/invoke`, with a body for each vendor.
fn rows(connector: &ConnectorSpec) -> Option<(PreProcess, PostProcess)> {
    let url = connector.url.split(['?', '#']).next()?;
    match url.ends_with("/invoke") {
        true if connector.model.contains("cohere.embed") => {
            Some((PreProcess::Texts, PostProcess::List))
        }
        true => Some((PreProcess::InputText, PostProcess::One)),
        false => None,
    }
}

/// An event. Exactly one field is present.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Event<'a> {
    #[serde(borrow, default)]
    content_block_delta: Option<BlockDelta<'a>>,
    #[serde(borrow, default)]
    content_block_start: Option<BlockStart<'a>>,
    #[serde(default)]
    content_block_stop: Option<Value>,
    #[serde(borrow, default)]
    message_stop: Option<Stop<'a>>,
    #[serde(default)]
    metadata: Option<Metadata>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
    #[serde(borrow, default)]
    throttling_exception: Option<&'a RawValue>,
    #[serde(borrow, default)]
    service_unavailable_exception: Option<&'a RawValue>,
    #[serde(borrow, default)]
    validation_exception: Option<&'a RawValue>,
    #[serde(borrow, default)]
    internal_server_exception: Option<&'a RawValue>,
    #[serde(borrow, default)]
    model_stream_error_exception: Option<&'a RawValue>,
    #[serde(borrow, default)]
    model_timeout_exception: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BlockDelta<'a> {
    #[serde(default)]
    content_block_index: u64,
    #[serde(borrow)]
    delta: Piece<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Piece<'a> {
    #[serde(borrow, default)]
    text: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    tool_use: Option<ToolPiece<'a>>,
    #[serde(borrow, default)]
    reasoning_content: Option<Reasoning<'a>>,
    #[serde(default)]
    citation: Option<Value>,
    /// Content of other kinds.
    #[serde(flatten)]
    rest: BTreeMap<String, IgnoredAny>,
}

#[derive(Deserialize)]
struct ToolPiece<'a> {
    #[serde(borrow, default)]
    input: Cow<'a, str>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Reasoning<'a> {
    #[serde(borrow, default)]
    text: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    signature: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    redacted_content: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BlockStart<'a> {
    #[serde(default)]
    content_block_index: u64,
    #[serde(borrow, default)]
    start: Start<'a>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Start<'a> {
    #[serde(borrow, default)]
    tool_use: Option<ToolStart<'a>>,
    /// Content of other kinds.
    #[serde(flatten)]
    rest: BTreeMap<String, IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ToolStart<'a> {
    #[serde(borrow)]
    tool_use_id: Cow<'a, str>,
    #[serde(borrow)]
    name: Cow<'a, str>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Stop<'a> {
    #[serde(borrow, default)]
    stop_reason: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct Metadata {
    #[serde(default)]
    usage: Option<Tokens>,
}

fn read(data: &str, calls: &mut ToolCallAccumulator) -> Result<Step, String> {
    let event: Event<'_> = serde_json::from_str(data).map_err(|error| json_position(&error))?;
    let mut delta = Delta::default();
    if let Some(BlockDelta {
        content_block_index: block,
        delta: piece,
    }) = event.content_block_delta
    {
        calls.passages.enter(block);
        refuse(&mut delta, piece.rest.keys());
        if let Some(told) = piece.citation {
            calls.passages.hold(Some(citation(&told)));
        }
        delta.text = piece.text.map(Cow::into_owned);
        if let Some(reasoning) = piece.reasoning_content {
            let signature = reasoning.signature.as_deref();
            signed(&mut delta, signature, reasoning.redacted_content.as_deref());
            delta.thinking = reasoning.text.map(Cow::into_owned);
        }
        let input = piece.tool_use.map(|tool| tool.input);
        let more = input.and_then(|input| calls.more_in(block, &input));
        delta.tool_calls = deltas(more.into_iter().collect());
    } else if let Some(begun) = event.content_block_start {
        refuse(&mut delta, begun.start.rest.keys());
        let call = begun.start.tool_use.map(|tool| {
            let block = begun.content_block_index;
            calls.begin_in(block, Some(&tool.tool_use_id), &tool.name, "")
        });
        delta.tool_calls = deltas(call.into_iter().collect());
    } else if event.content_block_stop.is_some() {
        delta.citations = calls.passages.leave();
    } else if let Some(stop) = event.message_stop {
        stopped(&mut delta, stop.stop_reason.as_deref());
    } else if let Some(metadata) = event.metadata {
        // The metadata event is the last one and follows the stop reason.
        tokens(&mut delta, metadata.usage);
        return Ok(Step::Last(delta));
    } else if let Some(failure) = failure(&event) {
        return Ok(failure);
    }
    // Block starts, and events of later versions.
    Ok(Step::Delta(delta))
}

/// Marks the answer as unusable for content without a text form, such as an image. The result of a
/// tool that runs at the provider is not a part of the answer.
fn refuse<'a>(delta: &mut Delta, mut kinds: impl Iterator<Item = &'a String>) {
    const READ: [&str; 7] = [
        "text",
        "toolUse",
        "reasoningContent",
        "citationsContent",
        "toolResult",
        "cachePoint",
        "type",
    ];
    if let Some(kind) = kinds.find(|kind| !READ.contains(&kind.as_str())) {
        delta.lacks_form(kind);
    }
}

/// Stores the signature of reasoning, or its redacted content.
fn signed(delta: &mut Delta, signature: Option<&str>, redacted: Option<&str>) {
    if signature.is_some() || redacted.is_some() {
        let details = delta.details();
        details.format = Some("bedrock".to_owned());
        details.signature = signature.map(str::to_owned);
        details.redacted = redacted.map(str::to_owned);
    }
}

/// The reasoning of a whole message. Each block has its signature.
fn reasoned(blocks: &[Value]) -> Vec<Delta> {
    let stretches = blocks
        .iter()
        .filter_map(|block| block.get("reasoningContent"));
    let made = stretches.map(|stretch| {
        let text = |path: &str| stretch.pointer(path).and_then(Value::as_str);
        let mut delta = Delta {
            thinking: text("/reasoningText/text").map(str::to_owned),
            ..Delta::default()
        };
        let signature = text("/reasoningText/signature");
        signed(&mut delta, signature, text("/redactedContent"));
        delta
    });
    made.collect()
}

/// Reads a citation. Its position in the answer is that of its block.
fn citation(told: &Value) -> Citation {
    let location = &told["location"];
    let of = |unit, name: &str| {
        let inner = location.get(name)?;
        let number = number(inner, "documentIndex").or_else(|| number(inner, "searchResultIndex"));
        Some((number, stretch(unit, inner, "start", "end")))
    };
    let found = of(SpanUnit::Characters, "documentChar")
        .or_else(|| of(SpanUnit::Pages, "documentPage"))
        .or_else(|| of(SpanUnit::Blocks, "documentChunk"))
        .or_else(|| of(SpanUnit::Passages, "searchResultLocation"));
    let (document, place) = found.unwrap_or_default();
    let quotes = told["sourceContent"].as_array().into_iter().flatten();
    let quote: String = quotes.filter_map(|part| part["text"].as_str()).collect();
    Citation {
        url: text(&location["web"], "url"),
        title: text(told, "title"),
        quote: Some(quote).filter(|quote| !quote.is_empty()),
        source: text(told, "source"),
        document,
        place,
        ..Citation::default()
    }
}

/// The text and the citations of a whole message's blocks.
fn said(blocks: &[Value]) -> (String, Vec<Citation>) {
    let (mut text, mut cited) = (String::new(), Vec::new());
    let characters = |text: &str| u32::try_from(text.chars().count()).ok();
    for block in blocks {
        let start = characters(&text);
        text.push_str(block["text"].as_str().unwrap_or_default());
        let inner = &block["citationsContent"];
        let parts = inner["content"].as_array().into_iter().flatten();
        text.extend(parts.filter_map(|part| part["text"].as_str()));
        let end = characters(&text);
        let told = inner["citations"].as_array().into_iter().flatten();
        cited.extend(told.map(citation).map(|citation| Citation {
            start,
            end,
            ..citation
        }));
    }
    (text, cited)
}

fn failure(event: &Event<'_>) -> Option<Step> {
    let text = |raw: &RawValue| error_text(raw.get());
    let refused = [
        (event.throttling_exception, ErrorCode::Overloaded),
        (event.service_unavailable_exception, ErrorCode::Unavailable),
        (event.validation_exception, ErrorCode::InvalidInput),
    ];
    let mut refused = refused.into_iter();
    let refused = refused.find_map(|(raw, code)| Some(Step::Refused(code, text(raw?))));
    refused.or_else(|| {
        let timeout = event.model_timeout_exception;
        if let Some(raw) = timeout {
            return Some(Step::Refused(ErrorCode::UpstreamTimeout, text(raw)));
        }
        let failed = event.error.or(event.internal_server_exception);
        // The error may be a throttled model.
        let failed = failed.or(event.model_stream_error_exception);
        failed.map(|raw| fault::step(raw.get()))
    })
}

/// Sets the finish reason. After malformed output or an unknown reason the answer is unusable.
fn stopped(delta: &mut Delta, native: Option<&str>) {
    let Some(native) = native else {
        return;
    };
    delta.mark_stop_sequence(Some(native));
    let reason = match native {
        "end_turn" | "stop_sequence" => Some(FinishReason::Stop),
        "max_tokens" | "model_context_window_exceeded" => Some(FinishReason::Length),
        "tool_use" => Some(FinishReason::ToolCalls),
        "guardrail_intervened" | "content_filtered" => Some(FinishReason::ContentFilter),
        _ => None,
    };
    delta.finish(native, reason);
}

/// The calls of a whole answer, whose inputs keep the text of their numbers.
#[derive(Deserialize)]
struct WholeAnswer<'a> {
    #[serde(borrow)]
    output: WholeOutput<'a>,
}

#[derive(Deserialize)]
struct WholeOutput<'a> {
    #[serde(borrow)]
    message: WholeMessage<'a>,
}

#[derive(Deserialize)]
struct WholeMessage<'a> {
    #[serde(borrow)]
    content: Vec<WholeBlock<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WholeBlock<'a> {
    #[serde(borrow, default)]
    tool_use: Option<WholeTool<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WholeTool<'a> {
    #[serde(default)]
    tool_use_id: Value,
    #[serde(default)]
    name: Value,
    #[serde(borrow, default)]
    input: Option<&'a RawValue>,
}

fn read_whole(text: &[u8], calls: &mut ToolCallAccumulator) -> Result<Step, String> {
    let body: Value = serde_json::from_slice(text).map_err(|error| json_position(&error))?;
    let blocks = body.pointer("/output/message/content");
    let blocks = blocks.and_then(Value::as_array).ok_or("no content")?;
    let whole: WholeAnswer<'_> =
        serde_json::from_slice(text).map_err(|error| json_position(&error))?;
    let uses = whole.output.message.content.into_iter();
    let uses = uses.filter_map(|block| block.tool_use).map(|tool| {
        let name = tool.name.as_str().unwrap_or_default();
        calls.begin(tool.tool_use_id.as_str(), name, &raw_arguments(tool.input))
    });
    let (text, cited) = said(blocks);
    let mut delta = Delta {
        text: Some(text),
        citations: some(cited),
        tool_calls: deltas(uses.collect()),
        ..Delta::default()
    };
    stopped(&mut delta, body["stopReason"].as_str());
    let kinds = blocks.iter().filter_map(Value::as_object);
    refuse(&mut delta, kinds.flat_map(Map::keys));
    tokens(&mut delta, Tokens::deserialize(&body["usage"]).ok());
    let all = reasoned(blocks).into_iter().chain([delta]);
    Ok(Step::All(all.collect()))
}

#[cfg(test)]
mod tests;
