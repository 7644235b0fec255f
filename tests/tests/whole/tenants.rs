//! Tenants: every route of the OpenAPI document that names a thing is walked by one tenant against
//! the things of another, and answers as if there were none. A route that comes to the document
//! fails the story until somebody has said here what it names.

#[path = "tenants/routes.rs"]
mod routes;

use std::collections::BTreeMap;

use reqwest::header::{self, HeaderMap, HeaderValue};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use volley_tests::cluster::Cluster;
use volley_tests::process::run;
use volley_tests::until;

use self::routes::{CreatedIds, NAMING};

/// A caller of one coordinator.
pub(crate) struct Caller {
    http: reqwest::Client,
    base: String,
    pub(crate) key: String,
}

/// What is compared of two answers.
#[derive(Debug, PartialEq)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    headers: BTreeMap<String, String>,
    pub(crate) body: String,
}

impl Caller {
    /// The same caller, at the coordinator of another.
    pub(crate) fn at(&self, other: &Self) -> Self {
        Self {
            http: self.http.clone(),
            base: other.base.clone(),
            key: self.key.clone(),
        }
    }

    /// Begins a request whose answer is read by and by.
    pub(crate) async fn open(&self, path: &str, body: &Value) -> reqwest::Response {
        let request = self.http.post(format!("{}{path}", self.base)).json(body);
        let response = request.bearer_auth(&self.key).send().await;
        let response = response.expect("an answer");
        assert_eq!(response.status(), StatusCode::OK);
        response
    }

    pub(crate) async fn send(&self, method: &Method, path: &str, body: &Value) -> Reply {
        let request = self
            .http
            .request(method.clone(), format!("{}{path}", self.base));
        let request = request
            .bearer_auth(&self.key)
            .header("x-request-id", "walk");
        let request = match path.ends_with("/ws") {
            true => request.headers(handshake()),
            false => request,
        };
        let request = match body {
            Value::Null => request,
            body => request.json(body),
        };
        let response = request.send().await.expect("an answer");
        let headers = response.headers().iter();
        let headers =
            headers.filter(|(name, _)| !["date", "content-length"].contains(&name.as_str()));
        let headers = headers.map(|(name, value)| {
            let value = value.to_str().unwrap_or_default();
            (name.to_string(), value.to_owned())
        });
        Reply {
            status: response.status(),
            headers: headers.collect(),
            body: response.text().await.expect("a body"),
        }
    }

    async fn done(&self, method: Method, path: &str, body: Value) -> Value {
        let told = self.send(&method, path, &body).await;
        assert!(told.status.is_success(), "{path}: {told:?}");
        serde_json::from_str(&told.body).unwrap_or_default()
    }

    async fn post(&self, path: &str, body: Value) -> Value {
        self.done(Method::POST, path, body).await
    }

    async fn deploy(&self, model: &str) {
        let ml = "/_plugins/_ml/models";
        let body = json!({ "name": model, "function_name": "text" });
        self.post(&format!("{ml}/_register?deploy=true"), body)
            .await;
        until("the model is deployed", || async {
            let path = format!("{ml}/{model}");
            let told = self.done(Method::GET, &path, Value::Null).await;
            (told["model_state"] == "DEPLOYED").then_some(())
        })
        .await;
    }
}

/// What asks for a WebSocket.
fn handshake() -> HeaderMap {
    let headers = [
        (header::CONNECTION, "upgrade"),
        (header::UPGRADE, "websocket"),
        (header::SEC_WEBSOCKET_VERSION, "13"),
        (header::SEC_WEBSOCKET_KEY, "dGVsbCBtZSBhIHN0b3J5IQ=="),
    ];
    let headers = headers.map(|(name, value)| (name, HeaderValue::from_static(value)));
    HeaderMap::from_iter(headers)
}

impl Reply {
    /// The same, with `name` where `id` was.
    fn renamed(mut self, id: &str, name: &str) -> Self {
        self.body = self.body.replace(id, name);
        for value in self.headers.values_mut() {
            *value = value.replace(id, name);
        }
        self
    }
}

