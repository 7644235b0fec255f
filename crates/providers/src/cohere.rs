//! Cohere's Chat API, version 2.

mod citations;
mod content;

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use volley_backend::items::Item;
use volley_provider_kit::blocks::arguments_text;
use volley_provider_kit::calls::{ToolCallAccumulator, deltas};
use volley_provider_kit::citations::some;
use volley_provider_kit::conversation::{
    calls as calls_of, messages_without_developer, openai_messages, parts, reasoning_text,
};
use volley_provider_kit::effort::{self, Thinking};
use volley_provider_kit::fault::{json_position, text as error_text};
use volley_provider_kit::names::{NameRule, NameRules};
use volley_provider_kit::normalize::{
    ResponseFormat, ToolChoice, allowed_only, check_tool_choice, is_one_call, only_tool,
    take_response_format, take_tool_choice,
};
use volley_provider_kit::parameters::{ParameterTable, RequestFields};
use volley_provider_kit::provider::{Page, Provider};
use volley_provider_kit::step::{Delta, Step};
use volley_types::{ChatMessage, Dialect, ErrorCode, FinishReason, PredictError};

use self::citations::citations;
use self::content::{add_content, whole_content};

pub(crate) static PROVIDER: Provider = Provider {
    page: Page {
        endpoint: "chat, version 2, `…/v2/chat`",
        url: "path ends in `v2/chat`",
        ..Page::NONE
    },
    route: "/v2/chat",
    recognizes: |address| address.path.ends_with("v2/chat"),
    native: &["cohere"],
    flat_body: true,
    limits_calls: false,
    names: Some(NameRules {
        tools: NameRule {
            max: 64,
            more: "",
            starts_with_letter: true,
        },
        ids: None,
        domains: &[],
    }),
    read,
    read_whole,
    ..Provider::new("cohere", &PARAMETERS, body)
};

static PARAMETERS: ParameterTable = ParameterTable {
    server: "Cohere's chat",
    dialects: &[Dialect::Cohere, Dialect::Own],
    names: &[
        ("max_tokens", "max_tokens"),
        ("max_completion_tokens", "max_tokens"),
        ("max_new_tokens", "max_tokens"),
        ("temperature", "temperature"),
        ("top_k", "k"),
        ("top_p", "p"),
        ("stop", "stop_sequences"),
        ("stop_sequences", "stop_sequences"),
        ("seed", "seed"),
        ("presence_penalty", "presence_penalty"),
        ("frequency_penalty", "frequency_penalty"),
    ],
    own: &[
        "citation_options",
        "documents",
        "k",
        "p",
        "priority",
        "raw_prompting",
        "response_format",
        "safety_mode",
        "strict_tools",
        "thinking",
        "tool_choice",
        "tools",
    ],
    ranges: &[
        ("temperature", 0.0, f64::MAX),
        ("top_p", 0.01, 1.0),
        ("top_k", 0.0, 500.0),
        ("presence_penalty", 0.0, 1.0),
        ("frequency_penalty", 0.0, 1.0),
    ],
    stops: 5,
};

