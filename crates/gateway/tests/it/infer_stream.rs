//! `infer_stream` over REST under both of its names, and classes over gRPC.

use std::sync::Arc;

use arrow_schema::{DataType, Field, Schema};
use serde_json::{Value, json};
use tonic::Code;
use volley_proto::inference::triton::infer_parameter::ParameterChoice;
use volley_proto::inference::triton::model_infer_request::InferRequestedOutputTensor;
use volley_types::{
    ErrorCode, FinishReason, GenerationChunk, PredictError, Signature, Task, Usage,
};

use super::grpc::{mlserver, parameter, raw_request, refused, tensors, triton, words};
use super::support::{Edge, Script, last, text};

/// The data of a stream's events.
fn events(told: &str) -> Vec<Value> {
    let events = told.split_terminator("\n\n");
    let data = events.map(|event| event.strip_prefix("data: ").unwrap());
    data.map(|data| serde_json::from_str(data).unwrap())
        .collect()
}

/// A body as MLServer's clients send it.
fn prompt(texts: &[&str]) -> Value {
    json!({
        "id": "7",
        "parameters": { "content_type": "str", "temperature": 0.5 },
        "inputs": [
            { "name": "prompt", "shape": [texts.len()], "datatype": "BYTES", "data": texts,
              "parameters": { "content_type": "str" } },
            { "name": "max_tokens", "shape": [1], "datatype": "INT32", "data": [4] },
        ],
        "outputs": [],
    })
}

fn story() -> Script {
    let end = GenerationChunk {
        finish_reason: Some(FinishReason::Length),
        usage: Some(Usage {
            prompt_tokens: 3,
            completion_tokens: 2,
            ..Usage::default()
        }),
        ..last()
    };
    Script::Chunks(vec![text("Once"), text(" upon"), end])
}

#[tokio::test]
async fn a_text_comes_as_tensors_piece_by_piece_under_both_names() {
    let edge = Edge::start().await;
    for route in ["infer_stream", "generate_stream", "versions/1/infer_stream"] {
        edge.cluster.script("m", story());
        let body = prompt(&["tell"]).to_string();
        let reply = edge.post(&format!("/v2/models/m/{route}"), &body).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        assert_eq!(reply.headers["content-type"], "text/event-stream");
        let told = events(reply.text());
        let pieces = told.iter().map(|event| {
            assert_eq!(
                (&event["id"], &event["model_name"]),
                (&json!("7"), &json!("m"))
            );
            let output = &event["outputs"][0];
            assert_eq!(
                (&output["name"], &output["shape"]),
                (&json!("text_output"), &json!([1]))
            );
            output["data"][0].as_str().unwrap()
        });
        assert_eq!(pieces.collect::<Vec<_>>(), ["Once", " upon", ""]);
        assert_eq!(
            told[2]["parameters"],
            json!({ "finish_reason": "length", "prompt_tokens": 3, "completion_tokens": 2 })
        );
        let call = edge.cluster.last_call();
        let given: Vec<_> = call.parameters.iter().map(|(name, _)| name).collect();
        assert_eq!(given, ["max_tokens", "temperature"]);
    }
    for route in ["infer", "generate"] {
        edge.cluster.script("m", story());
        let body = prompt(&["tell"]).to_string();
        let whole = edge
            .post(&format!("/v2/models/m/{route}"), &body)
            .await
            .ok();
        assert_eq!(whole["outputs"][0]["data"], json!(["Once upon"]));
        assert_eq!(whole["id"], "7");
    }
}

