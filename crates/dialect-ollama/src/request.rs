//! Converts bodies to rows and parameters.

use arrow_array::RecordBatch;
use serde_json::{Map, Value, json};
use volley_types::{ChatMessage, Native, Parameters, PredictError, Signature};

use super::FORMAT;
use super::messages::{conversation, no_images, no_messages};
use super::sampling;
use volley_dialect_kit::chat;
use volley_dialect_kit::parameters;
use volley_http_edge::body::Fields;

const COMMON: [&str; 10] = [
    "model",
    "name",
    "stream",
    "format",
    "options",
    "keep_alive",
    "think",
    "logprobs",
    "top_logprobs",
    "template",
];
const CHAT: [&str; 2] = ["messages", "tools"];
const GENERATE: [&str; 9] = [
    "prompt", "system", "raw", "images", "suffix", "context", "width", "height", "steps",
];

/// Ollama's options with the internal names of the parameters.
const OPTIONS: [(&str, &str); 9] = [
    ("num_predict", "max_tokens"),
    ("temperature", "temperature"),
    ("top_p", "top_p"),
    ("top_k", "top_k"),
    ("min_p", "min_p"),
    ("seed", "seed"),
    ("repeat_penalty", "repetition_penalty"),
    ("presence_penalty", "presence_penalty"),
    ("frequency_penalty", "frequency_penalty"),
];
/// Ignored options, which set how Ollama loads and runs a model. Here the deployment sets this.
pub(super) const READ_OVER: [&str; 13] = [
    "numa",
    "num_ctx",
    "num_batch",
    "num_gpu",
    "main_gpu",
    "low_vram",
    "f16_kv",
    "logits_all",
    "vocab_only",
    "use_mmap",
    "use_mlock",
    "embedding_only",
    "num_thread",
];

/// A parsed request of either route.
#[derive(Debug)]
pub(super) struct ParsedRequest {
    /// `None` for a request without a prompt, which only checks that the model is available.
    pub(super) rows: Option<RecordBatch>,
    pub(super) parameters: Parameters,
    pub(super) stream: bool,
}

/// Parses a chat.
///
/// # Errors
/// `InvalidInput` naming the field.
pub(super) fn chat(
    body: &Map<String, Value>,
    signature: &Signature,
) -> Result<ParsedRequest, PredictError> {
    let messages = body.get("messages").and_then(Value::as_array);
    if let Some(messages) = messages.filter(|it| signature.takes_native(FORMAT) && !it.is_empty()) {
        return native(body, messages, signature);
    }
    body.only("a chat", &[&COMMON[..], &CHAT[..]].concat())?;
    let mut given = options(body)?;
    match body.get("tools") {
        None | Some(Value::Null) => {}
        Some(Value::Array(tools)) if tools.is_empty() => {}
        Some(Value::Array(tools)) => {
            given.insert("tools".to_owned(), tools.clone().into());
        }
        Some(_) => return Err(PredictError::invalid("field 'tools' must be a list")),
    }
    let rows = match body.get("messages") {
        None | Some(Value::Null) => None,
        Some(Value::Array(messages)) if messages.is_empty() => None,
        Some(Value::Array(messages)) => {
            Some(chat::native_rows(signature, &conversation(messages)?, None)?.0)
        }
        Some(_) => return Err(no_messages()),
    };
    read(body, rows, &given)
}

/// Parses a chat for a model whose upstream has the same format and may support more of it.
fn native(
    body: &Map<String, Value>,
    messages: &[Value],
    signature: &Signature,
) -> Result<ParsedRequest, PredictError> {
    let (messages, mut lost) = match conversation(messages) {
        Ok(messages) => (messages, None),
        Err(error) if messages.iter().all(Value::is_object) => (Vec::new(), Some(error.message)),
        Err(error) => return Err(error),
    };
    // Upstreams of other formats receive the part that can be converted.
    let given = match options(body) {
        Ok(mut given) => {
            if let Some(tools @ Value::Array(_)) = body.get("tools") {
                given.insert("tools".to_owned(), tools.clone());
            }
            given
        }
        Err(error) => {
            lost = lost.or(Some(error.message));
            Map::new()
        }
    };
    let mut sent = body.clone();
    for ours in ["model", "name", "stream"] {
        sent.remove(ours);
    }
    let native = Native {
        format: FORMAT.to_owned(),
        body: sent,
        lost,
        ..Native::default()
    };
    let (rows, native) = chat::native_rows(signature, &messages, Some(native))?;
    let mut read = read(body, Some(rows), &given)?;
    if let Some(native) = native {
        native.put(&mut read.parameters)?;
    }
    Ok(read)
}

