//! The Open Inference Protocol over gRPC: tensors in both flavors, limits, failures.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::Float32Type;
use arrow_array::{ArrayRef, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema};
use bytes::Bytes;
use http::Method;
use tokio::net::TcpListener;
use tonic::codec::CompressionEncoding;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};
use volley_gateway::{ApiConfig, EdgeConfig, GrpcFlavor};
use volley_proto::inference::mlserver::grpc_inference_service_client::GrpcInferenceServiceClient as MlServerClient;
use volley_proto::inference::triton::grpc_inference_service_client::GrpcInferenceServiceClient as TritonClient;
use volley_proto::inference::triton::infer_parameter::ParameterChoice;
use volley_proto::inference::triton::model_infer_request::{
    InferInputTensor, InferRequestedOutputTensor,
};
use volley_proto::inference::triton::{InferParameter, InferTensorContents, ModelInferRequest};
use volley_types::{ErrorCode, PredictError, Priority, Signature, Task};

use super::support::{Edge, Script, request};

/// The public listener, which speaks Triton's flavor.
pub(crate) async fn triton(edge: &Edge) -> TritonClient<Channel> {
    let channel = Channel::from_shared(format!("http://{}", edge.address)).unwrap();
    TritonClient::new(channel.connect().await.unwrap())
}

/// A separate listener for a flavor.
pub(crate) async fn listen(edge: &Edge, flavor: GrpcFlavor) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(
        edge.api
            .clone()
            .serve_grpc(flavor, listener, edge.shutdown.clone()),
    );
    address
}

pub(crate) async fn mlserver(edge: &Edge) -> MlServerClient<Channel> {
    let address = listen(edge, GrpcFlavor::MlServer).await;
    let channel = Channel::from_shared(format!("http://{address}")).unwrap();
    MlServerClient::new(channel.connect().await.unwrap())
}

/// Takes 2 × 2 floats and a text, and returns both.
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
    Signature {
        task: Task::Tensors,
        input: Arc::new(Schema::new(vec![
            tensor("x"),
            Field::new("s", DataType::Utf8, true),
        ])),
        output: Arc::new(Schema::new(vec![
            tensor("y"),
            Field::new("t", DataType::Utf8, false),
        ])),
    }
}

/// Scripts a tensor model under `name`.
pub(crate) fn tensors(edge: &Edge, name: &str) {
    let output = signature().output;
    let answer = move |rows: RecordBatch| {
        let texts = rows.column_by_name("s").cloned();
        let texts = texts.unwrap_or_else(|| {
            Arc::new(StringArray::from(vec!["none"; rows.num_rows()])) as ArrayRef
        });
        let columns = vec![rows.column_by_name("x").unwrap().clone(), texts];
        Ok(RecordBatch::try_new(output.clone(), columns).unwrap())
    };
    edge.cluster
        .script(name, Script::Tensors(signature(), Box::new(answer)));
}

pub(crate) fn input(name: &str, datatype: &str, shape: &[i64]) -> InferInputTensor {
    InferInputTensor {
        name: name.to_owned(),
        datatype: datatype.to_owned(),
        shape: shape.to_vec(),
        ..InferInputTensor::default()
    }
}

fn floats(values: &[f32]) -> Bytes {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

pub(crate) fn words(texts: &[&str]) -> Bytes {
    let mut bytes = Vec::new();
    for text in texts {
        bytes.extend(u32::try_from(text.len()).unwrap().to_le_bytes());
        bytes.extend(text.as_bytes());
    }
    bytes.into()
}

/// Two rows of floats in binary.
pub(crate) fn raw_request(model: &str) -> ModelInferRequest {
    ModelInferRequest {
        model_name: model.to_owned(),
        id: "7".to_owned(),
        inputs: vec![input("x", "FP32", &[2, 2, 2]), input("s", "BYTES", &[2])],
        raw_input_contents: vec![
            floats(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]),
            words(&["hi", "é"]),
        ],
        ..ModelInferRequest::default()
    }
}

