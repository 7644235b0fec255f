//! Ollama's chat API: lines of JSON, and parameters in `options`.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use volley_backend::items::Item;
use volley_provider_kit::blocks::raw_arguments;
use volley_provider_kit::calls::{ToolCallAccumulator, deltas};
use volley_provider_kit::conversation::{
    Image, arguments, called, calls as calls_of, image, messages_without_developer, no_address,
    parts, reasoning_text,
};
use volley_provider_kit::effort::{self, Effort, Thinking};
use volley_provider_kit::fault::{self, json_position};
use volley_provider_kit::framing::Framing;
use volley_provider_kit::normalize::{
    ResponseFormat, ToolChoice, allowed_only, check_tool_choice, is_one_call, take_response_format,
    take_tool_choice,
};
use volley_provider_kit::parameters::{ParameterTable, RequestFields};
use volley_provider_kit::provider::{Page, Provider};
use volley_provider_kit::step::{Delta, Step};
use volley_types::{ChatMessage, Dialect, FinishReason, PredictError};

use crate::openai::probabilities;

pub(crate) static PROVIDER: Provider = Provider {
    page: Page {
        endpoint: "chat, `…/api/chat`",
        key: "`Authorization: Bearer`, if there is one",
        url: "path ends in `/api/chat`, or in `/api/generate` with a `request_body`",
    },
    route: "/api/chat",
    other_routes: &[("/api/generate", true)],
    recognizes: |address| {
        address.path.ends_with("api/chat") || address.path.ends_with("api/generate")
    },
    framing: Framing::Lines,
    media: "application/x-ndjson",
    raw_route: Some(("/api/chat", "/api/generate")),
    native: &["ollama"],
    limits_calls: false,
    read,
    read_whole: |body, calls| match std::str::from_utf8(body) {
        Ok(text) => match read(text, calls)? {
            Step::Delta(_) => Err("the answer ends without 'done': true".to_owned()),
            step => Ok(step),
        },
        Err(_) => Err("the answer is not UTF-8".to_owned()),
    },
    ..Provider::new("ollama", &PARAMETERS, body)
};

static PARAMETERS: ParameterTable = ParameterTable {
    server: "Ollama's chat",
    dialects: &[Dialect::Ollama, Dialect::Own],
    names: &[
        ("max_tokens", "options.num_predict"),
        ("max_completion_tokens", "options.num_predict"),
        ("max_new_tokens", "options.num_predict"),
        ("num_predict", "options.num_predict"),
        ("num_ctx", "options.num_ctx"),
        ("temperature", "options.temperature"),
        ("top_k", "options.top_k"),
        ("top_p", "options.top_p"),
        ("min_p", "options.min_p"),
        ("seed", "options.seed"),
        ("stop", "options.stop"),
        ("repetition_penalty", "options.repeat_penalty"),
        ("repeat_penalty", "options.repeat_penalty"),
        ("presence_penalty", "options.presence_penalty"),
        ("frequency_penalty", "options.frequency_penalty"),
    ],
    own: &[
        "format",
        "keep_alive",
        "logprobs",
        "options",
        "think",
        "tools",
        "top_logprobs",
        "truncate",
    ],
    ranges: &[],
    stops: usize::MAX,
};