fn body(model: &str, item: &Item, mut request: RequestFields<'_>) -> Result<Value, PredictError> {
    let fields = &mut request.fields;
    check_tool_choice(fields)?;
    allowed_only(fields);
    if fields.get("parallel_tool_calls") == Some(&Value::Bool(false)) {
        if !is_one_call(fields) {
            let why = "name the tool in 'tool_choice', or send one tool";
            return Err(request.refused("parallel_tool_calls", why));
        }
        fields.remove("parallel_tool_calls");
    }
    top_p(&mut request)?;
    let fields = &mut request.fields;
    strict(fields);
    match take_tool_choice(fields) {
        Some(ToolChoice::None) => _ = fields.insert("tool_choice".to_owned(), "NONE".into()),
        Some(ToolChoice::Required) => {
            _ = fields.insert("tool_choice".to_owned(), "REQUIRED".into())
        }
        Some(ToolChoice::Named(name)) => {
            only_tool(fields, &name);
            fields.insert("tool_choice".to_owned(), "REQUIRED".into());
        }
        Some(ToolChoice::Auto) | None => {}
    }
    let form = match take_response_format(fields) {
        Some(ResponseFormat::Object) => Some(json!({ "type": "json_object" })),
        Some(ResponseFormat::Schema(schema)) => {
            Some(json!({ "type": "json_object", "json_schema": schema }))
        }
        Some(ResponseFormat::Text) | None => None,
    };
    if let Some(form) = form {
        fields.insert("response_format".to_owned(), form);
    }
    let thinking = match effort::take(&mut request)? {
        Some(Thinking::Off) => Some(json!({ "type": "disabled" })),
        Some(thinking) => Some(match thinking.budget() {
            Some(budget) => json!({ "type": "enabled", "token_budget": budget }),
            None => json!({ "type": "enabled" }),
        }),
        None => None,
    };
    let mut body = request.finish()?;
    if let Some(thinking) = thinking {
        body.insert("thinking".to_owned(), thinking);
    }
    body.insert("model".to_owned(), model.into());
    let messages = messages_without_developer(item);
    if messages
        .iter()
        .any(|sent| sent.role == "tool" && parts(sent).is_some())
    {
        return Err(PredictError::invalid(
            "field 'messages' has an image in a tool's result: Cohere's chat accepts text only \
             there",
        ));
    }
    let turns = messages.iter().zip(openai_messages(&messages));
    let turns = turns.map(|(sent, turn)| place_reasoning(sent, turn));
    body.insert("messages".to_owned(), turns.collect());
    Ok(Value::Object(body))
}

/// Omits a `top_p` of 1, all tokens: the server has no such value.
fn top_p(request: &mut RequestFields<'_>) -> Result<(), PredictError> {
    match request.fields.get("top_p").and_then(Value::as_f64) {
        Some(1.0) => _ = request.take("top_p"),
        Some(p) if 0.99 < p => {
            return Err(request.refused("top_p", "it must be 0.01 to 0.99, or 1"));
        }
        _ => {}
    }
    Ok(())
}

/// Writes the reasoning and the plan of a message where this format has them.
fn place_reasoning(sent: &ChatMessage, mut turn: Value) -> Value {
    if let Some(thinking) = reasoning_text(sent) {
        let mut parts = vec![json!({ "type": "thinking", "thinking": thinking })];
        if !sent.content.is_empty() {
            parts.push(json!({ "type": "text", "text": sent.content }));
        }
        turn["content"] = parts.into();
        return turn;
    }
    // The text of a message with calls is its plan for them.
    if !calls_of(sent).is_empty() {
        let content = turn["content"].take();
        turn.as_object_mut().map(|turn| turn.remove("content"));
        if content.is_string() {
            turn["tool_plan"] = content;
        }
    }
    turn
}

/// Moves `strict` from the tools to the request, because the server has only one setting for all.
fn strict(fields: &mut Map<String, Value>) {
    let Some(Value::Array(tools)) = fields.get_mut("tools") else {
        return;
    };
    let mut strict = false;
    for tool in tools {
        let function = tool.get_mut("function").and_then(Value::as_object_mut);
        let given = function.and_then(|function| function.remove("strict"));
        strict |= given == Some(Value::Bool(true));
    }
    if strict {
        fields.entry("strict_tools").or_insert(true.into());
    }
}

#[derive(Deserialize)]
struct Body<'a> {
    /// Index of the content part or the call.
    #[serde(default)]
    index: Option<u64>,
    #[serde(borrow, default, rename = "type")]
    kind: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    delta: Option<Inner<'a>>,
    /// Log probabilities of the text delta.
    #[serde(default)]
    logprobs: Option<Value>,
    /// The message of an error event, which has no type.
    #[serde(borrow, default)]
    message: Option<Cow<'a, str>>,
}

#[derive(Default, Deserialize)]
struct Inner<'a> {
    #[serde(borrow, default)]
    message: Option<Message<'a>>,
    #[serde(borrow, default)]
    finish_reason: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    usage: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

/// The type of each field (object, list or null) depends on the event.
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
    /// Text or, from some servers, an object.
    #[serde(default)]
    arguments: Value,
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