/// Parses a generation.
///
/// # Errors
/// `InvalidInput` naming the field.
pub(super) fn generate(body: &Map<String, Value>) -> Result<ParsedRequest, PredictError> {
    body.only("a generation", &[&COMMON[..], &GENERATE[..]].concat())?;
    no_images(body.get("images"))?;
    if body
        .text("suffix")?
        .is_some_and(|suffix| !suffix.is_empty())
    {
        return Err(PredictError::invalid("field 'suffix' is not supported"));
    }
    let context = body.get("context").and_then(Value::as_array);
    if context.is_some_and(|context| !context.is_empty()) {
        let message = "field 'context' is not supported; send the conversation to /api/chat";
        return Err(PredictError::invalid(message));
    }
    for name in ["width", "height", "steps"] {
        if body.count(name)?.is_some_and(|count| count != 0) {
            return Err(PredictError::invalid(format!(
                "field '{name}' is not supported: models here generate text only; leave it out"
            )));
        }
    }
    let raw = flag(body, "raw")?.unwrap_or(false);
    let mut given = options(body)?;
    let prompt = body.text("prompt")?.unwrap_or_default();
    let system = body.text("system")?.filter(|system| !system.is_empty());
    if raw && system.is_some() {
        let message = "field 'system' cannot be combined with 'raw'; put it into the prompt";
        return Err(PredictError::invalid(message));
    }
    let rows = match (prompt, raw) {
        ("", _) => None,
        (prompt, true) => {
            given.insert("raw".to_owned(), true.into());
            Some(chat::prompts(&[prompt])?)
        }
        (prompt, false) => {
            let system = system.map(|system| ChatMessage::new("system", system));
            let mut messages: Vec<_> = system.into_iter().collect();
            messages.push(ChatMessage::new("user", prompt));
            Some(chat::conversation(&messages)?)
        }
    };
    read(body, rows, &given)
}

fn read(
    body: &Map<String, Value>,
    rows: Option<RecordBatch>,
    given: &Map<String, Value>,
) -> Result<ParsedRequest, PredictError> {
    let template = body.text("template")?.unwrap_or_default();
    if !template.is_empty() {
        let message = "field 'template' is not supported: the model's own template is used";
        return Err(PredictError::invalid(message));
    }
    Ok(ParsedRequest {
        rows,
        parameters: parameters::from_json(given)?,
        stream: flag(body, "stream")?.unwrap_or(true),
    })
}

fn flag(body: &Map<String, Value>, name: &str) -> Result<Option<bool>, PredictError> {
    match body.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Bool(flag)) => Ok(Some(*flag)),
        Some(_) => Err(PredictError::invalid(format!(
            "field '{name}' must be true or false"
        ))),
    }
}

/// Collects parameters from `options` and from top-level fields.
fn options(body: &Map<String, Value>) -> Result<Map<String, Value>, PredictError> {
    let mut given = Map::new();
    let named = body.object("options")?;
    for (name, value) in named.into_iter().flatten() {
        if value.is_null()
            || READ_OVER.contains(&name.as_str())
            || sampling::is_neutral(name, value, named)?
        {
            continue;
        }
        if name == "stop" {
            given.insert("stop".to_owned(), value.clone());
            continue;
        }
        let known = OPTIONS.iter().find(|(theirs, _)| theirs == name);
        let Some((_, ours)) = known else {
            let name: String = name.chars().filter(|c| !c.is_control()).take(64).collect();
            return Err(PredictError::invalid(format!(
                "option '{name}' is not known"
            )));
        };
        if !value.is_number() {
            return Err(PredictError::invalid(format!(
                "option '{name}' must be a number"
            )));
        }
        // -1 and -2 mean no limit within the context, which is the default.
        if name == "num_predict" && value.as_f64().is_some_and(|count| count < 0.0) {
            continue;
        }
        given.insert((*ours).to_owned(), value.clone());
    }
    if let Some(format) = format(body)? {
        given.insert("response_format".to_owned(), format);
    }
    if flag(body, "logprobs")? == Some(true) {
        given.insert("logprobs".to_owned(), true.into());
        if let Some(count) = body.count("top_logprobs")?.filter(|count| *count != 0) {
            given.insert("top_logprobs".to_owned(), count.into());
        }
    }
    match body.get("think") {
        None | Some(Value::Null) => {}
        Some(Value::Bool(thinks)) => {
            let kind = if *thinks { "enabled" } else { "disabled" };
            given.insert("thinking".to_owned(), json!({ "type": kind }));
        }
        Some(Value::String(level)) => {
            given.insert("reasoning_effort".to_owned(), level.as_str().into());
        }
        Some(_) => {
            let message = "field 'think' must be true, false or a level";
            return Err(PredictError::invalid(message));
        }
    }
    Ok(given)
}

