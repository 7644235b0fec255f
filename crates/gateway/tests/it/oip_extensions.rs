//! The Open Inference Protocol: arbitrary bytes, versions, configurations, flat objects, shared
//! memory and documents.

use std::sync::Arc;

use arrow_array::{ArrayRef, Float32Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema};
use serde_json::{Value, json};
use volley_gateway::ApiConfig;
use volley_types::signature::{ModelMetadata, SERVED_VERSION, with_octets};
use volley_types::{ParamValue, Signature, Task};

use super::support::{Edge, Reply, Script, last, text};

const INFER: &str = "/v2/models/m/infer";

fn refused(reply: &Reply, status: u16) -> String {
    assert_eq!(reply.status, status, "{}", reply.text());
    reply.json()["error"].as_str().unwrap().to_owned()
}

/// Takes texts of arbitrary bytes, and returns them with a number.
fn signature() -> Signature {
    let text = |name: &str| Field::new(name, DataType::Utf8, false);
    Signature {
        task: Task::Tensors,
        input: Arc::new(Schema::new(vec![with_octets(text("x"))])),
        output: Arc::new(Schema::new(vec![
            text("y"),
            Field::new("n", DataType::Float32, false),
        ])),
    }
}

async fn edge_of(signature: Signature, config: ApiConfig) -> Edge {
    let edge = Edge::with(config).await;
    let output = signature.output.clone();
    let answer = move |rows: RecordBatch| {
        let number: ArrayRef = Arc::new(Float32Array::from(vec![0.5; rows.num_rows()]));
        let columns = vec![rows.column(0).clone(), number];
        Ok(RecordBatch::try_new(output.clone(), columns).unwrap())
    };
    edge.cluster
        .script("m", Script::Tensors(signature, Box::new(answer)));
    edge
}

async fn edge() -> Edge {
    edge_of(signature(), ApiConfig::default()).await
}

fn texts(data: &Value, parameters: &Value) -> Value {
    let count = data.as_array().map_or(1, Vec::len);
    json!({ "name": "x", "datatype": "BYTES", "shape": [count], "data": data,
            "parameters": parameters })
}

#[tokio::test]
async fn bytes_of_any_kind_go_both_ways_in_json() {
    let edge = edge().await;
    let coded = texts(
        &json!(["/wA=", "aGk="]),
        &json!({ "content_type": "base64" }),
    );
    let body = json!({ "inputs": [coded] }).to_string();
    let told = edge.post(INFER, &body).await.ok()["outputs"][0].clone();
    assert_eq!(told["data"], json!(["/wA=", "aGk="]));
    assert_eq!(told["parameters"], json!({ "content_type": "base64" }));
    let called = edge.cluster.last_call();
    let column: &StringArray =
        arrow_array::cast::AsArray::as_string(called.rows.column(0).as_ref());
    assert_eq!(
        volley_types::octets::to_bytes(column.value(0)).as_ref(),
        b"\xff\0"
    );
    // Plain texts are returned as texts.
    let plain = json!({ "inputs": [texts(&json!(["hi"]), &json!({}))] });
    let told = edge.post(INFER, &plain.to_string()).await.ok();
    assert_eq!(told["outputs"][0]["data"], json!(["hi"]));
    assert!(told["outputs"][0].get("parameters").is_none());
    let broken = texts(&json!(["?"]), &json!({ "content_type": "base64" }));
    let body = json!({ "inputs": [broken] }).to_string();
    assert!(refused(&edge.post(INFER, &body).await, 400).contains("base64"));
}

