//! Authentication and roles.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::Full;
use serde_json::{Value, json};
use volley_gateway::ApiConfig;
use volley_security::Authenticator;

use crate::support::{Edge, Reply, Script, last, request, text};

pub(crate) const BOOTSTRAP: &str = "a-bootstrap-key-of-32-characters";

pub(crate) async fn edge() -> Edge {
    let gate = |registry| Authenticator::keys(registry, Some(BOOTSTRAP)).unwrap();
    let edge = Edge::guarded(ApiConfig::default(), gate).await;
    for model in ["team-a.chat", "team-b.chat"] {
        edge.cluster
            .script(model, Script::Chunks(vec![text("hi"), last()]));
    }
    edge
}

pub(crate) fn keyed(key: &str, mut request: Request<Full<Bytes>>) -> Request<Full<Bytes>> {
    let value = format!("Bearer {key}").parse().unwrap();
    request.headers_mut().insert("authorization", value);
    request
}

async fn admin(edge: &Edge, method: Method, path: &str, body: &str) -> Reply {
    edge.send(keyed(BOOTSTRAP, request(method, path, body)))
        .await
}

/// Creates a key. Returns its id and the key.
pub(crate) async fn make(edge: &Edge, body: Value) -> (String, String) {
    let made = admin(edge, Method::POST, "/_volley/keys", &body.to_string()).await;
    assert_eq!(made.status, 201, "{}", made.text());
    assert_eq!(made.headers["cache-control"], "no-store");
    let made = made.json();
    let text = |name: &str| made[name].as_str().unwrap().to_owned();
    (text("id"), text("key"))
}

fn chat(model: &str) -> String {
    json!({ "model": model, "messages": [{ "role": "user", "content": "hi" }] }).to_string()
}