/// Counts may be fractional.
#[derive(Clone, Copy, Deserialize)]
struct Counts {
    #[serde(default)]
    input_tokens: Option<f64>,
    #[serde(default)]
    output_tokens: Option<f64>,
}

fn read(data: &str, calls: &mut ToolCallAccumulator) -> Result<Step, String> {
    // Some proxies append this after the final event.
    if data == "[DONE]" {
        return Ok(Step::Delta(Delta::default()));
    }
    let body: Body<'_> = serde_json::from_str(data).map_err(|error| json_position(&error))?;
    let (inner, mut delta) = (body.delta.unwrap_or_default(), Delta::default());
    match (body.kind.as_deref(), body.message) {
        (Some("message-end"), _) => return end(&inner),
        (Some("content-start" | "content-delta"), _) => {
            if let Some(content) = inner.message.and_then(|message| message.content) {
                add_content(&mut delta, content)?;
            }
            delta.logprobs = body.logprobs.as_ref().and_then(probabilities);
        }
        (Some("tool-plan-delta"), _) => {
            let plan = inner.message.and_then(|message| message.tool_plan);
            delta.thinking = plan.map(Cow::into_owned);
            planned(&mut delta);
        }
        (Some("tool-call-start" | "tool-call-delta"), _) => {
            if let Some(call) = inner.message.and_then(|message| message.tool_calls) {
                let call = tool_call(one(call)?, body.index, calls);
                delta.tool_calls = deltas(call.into_iter().collect());
            }
        }
        (Some("citation-start"), _) => {
            if let Some(cited) = inner.message.and_then(|message| message.citations) {
                let told: Value = one(cited)?;
                delta.citations = some(citations(&told));
                if delta.citations.is_some() {
                    let details = delta.details();
                    details.format = Some("cohere".to_owned());
                    details.blocks.push(json!({ "citation": told }));
                }
            }
        }
        // Starts and ends of parts, and events of later versions.
        (Some(_), _) => {}
        (None, Some(message)) => return Ok(Step::Failed(message.into_owned())),
        (None, None) => return Err("the event has no 'type'".to_owned()),
    }
    Ok(Step::Delta(delta))
}

fn one<'a, T: Deserialize<'a>>(raw: &'a RawValue) -> Result<T, String> {
    serde_json::from_str(raw.get()).map_err(|error| json_position(&error))
}

/// Converts the log probabilities of one text to OpenAI's format, with token ids.
fn probabilities(told: &Value) -> Option<String> {
    let text = told["text"].as_str().unwrap_or_default();
    let numbers = told["token_ids"].as_array();
    let known = told["logprobs"].as_array()?.iter().enumerate();
    let tokens = known.map(|(at, logprob)| {
        // The server sends one text for all tokens.
        let text = if at == 0 { text } else { "" };
        let number = numbers.and_then(|numbers| numbers.get(at));
        json!({
            "token": text, "logprob": logprob, "bytes": text.as_bytes(), "top_logprobs": [],
            "token_id": number,
        })
    });
    let tokens: Vec<_> = tokens.collect();
    (!tokens.is_empty()).then(|| Value::Array(tokens).to_string())
}

fn tool_call(call: Call<'_>, index: Option<u64>, calls: &mut ToolCallAccumulator) -> Option<Value> {
    let function = call.function?;
    let arguments = arguments_text(&function.arguments);
    let id = call.id.as_deref();
    match (function.name, index) {
        (Some(name), Some(index)) => Some(calls.begin_in(index, id, &name, &arguments)),
        (Some(name), None) => Some(calls.begin(id, &name, &arguments)),
        (None, Some(index)) => calls.more_in(index, &arguments),
        (None, None) => calls.more(&arguments),
    }
}

/// Marks reasoning as a plan for calls, which has its own field in this format.
fn planned(delta: &mut Delta) {
    if delta.thinking.as_ref().is_some_and(|plan| !plan.is_empty()) {
        let details = delta.details();
        details.format = Some("cohere".to_owned());
        details.item = Some("tool_plan".to_owned());
    }
}