#[tokio::test]
async fn no_rows_are_no_rows_and_outputs_are_asked_for_once() {
    let edge = edge().await;
    let none = json!({ "inputs": [texts(&json!([]), &json!({}))] });
    let told = edge.post(INFER, &none.to_string()).await.ok();
    assert_eq!(told["outputs"][0]["shape"], json!([0]));
    assert_eq!(told["outputs"][1]["data"], json!([]));
    let asked = |outputs: Value| {
        json!({ "inputs": [texts(&json!(["a"]), &json!({}))], "outputs": outputs }).to_string()
    };
    let twice = asked(json!([{ "name": "n" }, { "name": "n" }]));
    assert!(refused(&edge.post(INFER, &twice).await, 400).contains("twice"));
    let many = asked(json!([{ "name": "n", "parameters": { "classification": 1_000_000_000 } }]));
    let told = edge.post(INFER, &many).await.ok();
    assert_eq!(told["outputs"][0]["data"], json!(["0.500000:0"]));
    let wide = json!({
        "inputs": [texts(&json!(vec!["a"; 65_537]), &json!({}))],
        "outputs": [{ "name": "n", "parameters": { "classification": 1 } }],
    });
    let message = refused(&edge.post(INFER, &wide.to_string()).await, 413);
    assert!(message.contains("classification"), "{message}");
}

#[tokio::test]
async fn what_a_tensor_does_not_have_is_refused_by_name() {
    let edge = edge().await;
    let good = || json!({ "inputs": [texts(&json!(["a"]), &json!({ "content_type": "str" }))] });
    let with = |pointer: &str, name: &str, value: Value| {
        let mut body = good();
        body["outputs"] = json!([{ "name": "y", "parameters": {} }]);
        body["parameters"] = json!({});
        body.pointer_mut(pointer).unwrap()[name] = value;
        body.to_string()
    };
    for (bad, says) in [
        (
            with("/inputs/0", "paramters", json!({})),
            "'paramters' of input 'x'",
        ),
        (
            with("/inputs/0/parameters", "codec", json!(1)),
            "'codec' of input 'x'",
        ),
        (
            with("/outputs/0", "binary_data", json!(true)),
            "'binary_data' of output 'y'",
        ),
        (
            with("/outputs/0/parameters", "classes", json!(1)),
            "'classes' of output 'y'",
        ),
        (with("/parameters", "headers", json!("x")), "'headers'"),
    ] {
        let message = refused(&edge.post(INFER, &bad).await, 400);
        assert!(message.contains(says), "{message}");
    }
    let headers = with("/parameters", "headers", json!({ "x-team": "search" }));
    edge.post(INFER, &headers).await.ok();

    let story = || Script::Chunks(vec![text("Once"), last()]);
    let asked = |more: Value| {
        let input = json!({ "name": "text_input", "datatype": "BYTES", "shape": [1],
                            "data": ["tell"] });
        let mut body = json!({ "inputs": [input], "outputs": [{ "name": "text_output" }] });
        let fields = body.as_object_mut().unwrap();
        fields.extend(more.as_object().unwrap().clone());
        body.to_string()
    };
    edge.cluster.script("m", story());
    edge.post(INFER, &asked(json!({}))).await.ok();
    let output = |parameters: Value| {
        asked(json!({ "outputs": [{ "name": "text_output", "parameters": parameters }] }))
    };
    for (bad, says) in [
        (output(json!({ "classification": 2 })), "'classification'"),
        (output(json!({ "content_type": "base64" })), "base64"),
        (output(json!({ "classes": 2 })), "'classes' of output"),
        (
            asked(json!({ "parameters": { "headers": { "a": "b" } } })),
            "'headers'",
        ),
    ] {
        for route in ["infer", "infer_stream"] {
            edge.cluster.script("m", story());
            let message = refused(
                &edge.post(&format!("/v2/models/m/{route}"), &bad).await,
                400,
            );
            assert!(message.contains(says), "{message}");
        }
    }
}

#[tokio::test]
async fn what_is_not_there_is_not_found() {
    let edge = edge().await;
    for path in [
        "/v2/models/no",
        "/v2/models/no/ready",
        "/v2/models/no/config",
        "/v2/models/no/stats",
        "/v2/models/a%20b/ready",
        "/v2/models/m/versions/v1.2",
        "/v2/models/m/versions/v1.2/ready",
        "/v2/models/no/docs",
    ] {
        refused(&edge.get(path).await, 404);
    }
}