/// A cluster that wants keys, and its bootstrap key's bearer.
pub(crate) async fn guarded(coordinators: usize, workers: usize) -> (Cluster, Vec<Caller>) {
    let mut cluster = Cluster::new(coordinators, workers);
    let folder = cluster.folder().to_owned();
    let (bootstrap, made) = run(&["key", "bootstrap"]).await;
    assert!(made, "{bootstrap}");
    let (master, made) = run(&["secret", "master-key"]).await;
    assert!(made, "{master}");
    let (bootstrap_file, master_file) = (folder.join("bootstrap.key"), folder.join("master.key"));
    std::fs::write(&bootstrap_file, &bootstrap).unwrap();
    std::fs::write(&master_file, master).unwrap();
    for coordinator in 0..coordinators {
        cluster.configure(coordinator, |text| {
            let text = text.replace("window = \"60s\"", "window = \"600s\"");
            format!(
                "{text}\n[security]\nbootstrap_key_file = {bootstrap_file:?}\n\
                 master_key_files = [{master_file:?}]\n"
            )
        });
    }
    for worker in &cluster.workers {
        let text = std::fs::read_to_string(&worker.config).unwrap();
        let section = format!("\n[security]\nmaster_key_files = [{master_file:?}]\n");
        std::fs::write(&worker.config, text + &section).unwrap();
    }
    cluster.key = Some(bootstrap.trim().to_owned());
    cluster.run().await;
    let admins = cluster.coordinators.iter().map(|node| Caller {
        http: reqwest::Client::new(),
        base: format!("http://{}", node.http),
        key: bootstrap.trim().to_owned(),
    });
    let admins = admins.collect();
    (cluster, admins)
}

/// A caller of the coordinator that `admin` calls, with a new key of this body.
pub(crate) async fn caller(admin: &Caller, body: Value) -> Caller {
    let made = admin.post("/_volley/keys", body).await;
    Caller {
        http: admin.http.clone(),
        base: admin.base.clone(),
        key: made["key"].as_str().expect("a key").to_owned(),
    }
}

async fn tenant(admin: &Caller, name: &str) -> Caller {
    let key = json!({ "name": name, "role": "model-admin", "tenant": name });
    caller(admin, key).await
}

