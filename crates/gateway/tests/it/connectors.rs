//! Connectors of every provider, selected by name and by URL.

use http::Method;
use serde_json::{Value, json};
use volley_gateway::ApiConfig;
use volley_types::{ErrorCode, PredictError};

use crate::support::{Edge, request};

const PATH: &str = "/_plugins/_ml/connectors";

async fn created(edge: &Edge, body: &Value) -> Value {
    let create = format!("{PATH}/_create");
    let id = edge.post(&create, &body.to_string()).await.ok()["connector_id"].take();
    edge.get(&format!("{PATH}/{}", id.as_str().unwrap()))
        .await
        .ok()
}

#[tokio::test]
async fn a_url_tells_the_provider_and_where_it_can_the_model() {
    let edge = Edge::start().await;
    for (url, provider, model) in [
        ("https://api.cohere.com/v2/chat", "cohere", None),
        ("http://127.0.0.1:11434/api/chat", "ollama", None),
        (
            "https://api.mistral.ai/v1/chat/completions",
            "mistral",
            None,
        ),
        (
            "https://generativelanguage.googleapis.com/v1beta/models/flash:streamGenerateContent",
            "gemini",
            Some("flash"),
        ),
        (
            "https://us-central1-aiplatform.googleapis.com/v1/projects/p/locations/l/publishers/google/models/pro:streamGenerateContent",
            "vertex",
            Some("pro"),
        ),
        (
            "https://us.openai.azure.com/openai/deployments/four/chat/completions?api-version=1",
            "azure",
            Some("four"),
        ),
    ] {
        let body = match model {
            Some(_) => json!({ "url": url }),
            None => json!({ "url": url, "model": "m" }),
        };
        let shown = created(&edge, &body).await;
        assert_eq!(shown["provider"], provider, "{url}");
        assert_eq!(shown["model"], model.unwrap_or("m"), "{url}");
    }
    let none = json!({ "url": "https://api.cohere.com/v2/chat" });
    let reason = edge
        .post(&format!("{PATH}/_create"), &none.to_string())
        .await
        .refused(400);
    assert!(reason.contains("'model'"), "{reason}");
}

#[tokio::test]
async fn limits_further_tries_and_other_servers_are_kept_as_they_are_given() {
    let edge = Edge::start().await;
    let url = "https://llm.example/v1/chat/completions";
    let plain = created(&edge, &json!({ "url": url, "model": "m" })).await;
    let defaults = json!({
        "max_connection": null, "max_requests_per_minute": null, "max_retry_times": 2,
        "retry_backoff_millis": 100, "breaker_window": 20, "breaker_open_millis": 5000,
    });
    assert_eq!(plain["client_config"], defaults);
    assert_eq!(
        (&plain["weight"], &plain["endpoints"]),
        (&json!(1), &json!([]))
    );
    let config = json!({
        "max_connection": 8, "max_requests_per_minute": 600, "max_retry_times": 0,
        "retry_backoff_millis": 50, "breaker_window": 0, "breaker_open_millis": 1000,
    });
    let endpoints = json!([
        { "url": url, "credential": "env:OTHER_KEY", "weight": 3 },
        { "url": "https://api.cohere.com/v2/chat", "model": "command", "fallback": true },
    ]);
    let body = json!({
        "url": url, "model": "m", "weight": 2, "client_config": config, "endpoints": endpoints,
    });
    let shown = created(&edge, &body).await;
    assert_eq!(
        (&shown["client_config"], &shown["weight"]),
        (&config, &json!(2))
    );
    let expected = json!([
        { "provider": "openai", "url": url, "model": "m", "credential": "env:OTHER_KEY",
          "headers": {}, "weight": 3, "fallback": false },
        { "provider": "cohere", "url": "https://api.cohere.com/v2/chat", "model": "command",
          "credential": null, "headers": {}, "weight": 1, "fallback": true },
    ]);
    assert_eq!(shown["endpoints"], expected);
    for (field, value, says) in [
        (
            "client_config",
            json!({ "max_retry_times": 11 }),
            "'max_retry_times'",
        ),
        (
            "client_config",
            json!({ "max_connection": 0 }),
            "'max_connection'",
        ),
        (
            "client_config",
            json!({ "read_timeout": 1 }),
            "'read_timeout'",
        ),
        ("weight", json!(0), "'weight'"),
        ("endpoints", json!({}), "'endpoints'"),
        (
            "endpoints",
            json!([{ "url": url, "credential": "sk-canary" }]),
            "'credential'",
        ),
        ("endpoints", json!([{ "weight": 1 }]), "'url'"),
        (
            "endpoints",
            json!([{ "url": url, "fallback": "no" }]),
            "'fallback'",
        ),
        (
            "endpoints",
            json!([{ "url": url, "provider": "acme" }]),
            "'provider'",
        ),
    ] {
        let mut bad = body.clone();
        bad[field] = value;
        let create = format!("{PATH}/_create");
        let reason = edge.post(&create, &bad.to_string()).await.refused(400);
        assert!(
            reason.contains(says) && !reason.contains("canary"),
            "{reason}"
        );
    }
}

