//! The Open Inference Protocol: tensors in and out, texts, health, the repository.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::{ArrayRef, FixedSizeListArray, Float32Array, Int64Array, RecordBatch};
use arrow_schema::{DataType, Field, Schema};
use bytes::Bytes;
use http::Method;
use http_body_util::Full;
use serde_json::{Value, json};
use volley_gateway::{ApiConfig, EdgeConfig};
use volley_types::registry::ReplicaState;
use volley_types::{Dialect, FinishReason, GenerationChunk, Signature, Task};

use super::support::{Edge, Reply, Script, last, request, text};

const INFER: &str = "/v2/models/m/infer";

fn refused(reply: &Reply, status: u16) -> String {
    assert_eq!(reply.status, status, "{}", reply.text());
    let body = reply.json();
    assert_eq!(body.as_object().unwrap().len(), 1, "nothing but the error");
    body["error"].as_str().unwrap().to_owned()
}

/// Takes 2 × 2 floats and a number, and returns the floats and the number plus one.
fn signature() -> Signature {
    let item = Arc::new(Field::new("item", DataType::Float32, false));
    let extension = HashMap::from([
        (
            "ARROW:extension:name".to_owned(),
            "arrow.fixed_shape_tensor".to_owned(),
        ),
        (
            "ARROW:extension:metadata".to_owned(),
            r#"{"shape":[2,2]}"#.to_owned(),
        ),
    ]);
    let tensor = |name: &str| {
        Field::new(name, DataType::FixedSizeList(item.clone(), 4), false)
            .with_metadata(extension.clone())
    };
    let number = |name: &str| Field::new(name, DataType::Int64, false);
    Signature {
        task: Task::Tensors,
        input: Arc::new(Schema::new(vec![tensor("x"), number("k")])),
        output: Arc::new(Schema::new(vec![tensor("y"), number("n")])),
    }
}

async fn edge() -> Edge {
    let edge = Edge::start().await;
    let output = signature().output;
    let answer = move |rows: RecordBatch| {
        let more: &Int64Array = arrow_array::cast::AsArray::as_primitive(rows.column(1).as_ref());
        let more: Int64Array = more.unary(|value| value + 1);
        let columns: Vec<ArrayRef> = vec![rows.column(0).clone(), Arc::new(more)];
        Ok(RecordBatch::try_new(output.clone(), columns).unwrap())
    };
    edge.cluster
        .script("m", Script::Tensors(signature(), Box::new(answer)));
    edge
}

fn body(x: Value, shape: &[usize], k: Value, more: &Value) -> String {
    let mut body = json!({
        "id": "7",
        "inputs": [
            { "name": "x", "shape": shape, "datatype": "FP32", "data": x },
            { "name": "k", "shape": [k.as_array().map_or(1, Vec::len)], "datatype": "INT64", "data": k },
        ],
    });
    body.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    body.to_string()
}

#[tokio::test]
async fn tensors_go_in_flat_or_nested_and_come_out() {
    let edge = edge().await;
    let nested = json!([[[1, 2], [3, 4]], [[5, 6], [7, 8]]]);
    let flat = json!([1, 2, 3, 4, 5, 6, 7, 8]);
    for x in [nested, flat] {
        let reply = edge
            .post(INFER, &body(x, &[2, 2, 2], json!([1, 2]), &json!({})))
            .await;
        assert_eq!(
            reply.ok(),
            json!({
                "model_name": "m", "model_version": "1", "id": "7",
                "outputs": [
                    { "name": "y", "datatype": "FP32", "shape": [2, 2, 2],
                      "data": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0] },
                    { "name": "n", "datatype": "INT64", "shape": [2], "data": [2, 3] },
                ],
            })
        );
    }
    let called = edge.cluster.last_call();
    let floats: &FixedSizeListArray =
        arrow_array::cast::AsArray::as_fixed_size_list(called.rows.column(0).as_ref());
    let floats: &Float32Array = arrow_array::cast::AsArray::as_primitive(floats.values().as_ref());
    assert_eq!(floats.value(7), 8.0);
    let only = json!({ "outputs": [{ "name": "n", "parameters": { "binary_data": false } }],
                       "parameters": { "binary_data_output": true, "p": 1 } });
    let asked = body(json!([1, 2, 3, 4]), &[1, 2, 2], json!([9]), &only);
    let reply = edge.post("/v2/models/m/versions/1/infer", &asked);
    let outputs = reply.await.ok()["outputs"].clone();
    assert_eq!(
        outputs,
        json!([{ "name": "n", "datatype": "INT64", "shape": [1], "data": [10] }])
    );
    let called = edge.cluster.last_call();
    // Unknown parameters are ignored, as the protocol requires.
    assert_eq!(called.dialect, Dialect::OpenInference);
    assert_eq!(called.parameters.iter().count(), 1);
}

