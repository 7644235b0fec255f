//! Aliases in all dialects.

use http::Method;
use serde_json::{Value, json};
use volley_types::registry::choice_hash;

use crate::keys;
use crate::support::{Edge, Reply, Script, last, request, text};

const PATH: &str = "/_volley/aliases";

async fn put(edge: &Edge, name: &str, body: &Value) -> Reply {
    let path = format!("{PATH}/{name}");
    edge.send(request(Method::PUT, &path, &body.to_string()))
        .await
}

#[tokio::test]
async fn an_alias_is_written_read_and_deleted() {
    let edge = Edge::start().await;
    let body = json!({
        "name": "chat", "description": "what the shop calls",
        "targets": [{ "model": "a:1", "weight": 9 }, { "model": "b" }],
        "mirror": { "model": "c", "percent": 2.5 }, "sticky_header": "X-User",
    });
    let made = edge.post(PATH, &body.to_string()).await;
    assert_eq!(made.status, 201, "{}", made.text());
    let made = made.json();
    assert_eq!(made["targets"][1], json!({ "model": "b", "weight": 1 }));
    assert_eq!(made["mirror"], json!({ "model": "c", "percent": 2.5 }));
    assert_eq!(made["sticky_header"], "x-user");
    let read = edge.get("/_volley/aliases/chat").await.ok();
    assert_eq!(read, made);

    let switched = put(&edge, "chat", &json!({ "targets": [{ "model": "b" }] })).await;
    let switched = switched.ok();
    assert!(made["revision"].as_u64() < switched["revision"].as_u64());
    assert_eq!(switched["mirror"], Value::Null);
    let all = edge.get(PATH).await.ok();
    assert_eq!(all["aliases"], json!([switched]));
    let gone = edge.delete("/_volley/aliases/chat?revision=7").await.ok();
    assert_eq!(gone, json!({ "_id": "chat", "result": "deleted" }));
    assert_eq!(edge.get("/_volley/aliases/chat").await.status, 404);
}

#[tokio::test]
async fn what_is_no_alias_is_told_by_name() {
    let edge = Edge::start().await;
    for (body, says) in [
        (json!({}), "targets"),
        (json!({ "targets": "a" }), "targets"),
        (json!({ "targets": ["a"] }), "targets"),
        (json!({ "targets": [{ "weight": 1 }] }), "model"),
        (json!({ "targets": [{ "model": "a b" }] }), "model name"),
        (
            json!({ "targets": [{ "model": "a", "weight": -1 }] }),
            "weight",
        ),
        (
            json!({ "targets": [{ "model": "a", "share": 1 }] }),
            "share",
        ),
        (json!({ "targets": [], "name": "other" }), "name"),
        (
            json!({ "targets": [], "mirror": { "model": "m", "percent": 0 } }),
            "percent",
        ),
        (json!({ "targets": [], "mirror": {} }), "model"),
        (json!({ "targets": [], "colour": 1 }), "colour"),
    ] {
        let refused = put(&edge, "chat", &body).await;
        assert_eq!(refused.status, 400, "{body}");
        assert!(refused.text().contains(says), "{body}: {}", refused.text());
    }
    let body = json!({ "targets": [{ "model": "a" }] });
    let odd = request(
        Method::PUT,
        "/_volley/aliases/chat?rev=1",
        &body.to_string(),
    );
    assert_eq!(edge.send(odd).await.status, 400);
}

#[tokio::test]
async fn what_a_request_sticks_by_is_read_from_the_header_that_the_alias_names() {
    let edge = Edge::start().await;
    edge.cluster
        .script("chat", Script::Chunks(vec![text("hi"), last()]));
    let body = json!({ "targets": [{ "model": "a" }], "sticky_header": "x-user" });
    put(&edge, "chat", &body).await.ok();
    let prompt = json!({ "parameters": { "prompt": "x" } }).to_string();
    for user in [Some("ann"), Some("bob"), None] {
        let path = "/_plugins/_ml/models/chat/_predict";
        let mut request = request(Method::POST, path, &prompt);
        if let Some(user) = user {
            let headers = request.headers_mut();
            headers.insert("x-user", user.parse().unwrap());
        }
        edge.send(request).await.ok();
    }
    let calls = edge.cluster.calls.lock();
    let affinities: Vec<_> = calls.iter().map(|call| call.affinity).collect();
    let hash = |user: &str| Some(choice_hash(user.as_bytes()));
    assert_eq!(affinities, [hash("ann"), hash("bob"), None]);
}

#[tokio::test]
async fn a_key_of_some_models_points_its_names_at_those_alone() {
    let edge = keys::edge().await;
    let team = json!({ "name": "a", "role": "model-admin", "models": ["team-a.*"] });
    let (_, key) = keys::make(&edge, team).await;
    let put = |name: &str, target: &str| {
        let body = json!({ "targets": [{ "model": target }] }).to_string();
        let path = format!("{PATH}/{name}");
        let mut request = request(Method::PUT, &path, &body);
        let value = format!("Bearer {key}").parse().unwrap();
        request.headers_mut().insert("authorization", value);
        edge.send(request)
    };
    assert_eq!(put("team-a.front", "team-a.chat").await.status, 200);
    assert_eq!(put("team-a.front", "team-b.chat").await.status, 404);
    assert_eq!(put("team-b.front", "team-a.chat").await.status, 403);
}