/// One of everything, and the ids of what has no name of its own.
async fn furnish(tenant: &Caller) -> CreatedIds {
    tenant.deploy("team-a.chat").await;
    let secret = json!({ "value": "sk-a" });
    tenant.post("/_volley/secrets/team-a.key", secret).await;
    let connector = json!({
        "id": "team-a.llm", "url": "https://llm.example/v1/chat/completions", "model": "m",
        "credential": "secret:team-a.key",
    });
    let ml = "/_plugins/_ml";
    let create = format!("{ml}/connectors/_create");
    tenant.post(&create, connector).await;
    let alias = json!({ "name": "team-a.front", "targets": [{ "model": "team-a.chat" }] });
    tenant.post("/_volley/aliases", alias).await;
    let steps = json!([{ "name": "said", "model": "team-a.chat",
                         "inputs": { "prompt": "request.prompt" } }]);
    let pipeline =
        json!({ "name": "team-a.pipe", "task": "generate", "steps": steps, "output": "said" });
    tenant.post("/_volley/pipelines", pipeline).await;
    let group = json!({ "name": "team-a.group" });
    let group = tenant
        .post(&format!("{ml}/model_groups/_register"), group)
        .await;
    let prompt = json!({ "parameters": { "prompt": "one two" } });
    let batch = format!("{ml}/models/team-a.chat/_batch_predict");
    let batch = tenant.post(&batch, prompt.clone()).await;
    let stream = format!("{ml}/models/team-a.chat/_predict/stream?volley-stream=resumable");
    let stream = tenant.send(&Method::POST, &stream, &prompt).await;
    CreatedIds {
        group: group["model_group_id"].as_str().unwrap().to_owned(),
        batch: batch["task_id"].as_str().unwrap().to_owned(),
        stream: stream.headers["x-volley-stream-id"].clone(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_one_tenant_is_there_for_another_on_any_route() {
    let (_cluster, admins) = guarded(1, 1).await;
    let admin = &admins[0];
    let (a, b) = (tenant(admin, "team-a").await, tenant(admin, "team-b").await);
    let named = furnish(&a).await;
    b.deploy("team-b.chat").await;

    let document = admin.done(Method::GET, "/openapi.json", Value::Null).await;
    let mut walked = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let method: Method = method.to_ascii_uppercase().parse().unwrap();
            let role = operation["x-volley-role"].as_str().unwrap_or_default();
            walked += match role {
                // No tenant has it.
                "cluster-admin" => 0,
                // Takes no key, and names nothing.
                "" if method != Method::GET => 0,
                _ if path.contains('{') => walk(&a, &b, &method, path, &named).await,
                _ => look(&a, &b, &method, path).await,
            };
        }
    }
    assert!(100 < walked, "{walked}");

    // Nothing of what was tried has changed anything.
    let deployed = "/_plugins/_ml/models/team-a.chat";
    let model = a.done(Method::GET, deployed, Value::Null).await;
    assert_eq!(model["model_state"], "DEPLOYED", "{model}");
    let connector = "/_plugins/_ml/connectors/team-a.llm";
    let connector = a.done(Method::GET, connector, Value::Null).await;
    assert_eq!(connector["name"], "team-a.llm");
    let all = a.done(Method::GET, "/_volley/secrets", Value::Null).await;
    assert_eq!(all["secrets"].as_array().unwrap().len(), 1);
}

/// A route with a name in its path: against each thing that it may name, and against one that never
/// was. Gives how many.
async fn walk(a: &Caller, b: &Caller, method: &Method, path: &str, named: &CreatedIds) -> usize {
    let kind = routes::kind(path);
    let body = routes::body(method, path);
    let things = named.things(kind);
    for (there, never) in &things {
        let at = |id: &str| routes::fill(path, id);
        let theirs = b.send(method, &at(there), &body).await;
        let none = b.send(method, &at(never), &body).await;
        let wanted = routes::answer(method, path);
        assert_eq!(theirs.status, wanted, "{method} {path} {there}: {theirs:?}");
        assert_eq!(theirs.renamed(there, never), none, "{method} {path}");
        // The refusal means something where the owner is not refused.
        if *method == Method::GET {
            let own = a.send(method, &at(there), &body).await;
            if path.contains("{route}") {
                // The model has no route of its own, which only its owner learns.
                assert!(own.body.contains("declares no route"), "{path}: {own:?}");
                continue;
            }
            let opened = own.status == StatusCode::SWITCHING_PROTOCOLS;
            let answered = own.status.is_success() || opened;
            assert!(answered, "{method} {path} {there}: {own:?}");
            assert_eq!(opened, path.ends_with("/ws"), "{path}: {own:?}");
        }
    }
    things.len()
}

/// A route without one: where its body names a thing, as above; what it lists is the caller's.
async fn look(a: &Caller, b: &Caller, method: &Method, path: &str) -> usize {
    let Some((_, wanted, body)) = NAMING.iter().find(|(naming, ..)| *naming == path) else {
        assert!(
            *method == Method::GET || routes::SEARCHES.contains(&path),
            "{method} {path} takes a body: say in this story what it names"
        );
        let body = match *method {
            Method::GET => Value::Null,
            _ => json!({}),
        };
        let listed = b.send(method, path, &body).await;
        assert!(
            !listed.body.contains("team-a"),
            "{method} {path}: {listed:?}"
        );
        if routes::SEARCHES.contains(&path) && !path.ends_with("_rewrap") {
            let own = a.send(method, path, &body).await;
            assert!(own.body.contains("team-a"), "{method} {path}: {own:?}");
        }
        return 1;
    };
    if *method == Method::GET {
        let listed = b.send(method, path, &Value::Null).await;
        assert!(
            !listed.body.contains("team-a"),
            "{method} {path}: {listed:?}"
        );
        return 1;
    }
    let (there, never) = match body.contains("team-a.llm") {
        true => ("team-a.llm", "team-a.new"),
        false => ("team-a.chat", "team-a.none"),
    };
    let body = |name: &str| {
        let text = body.replace(there, name);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}"))
    };
    let theirs = b.send(method, path, &body(there)).await;
    let none = b.send(method, path, &body(never)).await;
    assert_eq!(theirs.status, *wanted, "{method} {path}: {theirs:?}");
    assert_eq!(theirs.renamed(there, never), none, "{method} {path}");
    1
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_reads_the_metrics_of_its_own_models() {
    let (_cluster, admins) = guarded(1, 1).await;
    let admin = &admins[0];
    let (a, b) = (tenant(admin, "team-a").await, tenant(admin, "team-b").await);
    for (caller, model) in [(&a, "team-a.chat"), (&b, "team-b.chat")] {
        caller.deploy(model).await;
        let chat = json!({ "model": model, "messages": [{ "role": "user", "content": "x" }] });
        caller.post("/v1/chat/completions", chat).await;
    }
    let read = async |caller: &Caller| {
        let told = caller.send(&Method::GET, "/_volley/metrics", &Value::Null);
        told.await.body
    };
    // Counted when the server has let go of the stream, a moment after its reader.
    let counted = |text: &str, model: &str| {
        text.contains(&format!("volley_requests_total{{model=\"{model}\""))
    };
    let own = until("its request is counted", || async {
        let own = read(&a).await;
        counted(&own, "team-a.chat").then_some(own)
    })
    .await;
    let samples = own.lines().filter(|line| !line.starts_with('#'));
    for sample in samples {
        assert!(sample.contains("model=\"team-a.chat\""), "{sample}");
    }
    let all = read(admin).await;
    assert!(
        all.contains("team-a.chat") && all.contains("team-b.chat"),
        "{all}"
    );
    let refused = a.send(&Method::GET, "/metrics", &Value::Null).await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN);
}
