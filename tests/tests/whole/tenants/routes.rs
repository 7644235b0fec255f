//! What each route names, and what it takes.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

/// What a route's path names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Model,
    Connector,
    Group,
    Task,
    Stream,
    Alias,
    Pipeline,
    Secret,
    /// Nothing of any tenant: a node or a figure.
    Cluster,
}

/// Ids that the cluster has given.
pub(super) struct CreatedIds {
    pub(super) group: String,
    pub(super) batch: String,
    pub(super) stream: String,
}

impl CreatedIds {
    /// Things of the other tenant of this kind, each with an id of the same form that nothing has.
    pub(super) fn things(&self, kind: Kind) -> Vec<(String, String)> {
        let pairs: Vec<(&str, String)> = match kind {
            Kind::Model => vec![("team-a.chat", "team-a.none".into())],
            Kind::Connector => vec![("team-a.llm", "team-a.new".into())],
            Kind::Group => vec![(&self.group, "0".repeat(32))],
            Kind::Alias => vec![("team-a.front", "team-a.none".into())],
            Kind::Pipeline => vec![("team-a.pipe", "team-a.none".into())],
            Kind::Secret => vec![("team-a.key", "team-a.none".into())],
            Kind::Stream => vec![(&self.stream, format!("1.{}", "A".repeat(22)))],
            Kind::Task => vec![
                (&self.batch, format!("batch-1-{}", "0".repeat(32))),
                ("register-team-a.chat-1", "register-team-a.none-1".into()),
            ],
            Kind::Cluster => vec![],
        };
        let pairs = pairs.into_iter();
        pairs
            .map(|(there, never)| (there.to_owned(), never))
            .collect()
    }
}

/// What the first variable of a path names that is a thing.
pub(super) fn kind(path: &str) -> Kind {
    let parts: Vec<_> = path.split('/').collect();
    let of = |at: usize| match (parts[at - 1], parts[at]) {
        // Whether the node takes requests, whatever the model.
        ("tei" | "tgi", "{model}") if path.ends_with("/health") => Some(Kind::Cluster),
        ("models" | "tei" | "tgi", "{id}" | "{model}") | ("{algorithm}", "{id}") => {
            Some(Kind::Model)
        }
        ("connectors", "{id}") => Some(Kind::Connector),
        ("model_groups", "{id}") => Some(Kind::Group),
        ("tasks", "{id}") => Some(Kind::Task),
        ("streams", "{id}") => Some(Kind::Stream),
        // Its own tests show that a response is there for its caller alone.
        ("responses", "{id}") => Some(Kind::Cluster),
        ("aliases", "{name}") => Some(Kind::Alias),
        ("pipelines", "{name}") => Some(Kind::Pipeline),
        ("secrets", "{name}") => Some(Kind::Secret),
        ("_ml", "{node}") | ("stats", "{stat}") | ("region", "{region}") => Some(Kind::Cluster),
        ("versions", "{version}") | ("_predict", "{algorithm}") => None,
        (before, variable) => panic!("{path}: say in this story what {before}/{variable} names"),
    };
    let variables = (1..parts.len()).filter(|at| parts[*at].starts_with('{'));
    let mut kinds = variables.filter_map(of);
    kinds
        .next()
        .unwrap_or_else(|| panic!("{path} names nothing"))
}

/// The path with an id in it.
pub(super) fn fill(path: &str, id: &str) -> String {
    let path = path
        .replace("{algorithm}", "text")
        .replace("{version}", "1");
    let part = |part: &str| match part.starts_with('{') {
        true => id.to_owned(),
        false => part.to_owned(),
    };
    path.split('/').map(part).collect::<Vec<_>>().join("/")
}