/// Every route except health, with a request that reaches its handler.
const ROUTES: &[(&str, &str, &str)] = &[
    ("GET", "/", "viewer"),
    ("GET", "/metrics", "viewer"),
    ("GET", "/v1/streams/x", "predict"),
    ("DELETE", "/v1/streams/x", "predict"),
    ("GET", "/_plugins/_ml/streams/x", "predict"),
    ("DELETE", "/_plugins/_ml/streams/x", "predict"),
    ("GET", "/_volley/status", "viewer"),
    ("GET", "/_volley/scale", "viewer"),
    ("GET", "/_volley/metrics", "viewer"),
    ("GET", "/_volley/whoami", "viewer"),
    ("POST", "/_volley/nodes/join", "cluster-admin"),
    ("POST", "/_volley/nodes/9/leave", "cluster-admin"),
    ("POST", "/_volley/nodes/9/replace", "cluster-admin"),
    ("POST", "/_volley/nodes/w1/drain", "cluster-admin"),
    ("POST", "/_volley/nodes/w1/undrain", "cluster-admin"),
    ("POST", "/_volley/leader/transfer", "cluster-admin"),
    ("GET", "/_volley/backup", "cluster-admin"),
    ("GET", "/_volley/aliases", "viewer"),
    ("POST", "/_volley/aliases", "model-admin"),
    ("GET", "/_volley/aliases/a", "viewer"),
    ("PUT", "/_volley/aliases/a", "model-admin"),
    ("DELETE", "/_volley/aliases/a", "model-admin"),
    ("GET", "/_volley/pipelines", "viewer"),
    ("POST", "/_volley/pipelines", "model-admin"),
    ("GET", "/_volley/pipelines/a", "viewer"),
    ("PUT", "/_volley/pipelines/a", "model-admin"),
    ("DELETE", "/_volley/pipelines/a", "model-admin"),
    ("GET", "/_volley/keys", "cluster-admin"),
    ("POST", "/_volley/keys", "cluster-admin"),
    ("GET", "/_volley/keys/k", "cluster-admin"),
    ("DELETE", "/_volley/keys/k", "cluster-admin"),
    ("POST", "/_volley/keys/k/_rotate", "cluster-admin"),
    ("POST", "/_volley/keys/k/_limit", "cluster-admin"),
    ("GET", "/_volley/secrets", "model-admin"),
    ("POST", "/_volley/secrets/s", "model-admin"),
    ("DELETE", "/_volley/secrets/s", "model-admin"),
    ("POST", "/_volley/secrets/_rewrap", "model-admin"),
    ("POST", "/_plugins/_ml/connectors/_create", "model-admin"),
    ("GET", "/_plugins/_ml/connectors/_search", "viewer"),
    ("GET", "/_plugins/_ml/connectors/c", "viewer"),
    ("DELETE", "/_plugins/_ml/connectors/c", "model-admin"),
    ("POST", "/_plugins/_ml/models/_register", "model-admin"),
    ("POST", "/_plugins/_ml/models/_search", "viewer"),
    ("GET", "/_plugins/_ml/models/m", "viewer"),
    ("DELETE", "/_plugins/_ml/models/m", "model-admin"),
    ("POST", "/_plugins/_ml/models/m/_deploy", "model-admin"),
    ("POST", "/_plugins/_ml/models/m/_undeploy", "model-admin"),
    ("POST", "/_plugins/_ml/models/m/_pause", "model-admin"),
    ("POST", "/_plugins/_ml/models/m/_resume", "model-admin"),
    ("POST", "/_plugins/_ml/models/m/_rollback", "model-admin"),
    ("POST", "/_plugins/_ml/models/m/_predict", "predict"),
    ("POST", "/_plugins/_ml/models/m/_predict/stream", "predict"),
    ("GET", "/_plugins/_ml/models/m/_predict/ws", "predict"),
    ("POST", "/v2/models/m/infer_stream", "predict"),
    ("POST", "/v2/models/m/versions/1/infer_stream", "predict"),
    ("GET", "/_plugins/_ml/tasks/t", "viewer"),
    ("DELETE", "/_plugins/_ml/tasks/t", "model-admin"),
    ("GET", "/_plugins/_ml/tasks/_search", "viewer"),
    ("PUT", "/_plugins/_ml/connectors/c", "model-admin"),
    ("PUT", "/_plugins/_ml/models/m", "model-admin"),
    ("POST", "/_plugins/_ml/models/_undeploy", "model-admin"),
    ("POST", "/_plugins/_ml/_predict/remote/m", "predict"),
    ("POST", "/_plugins/_ml/models/m/_batch_predict", "predict"),
    ("POST", "/_plugins/_ml/tasks/t/_cancel", "predict"),
    (
        "POST",
        "/_plugins/_ml/model_groups/_register",
        "model-admin",
    ),
    ("POST", "/_plugins/_ml/model_groups/_search", "viewer"),
    ("GET", "/_plugins/_ml/model_groups/g", "viewer"),
    ("PUT", "/_plugins/_ml/model_groups/g", "model-admin"),
    ("DELETE", "/_plugins/_ml/model_groups/g", "model-admin"),
    ("GET", "/_plugins/_ml/stats", "viewer"),
    ("GET", "/_plugins/_ml/w1/stats", "viewer"),
    ("GET", "/_plugins/_ml/profile", "viewer"),
    ("GET", "/_plugins/_ml/profile/models/m", "viewer"),
    ("GET", "/_cluster/settings", "viewer"),
    ("PUT", "/_cluster/settings", "cluster-admin"),
    ("GET", "/_plugins/_ml/streams/s", "predict"),
    ("DELETE", "/v1/streams/s", "predict"),
    ("GET", "/v2/models/stats", "viewer"),
    ("GET", "/v2/models/m/stats", "viewer"),
    ("GET", "/v2/models/m/config", "viewer"),
    ("POST", "/v1/chat/completions", "predict"),
    ("POST", "/v1/responses", "predict"),
    ("POST", "/v1/completions", "predict"),
    ("POST", "/v1/embeddings", "predict"),
    ("POST", "/v1/rerank", "predict"),
    ("POST", "/v1/embed", "predict"),
    ("POST", "/v2/embed", "predict"),
    ("POST", "/v2/chat", "predict"),
    ("POST", "/v1/messages", "predict"),
    ("POST", "/v1/messages/count_tokens", "predict"),
    ("GET", "/v1/models", "viewer"),
    ("POST", "/api/chat", "predict"),
    ("POST", "/api/generate", "predict"),
    ("POST", "/api/embed", "predict"),
    ("POST", "/api/embeddings", "predict"),
    ("GET", "/api/tags", "viewer"),
    ("GET", "/api/ps", "viewer"),
    ("POST", "/api/show", "viewer"),
    ("POST", "/api/pull", "viewer"),
    ("GET", "/api/version", "viewer"),
    ("GET", "/v1/models/m", "viewer"),
    ("GET", "/v2", "viewer"),
    ("POST", "/v2/repository/index", "viewer"),
    ("POST", "/v2/repository/models/m/load", "model-admin"),
    ("POST", "/v2/repository/models/m/unload", "model-admin"),
    ("GET", "/v2/models/m", "viewer"),
    ("GET", "/v2/models/m/ready", "viewer"),
    ("POST", "/v2/models/m/infer", "predict"),
    ("POST", "/v2/models/m/generate", "predict"),
    ("POST", "/v2/models/m/versions/1/generate_stream", "predict"),
];

