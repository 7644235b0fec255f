//! Lists of models in OpenAI's and in Anthropic's format, and names with a slash.

use http::{Method, Request};
use http_body_util::Full;
use serde_json::{Value, json};
use volley_types::registry::ReplicaState;

use super::reference::{embedder, ranker, talker};
use super::support::{Edge, Reply, Script, last};

const ML: &str = "/_plugins/_ml";

async fn for_anthropic(edge: &Edge, path: &str) -> Reply {
    let request = Request::builder()
        .method(Method::GET)
        .uri(path)
        .header("host", "volley.test")
        .header("anthropic-version", "2023-06-01");
    edge.send(request.body(Full::default()).unwrap()).await
}

fn ids(list: &Value) -> Vec<&str> {
    let models = list["data"].as_array().unwrap().iter();
    models.map(|model| model["id"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_failed_rollout_leaves_the_version_that_answers_in_all_lists() {
    let edge = Edge::start().await;
    edge.cluster.script("chat", talker());
    edge.cluster.fail_rollout("chat");
    let listed = edge.get("/v1/models").await.ok();
    assert_eq!(ids(&listed), ["chat"]);
    assert_eq!(listed["data"][0]["state"], "PARTIALLY_DEPLOYED");
    let index = edge.post("/v2/repository/index", "{}").await.ok();
    let told = |entry: &Value| json!([entry["version"], entry["state"], entry["reason"]]);
    let told: Vec<_> = index.as_array().unwrap().iter().map(told).collect();
    assert_eq!(
        told,
        [
            json!(["1", "READY", ""]),
            json!(["2", "UNAVAILABLE", "no graph"])
        ]
    );
    let ready = edge.post("/v2/repository/index", r#"{"ready":true}"#).await;
    let ready = ready.ok();
    assert_eq!(ready.as_array().unwrap().len(), 1);
    assert_eq!(ready[0]["version"], "1");
    let model = edge.get("/v2/models/chat").await.ok();
    assert_eq!(model["versions"], json!(["1"]));
    let running = edge.get("/api/ps").await.ok();
    assert_eq!(running["models"][0]["digest"], "chat-1");
}

#[tokio::test]
async fn models_that_chat_complete_or_embed_are_listed_and_the_rest_on_request() {
    let edge = Edge::start().await;
    edge.cluster.script("chat", talker());
    edge.cluster.script("embed", embedder());
    edge.cluster.script("rank", ranker());
    let register = r#"{"name":"resting","function_name":"text"}"#;
    edge.post(&format!("{ML}/models/_register"), register)
        .await
        .ok();
    let usual = edge.get("/v1/models").await.ok();
    assert_eq!(ids(&usual), ["chat", "embed"]);
    let all = edge.get("/v1/models?all=true").await.ok();
    assert_eq!(ids(&all), ["chat", "embed", "rank", "resting"]);
    assert_eq!(all["data"][2]["task"], "rerank");
    assert_eq!(all["data"][3]["state"], "REGISTERED");
    edge.cluster
        .replica_state
        .lock()
        .replace(ReplicaState::Loading);
    let none = edge.get("/v1/models").await.ok();
    assert!(ids(&none).is_empty(), "what is not ready is not listed");
    edge.get("/v1/models?every=true").await.refused_openai(400);
    edge.get("/v1/models?limit=3").await.refused_openai(400);
}

#[tokio::test]
async fn anthropics_clients_page_through_what_answers_messages() {
    let edge = Edge::start().await;
    for name in ["a", "b", "c"] {
        edge.cluster.script(name, talker());
    }
    edge.cluster.script("embed", embedder());
    let first = for_anthropic(&edge, "/v1/models?limit=2").await.ok();
    assert_eq!(ids(&first), ["a", "b"]);
    assert_eq!(first["data"][0]["type"], "model");
    assert_eq!(first["data"][0]["display_name"], "a");
    assert_eq!(first["data"][0]["created_at"], "1970-01-01T00:00:00.001Z");
    assert_eq!(
        (&first["first_id"], &first["last_id"], &first["has_more"]),
        (&json!("a"), &json!("b"), &json!(true))
    );
    let next = for_anthropic(&edge, "/v1/models?limit=2&after_id=b")
        .await
        .ok();
    assert_eq!((ids(&next), &next["has_more"]), (vec!["c"], &json!(false)));
    let before = for_anthropic(&edge, "/v1/models?limit=1&before_id=c")
        .await
        .ok();
    assert_eq!(
        (ids(&before), &before["has_more"]),
        (vec!["b"], &json!(true))
    );
    let one = for_anthropic(&edge, "/v1/models/a").await.ok();
    assert_eq!(one, first["data"][0]);
    for path in [
        "/v1/models?limit=0",
        "/v1/models?limit=1001",
        "/v1/models?after_id=x",
        "/v1/models?after_id=a&before_id=b",
    ] {
        let refused = for_anthropic(&edge, path).await;
        assert_eq!(refused.status, 400, "{path}");
        assert_eq!(refused.json()["error"]["type"], "invalid_request_error");
    }
    let missing = for_anthropic(&edge, "/v1/models/none").await;
    assert_eq!(missing.status, 404);
    assert_eq!(missing.json()["error"]["type"], "not_found_error");
    assert_eq!(missing.json()["type"], "error");
}

#[tokio::test]
async fn a_name_with_a_slash_is_one_everywhere() {
    let edge = Edge::start().await;
    let body = r#"{"name":"Qwen/Qwen3-8B","function_name":"text"}"#;
    let registered = edge
        .post(&format!("{ML}/models/_register"), body)
        .await
        .ok();
    assert_eq!(registered["model_id"], "Qwen/Qwen3-8B");
    let task = registered["task_id"].as_str().unwrap();
    assert_eq!(
        edge.get(&format!("{ML}/tasks/{task}")).await.ok()["state"],
        "COMPLETED"
    );
    for name in ["Qwen/Qwen3-8B", "Qwen%2FQwen3-8B"] {
        edge.post(&format!("{ML}/models/{name}/_deploy"), "")
            .await
            .ok();
        let model = edge.get(&format!("{ML}/models/{name}")).await.ok();
        assert_eq!(model["model_state"], "DEPLOYED", "{name}");
        assert_eq!(
            edge.get(&format!("/v1/models/{name}")).await.ok()["id"],
            "Qwen/Qwen3-8B"
        );
        let version = edge.get(&format!("/v1/models/{name}:1")).await.ok();
        assert_eq!(version["id"], "Qwen/Qwen3-8B:1");
        edge.get(&format!("/v1/models/{name}:7"))
            .await
            .refused_openai(404);
    }
    edge.cluster
        .script("Qwen/Qwen3-8B", Script::Chunks(vec![last()]));
    for path in [
        format!("{ML}/models/Qwen/Qwen3-8B/_predict"),
        format!("{ML}/models/Qwen%2FQwen3-8B/_predict"),
        format!("{ML}/_predict/text/Qwen/Qwen3-8B"),
    ] {
        let body = r#"{"parameters":{"prompt":"Hi"}}"#;
        edge.post(&path, body).await.ok();
        assert_eq!(edge.cluster.last_call().model.to_string(), "Qwen/Qwen3-8B");
    }
    for path in [
        "/v2/models/Qwen/Qwen3-8B/ready",
        "/v2/models/Qwen%2FQwen3-8B/ready",
    ] {
        assert_eq!(edge.get(path).await.status, 200, "{path}");
    }
    let alias = r#"{"name":"team/chat","targets":[{"model":"Qwen/Qwen3-8B"}]}"#;
    let created = edge.post("/_volley/aliases", alias).await;
    assert_eq!(created.status, 201, "{}", created.text());
    for path in ["/_volley/aliases/team/chat", "/_volley/aliases/team%2Fchat"] {
        assert_eq!(edge.get(path).await.ok()["name"], "team/chat");
    }
    edge.delete("/_volley/aliases/team/chat").await.ok();
    edge.get("/v1/models/Qwen/other").await.refused_openai(404);
    edge.get(&format!("{ML}/models/Qwen/other"))
        .await
        .refused(404);
}
