//! Structured output of LangChain, OpenAI's client and Vercel's AI SDK from models of Anthropic
//! and Google, whose servers refuse what they are documented to refuse.

use std::fmt::Write as _;

use serde_json::{Value, json};
use tokio::process::Command;
use volley_tests::judges::{deploy, python, root, steps};
use volley_tests::recorder::{Answer, Received, Recorder};

use super::clients::Up;

/// Keywords of schemas that Anthropic's servers refuse.
const REFUSED: [&str; 13] = [
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minLength",
    "maxLength",
    "maxItems",
    "uniqueItems",
    "patternProperties",
    "oneOf",
    "not",
    "$schema",
];

fn animal() -> Value {
    json!({ "name": "fox", "legs": 4, "colour": null })
}

/// What of a schema Anthropic's servers refuse.
fn refused(schema: &Value) -> Option<String> {
    match schema {
        Value::Object(fields) => {
            if let Some(name) = REFUSED.iter().find(|name| fields.contains_key(**name)) {
                return Some((*name).to_owned());
            }
            let open = fields.get("type") == Some(&json!("object"))
                && fields.get("additionalProperties") != Some(&json!(false));
            if open {
                return Some("additionalProperties".to_owned());
            }
            fields
                .iter()
                .find_map(|(name, value)| match (name.as_str(), value) {
                    ("properties" | "$defs", Value::Object(named)) => {
                        named.values().find_map(refused)
                    }
                    ("enum" | "const" | "default", _) => None,
                    (_, value) => refused(value),
                })
        }
        Value::Array(list) => list.iter().find_map(refused),
        _ => None,
    }
}

fn events(events: &[Value]) -> String {
    let mut text = String::new();
    for event in events {
        if let Some(kind) = event["type"].as_str() {
            let _ = writeln!(text, "event: {kind}");
        }
        let _ = write!(text, "data: {event}\n\n");
    }
    text
}

/// As Anthropic's messages answer.
fn claude(received: &Received) -> Answer {
    let body = &received.body;
    let bad = |message: String| {
        let error = json!({ "type": "invalid_request_error", "message": message });
        let body = json!({ "type": "error", "error": error });
        (400, "application/json", body.to_string())
    };
    let form = body.pointer("/output_config/format/schema");
    if form.is_some()
        && body["model"]
            .as_str()
            .is_some_and(|model| model.contains("-3-5-"))
    {
        return bad("output_config: Extra inputs are not permitted".to_owned());
    }
    if let Some(name) = form.and_then(refused) {
        return bad(format!(
            "output_config.format.schema: '{name}' is not supported"
        ));
    }
    for tool in body["tools"].as_array().into_iter().flatten() {
        let schema = &tool["input_schema"];
        if schema["type"] != "object" || tool.get("type").is_some_and(|kind| kind != "custom") {
            return bad("tools.0.input_schema: type must be 'object'".to_owned());
        }
        if let Some(name) = refused(schema).filter(|_| tool["strict"] == true) {
            return bad(format!("tools.0.input_schema: '{name}' is not supported"));
        }
    }
    let forced = matches!(body["tool_choice"]["type"].as_str(), Some("tool" | "any"));
    let name = body
        .pointer("/tool_choice/name")
        .or_else(|| body.pointer("/tools/0/name"));
    let (block, delta, reason) = match (forced, name) {
        (true, Some(name)) => (
            json!({ "type": "tool_use", "id": "toolu_1", "name": name, "input": animal() }),
            json!({ "type": "input_json_delta", "partial_json": animal().to_string() }),
            "tool_use",
        ),
        _ => (
            json!({ "type": "text", "text": animal().to_string() }),
            json!({ "type": "text_delta", "text": animal().to_string() }),
            "end_turn",
        ),
    };
    let usage = json!({ "input_tokens": 5, "output_tokens": 7 });
    let mut message = json!({
        "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [block],
        "stop_reason": reason, "stop_sequence": null, "usage": usage,
    });
    if body["stream"] != true {
        return (200, "application/json", message.to_string());
    }
    message["content"] = json!([]);
    message["stop_reason"] = Value::Null;
    let mut begun = block;
    for (name, empty) in [("input", json!({})), ("text", json!(""))] {
        if begun.get(name).is_some() {
            begun[name] = empty;
        }
    }
    let text = events(&[
        json!({ "type": "message_start", "message": message }),
        json!({ "type": "content_block_start", "index": 0, "content_block": begun }),
        json!({ "type": "content_block_delta", "index": 0, "delta": delta }),
        json!({ "type": "content_block_stop", "index": 0 }),
        json!({ "type": "message_delta", "delta": { "stop_reason": reason }, "usage": usage }),
        json!({ "type": "message_stop" }),
    ]);
    (200, "text/event-stream", text)
}