#[tokio::test]
async fn versions_that_a_replica_serves_are_named_and_told_apart() {
    let config = json!({
        "platform": "onnxruntime_onnx", "backend": "onnxruntime", "max_batch_size": 8,
        "input": [{ "name": "x", "data_type": "TYPE_STRING", "dims": [1], "format": "FORMAT_NONE" }],
        "output": [{ "name": "n", "data_type": "TYPE_FP32", "dims": [1],
                     "label_filename": "labels.txt" }],
    });
    let served = ModelMetadata {
        versions: vec!["beta".to_owned(), "3".to_owned()],
        config: Some(config.clone()),
    };
    let edge = edge_of(served.on(signature()), ApiConfig::default()).await;
    let metadata = edge.get("/v2/models/m").await.ok();
    assert_eq!(metadata["versions"], json!(["beta", "3"]));
    assert_eq!(metadata["platform"], "onnxruntime_onnx");
    assert_eq!(metadata["inputs"][0]["shape"], json!([-1, 1]));
    let told = edge.get("/v2/models/m/config").await.ok();
    assert_eq!(told["max_batch_size"], 8);
    assert_eq!(told["input"], config["input"]);
    assert_eq!(told["output"][0]["label_filename"], "labels.txt");
    assert_eq!(told["name"], "m");
    let body = json!({ "inputs": [texts(&json!(["a"]), &json!({}))] }).to_string();
    for (path, version) in [
        (INFER, "3"),
        ("/v2/models/m/versions/3/infer", "3"),
        ("/v2/models/m/versions/beta/infer", "beta"),
    ] {
        assert_eq!(edge.post(path, &body).await.ok()["model_version"], version);
        let called = edge.cluster.last_call();
        let asked = called.parameters.get(SERVED_VERSION).cloned();
        assert_eq!(asked, Some(ParamValue::Text(version.to_owned())));
    }
    refused(
        &edge.post("/v2/models/m/versions/1/infer", &body).await,
        404,
    );
    // The registry's numbers are not the names of these versions.
    for version in ["1", "2"] {
        let ready = format!("/v2/models/m/versions/{version}/ready");
        let message = refused(&edge.get(&ready).await, 404);
        assert!(
            message.ends_with("is not loaded; loaded: beta, 3"),
            "{message}"
        );
    }
    edge.get("/v2/models/m/versions/beta/ready").await.ok();
}