#[tokio::test]
async fn what_does_not_fit_is_refused_by_name() {
    let edge = edge().await;
    let good = || (json!([1, 2, 3, 4]), [1, 2, 2], json!([9]));
    let (x, shape, k) = good();
    for (bad, sign) in [
        (
            body(json!([1, 2, 3]), &shape, k.clone(), &json!({})),
            "input 'x'",
        ),
        (body(x.clone(), &[4], k.clone(), &json!({})), "input 'x'"),
        (
            body(x.clone(), &shape, k.clone(), &json!({ "inputs": [] })),
            "'inputs'",
        ),
        (
            body(
                x.clone(),
                &shape,
                k.clone(),
                &json!({ "outputs": [{ "name": "z" }] }),
            ),
            "'z'",
        ),
        (
            body(x.clone(), &shape, k.clone(), &json!({ "input": 1 })),
            "'input'",
        ),
        (
            body(x.clone(), &shape, k, &json!({})).replace("INT64", "BOOL"),
            "input 'k': has datatype BOOL, the model takes INT64",
        ),
        (
            body(x, &shape, json!([9]), &json!({})).replace("\"k\"", "\"q\""),
            "'q'",
        ),
    ] {
        let message = refused(&edge.post(INFER, &bad).await, 400);
        assert!(message.contains(sign), "{message}");
    }
    let (x, shape, k) = good();
    let reply = edge
        .post("/v2/models/no/infer", &body(x, &shape, k, &json!({})))
        .await;
    refused(&reply, 404);
    refused(&edge.post("/v2/models/m/versions/x/infer", "{}").await, 404);
    // Triton's clients send no content type; binary tensors are declared by a header.
    for (header, value, status) in [
        ("content-type", "", 200),
        ("content-type", "text/plain", 200),
        ("inference-header-content-length", "2", 400),
        ("content-encoding", "br", 415),
    ] {
        let (x, shape, k) = good();
        let mut asked = request(Method::POST, INFER, &body(x, &shape, k, &json!({})));
        asked.headers_mut().remove("content-type");
        if !value.is_empty() {
            asked.headers_mut().insert(header, value.parse().unwrap());
        }
        assert_eq!(edge.send(asked).await.status, status, "{header}: {value}");
    }
    refused(&edge.get("/v2/nothing").await, 404);
    refused(&edge.get(INFER).await, 405);
}

