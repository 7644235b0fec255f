//! The plugin's interface: changes of connectors, model groups, searches, tasks, statistics, nodes
//! and cluster settings.

use http::Method;
use serde_json::{Value, json};

use crate::support::{Edge, Reply, Script, last, request};

const ML: &str = "/_plugins/_ml";
const SETTINGS: &str = "/_cluster/settings";

async fn put(edge: &Edge, path: &str, body: &Value) -> Reply {
    edge.send(request(Method::PUT, path, &body.to_string()))
        .await
}

async fn registered(edge: &Edge, body: &Value) {
    let path = format!("{ML}/models/_register");
    edge.post(&path, &body.to_string()).await.ok();
}

fn ids(found: &Value) -> Vec<&str> {
    let hits = found["hits"]["hits"].as_array().unwrap().iter();
    hits.map(|hit| hit["_id"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_connector_is_changed_field_by_field() {
    let edge = Edge::start().await;
    let url = "https://llm.example/v1/chat/completions";
    let body = json!({
        "connector_id": "gpt", "url": url, "model": "small", "credential": "env:KEY",
        "parameters": { "temperature": 0.5, "top_p": 0.9 },
    });
    let create = format!("{ML}/connectors/_create");
    edge.post(&create, &body.to_string()).await.ok();
    let path = format!("{ML}/connectors/gpt");
    let change = json!({ "parameters": { "temperature": 1.0 }, "name": "Chat",
                         "client_config": { "max_retry_times": 0 } });
    let changed = put(&edge, &path, &change).await.ok();
    assert_eq!(changed["result"], "updated");
    let shown = edge.get(&path).await.ok();
    assert_eq!(
        shown["parameters"],
        json!({ "temperature": 1.0, "top_p": 0.9 })
    );
    assert_eq!(
        (&shown["name"], &shown["url"]),
        (&json!("Chat"), &json!(url))
    );
    assert_eq!(shown["client_config"]["max_retry_times"], 0);
    assert_eq!(shown["client_config"]["retry_backoff_millis"], 100);
    assert_eq!(shown["credential"], "env:KEY");

    // A new URL changes the provider, and a model in the parameters changes the model.
    let change = json!({
        "parameters": { "model": "command" },
        "actions": [{ "action_type": "predict", "method": "POST", "url": "https://api.cohere.com/v2/chat" }],
    });
    put(&edge, &path, &change).await.ok();
    let shown = edge.get(&path).await.ok();
    assert_eq!(
        (&shown["provider"], &shown["model"]),
        (&json!("cohere"), &json!("command"))
    );

    let nobody = format!("{ML}/connectors/nobody");
    put(&edge, &nobody, &change).await.refused(404);
    for bad in [
        json!({ "connector_id": "other" }),
        json!({ "credential": "sk-canary" }),
        json!({ "colour": "red" }),
        json!({ "parameters": 1 }),
    ] {
        let reason = put(&edge, &path, &bad).await.refused(400);
        assert!(!reason.contains("canary"), "{reason}");
    }
}

#[tokio::test]
async fn models_are_grouped_and_found_by_what_they_are() {
    let edge = Edge::start().await;
    let groups = format!("{ML}/model_groups");
    let body = json!({ "name": "search", "description": "for search", "access_mode": "public" });
    let made = edge
        .post(&format!("{groups}/_register"), &body.to_string())
        .await
        .ok();
    assert_eq!(made["status"], "CREATED");
    let group = made["model_group_id"].as_str().unwrap();
    let words = json!({ "name": "words", "function_name": "text", "model_group_id": group,
                        "description": "splits a prompt" });
    registered(&edge, &words).await;
    registered(&edge, &json!({ "name": "drill", "function_name": "fake" })).await;

    let path = format!("{groups}/{group}");
    let shown = edge.get(&path).await.ok();
    assert_eq!(
        (&shown["name"], &shown["latest_version"]),
        (&json!("search"), &json!(1))
    );
    let model = edge.get(&format!("{ML}/models/words")).await.ok();
    assert_eq!(model["model_group_id"], group);
    let renamed = put(&edge, &path, &json!({ "name": "find" })).await.ok();
    assert_eq!(renamed, json!({ "status": "Updated" }));

    let search = format!("{ML}/models/_search");
    let found = |query: Value| {
        let body = json!({ "query": query, "sort": [{ "name.keyword": "desc" }] }).to_string();
        let (edge, search) = (&edge, &search);
        async move { edge.post(search, &body).await.ok() }
    };
    let in_group = found(json!({ "term": { "model_group_id": group } })).await;
    assert_eq!(ids(&in_group), ["words"]);
    let described = found(json!({ "match": { "description": "PROMPT" } })).await;
    assert_eq!(ids(&described), ["words"]);
    let all = found(json!({ "bool": { "should": [
        { "terms": { "algorithm": ["FAKE", "TEXT"] } }, { "ids": { "values": ["nobody"] } },
    ] } }))
    .await;
    assert_eq!(ids(&all), ["words", "drill"]);
    assert_eq!(all["hits"]["hits"][0]["_index"], ".plugins-ml-model");
    let named = json!({ "query": { "match": { "name": "find" } } }).to_string();
    let groups_found = edge.post(&format!("{groups}/_search"), &named).await.ok();
    assert_eq!(ids(&groups_found), [group]);
    let reason = edge
        .post(&search, r#"{"query":{"fuzzy":{}}}"#)
        .await
        .refused(400);
    assert!(reason.contains("match_phrase"), "{reason}");

    // Removes a model from its group and changes its description.
    let model = format!("{ML}/models/words");
    let change = json!({ "model_group_id": null, "description": "words" });
    put(&edge, &model, &change).await.ok();
    assert_eq!(edge.get(&model).await.ok()["model_group_id"], Value::Null);
    for bad in [
        json!({}),
        json!({ "name": "x" }),
        json!({ "is_enabled": false }),
        json!({ "model_group_id": 1 }),
    ] {
        put(&edge, &model, &bad).await.refused(400);
    }
    edge.delete(&path).await.ok();
    edge.get(&path).await.refused(404);
    let lost = json!({ "name": "w", "function_name": "text", "model_group_id": group });
    let register = format!("{ML}/models/_register");
    edge.post(&register, &lost.to_string()).await.refused(404);
    for bad in [
        json!({ "name": "a", "access_mode": "private" }),
        json!({}),
        json!({ "name": 1 }),
    ] {
        edge.post(&format!("{groups}/_register"), &bad.to_string())
            .await
            .refused(400);
    }
}

#[tokio::test]
async fn tasks_are_searched_and_forgotten() {
    let edge = Edge::start().await;
    registered(&edge, &json!({ "name": "words", "function_name": "text" })).await;
    let deploy = edge
        .post(&format!("{ML}/models/words/_deploy"), "")
        .await
        .ok();
    let task = deploy["task_id"].as_str().unwrap();
    let search = format!("{ML}/tasks/_search");
    let all = edge.get(&search).await.ok();
    assert_eq!(ids(&all), ["register-words-1", task]);
    let body = r#"{"query":{"bool":{"must":[{"term":{"task_type":"DEPLOY_MODEL"}}]}}}"#;
    let found = edge.post(&search, body).await.ok();
    assert_eq!(ids(&found), [task]);
    assert_eq!(found["hits"]["hits"][0]["_source"]["function_name"], "TEXT");

    *edge.cluster.replica_state.lock() = Some(volley_types::registry::ReplicaState::Loading);
    let path = format!("{ML}/tasks/{task}");
    edge.delete(&path).await.refused(409);
    *edge.cluster.replica_state.lock() = None;
    assert_eq!(edge.delete(&path).await.ok()["result"], "deleted");
    edge.get(&path).await.refused(404);
    edge.delete(&path).await.refused(404);
    assert_eq!(ids(&edge.get(&search).await.ok()), ["register-words-1"]);
}

#[tokio::test]
async fn models_go_to_the_nodes_that_are_named() {
    let edge = Edge::start().await;
    registered(&edge, &json!({ "name": "words", "function_name": "text" })).await;
    let deploy = format!("{ML}/models/words/_deploy");
    let reason = edge
        .post(&deploy, r#"{"node_ids":["w9"]}"#)
        .await
        .refused(400);
    assert!(reason.contains("'w9'"), "{reason}");
    edge.post(&deploy, r#"{"node_ids":"w1"}"#)
        .await
        .refused(400);
    edge.post(&deploy, r#"{"node_ids":["w1"]}"#).await.ok();
    let model = edge.get(&format!("{ML}/models/words")).await.ok();
    assert_eq!(model["deploy_to_all_nodes"], false);
    let body = r#"{"model_ids":["words"],"node_ids":["w1"]}"#;
    let gone = edge
        .post(&format!("{ML}/models/_undeploy"), body)
        .await
        .ok();
    assert_eq!(
        gone,
        json!({ "w1": { "stats": { "words": "UNDEPLOYED" } } })
    );
    let body = r#"{"model_ids":["nobody"]}"#;
    edge.post(&format!("{ML}/models/_undeploy"), body)
        .await
        .refused(404);
    edge.post(&format!("{ML}/models/words/_load"), "")
        .await
        .ok();
    edge.post(&format!("{ML}/models/words/_unload"), "")
        .await
        .ok();
}

#[tokio::test]
async fn figures_are_of_the_cluster() {
    let edge = Edge::start().await;
    edge.cluster.script("m", Script::Chunks(vec![last()]));
    let stats = edge.get(&format!("{ML}/stats")).await.ok();
    assert_eq!(stats["ml_model_count"], 1);
    assert_eq!(stats["nodes"]["w1"]["ml_deployed_model_count"], 1);
    assert_eq!(stats["nodes"]["coordinator-1"]["ml_request_count"], 0);
    let one = edge
        .get(&format!("{ML}/stats/ml_connector_count"))
        .await
        .ok();
    assert_eq!(one, json!({ "ml_connector_count": 0 }));
    let node = edge
        .get(&format!("{ML}/w1/stats/ML_EXECUTING_TASK_COUNT"))
        .await
        .ok();
    assert_eq!(
        node,
        json!({ "nodes": { "w1": { "ml_executing_task_count": 1 } } })
    );
    edge.get(&format!("{ML}/w9/stats")).await.refused(404);
    edge.get(&format!("{ML}/stats/ml_jvm")).await.refused(400);

    let profile = edge.get(&format!("{ML}/profile")).await.ok();
    assert_eq!(
        profile["nodes"]["w1"]["models"]["m"]["model_state"],
        "DEPLOYED"
    );
    assert_eq!(profile["models"]["m"]["worker_nodes"], json!(["w1"]));
    let one = edge.get(&format!("{ML}/profile/models/m")).await.ok();
    assert_eq!(one, profile);
    edge.get(&format!("{ML}/profile/models/x"))
        .await
        .refused(404);
    let tasks = edge
        .get(&format!("{ML}/profile/tasks/register-m-1"))
        .await
        .ok();
    let task = &tasks["nodes"]["w1"]["tasks"]["register-m-1"];
    assert_eq!(task["state"], "COMPLETED");
    let body = json!({ "node_ids": ["w9"] }).to_string();
    let none = edge
        .send(request(Method::GET, &format!("{ML}/profile"), &body))
        .await
        .ok();
    assert_eq!(none["nodes"], json!({}));
}

#[tokio::test]
async fn settings_that_mean_something_take_effect() {
    let edge = Edge::start().await;
    let set = |name: &str, value: Value| {
        let body = json!({ "persistent": { format!("plugins.ml_commons.{name}"): value } });
        let edge = &edge;
        async move { put(edge, SETTINGS, &body).await }
    };
    let answer = set(
        "trusted_connector_endpoints_regex",
        json!(["^https://good\\.example/.*$"]),
    )
    .await
    .ok();
    assert_eq!(answer["acknowledged"], true);
    let create = format!("{ML}/connectors/_create");
    let to = |host: &str| {
        let url = format!("https://{host}/v1/chat/completions");
        json!({ "connector_id": "c", "url": url, "model": "m" }).to_string()
    };
    let reason = edge.post(&create, &to("bad.example")).await.refused(400);
    assert!(reason.contains("trusted connector endpoint"), "{reason}");
    edge.post(&create, &to("good.example")).await.ok();
    let change = json!({ "url": "https://bad.example/v1/chat/completions" });
    put(&edge, &format!("{ML}/connectors/c"), &change)
        .await
        .refused(400);

    set("stream_enabled", json!(false)).await.ok();
    edge.cluster.script("m", Script::Chunks(vec![last()]));
    let stream = format!("{ML}/models/m/_predict/stream");
    let prompt = r#"{"parameters":{"prompt":"x"}}"#;
    let reason = edge.post(&stream, prompt).await.refused(403);
    assert!(
        reason.contains("plugins.ml_commons.stream_enabled"),
        "{reason}"
    );
    set("stream_enabled", Value::Null).await.ok();
    assert_eq!(edge.post(&stream, prompt).await.status, 200);

    set("allow_registering_model_via_local_file", json!("false"))
        .await
        .ok();
    let local = json!({ "name": "l", "function_name": "onnx", "path": "/m" }).to_string();
    edge.post(&format!("{ML}/models/_register"), &local)
        .await
        .refused(403);
    set("local_model.enabled", json!(false)).await.ok();

    let shown = edge
        .get(&format!(
            "{SETTINGS}?flat_settings=true&include_defaults=true"
        ))
        .await
        .ok();
    let name = "plugins.ml_commons.local_model.enabled";
    assert_eq!(shown["persistent"][name], "false");
    assert_eq!(
        shown["defaults"]["plugins.ml_commons.stream_enabled"],
        "true"
    );
    set("max_model_on_node", json!(2)).await.ok();
    let reason = set("never_heard_of", json!(1)).await.refused(400);
    assert!(reason.contains("not recognized"), "{reason}");
    put(&edge, SETTINGS, &json!({ "transient": { "a": 1 } }))
        .await
        .refused(400);
}

#[tokio::test]
async fn a_stream_names_an_interface_that_is_known_or_none() {
    let edge = Edge::start().await;
    edge.cluster.script("m", Script::Chunks(vec![last()]));
    let path = format!("{ML}/models/m/_predict/stream");
    for (interface, status) in [
        (json!("openai/v1/chat/completions"), 200),
        (json!(" OpenAI/v1/chat/completions "), 200),
        (json!("bedrock/converse"), 200),
        (json!("bedrock/converse/claude"), 200),
        (json!("bedrock/converse/deepseek_r1"), 200),
        (json!("gemini/v1beta/generatecontent"), 200),
        (json!("acme/v1"), 400),
        (json!(7), 400),
    ] {
        let body = json!({ "parameters": { "prompt": "x", "_llm_interface": interface } });
        let reply = edge.post(&path, &body.to_string()).await;
        assert_eq!(reply.status, status, "{interface}: {}", reply.text());
    }
    let old = format!("{ML}/_predict/remote/m");
    edge.post(&old, r#"{"parameters":{"prompt":"x"}}"#)
        .await
        .ok();
}

#[tokio::test]
async fn a_batch_is_predicted_while_nobody_waits() {
    let edge = Edge::start().await;
    edge.cluster.script(
        "m",
        Script::Chunks(vec![crate::support::text("hi"), last()]),
    );
    let path = format!("{ML}/models/m/_batch_predict");
    let prompt = r#"{"parameters":{"prompt":"x"}}"#;
    let begun = edge.post(&path, prompt).await.ok();
    assert_eq!(begun["status"], "CREATED");
    let task = format!("{ML}/tasks/{}", begun["task_id"].as_str().unwrap());
    let done = async {
        loop {
            let told = edge.get(&task).await.ok();
            if told["state"] != "RUNNING" {
                return told;
            }
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
    };
    let told = tokio::time::timeout(crate::support::SOON, done)
        .await
        .unwrap();
    assert_eq!(
        (&told["state"], &told["task_type"]),
        (&json!("COMPLETED"), &json!("BATCH_PREDICTION"))
    );
    let output = &told["response"]["inference_results"][0]["output"][0];
    assert_eq!(output["dataAsMap"]["response"], "hi");
    let query = r#"{"query":{"term":{"task_type":"BATCH_PREDICTION"}}}"#;
    let found = edge.post(&format!("{ML}/tasks/_search"), query).await.ok();
    assert_eq!(found["hits"]["total"]["value"], 1);
    edge.post(&format!("{task}/_cancel"), "").await.refused(409);
    edge.delete(&task).await.ok();
    edge.get(&task).await.refused(404);

    // Cancelling a running batch ends its prediction.
    let _feed = edge.cluster.feed("slow");
    let slow = format!("{ML}/models/slow/_batch_predict");
    let begun = edge.post(&slow, prompt).await.ok();
    let task = format!("{ML}/tasks/{}", begun["task_id"].as_str().unwrap());
    assert_eq!(edge.get(&task).await.ok()["state"], "RUNNING");
    edge.delete(&task).await.refused(409);
    let open = edge.cluster.open.clone();
    let count = || open.load(std::sync::atomic::Ordering::SeqCst);
    crate::support::eventually("the prediction", || count() == 1).await;
    let most = "plugins.ml_commons.max_batch_inference_tasks";
    let one = json!({ "persistent": { most: 1 } });
    put(&edge, SETTINGS, &one).await.ok();
    let full = edge.post(&slow, prompt).await.refused(429);
    assert!(full.contains(most), "{full}");
    let any = json!({ "persistent": { most: null } });
    put(&edge, SETTINGS, &any).await.ok();
    edge.post(&format!("{task}/_cancel_batch"), "").await.ok();
    assert_eq!(edge.get(&task).await.ok()["state"], "CANCELLED");
    crate::support::eventually("its end", || count() == 0).await;
    edge.post(&path, "{}").await.refused(400);
    edge.post(&format!("{ML}/tasks/batch-1-x/_cancel"), "")
        .await
        .refused(404);
}