#[tokio::test]
async fn a_model_of_tensors_generates_flat_objects() {
    let edge = edge().await;
    let path = "/v2/models/m/generate";
    let told = edge.post(path, r#"{"x":"hi","id":"7","own":1}"#).await.ok();
    let expected =
        json!({ "id": "7", "model_name": "m", "model_version": "1", "n": 0.5, "y": "hi" });
    assert_eq!(told, expected);
    assert!(edge.cluster.last_call().parameters.get("own").is_some());
    let told = edge
        .post(path, r#"{"parameters":{"x":["a","b"]}}"#)
        .await
        .ok();
    assert_eq!(told["y"], json!(["a", "b"]));
    for (body, sign) in [
        (r#"{"x":"a","parameters":{"x":"b"}}"#, "'x' is given twice"),
        (r#"{"x":[["a"]]}"#, "flat"),
        (r#"{"y":"a"}"#, "'x' is missing"),
        (r#"{"x":1}"#, "string"),
    ] {
        let message = refused(&edge.post(path, body).await, 400);
        assert!(message.contains(sign), "{message}");
    }
    let stream = edge
        .post("/v2/models/m/generate_stream", r#"{"x":"hi"}"#)
        .await;
    assert_eq!(
        stream.text(),
        "data: {\"model_name\":\"m\",\"model_version\":\"1\",\"n\":0.5,\"y\":\"hi\"}\n\n"
    );
}

#[tokio::test]
async fn documents_tell_the_routes_of_the_protocol_and_of_a_model() {
    let edge = edge().await;
    let page = edge.get("/v2/docs").await;
    assert_eq!(page.status, 200);
    assert!(page.text().contains("/v2/models/{model}/infer"));
    let all = edge.get("/v2/docs/dataplane.json").await.ok();
    assert!(all["openapi"].is_string());
    assert!(all["paths"].get("/v2/models/{model}/infer").is_some());
    assert!(all["paths"].get("/v1/models").is_none());
    let own = edge.get("/v2/models/m/docs/dataplane.json").await.ok();
    let paths: Vec<&String> = own["paths"].as_object().unwrap().keys().collect();
    assert!(
        paths.iter().all(|path| path.starts_with("/v2/models/m")),
        "{paths:?}"
    );
    assert!(own["paths"].get("/v2/models/m/infer").is_some());
    let version = "/v2/models/m/versions/1/docs/dataplane.json";
    let own = edge.get(version).await.ok();
    assert!(own["paths"].get("/v2/models/m/versions/1/infer").is_some());
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn tensors_lie_in_system_shared_memory() {
    let config = ApiConfig {
        shared_memory: true,
        ..ApiConfig::default()
    };
    let edge = edge_of(signature(), config).await;
    let none = edge.get("/v2/systemsharedmemory/status").await.ok();
    assert_eq!(none, json!([]));
    assert_eq!(
        edge.get("/v2/cudasharedmemory/status").await.ok(),
        json!([])
    );
    for path in [
        "/v2/systemsharedmemory/unregister",
        "/v2/cudasharedmemory/unregister",
    ] {
        assert_eq!(edge.post(path, "").await.status, 200, "{path}");
    }
    let key = format!("volley-edge-{}", volley_types::RequestId::random());
    let path = std::path::Path::new("/dev/shm").join(&key);
    let mut content = b"\x02\0\0\0hi".to_vec();
    content.resize(16, 0);
    std::fs::write(&path, content).unwrap();
    let region = "/v2/systemsharedmemory/region/r";
    let body = json!({ "key": format!("/{key}"), "byte_size": 16 }).to_string();
    let register = format!("{region}/register");
    assert_eq!(edge.post(&register, &body).await.status, 200);
    refused(&edge.post(&register, &body).await, 409);
    let status = edge.get(&format!("{region}/status")).await.ok();
    assert_eq!(status[0]["byte_size"], 16);
    let place = |offset: u64, size: u64| {
        json!({ "shared_memory_region": "r", "shared_memory_byte_size": size,
                "shared_memory_offset": offset })
    };
    let asked = json!({
        "inputs": [{ "name": "x", "datatype": "BYTES", "shape": [1], "parameters": place(0, 6) }],
        "outputs": [{ "name": "n", "parameters": place(8, 8) }, { "name": "y" }],
    });
    let told = edge.post(INFER, &asked.to_string()).await.ok();
    assert_eq!(told["outputs"][0]["data"], json!(["hi"]));
    let number = &told["outputs"][1];
    assert!(number.get("data").is_none(), "{number}");
    assert_eq!(number["parameters"]["shared_memory_byte_size"], 4);
    let written = std::fs::read(&path).unwrap();
    assert_eq!(written[8..12], 0.5_f32.to_le_bytes());
    let outside = json!({ "inputs": [
        { "name": "x", "datatype": "BYTES", "shape": [1], "parameters": place(12, 6) }] });
    refused(&edge.post(INFER, &outside.to_string()).await, 400);
    let cuda = "/v2/cudasharedmemory/region/r/register";
    assert!(refused(&edge.post(cuda, "{}").await, 400).contains("CUDA"));
    assert_eq!(
        edge.post(&format!("{region}/unregister"), "").await.status,
        200
    );
    refused(&edge.post(INFER, &asked.to_string()).await, 404);
    std::fs::remove_file(path).unwrap();
}
