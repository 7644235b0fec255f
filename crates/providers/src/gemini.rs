//! Google Gemini. `request` writes requests; this module reads answers.
//!
//! A stream has no final event. It is complete if its body ends after a finish reason.

mod grounding;
mod parts;
mod request;
mod thinking;

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use volley_provider_kit::calls::{ToolCallAccumulator, deltas};
use volley_provider_kit::citations::some;
use volley_provider_kit::fault::{self, json_position};
use volley_provider_kit::framing::StreamEnd;
use volley_provider_kit::names::{NameRule, NameRules};
use volley_provider_kit::provider::{Address, AnswerForm, Page, Provider, part_of_url};
use volley_provider_kit::rows::google::Google;
use volley_provider_kit::rows::post_process::PostProcess;
use volley_provider_kit::rows::pre_process::PreProcess;
use volley_provider_kit::step::{Delta, Step};
use volley_types::FinishReason;
use volley_types::registry::{ConnectorSpec, ProviderName};

pub(crate) static PROVIDER: Provider = GEMINI;

const GEMINI: Provider = Provider {
    page: Page {
        endpoint: "`…/v1beta/models/NAME:streamGenerateContent`",
        key: "`x-goog-api-key`",
        url: "path ends in `:streamGenerateContent`",
    },
    route: "/v1beta/models/{model}:streamGenerateContent",
    recognizes: |address| is_of_google(address) && !is_of_vertex(address),
    model_of_url: |url| part_of_url(url, "/models/", ':'),
    key_header: "x-goog-api-key",
    key_prefix: "",
    stream_field: Some(false),
    stream_query: Some(("alt", "sse")),
    whole_route: Some((":streamGenerateContent", ":generateContent")),
    ending: StreamEnd::BodyAfterReason,
    answer_form: Some(AnswerForm::Gemini),
    limits_calls: false,
    keeps_schemas: false,
    names: Some(NameRules {
        tools: NameRule {
            max: 64,
            more: "-.:",
            starts_with_letter: true,
        },
        ids: None,
        domains: &[],
    }),
    hoists_system: true,
    counts_bytes: true,
    hosted_tool,
    rows,
    read,
    read_whole,
    ..Provider::new("gemini", &request::PARAMETERS, request::body)
};

/// Vertex AI uses an OAuth access token instead of a key.
pub(crate) static VERTEX: Provider = Provider {
    name: ProviderName::from_static("vertex"),
    page: Page {
        endpoint: "Gemini at Vertex AI, `…/publishers/google/models/NAME:streamGenerateContent`",
        key: "`Authorization: Bearer`, a token that another process renews in a file",
        url: "the same, host `*aiplatform.googleapis.com`",
    },
    route: "/v1/projects/p/locations/l/publishers/google/models/{model}:streamGenerateContent",
    recognizes: |address| is_of_google(address) && is_of_vertex(address),
    key_header: "authorization",
    key_prefix: "Bearer ",
    ..GEMINI
};

fn is_of_google(address: &Address<'_>) -> bool {
    let methods = [
        "streamGenerateContent",
        "generateContent",
        "embedContent",
        "batchEmbedContents",
    ];
    let method = address.path.rsplit_once(':').map(|(_, method)| method);
    method.is_some_and(|method| methods.contains(&method))
        || address.path.contains("/publishers/google/") && method == Some("predict")
}

/// Vertex AI has one host per region: `europe-west4-aiplatform.googleapis.com`.
fn is_of_vertex(address: &Address<'_>) -> bool {
    address.host.ends_with("aiplatform.googleapis.com")
}

/// The type of a tool that runs at the provider. Only functions run at the caller.
fn hosted_tool(tool: &Value) -> Option<&str> {
    let mut names = tool.as_object()?.keys();
    let name = names.find(|name| !name.starts_with("function"))?;
    Some(name.as_str())
}