fn body(model: &str, item: &Item, mut request: RequestFields<'_>) -> Result<Value, PredictError> {
    check_tool_choice(&request.fields)?;
    allowed_only(&mut request.fields);
    if request.fields.get("parallel_tool_calls") == Some(&Value::Bool(false)) {
        if !is_one_call(&request.fields) {
            let why = "the server does not support this; send one tool";
            return Err(request.refused("parallel_tool_calls", why));
        }
        request.take("parallel_tool_calls");
    }
    match take_tool_choice(&mut request.fields) {
        Some(ToolChoice::None) => _ = request.take("tools"),
        Some(ToolChoice::Required | ToolChoice::Named(_)) => {
            let why = "the remote model's server does not support required tool calls; it must be \
                 'auto' or 'none'";
            return Err(request.refused("tool_choice", why));
        }
        Some(ToolChoice::Auto) | None => {}
    }
    let form = take_response_format(&mut request.fields);
    let think: Option<Value> = match effort::take(&mut request)? {
        Some(Thinking::Off) => Some(false.into()),
        Some(Thinking::On) => Some(true.into()),
        // The server supports three levels.
        Some(thinking) => thinking.level().map(|level| match level {
            Effort::Minimal | Effort::Low => "low".into(),
            Effort::Medium => "medium".into(),
            Effort::High | Effort::Xhigh | Effort::Max => "high".into(),
        }),
        None => None,
    };
    let is_raw = request.is_raw();
    let mut body = request.finish()?;
    if let Some(think) = think {
        body.entry("think").or_insert(think);
    }
    match form {
        Some(ResponseFormat::Object) => _ = body.insert("format".to_owned(), "json".into()),
        Some(ResponseFormat::Schema(schema)) => _ = body.insert("format".to_owned(), schema),
        Some(ResponseFormat::Text) | None => {}
    }
    body.insert("model".to_owned(), model.into());
    if let (Item::Prompt(prompt), true) = (item, is_raw) {
        body.insert("prompt".to_owned(), prompt.as_str().into());
        body.insert("raw".to_owned(), true.into());
        return Ok(Value::Object(body));
    }
    let messages = messages_without_developer(item);
    let turns = (0..messages.len()).map(|at| turn(&messages, at));
    let turns = turns.collect::<Result<Vec<_>, _>>()?;
    body.insert("messages".to_owned(), turns.into());
    Ok(Value::Object(body))
}

fn turn(messages: &[ChatMessage], at: usize) -> Result<Value, PredictError> {
    let message = &messages[at];
    let mut turn = json!({ "role": message.role, "content": message.content });
    let calls = calls_of(message);
    if !calls.is_empty() {
        let calls = calls.iter().map(|call| {
            let name = &call["function"]["name"];
            Ok(json!({ "function": { "name": name, "arguments": arguments(call)? } }))
        });
        turn["tool_calls"] = calls.collect::<Result<Vec<_>, PredictError>>()?.into();
    }
    if let Some(thinking) = reasoning_text(message) {
        turn["thinking"] = thinking.into();
    }
    for part in parts(message).iter().flatten() {
        match image(part) {
            None => {}
            Some(Image::Data(_, data)) => match &mut turn["images"] {
                Value::Array(images) => images.push(data.into()),
                none => *none = json!([data]),
            },
            Some(Image::Address(_)) => return Err(no_address("Ollama's chat")),
        }
    }
    if let Some(name) = called(messages[..at].iter(), message) {
        turn["tool_name"] = name.into();
    }
    Ok(turn)
}

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(borrow, default)]
    message: Option<Message<'a>>,
    /// The text, for connectors that call `/api/generate`.
    #[serde(borrow, default)]
    response: Option<Cow<'a, str>>,
    /// Log probabilities in OpenAI's format.
    #[serde(borrow, default)]
    logprobs: Option<&'a RawValue>,
    #[serde(default)]
    done: Option<bool>,
    #[serde(borrow, default)]
    done_reason: Option<Cow<'a, str>>,
    #[serde(default)]
    prompt_eval_count: Option<u32>,
    #[serde(default)]
    eval_count: Option<u32>,
    #[serde(default)]
    total_duration: Option<u64>,
    #[serde(default)]
    load_duration: Option<u64>,
    #[serde(default)]
    prompt_eval_duration: Option<u64>,
    #[serde(default)]
    eval_duration: Option<u64>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

impl Line<'_> {
    /// The durations, in nanoseconds.
    fn durations(&self) -> Map<String, Value> {
        let told = [
            ("total_duration", self.total_duration),
            ("load_duration", self.load_duration),
            ("prompt_eval_duration", self.prompt_eval_duration),
            ("eval_duration", self.eval_duration),
        ];
        let told = told.into_iter();
        told.filter_map(|(name, nanos)| Some((name.to_owned(), nanos?.into())))
            .collect()
    }
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow, default)]
    content: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    thinking: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    tool_calls: Option<Vec<Call<'a>>>,
    #[serde(default)]
    images: Option<Vec<IgnoredAny>>,
}

#[derive(Deserialize)]
struct Call<'a> {
    #[serde(default)]
    id: Value,
    #[serde(borrow, default)]
    function: Option<Function<'a>>,
}

#[derive(Deserialize)]
struct Function<'a> {
    #[serde(default)]
    name: Value,
    #[serde(borrow, default)]
    arguments: Option<&'a RawValue>,
}

