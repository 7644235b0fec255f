//! The Open Inference Protocol over gRPC: texts, health, models, keys, statistics.

use bytes::Bytes;
use tokio::net::TcpListener;
use tonic::transport::Channel;
use tonic::{Code, Request};
use volley_gateway::GrpcFlavor;
use volley_proto::inference::triton::grpc_inference_service_client::GrpcInferenceServiceClient as TritonClient;
use volley_proto::inference::triton::infer_parameter::ParameterChoice;
use volley_proto::inference::triton::model_infer_request::InferInputTensor;
use volley_proto::inference::triton::{
    DataType as ConfigType, InferTensorContents, ModelConfigRequest, ModelInferRequest,
    ModelMetadataRequest, ModelReadyRequest, ModelRepositoryParameter, ModelStatisticsRequest,
    RepositoryIndexRequest, RepositoryModelLoadRequest, RepositoryModelUnloadRequest,
    ServerLiveRequest, ServerMetadataRequest, ServerReadyRequest, SystemSharedMemoryStatusRequest,
};
use volley_proto::tasks::v1::ListRequest;
use volley_proto::tasks::v1::task_service_client::TaskServiceClient;
use volley_types::registry::ReplicaState;
use volley_types::{FinishReason, GenerationChunk, Usage};

use super::grpc::{
    input, mlserver, parameter, prompt, raw_request, refused, tensors, triton, words,
};
use super::support::{Edge, Script, last, text};