/// One row of floats in typed contents, without a dimension for the rows.
fn typed_request(model: &str) -> ModelInferRequest {
    let contents = InferTensorContents {
        fp32_contents: vec![1.0, 2.0, 3.0, f32::NAN],
        ..InferTensorContents::default()
    };
    let x = InferInputTensor {
        contents: Some(contents),
        ..input("x", "FP32", &[2, 2])
    };
    ModelInferRequest {
        model_name: model.to_owned(),
        inputs: vec![x],
        ..ModelInferRequest::default()
    }
}

pub(crate) fn parameter(value: ParameterChoice) -> InferParameter {
    InferParameter {
        parameter_choice: Some(value),
    }
}

/// A prompt.
pub(crate) fn prompt(model: &str, id: &str, text: &str) -> ModelInferRequest {
    ModelInferRequest {
        model_name: model.to_owned(),
        id: id.to_owned(),
        inputs: vec![input("text_input", "BYTES", &[1])],
        raw_input_contents: vec![words(&[text])],
        ..ModelInferRequest::default()
    }
}

#[track_caller]
pub(crate) fn refused<T: std::fmt::Debug>(result: Result<T, Status>, code: Code) -> String {
    let status = result.unwrap_err();
    assert_eq!(status.code(), code, "{status}");
    status.message().to_owned()
}

#[tokio::test]
async fn tensors_go_in_raw_or_typed_and_come_out_as_the_skin_has_them() {
    let edge = Edge::start().await;
    tensors(&edge, "m");
    let mut client = triton(&edge).await;
    let answer = client.model_infer(raw_request("m")).await.unwrap();
    assert!(answer.metadata().contains_key("x-request-id"));
    let answer = answer.into_inner();
    assert_eq!(
        (&*answer.model_name, &*answer.model_version, &*answer.id),
        ("m", "1", "7")
    );
    let told: Vec<_> = answer
        .outputs
        .iter()
        .map(|o| (&*o.name, &*o.datatype, &*o.shape))
        .collect();
    assert_eq!(
        told,
        [("y", "FP32", &[2, 2, 2][..]), ("t", "BYTES", &[2][..])]
    );
    assert_eq!(
        answer.raw_output_contents,
        raw_request("m").raw_input_contents
    );
    assert!(
        answer
            .outputs
            .iter()
            .all(|output| output.contents.is_none())
    );

    // Triton's outputs are always raw. MLServer's have the form of the inputs.
    let answer = client
        .model_infer(typed_request("m"))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(answer.outputs[0].shape, [2, 2]);
    assert_eq!(answer.raw_output_contents[0].len(), 16);
    assert_eq!(answer.raw_output_contents[1], words(&["none"]));
    let called = edge.cluster.last_call().rows;
    let rows = called
        .column_by_name("x")
        .unwrap()
        .as_fixed_size_list()
        .clone();
    assert!(
        rows.values()
            .as_primitive::<Float32Type>()
            .value(3)
            .is_nan()
    );
    let mut client = mlserver(&edge).await;
    let answer = client
        .model_infer(typed_request("m"))
        .await
        .unwrap()
        .into_inner();
    assert!(answer.raw_output_contents.is_empty());
    let contents = answer.outputs[0].contents.clone().unwrap();
    assert_eq!(contents.fp32_contents[..3], [1.0, 2.0, 3.0]);
    assert_eq!(
        answer.outputs[1].contents.clone().unwrap().bytes_contents,
        ["none"]
    );
    let answer = client
        .model_infer(raw_request("m"))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(answer.raw_output_contents.len(), 2);

    let only = ModelInferRequest {
        model_version: "1".to_owned(),
        outputs: vec![InferRequestedOutputTensor {
            name: "t".to_owned(),
            ..InferRequestedOutputTensor::default()
        }],
        ..raw_request("m")
    };
    let answer = client.model_infer(only).await.unwrap().into_inner();
    assert_eq!(answer.raw_output_contents, [words(&["hi", "é"])]);
}