/// A body that would do.
pub(super) fn body(method: &Method, path: &str) -> Value {
    if *method == Method::GET || *method == Method::DELETE {
        return Value::Null;
    }
    let last = path.rsplit('/').next().unwrap_or_default();
    match last {
        "_predict" | "_batch_predict" | "stream" => json!({ "parameters": { "prompt": "x" } }),
        "infer" | "infer_stream" => json!({ "inputs": [
            { "name": "prompt", "shape": [1], "datatype": "BYTES", "data": ["x"] },
        ] }),
        "generate" | "generate_stream" => json!({ "text_input": "x" }),
        _ => match kind(path) {
            Kind::Alias => json!({ "targets": [{ "model": "team-b.chat" }] }),
            Kind::Pipeline => json!({
                "task": "generate",
                "steps": [{ "name": "s", "model": "team-b.chat",
                            "inputs": { "prompt": "request.prompt" } }],
                "output": "s",
            }),
            Kind::Secret => json!({ "value": "sk-b" }),
            Kind::Group => json!({ "name": "team-b.group" }),
            Kind::Connector => json!({ "description": "mine" }),
            Kind::Model if *method == Method::PUT => json!({ "description": "mine" }),
            Kind::Model if path.contains("_predict") => {
                json!({ "parameters": { "prompt": "x" } })
            }
            _ => json!({}),
        },
    }
}

/// What is answered about a thing that is not there.
pub(super) fn answer(method: &Method, path: &str) -> StatusCode {
    match (method.as_str(), kind(path)) {
        // What would make one says that the name is not the caller's, whether it is taken or not.
        ("PUT", Kind::Alias | Kind::Pipeline) | ("POST", Kind::Secret) => StatusCode::FORBIDDEN,
        (_, Kind::Stream) => StatusCode::GONE,
        // It lists what there is of those that are asked for: none.
        ("GET", _) if path.ends_with("/profile/tasks/{id}") => StatusCode::OK,
        _ => StatusCode::NOT_FOUND,
    }
}

/// Routes that list things, and take a body at most to choose among them.
pub(super) const SEARCHES: [&str; 6] = [
    "/_plugins/_ml/models/_search",
    "/_plugins/_ml/connectors/_search",
    "/_plugins/_ml/model_groups/_search",
    "/_plugins/_ml/tasks/_search",
    "/v2/repository/index",
    "/_volley/secrets/_rewrap",
];

const NOT_FOUND: StatusCode = StatusCode::NOT_FOUND;
const FORBIDDEN: StatusCode = StatusCode::FORBIDDEN;

