//! Requests that are not streamed: the servers are asked for whole answers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::{RecordBatch, StringArray};
use futures::StreamExt;
use serde_json::Value;
use volley_backend::Backend;
use volley_backend_remote::RemoteConfig;
use volley_types::registry::{ConnectorSpec, ProviderName};
use volley_types::{
    ChunkStream, Deadline, ErrorCode, Input, ModelName, ModelRef, ParamValue, PredictRequest,
};

use crate::server::{Act, config, connector, events, head, load, read, recorded, serve, server_of};

fn request(parameters: &[(&str, ParamValue)]) -> PredictRequest {
    let rows: arrow_array::ArrayRef = Arc::new(StringArray::from(vec!["hello"]));
    let rows = RecordBatch::try_from_iter_with_nullable([("prompt", rows, true)]).unwrap();
    let model = ModelRef::deployed(ModelName::new("m").unwrap());
    let mut request = PredictRequest::new(model, Input::Batch(rows));
    let pairs = parameters.iter();
    request.parameters = pairs
        .map(|(name, value)| ((*name).to_owned(), value.clone()))
        .collect();
    request.whole = true;
    request
}

async fn ask(model: &Arc<dyn Backend>, request: PredictRequest) -> ChunkStream {
    model.predict(request).await.unwrap()
}

#[tokio::test]
async fn every_provider_is_asked_for_a_whole_answer_which_is_read_whole() {
    for provider in recorded() {
        let name = provider.as_str();
        let expected = server_of(provider);
        let Some(expected) = expected.get("whole") else {
            continue;
        };
        let text = |name: &str| expected[name].as_str().unwrap();
        let (streamed, whole) = (text("url"), text("route"));
        let folder = text("answer_of");
        let path = format!("{}/tests/fixtures/{folder}", env!("CARGO_MANIFEST_DIR"));
        let answer = std::fs::read(format!("{path}/whole.json")).unwrap();
        let expected = std::fs::read_to_string(format!("{path}/expected.json")).unwrap();
        let expected: Value = serde_json::from_str(&expected).unwrap();
        let head = head("200 OK", "application/json");
        let mut server = serve(vec![Act::Send([head, answer].concat())]).await;
        let base = server
            .url
            .trim_end_matches("/v1/chat/completions")
            .to_owned();
        let mut spec = connector(&format!("{base}{streamed}"), provider);
        if provider == ProviderName::from_static("bedrock") {
            spec.credential = Some(crate::server::key_file("sk-canary"));
        }
        let model = load(spec, config()).await.unwrap();
        let answer = read(ask(&model, request(&[])).await).await;
        let expected = &expected["whole.json"];
        assert_eq!(
            answer.text,
            expected["text"].as_str().unwrap(),
            "{name}: {answer:?}"
        );
        assert_eq!(
            answer.calls.len(),
            expected["calls"].as_array().unwrap().len(),
            "{name}"
        );
        let sent = server.requests.recv().await.unwrap();
        let (head, body) = sent.split_once("\r\n\r\n").unwrap();
        assert!(
            head.starts_with(&format!("POST {whole} HTTP/1.1\r\n")),
            "{name}: {head}"
        );
        assert!(head.contains("accept: application/json"), "{name}: {head}");
        let body: Value = serde_json::from_str(body).unwrap();
        let streams = |body: &Value| body["stream"] == true || body.get("stream_options").is_some();
        assert!(
            !streams(&body) && !streams(&body["parameters"]),
            "{name}: {body}"
        );
        if provider == ProviderName::from_static("ollama") {
            assert_eq!(body["stream"], false, "it would stream by itself");
        }
    }
}

fn streaming(url: &str, always: ParamValue) -> ConnectorSpec {
    let mut spec = connector(url, ProviderName::from_static("openai"));
    spec.parameters.set("stream_upstream", always).unwrap();
    spec
}

#[tokio::test]
async fn a_connector_may_have_its_server_stream_every_answer() {
    let text = r#"data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":"stop"}]}"#;
    for always in [ParamValue::Bool(true), ParamValue::Text("true".to_owned())] {
        let mut server = serve(vec![Act::Send(events(&[text, "data: [DONE]"]))]).await;
        let model = load(streaming(&server.url, always), config())
            .await
            .unwrap();
        let answer = read(ask(&model, request(&[])).await).await;
        assert_eq!(answer.text, "hi");
        let sent = server.requests.recv().await.unwrap();
        assert!(sent.contains("\"stream\":true") && sent.contains("accept: text/event-stream"));
        assert!(
            !sent.contains("stream_upstream"),
            "it says nothing to the server"
        );
    }
    let wrong = streaming(
        "http://127.0.0.1:1/v1/x",
        ParamValue::Text("maybe".to_owned()),
    );
    let error = load(wrong, config()).await.err().unwrap();
    assert!(error.message.contains("'stream_upstream'"));
}