/// As Gemini's `generateContent` and `streamGenerateContent` answer.
fn gemini(received: &Received) -> Answer {
    let body = &received.body;
    let config = &body["generationConfig"];
    let form = &config["responseJsonSchema"];
    if form.is_object() && config["responseMimeType"] != "application/json" {
        let error = json!({ "code": 400, "status": "INVALID_ARGUMENT",
                            "message": "responseJsonSchema needs responseMimeType" });
        return (
            400,
            "application/json",
            json!({ "error": error }).to_string(),
        );
    }
    let forced = body.pointer("/toolConfig/functionCallingConfig/mode") == Some(&json!("ANY"));
    let name = body.pointer("/tools/0/functionDeclarations/0/name");
    let part = match (forced, name) {
        (true, Some(name)) => json!({ "functionCall": { "name": name, "args": animal() } }),
        _ => json!({ "text": animal().to_string() }),
    };
    let answer = json!({
        "candidates": [{ "content": { "role": "model", "parts": [part] }, "finishReason": "STOP",
                         "index": 0 }],
        "usageMetadata": { "promptTokenCount": 5, "candidatesTokenCount": 7, "totalTokenCount": 12 },
    });
    match received.head.contains(":streamGenerateContent") {
        true => (200, "text/event-stream", events(&[answer])),
        false => (200, "application/json", answer.to_string()),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_have_the_callers_form_from_claude_and_gemini() {
    let up = Up::start().await;
    let client = up.client();
    let (claude, gemini) = (Recorder::start(claude).await, Recorder::start(gemini).await);
    let google = "/v1beta/models/gemini-2.5-flash:streamGenerateContent";
    let models = [
        (
            "claude",
            "anthropic",
            &claude,
            "/v1/messages",
            "claude-sonnet-4-5",
        ),
        (
            "claude-old",
            "anthropic",
            &claude,
            "/v1/messages",
            "claude-3-5-haiku-20241022",
        ),
        ("gemini", "gemini", &gemini, google, "gemini-2.5-flash"),
    ];
    for (name, provider, server, path, model) in models {
        let connector = json!({
            "name": name, "provider": provider, "model": model,
            "url": format!("{}{path}", server.url), "client_config": { "breaker_window": 0 },
        });
        let connector = client.create_connector(&connector).await.unwrap();
        let body = json!({ "name": name, "function_name": "remote", "connector_id": connector });
        deploy(&client, &body).await;
    }
    let url = format!("http://{}", up.rest);
    let mut command = python("venv-sdks", "get-sdks", "examples/sdks/structured.py");
    command.args(["--url", &url]);
    for (name, ..) in models {
        command.args(["--model", name]);
    }
    assert_eq!(steps(&mut command).await, 6 * models.len());
    let told = claude.take().into_iter().map(|received| received.body);
    let (by_form, by_tool): (Vec<_>, Vec<_>) =
        told.partition(|body| body.pointer("/output_config/format").is_some());
    assert!(!by_form.is_empty() && !by_tool.is_empty());

    let node = root().join("target/node-sdks");
    if !node.join("volley-package.json").exists() {
        eprintln!("node was not at hand: nothing is known of the npm clients");
        return;
    }
    // Modules are looked for beside the program.
    let program = node.join("structured.mjs");
    std::fs::copy(root().join("examples/sdks/structured.mjs"), &program).unwrap();
    let mut command = Command::new("node");
    command
        .arg(program)
        .arg(&url)
        .args(models.map(|(name, ..)| name));
    assert_eq!(steps(&mut command).await, 2 * models.len());
}