#[tokio::test]
async fn every_route_asks_for_its_role_and_health_for_none() {
    let edge = edge().await;
    let roles = ["viewer", "predict", "model-admin", "cluster-admin"];
    let mut keys = Vec::new();
    for role in roles {
        keys.push(make(&edge, json!({ "name": role, "role": role })).await.1);
    }
    for (method, path, needed) in ROUTES {
        let send = |key: Option<&str>| {
            let request = request(method.parse().unwrap(), path, "");
            edge.send(match key {
                Some(key) => keyed(key, request),
                None => request,
            })
        };
        let nobody = send(None).await;
        assert_eq!(nobody.status, 401, "{method} {path}");
        assert_eq!(
            nobody.headers["www-authenticate"],
            "Bearer realm=\"volley\""
        );
        assert_eq!(send(Some("vly_0_0")).await.status, 401, "{method} {path}");
        for (role, key) in roles.iter().zip(&keys) {
            let index = |name: &str| roles.iter().position(|role| *role == name);
            let reply = send(Some(key)).await;
            let is_refused = reply.status == 403 || reply.status == 401;
            let is_weaker = index(role) < index(needed);
            assert_eq!(
                is_refused, is_weaker,
                "{method} {path} as {role}: {reply:?}"
            );
        }
    }
    for path in [
        "/_volley/health/live",
        "/_volley/health/ready",
        "/v2/health/live",
        "/v2/health/ready",
    ] {
        edge.get(path).await.ok();
    }
}

#[tokio::test]
async fn each_house_takes_its_header_and_answers_in_its_shape() {
    let edge = edge().await;
    let (_, key) = make(&edge, json!({ "name": "app", "role": "predict" })).await;
    let basic = {
        use base64::Engine;
        base64::engine::general_purpose::STANDARD.encode(format!("admin:{key}"))
    };
    for (name, value) in [
        ("authorization", format!("Bearer {key}")),
        ("authorization", format!("Basic {basic}")),
        ("x-api-key", key.clone()),
        ("api-key", key.clone()),
    ] {
        let mut request = request(Method::POST, "/v1/chat/completions", &chat("team-a.chat"));
        request.headers_mut().insert(name, value.parse().unwrap());
        edge.send(request).await.ok();
    }

    let openai = edge.post("/v1/chat/completions", "{}").await.json();
    assert_eq!(openai["error"]["type"], "authentication_error");
    assert_eq!(openai["error"]["code"], "invalid_api_key");
    let anthropic = edge.post("/v1/messages", "{}").await.json();
    assert_eq!(anthropic["type"], "error");
    assert_eq!(anthropic["error"]["type"], "authentication_error");
    let oip = edge.post("/v2/models/m/infer", "{}").await.json();
    assert!(oip["error"].as_str().unwrap().contains("API key"));
    let opensearch = edge.post("/_plugins/_ml/models/m/_predict", "{}").await;
    opensearch.refused(401);
    assert_eq!(opensearch.json()["error"]["type"], "security_exception");
    let denied = keyed(&key, request(Method::DELETE, "/_plugins/_ml/models/m", ""));
    edge.send(denied).await.refused(403);
}