#[tokio::test]
async fn a_generation_answers_whole_and_takes_its_parameters_as_inputs_too() {
    let edge = Edge::start().await;
    let end = GenerationChunk {
        finish_reason: Some(FinishReason::Length),
        usage: Some(Usage {
            prompt_tokens: 3,
            completion_tokens: 2,
            ..Usage::default()
        }),
        ..last()
    };
    let chunks = || Script::Chunks(vec![text("Once"), text(" upon"), end.clone()]);
    edge.cluster.script("g", chunks());
    let mut asked = prompt("g", "9", "tell");
    asked.inputs[0].shape = vec![1, 1];
    asked.inputs.push(input("max_tokens", "INT32", &[1, 1]));
    asked.inputs.push(input("stream", "BOOL", &[1]));
    asked
        .raw_input_contents
        .push(Bytes::from_static(&[20, 0, 0, 0]));
    asked.raw_input_contents.push(Bytes::from_static(&[1]));
    let temperature = parameter(ParameterChoice::DoubleParam(0.5));
    asked
        .parameters
        .insert("temperature".to_owned(), temperature);
    let answer = triton(&edge)
        .await
        .model_infer(asked.clone())
        .await
        .unwrap()
        .into_inner();
    assert_eq!(answer.id, "9");
    assert_eq!(
        (&*answer.outputs[0].name, &answer.outputs[0].shape[..]),
        ("text_output", &[1, 1][..])
    );
    assert_eq!(answer.raw_output_contents, [words(&["Once upon"])]);
    let reason = ParameterChoice::StringParam("length".to_owned());
    assert_eq!(answer.parameters["finish_reason"], parameter(reason));
    assert_eq!(
        answer.parameters["completion_tokens"],
        parameter(ParameterChoice::Int64Param(2))
    );
    let called = edge.cluster.last_call();
    let given: Vec<_> = called.parameters.iter().map(|(name, _)| name).collect();
    assert_eq!(given, ["max_tokens", "temperature"]);

    // A chat in the other flavor, with typed contents.
    edge.cluster.script("g", chunks());
    let messages = InferTensorContents {
        bytes_contents: vec![Bytes::from_static(br#"[{"role":"user","content":"tell"}]"#)],
        ..InferTensorContents::default()
    };
    let messages = InferInputTensor {
        contents: Some(messages),
        ..input("messages", "BYTES", &[1])
    };
    let chat = ModelInferRequest {
        inputs: vec![messages.clone()],
        raw_input_contents: vec![],
        ..prompt("g", "", "")
    };
    let answer = mlserver(&edge)
        .await
        .model_infer(chat.clone())
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        answer.outputs[0].contents.clone().unwrap().bytes_contents,
        ["Once upon"]
    );
    assert!(
        edge.cluster
            .last_call()
            .rows
            .column_by_name("messages")
            .is_some()
    );

    let mut both = chat;
    both.inputs.push(InferInputTensor {
        name: "text_input".to_owned(),
        ..messages
    });
    let mut none = asked.clone();
    none.inputs.remove(0);
    none.raw_input_contents.remove(0);
    let mut wide = asked;
    wide.inputs[1].shape = vec![2];
    wide.raw_input_contents[1] = Bytes::from_static(&[0; 8]);
    for (bad, sign) in [
        (both, "once"),
        (none, "'text_input' is missing"),
        (wide, "'max_tokens'"),
    ] {
        let message = refused(
            triton(&edge).await.model_infer(bad).await,
            Code::InvalidArgument,
        );
        assert!(message.contains(sign), "{message}");
    }
}

#[tokio::test]
async fn health_in_both_skins() {
    let edge = Edge::start().await;
    tensors(&edge, "m");
    let mut client = triton(&edge).await;
    let mut plain = mlserver(&edge).await;
    assert!(
        client
            .server_live(ServerLiveRequest {})
            .await
            .unwrap()
            .into_inner()
            .live
    );
    assert!(
        plain
            .server_ready(ServerReadyRequest {})
            .await
            .unwrap()
            .into_inner()
            .ready
    );
    let server = client
        .server_metadata(ServerMetadataRequest {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!(server.name, "volley");
    assert!(server.extensions.contains(&"statistics".to_owned()));

    let ready = |name: &str| ModelReadyRequest {
        name: name.to_owned(),
        version: String::new(),
    };
    assert!(
        client
            .model_ready(ready("m"))
            .await
            .unwrap()
            .into_inner()
            .ready
    );
    assert!(
        !client
            .model_ready(ready("nobody"))
            .await
            .unwrap()
            .into_inner()
            .ready
    );
    refused(plain.model_ready(ready("nobody")).await, Code::NotFound);

    edge.cluster
        .draining
        .store(true, std::sync::atomic::Ordering::SeqCst);
    let asked = client.server_ready(ServerReadyRequest {}).await;
    assert!(!asked.unwrap().into_inner().ready);
}

#[tokio::test]
async fn models_are_described() {
    let edge = Edge::start().await;
    tensors(&edge, "m");
    edge.cluster.script("g", Script::Chunks(vec![last()]));
    let mut client = triton(&edge).await;
    let mut plain = mlserver(&edge).await;
    let described = |name: &str| ModelMetadataRequest {
        name: name.to_owned(),
        version: "1".to_owned(),
    };
    let model = plain
        .model_metadata(described("m"))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        (&*model.platform, &model.versions[..]),
        ("volley_tensors", &["1".to_owned()][..])
    );
    let inputs: Vec<_> = model
        .inputs
        .iter()
        .map(|i| (&*i.name, &*i.datatype, &*i.shape))
        .collect();
    assert_eq!(
        inputs,
        [("x", "FP32", &[-1, 2, 2][..]), ("s", "BYTES", &[-1][..])]
    );
    let model = client
        .model_metadata(described("g"))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        (&*model.inputs[0].name, &*model.outputs[0].name),
        ("text_input", "text_output")
    );
    refused(
        client.model_metadata(described("nobody")).await,
        Code::NotFound,
    );

    let asked = |name: &str| ModelConfigRequest {
        name: name.to_owned(),
        version: String::new(),
    };
    let config = client
        .model_config(asked("m"))
        .await
        .unwrap()
        .into_inner()
        .config
        .unwrap();
    assert_eq!(
        (config.max_batch_size, config.input[0].data_type()),
        (0, ConfigType::TypeFp32)
    );
    assert_eq!(
        (&config.input[0].dims[..], config.input[1].optional),
        (&[-1, 2, 2][..], true)
    );
    let config = client
        .model_config(asked("g"))
        .await
        .unwrap()
        .into_inner()
        .config
        .unwrap();
    assert!(config.model_transaction_policy.unwrap().decoupled);
}

#[tokio::test]
async fn models_are_listed_unloaded_and_loaded() {
    let edge = Edge::start().await;
    tensors(&edge, "m");
    let mut client = triton(&edge).await;
    let listed = async |client: &mut TritonClient<Channel>, ready| {
        let asked = RepositoryIndexRequest {
            ready,
            ..RepositoryIndexRequest::default()
        };
        let index = client.repository_index(asked).await.unwrap().into_inner();
        let models = index
            .models
            .into_iter()
            .map(|model| (model.name, model.state));
        models.collect::<Vec<_>>()
    };
    let state = |state: &str| vec![("m".to_owned(), state.to_owned())];
    assert_eq!(listed(&mut client, true).await, state("READY"));
    let unload = RepositoryModelUnloadRequest {
        model_name: "m".to_owned(),
        ..RepositoryModelUnloadRequest::default()
    };
    client.repository_model_unload(unload).await.unwrap();
    assert_eq!(listed(&mut client, false).await, state("UNAVAILABLE"));
    assert_eq!(listed(&mut client, true).await, []);
    // KServe's clients send the name in the first field, and read the response.
    let load = RepositoryModelLoadRequest {
        repository_name: "m".to_owned(),
        ..RepositoryModelLoadRequest::default()
    };
    let loaded = mlserver(&edge)
        .await
        .repository_model_load(load.clone())
        .await;
    let loaded = loaded.unwrap().into_inner();
    assert!(loaded.is_loaded && loaded.model_name == "m");
    assert_eq!(listed(&mut client, false).await, state("READY"));

    let config = ModelRepositoryParameter::default();
    let with_config = RepositoryModelLoadRequest {
        parameters: [("config".to_owned(), config)].into(),
        ..load.clone()
    };
    refused(
        client.repository_model_load(with_config).await,
        Code::InvalidArgument,
    );
    let unknown = RepositoryModelLoadRequest {
        repository_name: "nobody".to_owned(),
        ..load.clone()
    };
    refused(client.repository_model_load(unknown).await, Code::NotFound);
    *edge.cluster.replica_state.lock() = Some(ReplicaState::Failed("no such file".to_owned()));
    let message = refused(
        client.repository_model_load(load).await,
        Code::InvalidArgument,
    );
    assert!(message.contains("no such file"), "{message}");
}

#[tokio::test]
async fn a_call_asks_for_its_role_and_health_for_none() {
    let edge = crate::keys::edge().await;
    let mut client = triton(&edge).await;
    client.server_live(ServerLiveRequest {}).await.unwrap();
    client.server_ready(ServerReadyRequest {}).await.unwrap();
    let keyed = |key: &str, asked: ModelInferRequest| {
        let mut asked = Request::new(asked);
        let key = format!("Bearer {key}").parse().unwrap();
        asked.metadata_mut().insert("authorization", key);
        asked
    };
    let asked = || prompt("team-a.chat", "", "hi");
    refused(client.model_infer(asked()).await, Code::Unauthenticated);
    let wrong = client.model_infer(keyed("wrong", asked())).await;
    refused(wrong, Code::Unauthenticated);
    let described = client.server_metadata(ServerMetadataRequest {}).await;
    refused(described, Code::Unauthenticated);
    let role = |role: &str| serde_json::json!({ "name": role, "role": role });
    let (_, viewer) = crate::keys::make(&edge, role("viewer")).await;
    let denied = client.model_infer(keyed(&viewer, asked())).await;
    refused(denied, Code::PermissionDenied);
    let (_, predict) = crate::keys::make(&edge, role("predict")).await;
    client.model_infer(keyed(&predict, asked())).await.unwrap();
    let load = RepositoryModelLoadRequest {
        model_name: "team-a.chat".to_owned(),
        ..RepositoryModelLoadRequest::default()
    };
    let mut load = Request::new(load);
    let key = format!("Bearer {predict}").parse().unwrap();
    load.metadata_mut().insert("authorization", key);
    refused(
        client.repository_model_load(load).await,
        Code::PermissionDenied,
    );
    let streamed = Request::new(tokio_stream::iter([asked()]));
    refused(
        client.model_stream_infer(streamed).await,
        Code::Unauthenticated,
    );
}

#[tokio::test]
async fn what_was_asked_is_counted() {
    let edge = Edge::start().await;
    tensors(&edge, "m");
    let mut client = triton(&edge).await;
    client.model_infer(raw_request("m")).await.unwrap();
    let counted = |name: &str| ModelStatisticsRequest {
        name: name.to_owned(),
        version: String::new(),
    };
    for asked in ["m", ""] {
        let told = client.model_statistics(counted(asked)).await.unwrap();
        let told = told.into_inner().model_stats;
        assert_eq!((told.len(), &*told[0].name), (1, "m"));
        assert_eq!((told[0].inference_count, told[0].execution_count), (2, 1));
        let stats = told[0].inference_stats.unwrap();
        assert!(0 < stats.success.unwrap().ns && told[0].last_inference != 0);
    }
    refused(
        client.model_statistics(counted("nobody")).await,
        Code::NotFound,
    );
}

#[tokio::test]
async fn calls_that_are_not_there_are_unimplemented_also_without_administration() {
    let edge = Edge::start().await;
    let channel = Channel::from_shared(format!("http://{}", edge.address)).unwrap();
    let channel = channel.connect().await.unwrap();
    let other = TaskServiceClient::new(channel)
        .list(ListRequest::default())
        .await;
    let message = refused(other, Code::Unimplemented);
    assert!(message.contains("no such gRPC service"), "{message}");

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let public = edge.api.clone().without_administration();
    tokio::spawn(public.serve_grpc(GrpcFlavor::MlServer, listener, edge.shutdown.clone()));
    let channel = Channel::from_shared(format!("http://{address}")).unwrap();
    let mut client = TritonClient::new(channel.connect().await.unwrap());
    let status = SystemSharedMemoryStatusRequest::default();
    let message = refused(
        client.system_shared_memory_status(status).await,
        Code::Unimplemented,
    );
    assert!(message.contains("SystemSharedMemoryStatus"), "{message}");
    let unload = RepositoryModelUnloadRequest::default();
    let unload = client.repository_model_unload(unload).await;
    refused(unload, Code::PermissionDenied);
}

#[tokio::test]
async fn an_index_of_another_repository_is_refused() {
    let edge = Edge::start().await;
    let index = RepositoryIndexRequest {
        repository_name: "zzz".to_owned(),
        ..RepositoryIndexRequest::default()
    };
    let message = refused(
        triton(&edge).await.repository_index(index).await,
        Code::NotFound,
    );
    assert!(message.contains("'zzz'"), "{message}");
    for (bad, says) in [
        (r#"{"reday":true}"#, "'reday'"),
        (r#"{"ready":1}"#, "'ready'"),
    ] {
        let reply = edge.post("/v2/repository/index", bad).await;
        assert_eq!(reply.status, 400, "{bad}");
        assert!(reply.text().contains(says), "{}", reply.text());
    }
}
