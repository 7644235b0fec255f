//! Tenants: objects of one tenant do not exist for another.

use futures::stream;
use http::Method;
use serde_json::{Value, json};
use tonic::{Code, Status};
use volley_proto::inference::triton::{
    ModelConfigRequest, ModelInferRequest, ModelMetadataRequest, ModelReadyRequest,
    ModelStatisticsRequest, RepositoryIndexRequest, RepositoryModelLoadRequest,
    RepositoryModelUnloadRequest,
};

use crate::grpc::triton;
use crate::keys::{edge, keyed, make};
use crate::support::{Edge, request};

#[tokio::test]
async fn a_tenants_key_makes_connectors_of_its_own_with_its_own_secrets() {
    let edge = edge().await;
    let key = json!({ "name": "a", "role": "model-admin", "tenant": "team-a" });
    let (_, key) = make(&edge, key).await;
    let create = |body: Value| {
        let path = "/_plugins/_ml/connectors/_create";
        edge.send(keyed(&key, request(Method::POST, path, &body.to_string())))
    };
    let url = "https://x.test/v1/chat/completions";
    let made = create(json!({ "url": url, "model": "m" })).await.ok();
    let id = made["connector_id"].as_str().unwrap();
    assert!(id.starts_with("team-a."), "{id}");
    let theirs = json!({ "id": "team-b.c", "url": url, "model": "m" });
    let reason = create(theirs).await.refused(403);
    assert!(reason.contains("begin with 'team-a.'"), "{reason}");
    for (credential, status) in [
        ("env:KEY", 403),
        ("file:/key", 403),
        ("secret:team-b.k", 404),
    ] {
        let body = json!({ "url": url, "model": "m", "credential": credential });
        create(body).await.refused(status);
    }
    let own = json!({ "url": url, "model": "m", "credential": "secret:team-a.k" });
    create(own).await.ok();
    let register = |body: Value| {
        let path = "/_plugins/_ml/models/_register";
        edge.send(keyed(&key, request(Method::POST, path, &body.to_string())))
    };
    let model = |source: &str, value: &str| json!({ "name": "team-a.m", source: value });
    register(model("connector_id", id)).await.ok();
    register(model("connector_id", "team-b.c"))
        .await
        .refused(404);
    register(model("path", "/models/team-b")).await.refused(403);
    let listed = json!({ "name": "all", "role": "viewer", "tenant": "team-a", "models": ["*"] });
    let (_, all) = make(&edge, listed).await;
    let whoami = keyed(&all, request(Method::GET, "/_volley/whoami", ""));
    assert_eq!(edge.send(whoami).await.ok()["models"], json!([]));
}

fn with_key<T>(message: T, key: &str) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    let value = format!("Bearer {key}").parse().unwrap();
    request.metadata_mut().insert("authorization", value);
    let id = "walk".parse().unwrap();
    request.metadata_mut().insert("x-request-id", id);
    request
}

/// The responses of every call of the protocol that names a model, for `model`.
async fn calls(edge: &Edge, key: &str, model: &str) -> Vec<(&'static str, Code, String)> {
    let mut client = triton(edge).await;
    let name = || model.to_owned();
    let infer = || ModelInferRequest {
        model_name: model.to_owned(),
        ..ModelInferRequest::default()
    };
    let ready = ModelReadyRequest {
        name: name(),
        version: String::new(),
    };
    let metadata = ModelMetadataRequest {
        name: name(),
        version: String::new(),
    };
    let config = ModelConfigRequest {
        name: name(),
        version: String::new(),
    };
    let statistics = ModelStatisticsRequest {
        name: name(),
        version: String::new(),
    };
    let load = RepositoryModelLoadRequest {
        model_name: name(),
        ..RepositoryModelLoadRequest::default()
    };
    let unload = RepositoryModelUnloadRequest {
        model_name: name(),
        ..RepositoryModelUnloadRequest::default()
    };
    let streamed = client.model_stream_infer(with_key(stream::iter([infer()]), key));
    let mut streamed = streamed.await.unwrap().into_inner();
    let message = streamed.message().await.unwrap().unwrap().error_message;
    let mut told = vec![("ModelStreamInfer", Code::Ok, message)];
    let mut tell = |call, outcome: Result<(), Status>| {
        let status = outcome.err().unwrap_or_else(|| Status::ok(""));
        told.push((call, status.code(), status.message().to_owned()));
    };
    let answer = client.model_ready(with_key(ready, key)).await;
    let is_ready = answer.unwrap().into_inner().ready;
    tell("ModelReady", Err(Status::ok(is_ready.to_string())));
    let answer = client.model_metadata(with_key(metadata, key)).await;
    tell("ModelMetadata", answer.map(drop));
    let answer = client.model_config(with_key(config, key)).await;
    tell("ModelConfig", answer.map(drop));
    let answer = client.model_statistics(with_key(statistics, key)).await;
    tell("ModelStatistics", answer.map(drop));
    let answer = client.model_infer(with_key(infer(), key)).await;
    tell("ModelInfer", answer.map(drop));
    let answer = client.repository_model_load(with_key(load, key)).await;
    tell("RepositoryModelLoad", answer.map(drop));
    let answer = client.repository_model_unload(with_key(unload, key)).await;
    tell("RepositoryModelUnload", answer.map(drop));
    let gone = |(call, code, message): (_, _, String)| (call, code, message.replace(model, "it"));
    told.into_iter().map(gone).collect()
}