#[tokio::test]
async fn a_key_of_some_models_sees_and_calls_only_those() {
    let edge = edge().await;
    let (_, key) = make(
        &edge,
        json!({
            "name": "a", "role": "model-admin", "models": ["team-a.*"], "tenant": "team-a",
        }),
    )
    .await;
    let send = |method, path: &str, body: &str| edge.send(keyed(&key, request(method, path, body)));
    let listed = send(Method::GET, "/v1/models", "").await.ok();
    let ids: Vec<_> = listed["data"].as_array().unwrap().iter().collect();
    assert_eq!(ids.len(), 1);
    assert_eq!(ids[0]["id"], "team-a.chat");
    send(Method::GET, "/metrics", "").await.refused(403);
    let status = send(Method::GET, "/_volley/status", "").await.ok();
    assert!(!status.to_string().contains("team-b"));

    let called = send(Method::POST, "/v1/chat/completions", &chat("team-a.chat")).await;
    called.ok();
    assert_eq!(edge.cluster.last_call().tenant.as_str(), "team-a");
    let hidden = send(Method::POST, "/v1/chat/completions", &chat("team-b.chat")).await;
    hidden.refused_openai(404);
    send(Method::GET, "/_plugins/_ml/models/team-b.chat", "")
        .await
        .refused(404);

    let body = |name: &str| json!({ "name": name, "function_name": "text" }).to_string();
    let register = "/_plugins/_ml/models/_register";
    send(Method::POST, register, &body("team-a.new")).await.ok();
    send(Method::POST, register, &body("team-b.new"))
        .await
        .refused(403);
    send(Method::DELETE, "/_plugins/_ml/models/team-b.chat", "")
        .await
        .refused(404);
}

#[tokio::test]
async fn a_key_is_shown_once_rotated_and_revoked() {
    let edge = edge().await;
    let body = json!({ "name": "app", "role": "viewer", "expires_in_s": 3600 });
    let (id, first) = make(&edge, body).await;
    let listed = admin(&edge, Method::GET, "/_volley/keys", "").await;
    let secret = first.splitn(3, '_').nth(2).unwrap().to_owned();
    assert!(!listed.text().contains(&secret));
    let key = &listed.ok()["keys"][0];
    assert_eq!(
        (&key["name"], &key["role"]),
        (&json!("app"), &json!("viewer"))
    );
    assert_eq!(key["expired"], false);

    let whoami = |key: String| {
        let request = keyed(&key, request(Method::GET, "/_volley/whoami", ""));
        let edge = &edge;
        async move { edge.send(request).await }
    };
    assert_eq!(whoami(first.clone()).await.ok()["who"], format!("key {id}"));
    let path = format!("/_volley/keys/{id}/_rotate");
    let rotated = admin(&edge, Method::POST, &path, "{}").await.ok();
    let second = rotated["key"].as_str().unwrap().to_owned();
    assert_eq!(rotated["previous_until_ms"], Value::Null);
    whoami(second.clone()).await.ok();
    assert_eq!(whoami(first).await.status, 401);

    let path = format!("/_volley/keys/{id}");
    admin(&edge, Method::DELETE, &path, "").await.ok();
    assert_eq!(whoami(second).await.status, 401);
    admin(&edge, Method::GET, &path, "").await.refused(404);
}