/// Stores the finish reason and the usage as the server sent them.
fn told(delta: &mut Delta, reason: Option<&str>, usage: Option<Value>) {
    let end = delta.end();
    end.format = Some("cohere".to_owned());
    end.stop_reason = reason.map(str::to_owned);
    end.usage = usage.filter(Value::is_object);
}

fn end(inner: &Inner<'_>) -> Result<Step, String> {
    let mut delta = Delta::default();
    let usage = inner.usage.map(RawValue::get);
    let usage: Option<Value> = usage.and_then(|usage| serde_json::from_str(usage).ok());
    let counts = usage.as_ref().and_then(|it| Tokens::deserialize(it).ok());
    tokens(&mut delta, counts.as_ref());
    told(&mut delta, inner.finish_reason.as_deref(), usage);
    let error = inner.error.map(|error| error_text(error.get()));
    let failure = finish(&mut delta, inner.finish_reason.as_deref(), error);
    Ok(failure.unwrap_or(Step::Last(delta)))
}

/// Sets the finish reason. Returns the step for an answer that ended in a failure of the server.
fn finish(delta: &mut Delta, reason: Option<&str>, error: Option<String>) -> Option<Step> {
    let native = reason?;
    let told =
        || error.unwrap_or_else(|| format!("the server returned the finish reason '{native}'"));
    let known = match native {
        "COMPLETE" | "STOP_SEQUENCE" => Some(FinishReason::Stop),
        "MAX_TOKENS" | "ERROR_LIMIT" => Some(FinishReason::Length),
        "TOOL_CALL" => Some(FinishReason::ToolCalls),
        "ERROR_TOXIC" => Some(FinishReason::ContentFilter),
        "ERROR" => return Some(Step::Failed(told())),
        "TIMEOUT" => return Some(Step::Refused(ErrorCode::UpstreamTimeout, told())),
        _ => None,
    };
    delta.finish(native, known);
    None
}

fn tokens(delta: &mut Delta, told: Option<&Tokens>) {
    let counts = told.and_then(|told| told.tokens.or(told.billed_units));
    // A saturating conversion.
    let count = |count: Option<f64>| count.map(|count| count as u32);
    delta.prompt_tokens = count(counts.and_then(|counts| counts.input_tokens));
    delta.completion_tokens = count(counts.and_then(|counts| counts.output_tokens));
    delta.cached_tokens = count(told.and_then(|told| told.cached_tokens));
}

fn read_whole(body: &[u8], calls: &mut ToolCallAccumulator) -> Result<Step, String> {
    let body: Value = serde_json::from_slice(body).map_err(|error| json_position(&error))?;
    let message = match &body["message"] {
        Value::String(error) => return Ok(Step::Failed(error.clone())),
        Value::Object(message) => message,
        _ => return Err("no message".to_owned()),
    };
    let list = |name: &str| message.get(name).and_then(Value::as_array);
    let (thinking, mut delta) = whole_content(message.get("content").unwrap_or(&Value::Null));
    let plan = message.get("tool_plan").and_then(Value::as_str);
    let mut plan = Delta {
        thinking: plan.map(str::to_owned),
        ..Delta::default()
    };
    planned(&mut plan);
    let made = list("tool_calls").into_iter().flatten().map(|call| {
        let function = &call["function"];
        let name = function["name"].as_str().unwrap_or_default();
        let arguments = arguments_text(&function["arguments"]);
        calls.begin(call["id"].as_str(), name, &arguments)
    });
    delta.tool_calls = deltas(made.collect());
    delta.citations = some(
        list("citations")
            .into_iter()
            .flatten()
            .flat_map(citations)
            .collect(),
    );
    let why = body["finish_reason"].as_str();
    let counts = Tokens::deserialize(&body["usage"]).ok();
    tokens(&mut delta, counts.as_ref());
    told(&mut delta, why, body.get("usage").cloned());
    if let Some(failure) = finish(&mut delta, why, None) {
        return Ok(failure);
    }
    Ok(Step::All(vec![thinking, plan, delta]))
}

#[cfg(test)]
mod tests;