#[tokio::test]
async fn parameters_reach_the_model_and_reserved_ones_do_what_they_say() {
    let edge = Edge::start().await;
    tensors(&edge, "m");
    let mut asked = raw_request("m");
    for (name, value) in [
        ("top", ParameterChoice::Int64Param(3)),
        ("how", ParameterChoice::StringParam("fast".to_owned())),
        ("sequence_id", ParameterChoice::Uint64Param(5)),
        ("priority", ParameterChoice::Uint64Param(1)),
        ("timeout", ParameterChoice::Int64Param(2_000_000)),
        (
            "content_type",
            ParameterChoice::StringParam("np".to_owned()),
        ),
    ] {
        asked.parameters.insert(name.to_owned(), parameter(value));
    }
    let mut client = triton(&edge).await;
    client.model_infer(asked.clone()).await.unwrap();
    let called = edge.cluster.last_call();
    let given: Vec<_> = called.parameters.iter().map(|(name, _)| name).collect();
    assert_eq!(given, ["how", "sequence_id", "top"]);
    assert!(
        called.remaining <= Duration::from_secs(2),
        "{:?}",
        called.remaining
    );
    assert_eq!(called.priority, Priority::High);
    let bad = parameter(ParameterChoice::StringParam("soon".to_owned()));
    asked.parameters.insert("timeout".to_owned(), bad);
    let message = refused(client.model_infer(asked).await, Code::InvalidArgument);
    assert!(message.contains("'timeout'"), "{message}");
}

#[tokio::test]
async fn what_does_not_fit_is_refused_by_name() {
    let edge = Edge::start().await;
    tensors(&edge, "m");
    let mut client = triton(&edge).await;
    type Change = fn(&mut ModelInferRequest);
    fn set(parameters: &mut BTreeMap<String, InferParameter>, name: &str) {
        let value = parameter(ParameterChoice::StringParam("base64".to_owned()));
        parameters.insert(name.to_owned(), value);
    }
    let changes: [(Change, &str); 12] = [
        (|r| set(&mut r.parameters, "headers"), "'headers'"),
        (
            |r| set(&mut r.inputs[0].parameters, "other"),
            "'other' of input 'x'",
        ),
        (
            |r| set(&mut r.inputs[0].parameters, "content_type"),
            "cannot be base64",
        ),
        (|r| r.inputs.clear(), "'inputs'"),
        (|r| r.raw_input_contents.truncate(1), "raw_input_contents"),
        (|r| r.inputs[0].shape = vec![2, -2, 2], "input 'x'"),
        (|r| r.inputs[0].shape = vec![2, 4], "input 'x'"),
        (|r| r.inputs[0].shape = vec![i64::MAX, 2, 2], "input 'x'"),
        (
            |r| r.inputs[0].datatype = "BOOL".to_owned(),
            "the model takes FP32",
        ),
        (|r| r.inputs[0].name = "z".to_owned(), "'z' is not an input"),
        (
            |r| r.raw_input_contents[1] = Bytes::from_static(b"\xff\xff\xff\xffab"),
            "input 's'",
        ),
        (
            |r| r.inputs[0].contents = Some(InferTensorContents::default()),
            "input 'x'",
        ),
    ];
    for (change, sign) in changes {
        let mut asked = raw_request("m");
        change(&mut asked);
        let message = refused(client.model_infer(asked).await, Code::InvalidArgument);
        assert!(message.contains(sign), "{message}");
    }
    let unknown = client.model_infer(raw_request("nobody")).await;
    refused(unknown, Code::NotFound);
    let mut other = raw_request("m");
    other.model_version = "new".to_owned();
    refused(client.model_infer(other).await, Code::NotFound);
    let mut shared = raw_request("m");
    let region = parameter(ParameterChoice::StringParam("r".to_owned()));
    shared.inputs[0]
        .parameters
        .insert("shared_memory_region".to_owned(), region);
    refused(client.model_infer(shared).await, Code::InvalidArgument);
}