#[tokio::test]
async fn no_grpc_call_tells_a_hidden_model_from_one_that_is_not_there() {
    let edge = edge().await;
    let key = json!({ "name": "b", "role": "model-admin", "tenant": "team-b" });
    let (_, key) = make(&edge, key).await;
    let theirs = calls(&edge, &key, "team-a.chat").await;
    assert_eq!(theirs, calls(&edge, &key, "team-a.none").await);
    for (call, code, message) in &theirs {
        if *call == "ModelReady" {
            assert_eq!(message, "false");
            continue;
        }
        let hidden = *code == Code::NotFound || *call == "ModelStreamInfer";
        assert!(hidden, "{call}: {code}");
        assert!(message.starts_with("no model 'it'"), "{call}: {message}");
    }
    // New calls of the protocol must be covered here too.
    let of_no_model = [
        "ServerLive",
        "ServerReady",
        "ServerMetadata",
        "RepositoryIndex",
        "SystemSharedMemoryStatus",
        "SystemSharedMemoryRegister",
        "SystemSharedMemoryUnregister",
        "CudaSharedMemoryStatus",
        "CudaSharedMemoryRegister",
        "CudaSharedMemoryUnregister",
    ];
    let calls = include_str!("../../../../proto/inference/triton.proto").lines();
    for call in calls.filter_map(|line| line.trim().strip_prefix("rpc ")) {
        let call = call.split('(').next().unwrap();
        let walked = theirs.iter().any(|(walked, ..)| *walked == call);
        assert!(walked || of_no_model.contains(&call), "{call}");
    }
    let mut client = triton(&edge).await;
    let index = RepositoryIndexRequest::default();
    let index = client
        .repository_index(with_key(index, &key))
        .await
        .unwrap();
    let models = index.into_inner().models.into_iter().map(|it| it.name);
    assert_eq!(models.collect::<Vec<_>>(), ["team-b.chat"]);
}

#[tokio::test]
async fn no_route_of_the_document_answers_without_a_key_but_health() {
    let edge = edge().await;
    let document = edge.get("/openapi.json").await.ok();
    let mut open = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        let at = path.split('/').map(|part| match part.starts_with('{') {
            true => "x",
            false => part,
        });
        let at = at.collect::<Vec<_>>().join("/");
        for (method, operation) in methods.as_object().unwrap() {
            let method: Method = method.to_ascii_uppercase().parse().unwrap();
            if operation["x-volley-role"].is_null() {
                open.push(path.as_str());
                continue;
            }
            let told = edge.send(request(method.clone(), &at, "")).await;
            assert_eq!(told.status, 401, "{method} {path}");
        }
    }
    let health = ["/_volley/health/live", "/_volley/health/ready"];
    let oip = ["/v2/health/live", "/v2/health/ready"];
    let single = [
        "/health",
        "/ping",
        "/ping",
        "/tei/{model}/health",
        "/tgi/{model}/health",
    ];
    // The OpenAPI document and its page, which names the reader, contain no objects of tenants.
    let interface = ["/docs", "/openapi.json"];
    let mut wanted = [&health[..], &interface, &oip, &single].concat();
    wanted.sort_unstable();
    open.sort_unstable();
    assert_eq!(open, wanted);
}
