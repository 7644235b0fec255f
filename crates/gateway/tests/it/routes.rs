//! Registry, tasks and operations, and the behaviour that all routes share.

use http::Method;
use serde_json::json;
use volley_types::registry::ReplicaState;
use volley_types::{ErrorCode, PredictError};

use super::support::{Edge, Script, last, request, text};

const ML: &str = "/_plugins/_ml";

#[tokio::test]
async fn a_model_lives_from_registration_to_deletion() {
    let edge = Edge::start().await;
    let registered = edge
        .post(
            &format!("{ML}/models/_register"),
            r#"{"name":"encoder","function_name":"ONNX","path":"/models/encoder","description":"d"}"#,
        )
        .await
        .ok();
    assert_eq!(registered["task_id"], "register-encoder-1");
    assert_eq!(registered["status"], "CREATED");
    assert_eq!(registered["model_id"], "encoder");
    let task = edge
        .get(&format!("{ML}/tasks/register-encoder-1"))
        .await
        .ok();
    assert_eq!(
        (&task["state"], &task["task_type"], &task["model_id"]),
        (
            &json!("COMPLETED"),
            &json!("REGISTER_MODEL"),
            &json!("encoder")
        )
    );
    let model = edge.get(&format!("{ML}/models/encoder")).await.ok();
    assert_eq!(model["model_state"], "REGISTERED");
    assert_eq!(model["algorithm"], "ONNX");
    assert_eq!(model["path"], "/models/encoder");

    edge.cluster
        .replica_state
        .lock()
        .replace(ReplicaState::Loading);
    let deployed = edge
        .post(&format!("{ML}/models/encoder/_deploy"), r#"{"replicas":2}"#)
        .await
        .ok();
    assert_eq!(deployed["task_type"], "DEPLOY_MODEL");
    assert_eq!(deployed["status"], "CREATED");
    let task = format!("{ML}/tasks/{}", deployed["task_id"].as_str().unwrap());
    assert_eq!(edge.get(&task).await.ok()["state"], "RUNNING");
    edge.cluster
        .replica_state
        .lock()
        .replace(ReplicaState::Failed("out of memory".to_owned()));
    let failed = edge.get(&task).await.ok();
    assert_eq!(failed["state"], "FAILED");
    assert_eq!(failed["error"], "w1: out of memory");
    edge.cluster.replica_state.lock().take();
    assert_eq!(edge.get(&task).await.ok()["state"], "COMPLETED");
    let model = edge.get(&format!("{ML}/models/encoder:1")).await.ok();
    assert_eq!(model["model_state"], "DEPLOYED");
    assert_eq!(model["desired_replicas"], 2);
    assert_eq!(model["current_worker_nodes"], json!(["w1"]));

    let undeployed = edge
        .post(&format!("{ML}/models/encoder/_undeploy"), "")
        .await
        .ok();
    assert_eq!(
        undeployed,
        json!({ "w1": { "stats": { "encoder": "UNDEPLOYED" } } })
    );
    assert_eq!(edge.get(&task).await.ok()["state"], "CANCELLED");
    let deleted = edge.delete(&format!("{ML}/models/encoder")).await.ok();
    let expected = json!({ "_index": ".plugins-ml-model", "_id": "encoder", "result": "deleted" });
    assert_eq!(deleted, expected);
    edge.get(&format!("{ML}/models/encoder")).await.refused(404);
    edge.get(&task).await.refused(404);
}

#[tokio::test]
async fn registering_again_makes_the_next_version_and_may_deploy_at_once() {
    let edge = Edge::start().await;
    let path = format!("{ML}/models/_register");
    let body = r#"{"name":"words","function_name":"text"}"#;
    edge.post(&path, body).await.ok();
    let second = edge.post(&format!("{path}?deploy=true"), body).await.ok();
    assert_eq!(second["task_id"], "register-words-2");
    let model = edge.get(&format!("{ML}/models/words")).await.ok();
    assert_eq!(model["deployed_version"], 2);
    assert_eq!(model["versions"], json!([1, 2]));
    edge.get(&format!("{ML}/models/words:3")).await.refused(404);
}

#[tokio::test]
async fn models_are_listed() {
    let edge = Edge::start().await;
    for name in ["a", "b", "c"] {
        edge.cluster.script(name, Script::Chunks(vec![last()]));
    }
    let path = format!("{ML}/models/_search");
    let all = edge.get(&path).await.ok();
    assert_eq!(all["hits"]["total"]["value"], 3);
    assert_eq!(all["hits"]["hits"][1]["_id"], "b");
    let page = edge
        .post(&path, r#"{"query":{"match_all":{}},"from":2,"size":5}"#)
        .await
        .ok();
    assert_eq!(page["hits"]["hits"].as_array().unwrap().len(), 1);
    assert_eq!(page["hits"]["hits"][0]["_source"]["name"], "c");
    edge.post(&path, r#"{"aggs":{}}"#).await.refused(400);
}

#[tokio::test]
async fn a_connector_in_opensearchs_form_keeps_no_secret() {
    let edge = Edge::start().await;
    let path = format!("{ML}/connectors/_create");
    let body = json!({
        "connector_id": "gpt",
        "name": "Chat",
        "version": "1",
        "protocol": "http",
        "parameters": { "endpoint": "llm.example", "model": "small", "temperature": 0.5 },
        "credential": { "openAI_key": "env:LLM_KEY" },
        "actions": [{
            "action_type": "predict",
            "method": "POST",
            "url": "https://${parameters.endpoint}/v1/chat/completions",
            "headers": { "Authorization": "Bearer ${credential.openAI_key}", "X-Team": "search" },
        }],
    });
    let created = edge.post(&path, &body.to_string()).await.ok();
    assert_eq!(created["connector_id"], "gpt");
    let shown = edge.get(&format!("{ML}/connectors/gpt")).await.ok();
    assert_eq!(shown["url"], "https://llm.example/v1/chat/completions");
    assert_eq!(shown["provider"], "openai");
    assert_eq!(shown["model"], "small");
    assert_eq!(shown["credential"], "env:LLM_KEY");
    assert_eq!(shown["headers"], json!({ "x-team": "search" }));

    let mut with_secret = body.clone();
    with_secret["credential"] = json!({ "openAI_key": "sk-canary" });
    let reason = edge
        .post(&path, &with_secret.to_string())
        .await
        .refused(400);
    assert!(
        reason.contains("env:NAME") && !reason.contains("canary"),
        "{reason}"
    );

    for (field, value, says) in [
        ("credentials", json!("env:KEY"), "'credentials'"),
        (
            "credential",
            json!({ "a": "env:A", "b": "env:B" }),
            "one reference",
        ),
        (
            "headers",
            json!({ "Authorization": "Bearer sk-canary" }),
            "'authorization'",
        ),
        (
            "headers",
            json!({ "api-key": "${credential.openAI_key}" }),
            "'api-key'",
        ),
        ("url", json!("https://${parameters.where}/v1"), "'where'"),
        ("provider", json!("acme"), "provider"),
        ("actions", json!([]), "predict"),
        (
            "actions",
            json!([{ "action_type": "predict", "method": "GET" }]),
            "POST",
        ),
    ] {
        let mut bad = body.clone();
        bad[field] = value;
        let reason = edge.post(&path, &bad.to_string()).await.refused(400);
        assert!(
            reason.contains(says) && !reason.contains("canary"),
            "{reason}"
        );
    }

    let register = r#"{"name":"chat","function_name":"remote","connector_id":"gpt"}"#;
    edge.post(&format!("{ML}/models/_register"), register)
        .await
        .ok();
    let model = edge.get(&format!("{ML}/models/chat")).await.ok();
    assert_eq!(
        (&model["algorithm"], &model["connector_id"]),
        (&json!("REMOTE"), &json!("gpt"))
    );
    edge.delete(&format!("{ML}/connectors/gpt")).await.ok();
    edge.get(&format!("{ML}/connectors/gpt")).await.refused(404);
}

#[tokio::test]
async fn a_model_may_bring_its_connector() {
    let edge = Edge::start().await;
    let body = json!({
        "name": "claude",
        "function_name": "remote",
        "connector": {
            "connector_id": "anthropic",
            "url": "https://llm.example/v1/messages",
            "model": "large",
            "credential": "file:/run/secrets/key",
        },
    });
    edge.post(&format!("{ML}/models/_register"), &body.to_string())
        .await
        .ok();
    let shown = edge.get(&format!("{ML}/connectors/anthropic")).await.ok();
    assert_eq!(shown["provider"], "anthropic");
    assert_eq!(
        edge.get(&format!("{ML}/models/claude")).await.ok()["connector_id"],
        "anthropic"
    );
}

#[tokio::test]
async fn a_write_without_a_leader_says_when_to_come_back() {
    let edge = Edge::start().await;
    let refusal = PredictError::new(ErrorCode::Unavailable, "no leader is known")
        .with_retry_after(std::time::Duration::from_millis(1_200))
        .with_source("10.0.0.7:7100 refused");
    edge.cluster.write_refusal.lock().replace(refusal);
    let reply = edge
        .post(
            &format!("{ML}/models/_register"),
            r#"{"name":"m","function_name":"text"}"#,
        )
        .await;
    assert_eq!(reply.refused(503), "no leader is known");
    assert_eq!(reply.headers["retry-after"], "2");
    assert!(!reply.text().contains("10.0.0.7"), "causes are for the log");
}

#[tokio::test]
async fn operators_see_the_cluster() {
    let edge = Edge::start().await;
    edge.cluster
        .script("m", Script::Chunks(vec![text("a"), last()]));
    let status = edge.get("/_volley/status").await.ok();
    assert_eq!(
        status["node"],
        json!({ "id": 1, "role": "leader", "leader": 1, "term": 3 })
    );
    assert_eq!(
        status["coordinators"],
        json!([{
            "id": 1, "address": "127.0.0.1:7100", "voter": true, "level": null, "version": null,
            "active_streams": null, "drain": null,
        }])
    );
    let worker = &status["workers"][0];
    assert_eq!(
        (&worker["id"], &worker["liveness"]),
        (&json!("w1"), &json!("alive"))
    );
    assert_eq!(worker["last_heard_ms"], 120);
    assert_eq!(worker["memory_bytes"], 1 << 20);
    let gpu = &worker["gpus"][0];
    assert_eq!(gpu["total_bytes"], 4_u64 << 30);
    assert_eq!(
        (&gpu["index"], &gpu["utilization_percent"]),
        (&json!(0), &json!(50))
    );
    assert_eq!(worker["replicas"][0]["state"], "ready");
    assert_eq!(worker["replicas"][0]["capacity"], 8);
    assert_eq!(
        status["models"],
        json!([{ "id": "m", "version": 1, "state": "DEPLOYED", "desired_replicas": 1, "ready_replicas": 1,
                 "failure": null, "unplaced": null }])
    );
    assert_eq!(status["active_streams"], 0);

    assert_eq!(
        edge.get("/_volley/health/live").await.ok(),
        json!({ "live": true })
    );
    assert_eq!(
        edge.get("/_volley/health/ready").await.ok(),
        json!({ "ready": true })
    );
    edge.cluster
        .draining
        .store(true, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(edge.get("/_volley/health/ready").await.status, 503);
    assert_eq!(edge.get("/_volley/health/live").await.status, 200);

    let metrics = edge.get("/metrics").await;
    assert_eq!(metrics.text(), "# EOF\n");
    assert!(
        metrics.headers["content-type"]
            .to_str()
            .unwrap()
            .contains("openmetrics-text")
    );
    assert_eq!(edge.get("/").await.ok()["name"], "volley");
}

#[tokio::test]
async fn coordinators_join_and_leave() {
    let edge = Edge::start().await;
    let joined = edge
        .post(
            "/_volley/nodes/join",
            r#"{"id":2,"address":"127.0.0.1:7101"}"#,
        )
        .await
        .ok();
    assert_eq!(joined["coordinators"][1]["id"], 2);
    edge.post("/_volley/nodes/2/leave", "").await.ok();
    edge.post("/_volley/nodes/1/leave", "").await.refused(409);
    edge.post("/_volley/nodes/one/leave", "").await.refused(400);
    let replaced = edge
        .post(
            "/_volley/nodes/1/replace",
            r#"{"id":4,"address":"127.0.0.1:7104"}"#,
        )
        .await
        .ok();
    assert_eq!(replaced["coordinators"][0]["id"], 4);
    let path = "/_volley/nodes/7/replace";
    edge.post(path, r#"{"id":4,"address":"127.0.0.1:7104"}"#)
        .await
        .refused(404);
    edge.post(path, "{}").await.refused(400);
    let leader = "/_volley/leader/transfer";
    assert_eq!(edge.post(leader, "").await.ok()["leader"], 1);
    assert_eq!(edge.post(leader, r#"{"to":2}"#).await.ok()["leader"], 2);
    edge.post(leader, r#"{"to":"x"}"#).await.refused(400);
    edge.post("/_volley/nodes/join", r#"{"id":2}"#)
        .await
        .refused(400);
}

#[tokio::test]
async fn unknown_routes_and_methods_are_errors_of_the_dialect() {
    let edge = Edge::start().await;
    edge.get("/nowhere").await.refused(404);
    edge.get("/_plugins/_ml/nowhere/x").await.refused(404);
    edge.get("/_plugins/_ml/tasks/what-is-it")
        .await
        .refused(404);
    let wrong = edge.get("/_plugins/_ml/models/m/_predict").await;
    assert_eq!(wrong.status, 405, "{}", wrong.text());
    assert_eq!(wrong.headers["allow"], "POST");
    assert_eq!(wrong.json()["status"], 405);
}

#[tokio::test]
async fn a_request_keeps_its_id_when_that_is_well_formed() {
    let edge = Edge::start().await;
    for (given, kept) in [("abc-1", true), ("not a valid id", false)] {
        let mut request = request(Method::GET, "/", "");
        request
            .headers_mut()
            .insert("x-request-id", given.parse().unwrap());
        let reply = edge.send(request).await;
        assert_eq!(reply.headers["x-request-id"] == given, kept);
    }
}

#[tokio::test]
async fn a_defect_is_a_plain_500_and_the_next_request_is_served() {
    let edge = Edge::start().await;
    edge.cluster.script("broken", Script::Panics);
    let reply = edge
        .post(
            "/_plugins/_ml/models/broken/_predict",
            r#"{"parameters":{"prompt":"x"}}"#,
        )
        .await;
    reply.refused(500);
    assert!(!reply.text().contains("secret"), "{}", reply.text());
    assert_eq!(edge.get("/").await.status, 200);
}

#[tokio::test]
async fn a_node_without_rest_has_health_and_metrics() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let shutdown = tokio_util::sync::CancellationToken::new();
    let metrics = std::sync::Arc::new(|| "# EOF\n".to_owned());
    let ready = std::sync::Arc::new(|| false);
    let config = volley_gateway::EdgeConfig::default();
    let gate = std::sync::Arc::new(volley_security::Authenticator::open());
    let node = volley_gateway::serve_node(listener, metrics, ready, config, gate, shutdown.clone());
    let node = tokio::spawn(node);
    let ask = |path: &'static str| super::support::ask(address, request(Method::GET, path, ""));
    assert_eq!(ask("/_volley/health/live").await.status, 200);
    assert_eq!(ask("/_volley/health/ready").await.status, 503);
    assert_eq!(ask("/metrics").await.text(), "# EOF\n");
    ask("/_volley/status").await.refused(404);
    shutdown.cancel();
    tokio::time::timeout(super::support::SOON, node)
        .await
        .unwrap()
        .unwrap();
}

#[test]
fn routes_are_documented() {
    let document = include_str!("../../../../docs/reference/rest.md");
    for route in [
        "/connectors/_create",
        "/connectors/_search",
        "/connectors/{id}",
        "/models/_register",
        "/models/_search",
        "/models/{id}",
        "/models/{id}/_deploy",
        "/models/{id}/_undeploy",
        "/models/{id}/_pause",
        "/models/{id}/_resume",
        "/models/{id}/_rollback",
        "/models/{id}/_predict",
        "/models/{id}/_predict/stream",
        "/tasks/{id}",
    ] {
        assert!(document.contains(&format!("{ML}{route}")), "{route}");
    }
    let errors = include_str!("../../../../docs/reference/errors.md");
    for code in ErrorCode::ALL {
        assert!(errors.contains(&format!("`{}`", code.as_str())), "{code}");
    }
}