#[tokio::test]
async fn texts_come_whole_and_as_events() {
    let edge = Edge::start().await;
    let end = GenerationChunk {
        finish_reason: Some(FinishReason::Length),
        ..last()
    };
    let script = || Script::Chunks(vec![text("Once"), text(" \"upon\""), end.clone()]);
    edge.cluster.script("m", script());
    let asked = r#"{"text_input":"tell","id":"9","max_tokens":4,"parameters":{"temperature":0.5,"details":true}}"#;
    let whole = edge.post("/v2/models/m/generate", asked).await.ok();
    assert_eq!(
        whole,
        json!({ "model_name": "m", "model_version": "1", "text_output": "Once \"upon\"",
                "details": { "finish_reason": "length" }, "id": "9" })
    );
    let called = edge.cluster.last_call();
    let given: Vec<_> = called.parameters.iter().map(|(name, _)| name).collect();
    assert_eq!(given, ["max_tokens", "temperature"]);
    edge.cluster.script("m", script());
    let stream = request(
        Method::POST,
        "/v2/models/m/generate_stream",
        r#"{"text_input":"tell"}"#,
    );
    let reply = edge.send(stream).await;
    assert_eq!(reply.headers["content-type"], "text/event-stream");
    assert_eq!(
        reply.text(),
        "data: {\"model_name\":\"m\",\"model_version\":\"1\",\"text_output\":\"Once\"}\n\n\
         data: {\"model_name\":\"m\",\"model_version\":\"1\",\"text_output\":\" \\\"upon\\\"\"}\n\n\
         data: {\"model_name\":\"m\",\"model_version\":\"1\",\"text_output\":\"\",\"finish_reason\":\"length\"}\n\n"
    );
    refused(&edge.post("/v2/models/m/generate", "{}").await, 400);
    let wrong = refused(&edge.post(INFER, r#"{"inputs":[]}"#).await, 400);
    assert!(wrong.contains("'inputs'"), "{wrong}");
}

#[tokio::test]
async fn health_metadata_and_the_repository() {
    let edge = edge().await;
    assert_eq!(edge.get("/v2").await.ok()["name"], "volley");
    assert_eq!(
        edge.get("/v2/health/live").await.ok(),
        json!({ "live": true })
    );
    assert_eq!(
        edge.get("/v2/health/ready").await.ok(),
        json!({ "ready": true })
    );
    let ready = edge.get("/v2/models/m/ready").await.ok();
    assert_eq!(ready["ready"], true);
    refused(&edge.get("/v2/models/no/ready").await, 404);
    let metadata = edge.get("/v2/models/m").await.ok();
    assert_eq!(metadata["versions"], json!(["1"]));
    assert_eq!(
        metadata["inputs"],
        json!([
            { "name": "x", "datatype": "FP32", "shape": [-1, 2, 2] },
            { "name": "k", "datatype": "INT64", "shape": [-1] },
        ])
    );
    let index = edge.post("/v2/repository/index", "{}").await.ok();
    assert_eq!(
        (&index[0]["name"], &index[0]["state"]),
        (&json!("m"), &json!("READY"))
    );
}

fn bytes(x: [f32; 4], k: i64) -> Vec<u8> {
    let mut bytes: Vec<u8> = x.iter().flat_map(|value| value.to_le_bytes()).collect();
    bytes.extend(k.to_le_bytes());
    bytes
}

/// JSON, the bytes of one row after it, and the length of the JSON.
fn binary(x: [f32; 4], k: i64, more: &Value) -> (Vec<u8>, usize) {
    let size = |size: usize| json!({ "binary_data_size": size });
    let mut head = json!({ "inputs": [
        { "name": "x", "shape": [1, 2, 2], "datatype": "FP32", "parameters": size(16) },
        { "name": "k", "shape": [1], "datatype": "INT64", "parameters": size(8) },
    ] });
    head.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    let mut body = head.to_string().into_bytes();
    let length = body.len();
    body.extend(bytes(x, k));
    (body, length)
}

fn post(body: Vec<u8>, headers: &[(&'static str, String)]) -> http::Request<Full<Bytes>> {
    let mut asked = request(Method::POST, INFER, "").map(|_| Full::new(Bytes::from(body)));
    for (name, value) in headers {
        asked.headers_mut().insert(*name, value.parse().unwrap());
    }
    asked
}

const LENGTH: &str = "inference-header-content-length";

/// The outputs in the JSON, and the bytes after it.
fn told(reply: &Reply) -> (Value, &[u8]) {
    assert_eq!(
        reply.status,
        200,
        "{}",
        String::from_utf8_lossy(&reply.body)
    );
    assert_eq!(reply.headers["content-type"], "application/octet-stream");
    let length: usize = reply.headers[LENGTH].to_str().unwrap().parse().unwrap();
    let (head, bytes) = reply.body.split_at(length);
    let head: Value = serde_json::from_slice(head).unwrap();
    (head["outputs"].clone(), bytes)
}

#[tokio::test]
async fn binary_tensors_go_both_ways_as_they_are_asked_for() {
    let edge = edge().await;
    let x = [1.0, 2.0, 3.0, f32::NAN];
    let all = json!({ "parameters": { "binary_data_output": true } });
    let (body, length) = binary(x, 7, &all);
    let asked = post(body.clone(), &[(LENGTH, length.to_string())]);
    let reply = edge.send(asked).await;
    let (outputs, answer) = told(&reply);
    assert_eq!(answer, bytes(x, 8), "bit by bit");
    assert_eq!(
        outputs,
        json!([
            { "name": "y", "datatype": "FP32", "shape": [1, 2, 2],
              "parameters": { "binary_data_size": 16 } },
            { "name": "n", "datatype": "INT64", "shape": [1],
              "parameters": { "binary_data_size": 8 } },
        ])
    );

    let one = json!({ "outputs": [{ "name": "y", "parameters": { "binary_data": true } },
                                  { "name": "n" }] });
    let (body, length) = binary(x, 7, &one);
    let reply = edge.send(post(body, &[(LENGTH, length.to_string())])).await;
    let (outputs, answer) = told(&reply);
    assert_eq!(answer, &bytes(x, 8)[..16]);
    assert_eq!(outputs[1]["data"], json!([8]));

    let classes = json!({ "outputs": [{ "name": "y", "parameters": { "classification": 2 } }] });
    let (body, length) = binary([0.5, 4.0, 1.0, 2.0], 7, &classes);
    let reply = edge.send(post(body, &[(LENGTH, length.to_string())])).await;
    assert_eq!(
        reply.ok()["outputs"],
        json!([{ "name": "y", "datatype": "BYTES", "shape": [1, 2],
                 "data": ["4.000000:1", "2.000000:3"] }])
    );

    let (body, length) = binary(x, 7, &json!({}));
    for length in [
        "-1".to_owned(),
        "x".to_owned(),
        (body.len() + 1).to_string(),
    ] {
        let reply = edge.send(post(body.clone(), &[(LENGTH, length)])).await;
        assert!(refused(&reply, 400).contains(LENGTH));
    }
    // Raw bytes cannot describe two inputs.
    let reply = edge
        .send(post(body.clone(), &[(LENGTH, "0".to_owned())]))
        .await;
    assert!(refused(&reply, 400).contains("one input"));
    let cut = post(
        body[..body.len() - 1].to_vec(),
        &[(LENGTH, length.to_string())],
    );
    assert!(refused(&edge.send(cut).await, 400).contains("'k'"));
}

/// Encodes without compression, as deflate permits.
fn deflated(body: &[u8]) -> Vec<u8> {
    let (mut a, mut b) = (1_u32, 0_u32);
    for byte in body {
        a = (a + u32::from(*byte)) % 65_521;
        b = (b + a) % 65_521;
    }
    let length = u16::try_from(body.len()).unwrap();
    let mut whole = vec![0x78, 0x01, 0x01];
    whole.extend(length.to_le_bytes());
    whole.extend((!length).to_le_bytes());
    whole.extend(body);
    whole.extend(((b << 16) | a).to_be_bytes());
    whole
}

#[tokio::test]
async fn bodies_may_be_compressed_both_ways() {
    let edge = edge().await;
    let all = json!({ "parameters": { "binary_data_output": true } });
    let (body, length) = binary([1.0; 4], 1, &all);
    let headers = |encoding: &str| {
        [
            (LENGTH, length.to_string()),
            ("content-encoding", encoding.to_owned()),
        ]
    };
    let whole = edge.send(post(deflated(&body), &headers("deflate"))).await;
    assert_eq!(told(&whole).1, bytes([1.0; 4], 2));
    let broken = edge.send(post(body.clone(), &headers("deflate"))).await;
    assert!(refused(&broken, 400).contains("compressed"));

    let mut asked = post(body, &[(LENGTH, length.to_string())]);
    let accepted = "gzip".parse().unwrap();
    asked.headers_mut().insert("accept-encoding", accepted);
    let reply = edge.send(asked).await;
    assert_eq!(reply.headers["content-encoding"], "gzip");
    assert_eq!(reply.body[..2], [0x1f, 0x8b]);
    assert!(reply.headers.contains_key(LENGTH));

    // A small body that decompresses to a large one is cut off at the limit of bodies.
    let config = ApiConfig::from(EdgeConfig {
        max_body_bytes: 100,
        max_tensor_bytes: 100,
        ..EdgeConfig::default()
    });
    let small = Edge::with(config).await;
    let reply = small
        .send(post(deflated(&[b' '; 101]), &headers("deflate")[1..]))
        .await;
    refused(&reply, 413);
}

#[tokio::test]
async fn what_was_answered_is_counted() {
    let edge = edge().await;
    let good = || body(json!([1, 2, 3, 4]), &[1, 2, 2], json!([9]), &json!({}));
    edge.post(INFER, &good()).await.ok();
    edge.post(INFER, &good()).await.ok();
    refused(&edge.post(INFER, "{}").await, 400);
    for path in [
        "/v2/models/m/stats",
        "/v2/models/stats",
        "/v2/models/m/versions/1/stats",
    ] {
        let stats = edge.get(path).await.ok()["model_stats"][0].clone();
        assert_eq!(
            (&stats["name"], &stats["version"]),
            (&json!("m"), &json!("1"))
        );
        assert_eq!(stats["inference_count"], 2);
        assert_eq!(stats["inference_stats"]["success"]["count"], 2);
        assert_eq!(stats["inference_stats"]["fail"]["count"], 1);
        assert!(
            0 < stats["inference_stats"]["compute_infer"]["ns"]
                .as_u64()
                .unwrap()
        );
    }
    refused(&edge.get("/v2/models/no/stats").await, 404);
    let config = edge.get("/v2/models/m/config").await.ok();
    assert_eq!(
        config["input"][0],
        json!({ "name": "x", "data_type": "TYPE_FP32", "dims": [-1, 2, 2] })
    );
}

#[tokio::test]
async fn a_load_answers_when_the_model_is_there() {
    let edge = edge().await;
    let load = "/v2/repository/models/m/load";
    assert_eq!(edge.post(load, "{}").await.status, 200);
    // Triton's clients send no content type. Pages of other origins always send their origin.
    for (origin, status) in [(None, 200), (Some("http://else.test"), 403)] {
        let mut asked = request(Method::POST, load, "{}");
        asked.headers_mut().remove("content-type");
        if let Some(origin) = origin {
            asked
                .headers_mut()
                .insert("origin", origin.parse().unwrap());
        }
        assert_eq!(edge.send(asked).await.status, status);
    }
    let config = r#"{"parameters":{"config":"{}"}}"#;
    assert!(refused(&edge.post(load, config).await, 400).contains("configuration"));
    *edge.cluster.replica_state.lock() = Some(ReplicaState::Failed("it is no ONNX model".into()));
    let failed = refused(&edge.post(load, "{}").await, 400);
    assert!(failed.contains("it is no ONNX model"), "{failed}");
    let index = edge.post("/v2/repository/index", "").await.ok();
    assert_eq!(index[0]["reason"], "it is no ONNX model");
    let unloaded = edge.post("/v2/repository/models/m/unload", "{}").await;
    assert_eq!(unloaded.status, 200);
}