/// Converts `format`, which is `json` or a schema, to OpenAI's `response_format`.
fn format(body: &Map<String, Value>) -> Result<Option<Value>, PredictError> {
    match body.get("format") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(name)) if name.is_empty() => Ok(None),
        Some(Value::String(name)) if name == "json" => Ok(Some(json!({ "type": "json_object" }))),
        Some(schema @ Value::Object(_)) => Ok(Some(json!({
            "type": "json_schema",
            "json_schema": { "name": "format", "schema": schema },
        }))),
        Some(_) => Err(PredictError::invalid(
            "field 'format' must be 'json' or a JSON schema",
        )),
    }
}

#[cfg(test)]
mod tests {
    use volley_types::ParamValue;

    use super::*;

    fn read(body: Value) -> Result<ParsedRequest, PredictError> {
        chat(body.as_object().unwrap(), &Signature::generation())
    }

    #[test]
    fn options_have_other_names_here() {
        let options = json!({ "num_predict": 9, "repeat_penalty": 1.1, "num_ctx": 4096, "seed": 1,
                              "stop": ["a"], "temperature": null });
        let body = json!({ "model": "m", "messages": [{ "role": "user", "content": "x" }],
                           "options": options, "format": "json", "stream": false });
        let read = read(body).unwrap();
        assert!(!read.stream && read.rows.is_some());
        let names: Vec<_> = read.parameters.iter().map(|(name, _)| name).collect();
        assert_eq!(
            names,
            [
                "max_tokens",
                "repetition_penalty",
                "response_format",
                "seed",
                "stop"
            ]
        );
        assert_eq!(read.parameters.get("max_tokens"), Some(&ParamValue::Int(9)));
        let unbounded = json!({ "model": "m", "options": { "num_predict": -1 } });
        let unbounded = self::read(unbounded).unwrap();
        assert!(unbounded.stream && unbounded.rows.is_none());
        assert_eq!(unbounded.parameters.iter().count(), 0);
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        for body in [
            json!({ "messages": 1 }),
            json!({ "messages": [1] }),
            json!({ "messages": [{ "role": "user", "images": ["x"] }] }),
            json!({ "messages": [{ "role": "assistant", "tool_calls": [{}] }] }),
            json!({ "options": { "colour": 1 } }),
            json!({ "options": { "temperature": "hot" } }),
            json!({ "options": 1 }),
            json!({ "format": "xml" }),
            json!({ "think": 1 }),
            json!({ "stream": 1 }),
            json!({ "template": "{{ .Prompt }}" }),
            json!({ "prompt": "x" }),
        ] {
            assert!(read(body.clone()).is_err(), "{body}");
        }
        for body in [
            json!({ "suffix": "x" }),
            json!({ "context": [1] }),
            json!({ "images": ["x"] }),
            json!({ "raw": 1 }),
            json!({ "prompt": "x", "system": "y", "raw": true }),
            json!({ "prompt": "x", "width": 512 }),
            json!({ "prompt": "x", "height": 512 }),
            json!({ "prompt": "x", "steps": 4 }),
            json!({ "prompt": 1 }),
        ] {
            assert!(generate(body.as_object().unwrap()).is_err(), "{body}");
        }
    }
}