#[tokio::test]
async fn a_key_that_used_up_its_quota_is_told_when_to_come_back() {
    let edge = edge().await;
    let body = json!({ "name": "app", "role": "predict", "limits": { "requests_per_minute": 1 } });
    let (id, key) = make(&edge, body).await;
    let ask = || {
        let request = request(Method::POST, "/v1/chat/completions", &chat("team-a.chat"));
        edge.send(keyed(&key, request))
    };
    ask().await.ok();
    let refused = ask().await;
    let after = refused.headers["retry-after"].to_str().unwrap().to_owned();
    assert!((1..=60).contains(&after.parse::<u32>().unwrap()), "{after}");
    let why = refused.refused_openai(429);
    assert!(why.contains("1 requests a minute"), "{why}");

    let path = format!("/_volley/keys/{id}/_limit");
    let more = json!({ "limits": { "tokens_per_minute": 100_000 } }).to_string();
    let key = admin(&edge, Method::POST, &path, &more).await.ok();
    assert_eq!(key["limits"], json!({ "tokens_per_minute": 100_000 }));
    ask().await.ok();
    ask().await.ok();
}

#[tokio::test]
async fn what_is_no_key_is_refused_by_name() {
    let edge = edge().await;
    for (body, word) in [
        (json!({ "role": "viewer" }), "name"),
        (json!({ "name": "x" }), "role"),
        (json!({ "name": "x", "role": "root" }), "cluster-admin"),
        (
            json!({ "name": "x", "role": "viewer", "models": [] }),
            "models",
        ),
        (
            json!({ "name": "x", "role": "viewer", "models": ["a*b"] }),
            "models",
        ),
        (
            json!({ "name": "x", "role": "viewer", "models": [7] }),
            "models",
        ),
        (
            json!({ "name": "x", "role": "viewer", "expires_in_s": 0 }),
            "expires_in_s",
        ),
        (
            json!({ "name": "x", "role": "viewer", "limits": { "max_streams": 0 } }),
            "max_streams",
        ),
        (
            json!({ "name": "x", "role": "viewer", "limits": { "streams": 1 } }),
            "streams",
        ),
        (
            json!({ "name": "x", "role": "viewer", "tenant": "a b" }),
            "tenant",
        ),
        (
            json!({ "name": "x", "role": "viewer", "colour": 1 }),
            "colour",
        ),
        (
            json!({ "name": "x", "role": "cluster-admin", "models": ["m"] }),
            "cluster-admin",
        ),
    ] {
        let refused = admin(&edge, Method::POST, "/_volley/keys", &body.to_string()).await;
        let reason = refused.refused(400);
        assert!(reason.contains(word), "{reason}");
    }
}

#[tokio::test]
async fn an_expired_key_is_no_key() {
    let edge = edge().await;
    let body = json!({ "name": "x", "role": "viewer", "expires_in_s": 1 });
    let (_, key) = make(&edge, body).await;
    let ends = async {
        loop {
            let request = keyed(&key, request(Method::GET, "/_volley/whoami", ""));
            if edge.send(request).await.status == 401 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(crate::support::SOON, ends)
        .await
        .unwrap();
}

#[tokio::test]
async fn a_stream_is_taken_up_by_the_key_that_began_it_alone() {
    let edge = edge().await;
    let make = async |name: &str| {
        let body = json!({ "name": name, "role": "predict", "tenant": name, "models": ["*"] });
        make(&edge, body).await.1
    };
    let (mine, other) = (make("mine").await, make("other").await);
    let path = "/_plugins/_ml/models/team-a.chat/_predict/stream?volley-stream=resumable";
    let asked = request(Method::POST, path, r#"{"parameters":{"prompt":"hi"}}"#);
    let told = edge.send(keyed(&mine, asked)).await;
    assert_eq!(told.status, 200, "{}", told.text());
    let id = told.headers["x-volley-stream-id"].to_str().unwrap();
    let path = format!("/v1/streams/{id}");
    for method in [Method::GET, Method::DELETE] {
        let theirs = keyed(&other, request(method.clone(), &path, ""));
        edge.send(theirs).await.refused(410);
        assert_eq!(edge.send(request(method, &path, "")).await.status, 401);
    }
    let again = edge
        .send(keyed(&mine, request(Method::GET, &path, "")))
        .await;
    assert_eq!(again.text(), told.text());
}
