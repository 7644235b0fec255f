//! What a caller says to a server of its own dialect, and what that server says back: every field
//! goes through the whole cluster, and is compared on the other side. `docs/reference/fidelity.md` is
//! written from what is found.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde_json::{Value, json};
use volley_client::Client;
use volley_tests::judges::{deploy, root};
use volley_tests::recorder::Recorder;

use super::clients::Up;

const FOLDER: &str = "tests/fidelity";
const PAGE: &str = "docs/reference/fidelity.md";
/// Writes the page anew where it is set.
const WRITE: &str = "VOLLEY_WRITE_DOCS";
/// In the order of the page.
const DIALECTS: [&str; 12] = [
    "openai",
    "openai_responses",
    "anthropic",
    "cohere",
    "ollama",
    "tgi",
    "openai_embeddings",
    "cohere_embed",
    "cohere_rerank",
    "ollama_embed",
    "tei_embed",
    "tei_rerank",
];
const MODEL: &str = "the-servers-own-name";

/// What became of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    Passes,
    Translated,
    Refused,
    Lost,
}

impl Fate {
    fn as_str(self) -> &'static str {
        match self {
            Self::Passes => "passes",
            Self::Translated => "translated",
            Self::Refused => "refused by name",
            Self::Lost => "LOST",
        }
    }
}

/// One dialect as its file describes it.
struct Dialect {
    name: &'static str,
    file: Value,
}

impl Dialect {
    fn read(name: &'static str) -> Self {
        let path = root().join(FOLDER).join(format!("{name}.json"));
        let text = std::fs::read_to_string(&path).unwrap();
        let file = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        Self { name, file }
    }

    fn text(&self, field: &str) -> &str {
        self.file[field].as_str().unwrap()
    }

    /// The name of the model in front of its server.
    fn model(&self) -> String {
        self.name.replace('_', "-")
    }

    /// The provider of the connector; its file says so where that is not its own name.
    fn provider(&self) -> &str {
        self.file["provider"].as_str().unwrap_or(self.name)
    }

    /// Whether answers are whole, and streamed too; vectors and scores are not.
    fn kinds(&self) -> &'static [bool] {
        match self.streams() {
            true => &[false, true],
            false => &[false],
        }
    }

    fn streams(&self) -> bool {
        self.file["events"].is_array()
    }

    fn list(&self, field: &str) -> &Vec<Value> {
        self.file[field].as_array().unwrap()
    }

    /// The base request with a case's fields.
    fn body(&self, case: &Value, stream: bool) -> Value {
        let mut body = with(&self.file["request"], &case["set"]);
        body["model"] = self.model().into();
        if self.streams() {
            body["stream"] = stream.into();
        }
        body
    }

    /// What the server is to receive of that body, as the file says it.
    fn expected(&self, case: &Value, stream: bool) -> Value {
        let mut body = self.body(case, stream);
        body["model"] = MODEL.into();
        body = with(&body, &self.file["adds"]);
        if stream {
            body = with(&body, &self.file["adds_to_streams"]);
        }
        with(&body, &case["becomes"])
    }

    /// The bytes of the server's answer.
    fn answer(&self, stream: bool) -> (u16, &'static str, String) {
        if !stream || !self.streams() {
            return (200, "application/json", self.file["answer"].to_string());
        }
        let events = self.list("events").iter();
        if self.name == "ollama" {
            let lines = events.map(|event| format!("{event}\n")).collect();
            return (200, "application/x-ndjson", lines);
        }
        let mut text = String::new();
        for event in events {
            if let Some(kind) = event["type"].as_str() {
                let _ = writeln!(text, "event: {kind}");
            }
            let _ = write!(text, "data: {event}\n\n");
        }
        if self.name == "openai" {
            text += "data: [DONE]\n\n";
        }
        (200, "text/event-stream", text)
    }
}

/// An object with the fields of another; null takes one away.
fn with(base: &Value, more: &Value) -> Value {
    let mut made = base.clone();
    for (name, value) in more.as_object().into_iter().flatten() {
        match value {
            Value::Null => _ = made.as_object_mut().unwrap().remove(name),
            value => made[name.as_str()] = value.clone(),
        }
    }
    made
}

/// Whether both are the same; 1 and 1.0 are.
fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => one.as_f64() == other.as_f64(),
        (Value::Array(one), Value::Array(other)) => {
            let mut pairs = one.iter().zip(other);
            one.len() == other.len() && pairs.all(|(one, other)| same(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            let found = |(name, value): (&String, &Value)| {
                other.get(name).is_some_and(|other| same(value, other))
            };
            one.len() == other.len() && one.iter().all(found)
        }
        (one, other) => one == other,
    }
}

