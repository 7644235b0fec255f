//! A cluster with a model of each provider, whose servers answer what a check says.

use std::fmt::Write as _;

use serde_json::{Value, json};
use volley_tests::judges::deploy;
use volley_tests::recorder::{Received, Recorder};

use crate::clients::Up;

pub(super) const CHAT: &str = "/v1/chat/completions";
pub(super) const MESSAGES: &str = "/v1/messages";
pub(super) const RESPONSES: &str = "/v1/responses";

/// A cluster with a model of each provider.
pub(super) struct World {
    up: Up,
    http: reqwest::Client,
    servers: Vec<(&'static str, Recorder)>,
}

impl World {
    pub(super) async fn start() -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let up = Up::start().await;
        let client = up.client();
        let key = up.folder.path().join("key");
        std::fs::write(&key, "a-token").unwrap();
        let bedrock = "/model/anthropic.claude-sonnet-4-5-20250929-v1:0/converse-stream";
        let mut servers = Vec::new();
        for (name, provider, path, model) in [
            ("am", "anthropic", MESSAGES, "claude-sonnet-4-5"),
            ("am-new", "anthropic", MESSAGES, "claude-opus-5"),
            ("oc", "openai", CHAT, "m"),
            ("or", "openai_responses", RESPONSES, "m"),
            (
                "gm",
                "gemini",
                "/v1beta/models/gemini-3-pro:streamGenerateContent",
                "gemini-3-pro",
            ),
            (
                "bc",
                "bedrock",
                bedrock,
                "anthropic.claude-sonnet-4-5-20250929-v1:0",
            ),
        ] {
            let server = Recorder::start(|_| (500, "text/plain", String::new())).await;
            let mut connector = json!({
                "name": name, "provider": provider, "model": model,
                "url": format!("{}{path}", server.url),
                "credential": format!("file:{}", key.display()),
                "client_config": { "breaker_window": 0, "max_retry_times": 0 },
            });
            if name == "am-new" {
                connector["headers"] = json!({ "anthropic-version": "2026-10-21" });
            }
            if provider == "bedrock" {
                connector["parameters"] = json!({ "region": "eu-central-1" });
            }
            let connector = client.create_connector(&connector).await.unwrap();
            let body =
                json!({ "name": name, "function_name": "remote", "connector_id": connector });
            deploy(&client, &body).await;
            servers.push((name, server));
        }
        let http = reqwest::Client::new();
        Self { up, http, servers }
    }

    fn server(&self, model: &str) -> &Recorder {
        let mut servers = self.servers.iter();
        &servers.find(|(name, _)| *name == model).unwrap().1
    }

    /// A request for a model whose server answers so: what came back, and what the server was
    /// sent, if anything was.
    pub(super) async fn ask(
        &self,
        path: &str,
        body: Value,
        answer: &Value,
    ) -> (u16, Value, Option<Value>) {
        let (status, text, sent) = self.tell(path, &body, 200, answer.clone()).await;
        let told = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}"));
        (status, told, sent)
    }

    /// As [`Self::ask`], for a stream of these events.
    pub(super) async fn stream(
        &self,
        path: &str,
        mut body: Value,
        events: &[Value],
    ) -> (Vec<Value>, Value) {
        body["stream"] = true.into();
        let (status, text, sent) = self.tell(path, &body, 200, events.into()).await;
        assert_eq!(status, 200, "{text}");
        let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
        let told = data.filter_map(|data| serde_json::from_str(data).ok());
        (told.collect(), sent.unwrap())
    }

    pub(super) async fn tell(
        &self,
        path: &str,
        body: &Value,
        status: u16,
        answer: Value,
    ) -> (u16, String, Option<Value>) {
        let server = self.server(body["model"].as_str().unwrap());
        let _ = server.take();
        let is_chat = matches!(body["model"].as_str(), Some("oc"));
        server.answer(move |_: &Received| match &answer {
            Value::Array(list) => {
                let mut text = String::new();
                for event in list {
                    if let Some(kind) = event["type"].as_str() {
                        let _ = writeln!(text, "event: {kind}");
                    }
                    let _ = write!(text, "data: {event}\n\n");
                }
                text += if is_chat { "data: [DONE]\n\n" } else { "" };
                (status, "text/event-stream", text)
            }
            whole => (status, "application/json", whole.to_string()),
        });
        let url = format!("http://{}{path}", self.up.rest);
        let request = self
            .http
            .post(url)
            .json(body)
            .header("anthropic-version", "2023-06-01");
        let told = request.send().await.unwrap();
        let status = told.status().as_u16();
        let text = told.text().await.unwrap();
        (
            status,
            text,
            server.take().pop().map(|received| received.body),
        )
    }

    /// Asserts that a request is refused with a message that has `named`, and is not sent.
    pub(super) async fn refused(&self, path: &str, body: Value, named: &str) {
        let (status, told, sent) = self.ask(path, body, &json!({})).await;
        let message = told.pointer("/error/message").unwrap_or(&told).to_string();
        assert!(status == 400 && message.contains(named), "{status} {told}");
        assert_eq!(sent, None);
    }
}