fn read(data: &str, calls: &mut ToolCallAccumulator) -> Result<Step, String> {
    let line: Line<'_> = serde_json::from_str(data).map_err(|error| json_position(&error))?;
    if let Some(error) = line.error {
        return Ok(fault::step(error.get()));
    }
    if line.message.is_none() && line.response.is_none() && line.done.is_none() {
        return Err("no message".to_owned());
    }
    let durations = line.durations();
    let mut delta = Delta {
        text: line.response.map(Cow::into_owned),
        prompt_tokens: line.prompt_eval_count,
        completion_tokens: line.eval_count,
        logprobs: line.logprobs.map(RawValue::get).and_then(probabilities),
        ..Delta::default()
    };
    if let Some(message) = line.message {
        delta.text = message.content.map(Cow::into_owned).or(delta.text);
        delta.thinking = message.thinking.map(Cow::into_owned);
        if message.images.is_some_and(|images| !images.is_empty()) {
            delta.lacks_form("images");
        }
        let made = message.tool_calls.into_iter().flatten().map(|call| {
            let function = call.function.as_ref();
            let name = function.and_then(|function| function.name.as_str());
            let arguments = raw_arguments(function.and_then(|function| function.arguments));
            calls.begin(call.id.as_str(), name.unwrap_or_default(), &arguments)
        });
        delta.tool_calls = deltas(made.collect());
    }
    if line.done != Some(true) {
        return Ok(Step::Delta(delta));
    }
    let told = line.done_reason.as_deref().unwrap_or_default();
    let reason = match told {
        "length" => Some(FinishReason::Length),
        // The server also sends `stop` for tool calls.
        "" | "stop" | "load" | "unload" | "tool_calls" => Some(match calls.any() {
            true => FinishReason::ToolCalls,
            false => FinishReason::Stop,
        }),
        _ => None,
    };
    delta.finish(told, reason);
    if !durations.is_empty() {
        let end = delta.end();
        end.format = Some("ollama".to_owned());
        end.fields = Some(durations.into());
    }
    Ok(Step::Last(delta))
}

#[cfg(test)]
mod tests {
    use volley_provider_kit::options::RequestOptions;
    use volley_provider_kit::{native, wire};
    use volley_types::Native;
    use volley_types::registry::ConnectorSpec;

    use super::*;
    use crate::tests::{asking, connector};

    #[test]
    fn parameters_are_options_and_tools_are_called_by_name() {
        let fields = json!({
            "max_tokens": 9, "temperature": 0.5, "options": { "num_ctx": 64 }, "keep_alive": "5m",
            "tools": [1], "tool_choice": "none", "response_format": { "type": "json_object" },
        });
        let call = json!([{ "id": "1", "function": { "name": "f", "arguments": "{\"a\":1}" } }]);
        let item = Item::Chat(vec![
            ChatMessage {
                tool_calls: Some(call.to_string()),
                ..ChatMessage::new("assistant", "")
            },
            ChatMessage {
                tool_call_id: Some("1".to_owned()),
                ..ChatMessage::new("tool", "21")
            },
        ]);
        let made = |fields: Value| {
            let fields = fields.as_object().cloned().unwrap();
            asking(&PARAMETERS, fields, |request| body("llama", &item, request))
        };
        let sent = made(fields).unwrap();
        let expected = json!({
            "model": "llama", "keep_alive": "5m", "format": "json",
            "options": { "num_ctx": 64, "num_predict": 9, "temperature": 0.5 },
            "messages": [
                { "role": "assistant", "content": "",
                  "tool_calls": [{ "function": { "name": "f", "arguments": { "a": 1 } } }] },
                { "role": "tool", "content": "21", "tool_name": "f" },
            ],
        });
        assert_eq!(sent, expected);
        for (name, value) in [
            ("tool_choice", json!("required")),
            ("logit_bias", json!({ "1": 2 })),
            ("service_tier", json!("flex")),
        ] {
            let error = made(json!({ name: value })).unwrap_err();
            assert!(error.message.contains(&format!("'{name}'")));
        }
        let hard = made(json!({ "reasoning_effort": "xhigh" })).unwrap();
        assert_eq!(hard["think"], "high");
        let not = made(json!({ "thinking": { "type": "disabled" } })).unwrap();
        assert_eq!(not["think"], false);
    }