fn rows(connector: &ConnectorSpec) -> Option<(PreProcess, PostProcess)> {
    let url = connector.url.split(['?', '#']).next()?;
    let google = Google::of_url(url)?;
    Some((PreProcess::Google(google), PostProcess::Google(google)))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Response<'a> {
    #[serde(borrow, default)]
    candidates: Option<Vec<Candidate<'a>>>,
    #[serde(borrow, default)]
    prompt_feedback: Option<Feedback<'a>>,
    #[serde(default)]
    usage_metadata: Option<Tokens>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Candidate<'a> {
    #[serde(default)]
    index: Option<u32>,
    #[serde(borrow, default)]
    content: Option<Content<'a>>,
    #[serde(borrow, default)]
    finish_reason: Option<Cow<'a, str>>,
    #[serde(default)]
    grounding_metadata: Option<Value>,
    #[serde(default)]
    citation_metadata: Option<Value>,
}

#[derive(Deserialize)]
struct Content<'a> {
    #[serde(borrow, default)]
    parts: Option<Vec<Part<'a>>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Part<'a> {
    #[serde(borrow, default)]
    text: Option<Cow<'a, str>>,
    #[serde(default)]
    thought: Option<bool>,
    #[serde(borrow, default)]
    thought_signature: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    function_call: Option<Function<'a>>,
    /// Content of other kinds, by its name.
    #[serde(flatten)]
    rest: Map<String, Value>,
}

#[derive(Deserialize)]
struct Function<'a> {
    #[serde(borrow, default)]
    id: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    name: Cow<'a, str>,
    #[serde(borrow, default)]
    args: Option<&'a RawValue>,
    /// A piece of the arguments, for requests with `streamFunctionCallArguments`.
    #[serde(default, rename = "partialArgs")]
    partial: Option<IgnoredAny>,
    #[serde(default, rename = "willContinue")]
    continues: Option<bool>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Feedback<'a> {
    #[serde(borrow, default)]
    block_reason: Option<Cow<'a, str>>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Tokens {
    #[serde(default)]
    prompt_token_count: Option<u32>,
    #[serde(default)]
    tool_use_prompt_token_count: Option<u32>,
    #[serde(default)]
    candidates_token_count: Option<u32>,
    #[serde(default)]
    thoughts_token_count: Option<u32>,
    #[serde(default)]
    cached_content_token_count: Option<u32>,
}

fn read(data: &str, calls: &mut ToolCallAccumulator) -> Result<Step, String> {
    // Some proxies append this; it is not part of the format.
    if data == "[DONE]" {
        return Ok(Step::Delta(Delta::default()));
    }
    // An error in the stream may be in a list.
    if data.starts_with('[') {
        return read_whole(data.as_bytes(), calls);
    }
    let response: Response<'_> =
        serde_json::from_str(data).map_err(|error| json_position(&error))?;
    let mut step = step(response, calls)?;
    let delta = match &mut step {
        Step::Delta(delta) => Some(delta),
        Step::All(deltas) => deltas.last_mut(),
        _ => None,
    };
    if let Some(delta) = delta {
        let text = delta.text.as_deref().unwrap_or_default();
        let passages = &calls.passages;
        grounding::in_characters(&mut delta.citations, |byte| passages.character(text, byte));
    }
    Ok(step)
}