#[tokio::test]
async fn a_server_that_streams_all_the_same_is_read_as_a_stream() {
    let text = r#"data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":"stop"}]}"#;
    let server = serve(vec![Act::Send(events(&[text, "data: [DONE]"]))]).await;
    let model = load(
        connector(&server.url, ProviderName::from_static("openai")),
        config(),
    );
    let answer = read(ask(&model.await.unwrap(), request(&[])).await).await;
    assert_eq!((answer.text.as_str(), answer.last), ("hi", true));
}

#[tokio::test]
async fn a_whole_answer_may_be_long_in_coming_and_the_deadline_holds() {
    let impatient = RemoteConfig {
        first_byte_timeout: Duration::from_millis(10),
        stall_timeout: Duration::from_millis(10),
        ..config()
    };
    let begun = head("200 OK\r\ncontent-length: 9", "application/json");
    for acts in [vec![Act::Hang], vec![Act::Send(begun), Act::Hang]] {
        let server = serve(acts).await;
        let spec = connector(&server.url, ProviderName::from_static("openai"));
        let model = load(spec, impatient.clone()).await.unwrap();
        let mut request = request(&[]);
        let (start, limit) = (Instant::now(), Duration::from_millis(400));
        request.deadline = Some(Deadline::after(start, limit));
        let error = read(ask(&model, request).await).await.error.unwrap();
        assert_eq!(error.code, ErrorCode::UpstreamTimeout, "{error:?}");
        assert!(
            limit <= start.elapsed(),
            "it waits for longer than a stream may be silent"
        );
    }
}

#[tokio::test]
async fn a_caller_that_leaves_closes_the_connection() {
    let mut server = serve(vec![Act::Hang]).await;
    let model = load(
        connector(&server.url, ProviderName::from_static("openai")),
        config(),
    );
    let mut chunks = ask(&model.await.unwrap(), request(&[])).await;
    tokio::select! {
        _ = chunks.next() => panic!("nothing is answered"),
        _ = server.hangs.recv() => {}
    }
    let gone = Instant::now();
    drop(chunks);
    let left = tokio::time::timeout(Duration::from_secs(10), &mut server.left).await;
    assert!(left.unwrap().unwrap().duration_since(gone) < Duration::from_secs(1));
}

#[tokio::test]
async fn a_body_over_the_limit_is_an_error() {
    let text = "x".repeat(13 << 20);
    let body = format!(r#"{{"choices":[{{"message":{{"content":"{text}"}}}}]}}"#);
    let answer = [head("200 OK", "application/json"), body.into_bytes()].concat();
    let server = serve(vec![Act::Send(answer)]).await;
    let model = load(
        connector(&server.url, ProviderName::from_static("openai")),
        config(),
    );
    let error = read(ask(&model.await.unwrap(), request(&[])).await)
        .await
        .error
        .unwrap();
    assert_eq!(error.code, ErrorCode::UpstreamFailed);
    assert!(error.message.contains("over the limit"), "{error:?}");
}

#[tokio::test]
async fn where_a_server_is_called_is_the_connectors_alone() {
    for provider in [
        ProviderName::from_static("openai"),
        ProviderName::from_static("anthropic"),
        ProviderName::from_static("http"),
    ] {
        let mut server = serve(vec![Act::Hang]).await;
        let mut spec = connector(&server.url, provider);
        if provider == ProviderName::from_static("http") {
            let template = r#"{"q": ${parameters.prompt}, "to": "${parameters.api_base:-here}"}"#;
            spec.request_body = Some(template.to_owned());
        }
        let model = load(spec, config()).await.unwrap();
        for name in [
            "api_base",
            "base_url",
            "headers",
            "extra_headers",
            "api_key",
            "authorization",
        ] {
            let given = [(name, ParamValue::Text("http://evil.example".to_owned()))];
            let error = read(ask(&model, request(&given)).await)
                .await
                .error
                .unwrap();
            assert_eq!(error.code, ErrorCode::InvalidInput);
            assert!(error.message.contains(&format!("'{name}'")), "{error:?}");
        }
        assert!(server.requests.try_recv().is_err(), "nothing was sent");
    }
}

#[tokio::test]
async fn a_parameter_without_a_place_in_the_template_is_refused_by_name() {
    let mut server = serve(vec![Act::Hang]).await;
    let spec = connector(&server.url, ProviderName::from_static("http"));
    let model = load(spec, config()).await.unwrap();
    let given = [("top_p", ParamValue::Float(0.5))];
    let error = read(ask(&model, request(&given)).await)
        .await
        .error
        .unwrap();
    assert_eq!(error.code, ErrorCode::InvalidInput);
    assert!(error.message.contains("'top_p'"), "{error:?}");
    assert!(server.requests.try_recv().is_err(), "nothing was sent");
}