/// The values of a tree by their paths; places in lists are left out.
fn leaves(prefix: &str, value: &Value, into: &mut BTreeSet<(String, String)>) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (name, value) in fields {
                let path = match prefix {
                    "" => name.clone(),
                    prefix => format!("{prefix}.{name}"),
                };
                leaves(&path, value, into);
            }
        }
        Value::Array(list) if !list.is_empty() => {
            let path = format!("{prefix}[]");
            list.iter().for_each(|value| leaves(&path, value, into));
        }
        // What is not said cannot be lost.
        Value::Null | Value::Array(_) => {}
        // 1 and 1.0 are the same number.
        Value::Number(number) => {
            let number = number.as_f64().unwrap_or(f64::NAN);
            into.insert((prefix.to_owned(), number.to_string()));
        }
        value => _ = into.insert((prefix.to_owned(), value.to_string())),
    }
}

/// A cluster with a model in front of a server.
struct Bench<'a> {
    dialect: &'a Dialect,
    server: Recorder,
    rest: &'a str,
    http: reqwest::Client,
}

impl<'a> Bench<'a> {
    async fn start(dialect: &'a Dialect, up: &'a Up, client: &Client) -> Self {
        let answers = [false, true].map(|stream| dialect.answer(stream));
        let server = Recorder::start(move |received| {
            let stream = received.body["stream"] == true;
            answers[usize::from(stream)].clone()
        });
        let server = server.await;
        let connector = json!({
            "name": dialect.model(), "provider": dialect.provider(), "model": MODEL,
            "url": format!("{}{}", server.url, dialect.text("path")),
            "client_config": { "breaker_window": 0, "max_retry_times": 0 },
        });
        let connector = client.create_connector(&connector).await.unwrap();
        let body = json!({
            "name": dialect.model(), "function_name": "remote", "connector_id": connector,
        });
        deploy(client, &body).await;
        Self {
            dialect,
            server,
            rest: &up.rest,
            http: reqwest::Client::new(),
        }
    }

    async fn ask(&self, body: &Value) -> (u16, String) {
        let url = format!("http://{}{}", self.rest, self.dialect.text("path"));
        let mut request = self.http.post(url).json(body);
        for (name, value) in self.dialect.file["headers"]
            .as_object()
            .into_iter()
            .flatten()
        {
            request = request.header(name, value.as_str().unwrap());
        }
        let answer = request.send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    }

    /// What becomes of one case's fields, and what was wrong where they are lost.
    async fn request(&self, case: &Value, stream: bool) -> (Fate, String) {
        let body = self.dialect.body(case, stream);
        let _ = self.server.take();
        let (status, answer) = self.ask(&body).await;
        let received = self.server.take();
        let named = case["set"].as_object().into_iter().flatten();
        let mut names = named
            .map(|(name, _)| name.as_str())
            .chain(case["named"].as_str());
        match (status, received.as_slice()) {
            (400..=499, []) => match names.any(|name| answer.contains(&format!("{name}'"))) {
                true => (Fate::Refused, answer),
                false => (Fate::Lost, format!("not by name: {answer}")),
            },
            (200, [received]) => {
                let expected = self.dialect.expected(case, stream);
                let fate = match case.get("becomes").is_some() {
                    true => Fate::Translated,
                    false => Fate::Passes,
                };
                let headers = self.dialect.file["headers"].as_object();
                let mut headers = headers.into_iter().flatten();
                let head = received.head.to_ascii_lowercase();
                let lost = headers.find(|(name, value)| {
                    !head.contains(&format!("{name}: {}", value.as_str().unwrap()))
                });
                match (same(&received.body, &expected), lost) {
                    (true, None) => (fate, String::new()),
                    (_, lost) => (
                        Fate::Lost,
                        format!("sent {}\nexpected {expected}\n{lost:?}", received.body),
                    ),
                }
            }
            (status, all) => (Fate::Lost, format!("{status} {answer} of {all:?}")),
        }
    }

    /// The fields of the server's answer, and what became of them.
    async fn answers(&self, stream: bool) -> (BTreeMap<Fate, BTreeSet<String>>, String) {
        let mut body = self.dialect.body(&Value::Null, stream);
        if stream {
            body = with(&body, &self.dialect.file["adds_to_streams"]);
        }
        let (status, text) = self.ask(&body).await;
        assert_eq!(status, 200, "{text}");
        let (mut given, mut got) = (BTreeSet::new(), BTreeSet::new());
        if stream {
            for event in self.dialect.list("events") {
                event_leaves(event, &mut given);
            }
            events(&text)
                .iter()
                .for_each(|event| event_leaves(event, &mut got));
        } else {
            leaves("", &self.dialect.file["answer"], &mut given);
            leaves("", &serde_json::from_str(&text).unwrap(), &mut got);
        }
        let own: BTreeSet<_> = self
            .dialect
            .list("own")
            .iter()
            .filter_map(Value::as_str)
            .collect();
        let mut fates: BTreeMap<Fate, BTreeSet<String>> = BTreeMap::new();
        let mut lost = String::new();
        for (path, value) in given {
            let bare = path
                .split_once("> ")
                .map_or(path.as_str(), |(_, path)| path);
            let fate = match got.contains(&(path.clone(), value.clone())) {
                true => Fate::Passes,
                false if own.contains(bare) || own.contains(path.as_str()) => Fate::Translated,
                false => Fate::Lost,
            };
            if fate == Fate::Lost {
                let _ = writeln!(lost, "  {path} = {value}");
            }
            fates.entry(fate).or_default().insert(bare.to_owned());
        }
        let translated = fates.get(&Fate::Translated).cloned().unwrap_or_default();
        if let Some(passed) = fates.get_mut(&Fate::Passes) {
            passed.retain(|path| !translated.contains(path));
        }
        if !lost.is_empty() {
            let _ = write!(lost, "{text}");
        }
        (fates, lost)
    }
}