/// Routes whose body names a model or a connector, what they answer where there is none, and a body.
pub(super) const NAMING: &[(&str, StatusCode, &str)] = &[
    (
        "/tokenize",
        NOT_FOUND,
        r#"{"model":"team-a.chat","prompt":"x"}"#,
    ),
    (
        "/detokenize",
        NOT_FOUND,
        r#"{"model":"team-a.chat","tokens":[1]}"#,
    ),
    (
        "/rerank",
        NOT_FOUND,
        r#"{"model":"team-a.chat","query":"x","texts":["y"]}"#,
    ),
    ("/", NOT_FOUND, r#"{"model":"team-a.chat","inputs":"x"}"#),
    (
        "/embed",
        NOT_FOUND,
        r#"{"model":"team-a.chat","inputs":"x"}"#,
    ),
    (
        "/embed_sparse",
        NOT_FOUND,
        r#"{"model":"team-a.chat","inputs":"x"}"#,
    ),
    (
        "/predict",
        NOT_FOUND,
        r#"{"model":"team-a.chat","inputs":"x"}"#,
    ),
    (
        "/similarity",
        NOT_FOUND,
        r#"{"model":"team-a.chat","inputs":{"source_sentence":"x","sentences":["y"]}}"#,
    ),
    ("/decode", NOT_FOUND, r#"{"model":"team-a.chat","ids":[1]}"#),
    (
        "/generate",
        NOT_FOUND,
        r#"{"model":"team-a.chat","inputs":"x"}"#,
    ),
    (
        "/generate_stream",
        NOT_FOUND,
        r#"{"model":"team-a.chat","inputs":"x"}"#,
    ),
    (
        "/chat_tokenize",
        NOT_FOUND,
        r#"{"model":"team-a.chat","messages":[{"role":"user","content":"x"}]}"#,
    ),
    (
        "/embed_all",
        NOT_FOUND,
        r#"{"model":"team-a.chat","inputs":"x"}"#,
    ),
    (
        "/v1/chat/completions",
        NOT_FOUND,
        r#"{"model":"team-a.chat","messages":[{"role":"user","content":"x"}]}"#,
    ),
    (
        "/v1/responses",
        NOT_FOUND,
        r#"{"model":"team-a.chat","input":"x"}"#,
    ),
    (
        "/v1/responses/input_tokens",
        NOT_FOUND,
        r#"{"model":"team-a.chat","input":"x"}"#,
    ),
    (
        "/v1/completions",
        NOT_FOUND,
        r#"{"model":"team-a.chat","prompt":"x"}"#,
    ),
    (
        "/v1/embeddings",
        NOT_FOUND,
        r#"{"model":"team-a.chat","input":"x"}"#,
    ),
    (
        "/v1/rerank",
        NOT_FOUND,
        r#"{"model":"team-a.chat","query":"x","documents":["y"]}"#,
    ),
    (
        "/v2/rerank",
        NOT_FOUND,
        r#"{"model":"team-a.chat","query":"x","documents":["y"]}"#,
    ),
    (
        "/v2/chat",
        NOT_FOUND,
        r#"{"model":"team-a.chat","messages":[{"role":"user","content":"x"}]}"#,
    ),
    (
        "/v1/embed",
        NOT_FOUND,
        r#"{"model":"team-a.chat","texts":["x"]}"#,
    ),
    (
        "/v2/embed",
        NOT_FOUND,
        r#"{"model":"team-a.chat","texts":["x"]}"#,
    ),
    (
        "/v1/messages",
        NOT_FOUND,
        r#"{"model":"team-a.chat","max_tokens":3,"messages":[{"role":"user","content":"x"}]}"#,
    ),
    (
        "/v1/messages/count_tokens",
        NOT_FOUND,
        r#"{"model":"team-a.chat","messages":[{"role":"user","content":"x"}]}"#,
    ),
    (
        "/api/chat",
        NOT_FOUND,
        r#"{"model":"team-a.chat","messages":[{"role":"user","content":"x"}]}"#,
    ),
    (
        "/api/generate",
        NOT_FOUND,
        r#"{"model":"team-a.chat","prompt":"x"}"#,
    ),
    (
        "/api/embed",
        NOT_FOUND,
        r#"{"model":"team-a.chat","input":"x"}"#,
    ),
    (
        "/api/embeddings",
        NOT_FOUND,
        r#"{"model":"team-a.chat","prompt":"x"}"#,
    ),
    ("/api/show", NOT_FOUND, r#"{"model":"team-a.chat"}"#),
    ("/api/pull", NOT_FOUND, r#"{"model":"team-a.chat"}"#),
    (
        "/_plugins/_ml/models/_register",
        NOT_FOUND,
        r#"{"name":"team-b.llm","connector_id":"team-a.llm"}"#,
    ),
    (
        "/_plugins/_ml/models/_undeploy",
        NOT_FOUND,
        r#"{"model_ids":["team-a.chat"]}"#,
    ),
    (
        "/_plugins/_ml/connectors/_create",
        FORBIDDEN,
        r#"{"id":"team-a.llm","url":"https://llm.example/v1/chat/completions","model":"m"}"#,
    ),
    (
        "/_plugins/_ml/model_groups/_register",
        FORBIDDEN,
        r#"{"name":"team-a.chat"}"#,
    ),
    (
        "/_volley/aliases",
        NOT_FOUND,
        r#"{"name":"team-b.front","targets":[{"model":"team-a.chat"}]}"#,
    ),
    (
        "/_volley/pipelines",
        NOT_FOUND,
        r#"{"name":"team-b.pipe","task":"generate","output":"s","steps":[{"name":"s","model":"team-a.chat","inputs":{"prompt":"request.prompt"}}]}"#,
    ),
];