/// Reads one response, or the list of responses of a URL without `alt=sse`.
fn read_whole(body: &[u8], calls: &mut ToolCallAccumulator) -> Result<Step, String> {
    let responses: Vec<Response<'_>> = if body.trim_ascii_start().starts_with(b"[") {
        serde_json::from_slice(body).map_err(|error| json_position(&error))?
    } else {
        vec![serde_json::from_slice(body).map_err(|error| json_position(&error))?]
    };
    let mut whole = Delta::default();
    let (mut called, mut cited, mut signed) = (Vec::new(), Vec::new(), Vec::new());
    for response in responses {
        let delta = match step(response, calls)? {
            Step::Delta(delta) => delta,
            Step::All(mut deltas) => {
                let delta = deltas.pop().unwrap_or_default();
                // Unsigned reasoning of earlier responses precedes theirs.
                if let Some(first) = deltas.first_mut() {
                    let before = whole.thinking.take();
                    let own = std::mem::replace(&mut first.thinking, before);
                    append(&mut first.thinking, own);
                }
                signed.extend(deltas);
                delta
            }
            other => return Ok(other),
        };
        whole.details = delta.details.or(whole.details);
        append(&mut whole.text, delta.text);
        append(&mut whole.thinking, delta.thinking);
        let more = delta.tool_calls.map(|more| serde_json::from_str(&more));
        let more: Option<Vec<Value>> = more.transpose().map_err(|error| json_position(&error))?;
        called.extend(more.into_iter().flatten());
        cited.extend(delta.citations.into_iter().flatten());
        whole.finish_reason = delta.finish_reason.or(whole.finish_reason);
        whole.unusable = whole.unusable.or(delta.unusable);
        whole.end = delta.end.or(whole.end);
        whole.prompt_tokens = delta.prompt_tokens.or(whole.prompt_tokens);
        whole.completion_tokens = delta.completion_tokens.or(whole.completion_tokens);
        whole.cached_tokens = delta.cached_tokens.or(whole.cached_tokens);
        whole.reasoning_tokens = delta.reasoning_tokens.or(whole.reasoning_tokens);
    }
    let is_empty =
        whole.text.is_none() && whole.thinking.is_none() && called.is_empty() && signed.is_empty();
    if is_empty && whole.finish_reason.is_none() && whole.unusable.is_none() && whole.end.is_none()
    {
        return Err("no candidates".to_owned());
    }
    whole.tool_calls = deltas(called);
    whole.citations = some(cited);
    let text = whole.text.as_deref().unwrap_or_default();
    grounding::in_characters(&mut whole.citations, |byte| {
        let before = text.get(..usize::try_from(byte).ok()?)?;
        u32::try_from(before.chars().count()).ok()
    });
    Ok(after(signed, whole))
}

/// A delta after those of signed reasoning.
fn after(mut signed: Vec<Delta>, delta: Delta) -> Step {
    if signed.is_empty() {
        return Step::Delta(delta);
    }
    signed.push(delta);
    Step::All(signed)
}

/// Stores the signature of reasoning or text, and which of them it belongs to.
fn sign(delta: &mut Delta, signature: &str, part: &str) {
    let details = delta.details();
    details.format = Some("gemini".to_owned());
    details.signature = Some(signature.to_owned());
    details.item = Some(part.to_owned());
}

fn append(text: &mut Option<String>, more: Option<String>) {
    match (text.as_mut(), more) {
        (Some(text), Some(more)) => text.push_str(&more),
        (None, more) => *text = more,
        (Some(_), None) => {}
    }
}

fn step(response: Response<'_>, calls: &mut ToolCallAccumulator) -> Result<Step, String> {
    if let Some(error) = response.error {
        return Ok(fault::step(error.get()));
    }
    let blocked = response.prompt_feedback.and_then(|told| told.block_reason);
    if response.candidates.is_none() && blocked.is_none() && response.usage_metadata.is_none() {
        return Err("no candidates".to_owned());
    }
    let mut delta = Delta::default();
    tokens(&mut delta, response.usage_metadata);
    delta.finish_reason = blocked.map(|_| FinishReason::ContentFilter);
    let mut candidates = response.candidates.into_iter().flatten();
    // Requests ask for one candidate.
    let Some(candidate) = candidates.find(|candidate| candidate.index.unwrap_or(0) == 0) else {
        return Ok(Step::Delta(delta));
    };
    let parts = candidate.content.and_then(|content| content.parts);
    let signed = add_parts(&mut delta, parts.unwrap_or_default(), calls);
    let ends = candidate
        .finish_reason
        .as_deref()
        .is_some_and(|reason| !reason.is_empty());
    delta.citations = grounding::citations(
        candidate.grounding_metadata.as_ref(),
        candidate.citation_metadata.as_ref(),
        ends,
        &mut calls.passages,
    );
    if let Some(told) = candidate.finish_reason {
        match reason(&told, calls) {
            Some(reason) => delta.finish_reason = reason,
            None => delta.finish(&told, None),
        }
        if told == PAUSE {
            let end = delta.end();
            end.format = Some("gemini".to_owned());
            end.stop_reason = Some(told.into_owned());
        }
    }
    Ok(after(signed, delta))
}