    #[test]
    fn a_raw_prompt_goes_to_the_route_that_has_no_template() {
        let fields = json!({ "max_tokens": 9 }).as_object().cloned().unwrap();
        let options = RequestOptions {
            given: ["max_tokens", "raw"].map(str::to_owned).into(),
            fields,
            dialect: Dialect::Ollama,
            whole: true,
        };
        let connector = connector("http://127.0.0.1:1/api/chat?a=b");
        let item = Item::Prompt("[INST] hi".to_owned());
        let sent = wire::body(&PROVIDER, &connector, &item, &options, true).unwrap();
        let expected = json!({ "model": "m", "prompt": "[INST] hi", "raw": true, "stream": false,
                               "options": { "num_predict": 9 } });
        assert_eq!(sent, expected);
        let other = ConnectorSpec {
            url: "http://127.0.0.1:1/behind/a/proxy".to_owned(),
            ..connector
        };
        let error = wire::body(&PROVIDER, &other, &item, &options, true).unwrap_err();
        assert!(error.message.contains("'raw'"), "{error:?}");
    }

    #[test]
    fn defaults_of_a_connector_are_options_of_a_forwarded_request_too() {
        let sent = json!({ "messages": [], "keep_alive": "5m",
                           "options": { "temperature": 0.5, "mirostat": 1 } });
        let native = Native {
            format: "ollama".to_owned(),
            body: sent.as_object().cloned().unwrap(),
            ..Native::default()
        };
        let defaults = json!({ "max_tokens": 9, "temperature": 1.0, "keep_alive": "1m",
                               "response_format": { "type": "json_object" } });
        let mut options = RequestOptions {
            fields: defaults.as_object().cloned().unwrap(),
            ..RequestOptions::default()
        };
        let connector = connector("http://127.0.0.1:1/api/chat");
        let made = native::body(&native, &PROVIDER, &connector, &options, true).unwrap();
        let expected = json!({
            "model": "m", "messages": [], "stream": false, "keep_alive": "5m", "format": "json",
            "options": { "temperature": 0.5, "mirostat": 1, "num_predict": 9 },
        });
        assert_eq!(made, expected);
        options
            .fields
            .insert("logit_bias".to_owned(), json!({ "1": 2 }));
        let error = native::body(&native, &PROVIDER, &connector, &options, true).unwrap_err();
        assert!(error.message.contains("'logit_bias'"), "{error:?}");
    }

    #[test]
    fn lines_of_every_kind() {
        let calls = &mut ToolCallAccumulator::new(1);
        let line = r#"{"model":"m","message":{"role":"assistant","content":"","thinking":"hm"},"done":false}"#;
        let Ok(Step::Delta(delta)) = read(line, calls) else {
            panic!()
        };
        assert_eq!(delta.thinking.as_deref(), Some("hm"));
        let line = r#"{"message":{"content":"","tool_calls":[{"function":{"name":"f","arguments":{"a":1e2}}}]},"done":false}"#;
        let Ok(Step::Delta(delta)) = read(line, calls) else {
            panic!()
        };
        let call: Value = serde_json::from_str(&delta.tool_calls.unwrap()).unwrap();
        assert_eq!(call[0]["function"]["arguments"], "{\"a\":1e2}");
        assert_eq!(call[0]["id"], "call_0000000000000001_0");
        let line = r#"{"message":{"content":"."},"done":true,"done_reason":"stop","prompt_eval_count":2,"eval_count":3,"total_duration":5}"#;
        let Ok(Step::Last(delta)) = read(line, calls) else {
            panic!()
        };
        assert_eq!(delta.text.as_deref(), Some("."));
        assert_eq!(delta.finish_reason, Some(FinishReason::ToolCalls));
        assert_eq!(delta.completion_tokens, Some(3));
        let image = r#"{"message":{"content":"","images":["eA=="]},"done":false}"#;
        let Ok(Step::Delta(delta)) = read(image, calls) else {
            panic!()
        };
        assert!(delta.unusable.unwrap().contains("'images'"));
        let failed = read(r#"{"error":"out of memory"}"#, calls);
        assert_eq!(failed, Ok(Step::Failed("out of memory".to_owned())));
        assert!(read("{}", calls).is_err());
    }
}