#[tokio::test]
async fn an_endpoint_may_be_another_connector() {
    let edge = Edge::start().await;
    let other = json!({ "connector_id": "claude", "url": "https://api.anthropic.com/v1/messages",
                        "model": "claude-x", "credential": "env:ANTHROPIC_KEY",
                        "headers": { "x-team": "search" } });
    created(&edge, &other).await;
    let url = "https://llm.example/v1/chat/completions";
    let endpoint = json!({ "connector_id": "claude", "fallback": true, "headers": {} });
    let body =
        json!({ "connector_id": "first", "url": url, "model": "m", "endpoints": [endpoint] });
    let shown = created(&edge, &body).await;
    assert_eq!(
        shown["endpoints"],
        json!([{ "provider": "anthropic", "url": "https://api.anthropic.com/v1/messages",
                 "model": "claude-x", "credential": "env:ANTHROPIC_KEY", "headers": {},
                 "weight": 1, "fallback": true }])
    );
    let create = format!("{PATH}/_create");
    for (named, status) in [("nobody", 404), ("first", 400)] {
        let bad = json!({ "url": url, "model": "m", "endpoints": [{ "connector_id": named }] });
        let reason = edge.post(&create, &bad.to_string()).await.refused(status);
        assert!(reason.contains(named), "{reason}");
    }
}

#[tokio::test]
async fn a_blueprints_template_leaves_what_it_fixes() {
    let edge = Edge::start().await;
    let template = r#"{"model": "${parameters.model}", "messages": ${parameters.messages},
                       "temperature": 0.2, "max_tokens": ${parameters.most}}"#;
    let body = json!({
        "name": "Chat", "protocol": "http", "parameters": { "model": "m", "most": 9 },
        "actions": [{ "action_type": "predict", "method": "POST", "request_body": template,
                      "url": "https://llm.example/v1/chat/completions" }],
    });
    let shown = created(&edge, &body).await;
    assert_eq!(
        shown["parameters"],
        json!({ "temperature": 0.2, "max_tokens": 9 })
    );
    assert_eq!(shown["request_body"], Value::Null);
}

#[tokio::test]
async fn a_protocol_names_the_provider_and_its_header_takes_the_key() {
    let edge = Edge::start().await;
    let create = format!("{PATH}/_create");
    for (protocol, header) in [
        ("openai", "Authorization"),
        ("anthropic", "X-API-Key"),
        ("azure", "api-key"),
        ("gemini", "x-goog-api-key"),
        ("vertex", "Authorization"),
        ("cohere", "Authorization"),
        ("mistral", "Authorization"),
        ("ollama", "Authorization"),
    ] {
        let with = |header: &str, value: &str| {
            json!({
                "protocol": protocol, "parameters": { "model": "m" },
                "credential": { "key": "env:LLM_KEY" },
                "actions": [{ "action_type": "predict", "method": "POST",
                              "url": "https://llm.example/answer", "headers": { header: value } }],
            })
        };
        let shown = created(&edge, &with(header, "${credential.key}")).await;
        assert_eq!(shown["provider"], protocol);
        assert_eq!(shown["credential"], "env:LLM_KEY");
        assert_eq!(
            shown["headers"],
            json!({}),
            "the key's header is the provider's"
        );
        let other = if header == "api-key" {
            "x-api-key"
        } else {
            "api-key"
        };
        let other = with(other, "${credential.key}").to_string();
        let reason = edge.post(&create, &other).await.refused(400);
        assert!(reason.contains(&header.to_lowercase()), "{reason}");
        let secret = with(header, "sk-canary").to_string();
        let reason = edge.post(&create, &secret).await.refused(400);
        assert!(!reason.contains("sk-canary"), "{reason}");
    }
    let titan = json!({
        "name": "Titan", "version": 1, "protocol": "aws_sigv4",
        "parameters": { "region": "eu-west-1", "service_name": "bedrock", "model": "amazon.titan-embed-text-v2:0" },
        "credential": { "access_key": "env:AWS_ACCESS_KEY_ID", "secret_key": "env:AWS_SECRET_ACCESS_KEY" },
        "actions": [{
            "action_type": "predict", "method": "POST",
            "url": "https://bedrock-runtime.${parameters.region}.amazonaws.com/model/${parameters.model}/invoke",
            "headers": { "content-type": "application/json", "x-amz-content-sha256": "required" },
            "request_body": "{ \"inputText\": \"${parameters.inputText}\" }",
            "pre_process_function": "connector.pre_process.bedrock.embedding",
            "post_process_function": "connector.post_process.bedrock.embedding",
        }],
    });
    let shown = created(&edge, &titan).await;
    assert_eq!(shown["provider"], "bedrock");
    assert_eq!(shown["credential"], "env:AWS_ACCESS_KEY_ID");
    assert!(
        shown["request_body"]
            .as_str()
            .unwrap()
            .contains("inputText")
    );
    let function = &shown["parameters"]["post_process_function"];
    assert_eq!(function, "connector.post_process.bedrock.embedding");
    let unknown = json!({ "protocol": "mcp_sse", "url": "https://llm.example/", "model": "m" });
    let reason = edge.post(&create, &unknown.to_string()).await.refused(400);
    assert!(
        reason.contains("'protocol'") && reason.contains("http, openai"),
        "{reason}"
    );
}