#[tokio::test]
async fn failures_have_the_code_of_their_kind() {
    let edge = Edge::start().await;
    let mut client = triton(&edge).await;
    for (code, expected) in [
        (ErrorCode::NotDeployed, Code::NotFound),
        (ErrorCode::Overloaded, Code::ResourceExhausted),
        (ErrorCode::Unavailable, Code::Unavailable),
        (ErrorCode::UpstreamIncomplete, Code::Internal),
    ] {
        let error = PredictError::new(code, "said so").with_retry_after(Duration::from_secs(2));
        edge.cluster.script("g", Script::Refuses(error));
        let status = client
            .model_infer(prompt("g", "", "tell"))
            .await
            .unwrap_err();
        assert_eq!((status.code(), status.message()), (expected, "said so"));
        assert_eq!(
            status.metadata().get("grpc-retry-pushback-ms").unwrap(),
            "2000"
        );
    }
    edge.cluster.script("g", Script::Panics);
    let message = refused(
        client.model_infer(prompt("g", "", "tell")).await,
        Code::Internal,
    );
    assert!(!message.contains("secret"), "{message}");
}

#[tokio::test]
async fn calls_have_limits_in_size_and_time() {
    let config = ApiConfig::from(EdgeConfig {
        max_tensor_bytes: 64 << 10,
        body_timeout: Duration::from_millis(200),
        ..EdgeConfig::default()
    });
    let edge = Edge::with(config).await;
    tensors(&edge, "m");
    let mut client = triton(&edge).await;
    let mut large = raw_request("m");
    large.raw_input_contents[1] = vec![0; 70 << 10].into();
    refused(client.model_infer(large.clone()).await, Code::OutOfRange);
    // A small message that decompresses to a large one is rejected too.
    let mut squeezed = triton(&edge)
        .await
        .send_compressed(CompressionEncoding::Gzip);
    refused(squeezed.model_infer(large).await, Code::ResourceExhausted);

    let _feed = edge.cluster.feed("g");
    let mut asked = Request::new(prompt("g", "", "tell"));
    let timeout_ms = "100".parse().unwrap();
    asked
        .metadata_mut()
        .insert("x-volley-timeout-ms", timeout_ms);
    refused(client.model_infer(asked).await, Code::DeadlineExceeded);
    assert_eq!(
        edge.cluster.open.load(std::sync::atomic::Ordering::SeqCst),
        0
    );

    for (header, value) in [("x-volley-timeout-ms", "soon"), ("grpc-timeout", "5x")] {
        let mut asked = Request::new(raw_request("m"));
        asked.metadata_mut().insert(header, value.parse().unwrap());
        let message = refused(client.model_infer(asked).await, Code::InvalidArgument);
        assert!(message.contains(header), "{message}");
    }
    // Over HTTP/1.1, or with the headers of a web page, gRPC is not served.
    let path = "/inference.GRPCInferenceService/ServerLive";
    let mut asked = request(Method::POST, path, "{}");
    assert_eq!(edge.send(asked.clone()).await.status, 415);
    asked
        .headers_mut()
        .insert("content-type", "application/grpc".parse().unwrap());
    assert_eq!(edge.send(asked).await.status, 505);
}

#[tokio::test]
async fn answers_are_compressed_for_those_who_compress() {
    let edge = Edge::start().await;
    tensors(&edge, "m");
    for encoding in [CompressionEncoding::Gzip, CompressionEncoding::Deflate] {
        let plain = triton(&edge).await.accept_compressed(encoding);
        let squeezed = plain.clone().send_compressed(encoding);
        for (mut client, expected) in [(plain, None), (squeezed, Some(encoding))] {
            let answer = client.model_infer(raw_request("m")).await.unwrap();
            let told = answer.metadata().get("grpc-encoding").cloned();
            let expected = expected.map(|encoding| encoding.to_string());
            assert_eq!(told.map(|told| told.to_str().unwrap().to_owned()), expected);
            assert_eq!(answer.get_ref().raw_output_contents.len(), 2);
        }
    }
}