/// Adds the parts of a candidate to `delta`, and returns the deltas of signed reasoning before it.
fn add_parts(
    delta: &mut Delta,
    parts: Vec<Part<'_>>,
    calls: &mut ToolCallAccumulator,
) -> Vec<Delta> {
    let (mut called, mut signed) = (Vec::new(), Vec::new());
    for part in parts {
        let has_form = part.text.is_some() || part.function_call.is_some();
        if !has_form && !parts::add_code(delta, &part.rest) {
            parts::refuse(delta, &part.rest);
        }
        let signature = part.thought_signature.as_deref();
        let signature = signature.filter(|signature| !signature.is_empty());
        let text = part.text.map(Cow::into_owned);
        match (part.function_call, part.thought) {
            (Some(function), _)
                if function.partial.is_some() || function.continues == Some(true) =>
            {
                delta.lacks_form("partialArgs");
            }
            (Some(function), _) => {
                called.push(call(&function, signature, calls));
                append(&mut delta.text, text);
            }
            (None, Some(true)) => {
                append(&mut delta.thinking, text);
                if let Some(signature) = signature {
                    let mut thought = Delta {
                        thinking: delta.thinking.take(),
                        ..Delta::default()
                    };
                    sign(&mut thought, signature, "thought");
                    signed.push(thought);
                }
            }
            (None, _) => {
                append(&mut delta.text, text);
                if let Some(signature) = signature {
                    sign(delta, signature, "text");
                }
            }
        }
    }
    delta.tool_calls = deltas(called);
    signed
}

/// Reads a call. The signature of the reasoning before a call must be part of the next request. It
/// is stored in the field that Google's OpenAI-compatible interface uses.
fn call(
    function: &Function<'_>,
    signature: Option<&str>,
    calls: &mut ToolCallAccumulator,
) -> Value {
    let arguments = function.args.map_or("{}", RawValue::get);
    // Some servers send the text of an object instead of the object.
    let text = arguments.starts_with('"');
    let text = text.then(|| serde_json::from_str::<String>(arguments).ok());
    let arguments = text.flatten().unwrap_or_else(|| arguments.to_owned());
    let mut call = calls.begin(function.id.as_deref(), &function.name, &arguments);
    if let Some(signature) = signature {
        call["extra_content"] = json!({ "google": { "thought_signature": signature } });
    }
    call
}

/// The finish reason of a paused answer.
const PAUSE: &str = "CONTINUATION";

/// Converts the finish reason: `None` if the answer is unusable after it, `Some(None)` if the
/// answer has not ended.
fn reason(reason: &str, calls: &ToolCallAccumulator) -> Option<Option<FinishReason>> {
    Some(Some(match reason {
        "" | "FINISH_REASON_UNSPECIFIED" => return Some(None),
        // A paused answer is incomplete.
        "MAX_TOKENS" | PAUSE => FinishReason::Length,
        "SAFETY"
        | "RECITATION"
        | "LANGUAGE"
        | "BLOCKLIST"
        | "PROHIBITED_CONTENT"
        | "SPII"
        | "IMAGE_SAFETY"
        | "IMAGE_PROHIBITED_CONTENT"
        | "IMAGE_RECITATION"
        | "IMAGE_OTHER"
        | "NO_IMAGE"
        | "MODEL_ARMOR"
        | "ESCALATION"
        | "OTHER" => FinishReason::ContentFilter,
        // The server also sends `STOP` for tool calls.
        "STOP" if calls.any() => FinishReason::ToolCalls,
        "STOP" => FinishReason::Stop,
        // Malformed calls and responses, and reasons of later versions.
        _ => return None,
    }))
}

fn tokens(delta: &mut Delta, tokens: Option<Tokens>) {
    let Some(tokens) = tokens else { return };
    let sum = |one: Option<u32>, other: Option<u32>| match (one, other) {
        (None, None) => None,
        (one, other) => Some(one.unwrap_or(0).saturating_add(other.unwrap_or(0))),
    };
    delta.prompt_tokens = sum(
        tokens.prompt_token_count,
        tokens.tool_use_prompt_token_count,
    );
    delta.completion_tokens = sum(tokens.candidates_token_count, tokens.thoughts_token_count);
    delta.cached_tokens = tokens.cached_content_token_count;
    delta.reasoning_tokens = tokens.thoughts_token_count;
}

#[cfg(test)]
mod tests;