#[tokio::test]
async fn a_url_that_no_worker_may_call_is_refused_where_it_is_registered() {
    use volley_security::Authenticator;
    use volley_types::egress::EgressPolicy;

    let gate = |_| {
        Authenticator::open().with_egress(EgressPolicy {
            allow_private: false,
            allowed_hosts: Some(vec!["*.llm.example".parse().unwrap()]),
        })
    };
    let strict = Edge::guarded(ApiConfig::default(), gate).await;
    let plain = Edge::start().await;
    let path = "/_plugins/_ml/connectors/_create";
    for (edge, url, says) in [
        (&plain, "http://169.254.169.254/latest", "never called"),
        (&plain, "http://0xa9fea9fe/latest", "never called"),
        (&plain, "http://${parameters.host}/latest", "never called"),
        (
            &plain,
            "http://[::ffff:169.254.169.254]/latest",
            "never called",
        ),
        (
            &plain,
            "http://metadata.google.internal./latest",
            "never called",
        ),
        (&plain, "ftp://llm.example/", "http://"),
        (&plain, "https://me:sk-canary@llm.example/", "credential"),
        (
            &strict,
            "https://api.openai.com/v1/chat/completions",
            "allowed_hosts",
        ),
        (&strict, "http://127.1/v1/chat/completions", "allowed_hosts"),
    ] {
        let fields = json!({ "url": url, "model": "m", "parameters": { "host": "2852039166" } });
        let reason = edge.post(path, &fields.to_string()).await.refused(400);
        assert!(
            reason.contains(says) && !reason.contains("canary"),
            "{url}: {reason}"
        );
        // Together with a server that may be called.
        let mut beside = json!({
            "id": "c", "url": "https://eu.llm.example/v1/chat/completions", "model": "m",
            "endpoints": [{ "url": url }],
        });
        if !url.contains('$') {
            edge.post(path, &beside.to_string()).await.refused(400);
        }
        beside.as_object_mut().unwrap().remove("endpoints");
        edge.post(path, &beside.to_string()).await.ok();
        let change = json!({ "url": url, "parameters": { "host": "2852039166" } }).to_string();
        let change = request(Method::PUT, "/_plugins/_ml/connectors/c", &change);
        edge.send(change).await.refused(400);
    }
    let register = "/_plugins/_ml/models/_register";
    for (edge, url) in [
        (&plain, "http://169.254.169.254/m.zip"),
        (&plain, "http://2852039166/m/"),
        (&plain, "https://[fe80::1]/m.zip"),
        (&strict, "https://models.example/m.zip"),
    ] {
        let model = json!({ "name": "m", "url": url }).to_string();
        edge.post(register, &model).await.refused(400);
    }
    let model = json!({ "name": "m", "url": "https://eu.llm.example/m.zip" }).to_string();
    strict.post(register, &model).await.ok();
    let bucket = json!({ "name": "n", "url": "s3://bucket/m.zip" }).to_string();
    strict.post(register, &bucket).await.ok();
}

#[tokio::test]
async fn a_change_is_checked_on_the_workers_as_a_creation_is() {
    let edge = Edge::start().await;
    *edge.cluster.connector_check.lock() = Some(Ok(()));
    let url = "https://good.example/v1/chat/completions";
    let body = json!({ "connector_id": "c", "url": url, "model": "one" });
    created(&edge, &body).await;
    let path = format!("{PATH}/c");
    let change = |query: &str, model: &str| {
        let body = json!({ "model": model }).to_string();
        edge.send(request(Method::PUT, &format!("{path}{query}"), &body))
    };
    assert_eq!(change("", "two").await.ok().get("warnings"), None);
    let lacks = PredictError::new(
        ErrorCode::Unavailable,
        "its environment variable is missing",
    );
    *edge.cluster.connector_check.lock() = Some(Err(lacks));
    let reason = change("?test=true", "three").await.refused(400);
    for part in [
        "variable is missing",
        "worker w1",
        "change the connector again",
    ] {
        assert!(reason.contains(part), "{reason}");
    }
    assert_eq!(edge.get(&path).await.ok()["model"], "two");
    let asked = edge.cluster.connectors_checked.lock().clone();
    let asked: Vec<_> = asked
        .iter()
        .map(|(model, test)| (&**model, *test))
        .collect();
    assert_eq!(asked, [("one", false), ("two", false), ("three", true)]);
    // Without available workers, the response has a warning.
    *edge.cluster.connector_check.lock() = None;
    let warned = change("", "four").await.ok();
    assert!(
        warned["warnings"][0]
            .as_str()
            .unwrap()
            .contains("no worker is live")
    );
    change("?tset=true", "five").await.refused(400);
}