/// The values of an event, each with the event's type.
fn event_leaves(event: &Value, into: &mut BTreeSet<(String, String)>) {
    let mut found = BTreeSet::new();
    leaves("", event, &mut found);
    let kind = event["type"].as_str().unwrap_or_default();
    into.extend(
        found
            .into_iter()
            .map(|(path, value)| (format!("{kind}> {path}"), value)),
    );
}

/// The events of a stream of whichever form.
fn events(text: &str) -> Vec<Value> {
    let lines = text
        .lines()
        .map(|line| line.strip_prefix("data:").unwrap_or(line));
    lines
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}

fn listed(paths: &BTreeSet<String>) -> String {
    let quoted: Vec<_> = paths.iter().map(|path| format!("`{path}`")).collect();
    quoted.join(", ")
}

/// The section of a dialect, and what is wrong with it.
async fn section(bench: &Bench<'_>, problems: &mut Vec<String>) -> String {
    let dialect = bench.dialect;
    let mut text = format!("\n## {}\n\n", dialect.text("title"));
    let _ = writeln!(
        text,
        "`POST {}` to a connector of the provider `{}`.\n",
        dialect.text("path"),
        dialect.provider()
    );
    let _ = writeln!(text, "| request | |\n|---|---|");
    for case in dialect.list("requests") {
        let (name, note) = (case["name"].as_str().unwrap(), case["note"].as_str());
        let mut fates = Vec::new();
        for stream in dialect.kinds().iter().copied() {
            let (fate, wrong) = bench.request(case, stream).await;
            if fate == Fate::Lost {
                problems.push(format!(
                    "{}, {name}, stream {stream}: {wrong}",
                    dialect.name
                ));
            }
            fates.push(fate);
        }
        if fates.iter().any(|fate| *fate != fates[0]) {
            problems.push(format!("{}, {name}: {fates:?}", dialect.name));
        }
        let note = note.map_or(String::new(), |note| format!(": {note}"));
        let _ = writeln!(text, "| {name} | {}{note} |", fates[0].as_str());
    }
    for stream in dialect.kinds().iter().copied() {
        let title = if stream { "stream" } else { "answer" };
        let (fates, lost) = bench.answers(stream).await;
        if !lost.is_empty() {
            problems.push(format!("{}, {title}:\n{lost}", dialect.name));
        }
        let _ = writeln!(text, "\n| {title} | |\n|---|---|");
        for (fate, paths) in &fates {
            let word = match fate {
                Fate::Translated => "Volley's own",
                fate => fate.as_str(),
            };
            let _ = writeln!(text, "| {} | {word} |", listed(paths));
        }
    }
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_server_of_the_callers_own_dialect_is_sent_and_says_is_lossless() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let dialects = DIALECTS.map(Dialect::read);
    let up = Up::start().await;
    let client = up.client();
    let mut problems = Vec::new();
    let head = std::fs::read_to_string(root().join(FOLDER).join("page.txt")).unwrap();
    let mut page = format!("<!-- Written by a test from {FOLDER}; change that. -->\n\n{head}");
    for dialect in &dialects {
        let bench = Bench::start(dialect, &up, &client).await;
        page += &section(&bench, &mut problems).await;
    }
    assert!(problems.is_empty(), "{}", problems.join("\n\n"));
    let path = root().join(PAGE);
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        written, page,
        "{PAGE} is stale: run this test once with {WRITE}=1"
    );
}

#[test]
fn leaves_are_values_by_their_paths() {
    let mut found = BTreeSet::new();
    leaves(
        "",
        &json!({ "a": [{ "b": 1 }, { "b": null }], "c": {} }),
        &mut found,
    );
    let expected = [("a[].b", "1"), ("c", "{}")].map(|(a, b)| (a.to_owned(), b.to_owned()));
    assert_eq!(found, BTreeSet::from(expected));
    assert_eq!(
        with(&json!({ "a": 1 }), &json!({ "a": null, "b": 2 })),
        json!({ "b": 2 })
    );
}