#[tokio::test]
async fn rows_of_a_model_of_tensors_come_as_they_are_ready() {
    let edge = Edge::start().await;
    let schema = Arc::new(Schema::new(vec![Field::new("x", DataType::Float32, false)]));
    let signature = Signature {
        task: Task::Tensors,
        input: schema.clone(),
        output: schema,
    };
    edge.cluster.script("m", Script::Echo(signature));
    let path = "/v2/models/m/infer_stream";
    let body = |shape: Value, data: Value, more: Value| {
        let x = json!({ "name": "x", "shape": shape, "datatype": "FP32", "data": data });
        let mut body = json!({ "inputs": [x] });
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        body.to_string()
    };
    let reply = edge
        .post(path, &body(json!([2]), json!([1.5, 2.5]), json!({})))
        .await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let told = events(reply.text());
    assert_eq!(told.len(), 1);
    assert_eq!(
        told[0]["outputs"],
        json!([{ "name": "x", "datatype": "FP32", "shape": [2], "data": [1.5, 2.5] }])
    );
    let id = reply.headers["x-request-id"].to_str().unwrap();
    assert_eq!(told[0]["id"], id, "one is made where none was sent");
    let binary = json!({ "parameters": { "binary_data_output": true } });
    for (bad, says) in [
        (body(json!([2]), json!([1.5, 2.5]), binary), "binary"),
        (body(json!([3]), json!([1.5]), json!({})), "input 'x'"),
        ("{}".to_owned(), "inputs"),
    ] {
        let reply = edge.post(path, &bad).await;
        assert_eq!(reply.status, 400, "{bad}");
        assert!(
            reply.json()["error"].as_str().unwrap().contains(says),
            "{}",
            reply.text()
        );
    }
}

#[tokio::test]
async fn what_fails_first_is_a_status_and_what_fails_later_an_event() {
    let edge = Edge::start().await;
    let path = "/v2/models/m/infer_stream";
    let body = prompt(&["tell"]).to_string();
    assert_eq!(edge.post(path, &body).await.status, 404, "no such model");
    let full = PredictError::new(ErrorCode::Overloaded, "full");
    edge.cluster.script("m", Script::Fails(full));
    assert_eq!(edge.post(path, &body).await.status, 429);
    let feed = edge.cluster.feed("m");
    let chunk = volley_types::GenerationChunks::single(&text("a"));
    feed.send(Ok(chunk)).await.unwrap();
    let failed = PredictError::new(ErrorCode::UpstreamFailed, "it broke");
    feed.send(Err(failed)).await.unwrap();
    let told = edge.post(path, &body).await;
    assert_eq!(events(told.text())[1], json!({ "error": "it broke" }));
    let two = prompt(&["a", "b"]).to_string();
    let refused = edge.post(path, &two).await;
    assert_eq!(refused.status, 400);
    assert!(refused.text().contains("one prompt"), "{}", refused.text());
    let mut other = prompt(&["a"]);
    other["outputs"] = json!([{ "name": "image" }]);
    let refused = edge.post(path, &other.to_string()).await;
    assert!(refused.text().contains("'image'"), "{}", refused.text());
}

#[tokio::test]
async fn classes_come_over_grpc_in_both_skins() {
    let edge = Edge::start().await;
    tensors(&edge, "m");
    let asked = |classes: ParameterChoice, name: &str| {
        let output = InferRequestedOutputTensor {
            name: name.to_owned(),
            parameters: [("classification".to_owned(), parameter(classes))].into(),
        };
        let mut request = raw_request("m");
        request.outputs = vec![output];
        request
    };
    let two = asked(ParameterChoice::Int64Param(2), "y");
    let answer = triton(&edge).await.model_infer(two.clone()).await;
    let answer = answer.unwrap().into_inner();
    assert_eq!(answer.outputs[0].datatype, "BYTES");
    assert_eq!(answer.outputs[0].shape, [2, 2]);
    let best = ["4.000000:3", "3.000000:2", "8.000000:3", "7.000000:2"];
    assert_eq!(answer.raw_output_contents, [words(&best)]);
    let answer = mlserver(&edge).await.model_infer(two).await;
    assert_eq!(
        answer.unwrap().into_inner().raw_output_contents,
        [words(&best)]
    );

    let none = asked(ParameterChoice::Int64Param(0), "y");
    let answer = triton(&edge).await.model_infer(none).await.unwrap();
    assert_eq!(answer.into_inner().outputs[0].datatype, "FP32");
    for bad in [
        asked(ParameterChoice::StringParam("2".to_owned()), "y"),
        asked(ParameterChoice::Int64Param(-1), "y"),
        asked(ParameterChoice::Int64Param(1), "t"),
    ] {
        let message = triton(&edge).await.model_infer(bad).await;
        assert!(refused(message, Code::InvalidArgument).contains("classification"));
    }
}
