use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::{ArrayRef, RecordBatch, StringArray};
use futures::StreamExt;
use volley_types::registry::{CredentialRef, ProviderName};
use volley_types::{
    Dialect, ErrorCode, FinishReason, GenerationRow, Input, ParamValue, PredictRequest, Usage,
};

use crate::server::{
    Act, Read, Server, config, connector, events, head, key_file, load, open, read, serve,
    serve_each,
};

const OPENAI: [&str; 5] = [
    r#"data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}"#,
    r#"data: {"choices":[{"index":0,"delta":{"content":"Grüße, "}}]}"#,
    r#"data: {"choices":[{"index":0,"delta":{"content":"Fuchs 🦊"},"finish_reason":"stop"}]}"#,
    r#"data: {"choices":[],"usage":{"prompt_tokens":2,"completion_tokens":3}}"#,
    "data: [DONE]",
];

const ANTHROPIC: [&str; 6] = [
    "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":2,\"output_tokens\":1}}}",
    "event: ping\ndata: {\"type\":\"ping\"}",
    "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"Grüße, \"}}",
    "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"Fuchs 🦊\"}}",
    "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":3}}",
    "event: message_stop\ndata: {\"type\":\"message_stop\"}",
];

async fn ask(server: &Server, provider: ProviderName) -> Read {
    let model = load(connector(&server.url, provider), config())
        .await
        .unwrap();
    read(open(&model, &[]).await).await
}

#[tokio::test]
async fn a_raw_prompt_of_ollama_goes_to_the_route_without_a_template() {
    let mut answer = head("200 OK", "application/x-ndjson");
    answer.extend_from_slice(b"{\"response\":\"hello\",\"done\":true,\"done_reason\":\"stop\"}\n");
    let mut server = serve(vec![Act::Send(answer)]).await;
    let url = server.url.replace("/v1/chat/completions", "/api/chat");
    let connector = connector(&url, ProviderName::from_static("ollama"));
    let model = load(connector, config()).await.unwrap();
    let prompt: ArrayRef = Arc::new(StringArray::from(vec!["[INST] hi"]));
    let batch = RecordBatch::try_from_iter_with_nullable([("prompt", prompt, true)]).unwrap();
    let mut request = PredictRequest::new("m".parse().unwrap(), Input::Batch(batch));
    request.dialect = Dialect::Ollama;
    request
        .parameters
        .set("raw", ParamValue::Bool(true))
        .unwrap();
    let read = read(model.predict(request).await.unwrap()).await;
    assert_eq!(read.text, "hello");
    let sent = server.requests.recv().await.unwrap();
    assert!(sent.starts_with("POST /api/generate "), "{sent}");
    assert!(sent.contains(r#""prompt":"[INST] hi""#), "{sent}");
    assert!(
        sent.contains(r#""raw":true"#) && !sent.contains("messages"),
        "{sent}"
    );
}

async fn failure(acts: Vec<Act>) -> Read {
    let server = serve(acts).await;
    let started = Instant::now();
    let read = ask(&server, ProviderName::from_static("openai")).await;
    assert!(
        started.elapsed() < Duration::from_secs(20),
        "an error comes soon"
    );
    read
}

async fn refusal(status: &str, media: &str, body: &str) -> volley_types::PredictError {
    let mut answer = head(status, media);
    answer.extend_from_slice(body.as_bytes());
    failure(vec![Act::Send(answer)]).await.error.unwrap()
}

#[tokio::test]
async fn both_formats_stream_whole_and_byte_by_byte() {
    let formats = [
        (ProviderName::from_static("openai"), events(&OPENAI)),
        (ProviderName::from_static("anthropic"), events(&ANTHROPIC)),
    ];
    for (provider, bytes) in formats {
        for act in [Act::Send(bytes.clone()), Act::Drip(bytes)] {
            let read = ask(&serve(vec![act]).await, provider).await;
            assert_eq!(read.text, "Grüße, Fuchs 🦊");
            assert_eq!(read.finish, Some(FinishReason::Stop));
            assert_eq!(
                read.usage,
                Some(Usage {
                    prompt_tokens: 2,
                    completion_tokens: 3,
                    ..Usage::default()
                })
            );
        }
    }
}

#[tokio::test]
async fn the_request_has_the_model_the_key_and_asks_for_a_stream_whatever_the_caller_says() {
    let mut server = serve(vec![Act::Send(events(&OPENAI))]).await;
    let mut spec = connector(&server.url, ProviderName::from_static("openai"));
    spec.credential = Some(key_file("sk-canary\n"));
    spec.headers
        .insert("x-team".to_owned(), "search".to_owned());
    let model = load(spec, config()).await.unwrap();
    let parameters = [
        ("temperature", ParamValue::Float(0.5)),
        ("stream", ParamValue::Bool(false)),
    ];
    read(open(&model, &parameters).await).await;
    let request = server.requests.recv().await.unwrap();
    let (head, body) = request.split_once("\r\n\r\n").unwrap();
    for line in [
        "authorization: Bearer sk-canary",
        "x-team: search",
        "traceparent: 00-",
    ] {
        assert!(head.contains(line), "{head}");
    }
    let body: serde_json::Value = serde_json::from_str(body).unwrap();
    assert_eq!(body["stream"], true);
    assert_eq!(body["model"], "the-model");
    assert_eq!(body["temperature"], 0.5);
    assert_eq!(body["messages"][0]["content"], "hello");
}

#[tokio::test]
async fn tokens_alone_are_not_counted_and_the_upstream_is_not_asked() {
    let mut server = serve(vec![Act::Send(events(&OPENAI))]).await;
    let spec = connector(&server.url, ProviderName::from_static("openai"));
    let model = load(spec, config()).await.unwrap();
    let only = [("count_tokens", ParamValue::Bool(true))];
    let refused = read(open(&model, &only).await).await.error.unwrap();
    assert_eq!(refused.code, ErrorCode::Unimplemented);
    let no = [("count_tokens", ParamValue::Bool(false))];
    read(open(&model, &no).await).await;
    let asked = server.requests.recv().await.unwrap();
    assert!(!asked.contains("count_tokens"), "{asked}");
}

#[tokio::test]
async fn a_template_makes_the_body() {
    let mut server = serve(vec![Act::Send(events(&OPENAI))]).await;
    let mut spec = connector(&server.url, ProviderName::from_static("openai"));
    spec.request_body =
        Some(r#"{"q": "Q: ${parameters.prompt}", "k": ${parameters.k}}"#.to_owned());
    let model = load(spec, config()).await.unwrap();
    let missing = read(open(&model, &[]).await).await.error.unwrap();
    assert_eq!(missing.code, ErrorCode::InvalidInput);
    assert!(missing.message.contains("'k'"));
    read(open(&model, &[("k", ParamValue::Int(3))]).await).await;
    let request = server.requests.recv().await.unwrap();
    let (_, body) = request.rsplit_once("\r\n\r\n").unwrap();
    let body: serde_json::Value = serde_json::from_str(body).unwrap();
    let expected = serde_json::json!({ "k": 3, "q": "Q: hello", "stream": true });
    assert_eq!(body, expected);
}

#[tokio::test]
async fn statuses_become_errors_that_say_what_to_do() {
    let refused = refusal(
        "401 Unauthorized",
        "application/json",
        r#"{"error":{"message":"bad key sk-1"}}"#,
    )
    .await;
    assert_eq!(refused.code, ErrorCode::UpstreamFailed);
    assert!(refused.message.contains("credential") && !refused.message.contains("sk-1"));
    let limited = refusal(
        "429 Too Many Requests\r\nretry-after: 7",
        "application/json",
        r#"{"error":{"message":"slow down"}}"#,
    )
    .await;
    assert_eq!(limited.code, ErrorCode::Overloaded);
    assert_eq!(limited.retry_after, Some(Duration::from_secs(7)));
    let wrong = refusal(
        "400 Bad Request",
        "application/json",
        r#"{"error":{"message":"no such model"}}"#,
    )
    .await;
    assert_eq!(wrong.code, ErrorCode::InvalidInput);
    assert!(wrong.message.contains("rejected") && wrong.message.contains("no such model"));
    let broken = refusal(
        "500 Internal Server Error",
        "text/html",
        "<html>oops</html>",
    )
    .await;
    assert_eq!(broken.code, ErrorCode::UpstreamFailed);
    assert!(!broken.message.contains("html"));
    let page = refusal("200 OK", "text/html", "<html>log in</html>").await;
    assert_eq!(page.code, ErrorCode::UpstreamFailed);
    assert!(page.message.contains("web page"), "{}", page.message);
    let moved = refusal(
        "302 Found\r\nlocation: http://169.254.169.254/",
        "text/plain",
        "",
    )
    .await;
    assert!(moved.message.contains("redirect"));
}

#[tokio::test]
async fn a_server_that_does_not_stream_is_read_whole() {
    let mut answer = head("200 OK", "application/json");
    answer.extend_from_slice(br#"{"choices":[{"index":0,"message":{"content":"all at once"},"finish_reason":"length"}],"usage":{"prompt_tokens":1,"completion_tokens":3}}"#);
    let read = failure(vec![Act::Send(answer)]).await;
    assert_eq!(read.text, "all at once");
    assert_eq!(read.finish, Some(FinishReason::Length));
    let error = refusal("200 OK", "application/json", r#"{"weather":"fine"}"#).await;
    assert_eq!(error.code, ErrorCode::UpstreamFailed);
    let failed = r#"{"error":{"message":"out of memory"}}"#;
    let error = refusal("200 OK", "application/json", failed).await;
    assert!(error.message.contains("out of memory"));
}

#[tokio::test]
async fn streams_that_stall_break_or_rave_end_in_an_error_after_what_was_good() {
    let start = events(&OPENAI[..2]);
    let stalled = failure(vec![Act::Send(start.clone()), Act::Hang]).await;
    assert_eq!(stalled.error.unwrap().code, ErrorCode::UpstreamTimeout);
    assert_eq!(stalled.text, "Grüße, ");
    let silent = failure(vec![Act::Hang]).await;
    assert_eq!(silent.error.unwrap().code, ErrorCode::UpstreamTimeout);
    let cut = failure(vec![Act::Send(start.clone())]).await;
    let error = cut.error.unwrap();
    assert_eq!(error.code, ErrorCode::UpstreamIncomplete);
    // The error names the connector, like errors before the answer.
    assert!(error.message.contains("(connector '"), "{}", error.message);
    assert!(
        error.message.contains("host 127.0.0.1)"),
        "{}",
        error.message
    );
    assert_eq!(cut.text, "Grüße, ");
    let mut chunked = Vec::from(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n",
    );
    let piece = format!("{}\n\n", OPENAI[1]);
    chunked.extend_from_slice(format!("{:x}\r\n{piece}\r\n40\r\ndata: ", piece.len()).as_bytes());
    let broken = failure(vec![Act::Send(chunked)]).await;
    assert_eq!(broken.error.unwrap().code, ErrorCode::UpstreamIncomplete);
    assert_eq!(broken.text, "Grüße, ");
    let raving = failure(vec![Act::Send(start.clone()), Act::Flood]).await;
    let error = raving.error.unwrap();
    assert_eq!(error.code, ErrorCode::UpstreamFailed);
    assert!(error.message.contains("12 MiB"));
    let mut failed = start.clone();
    failed.extend_from_slice(
        b"data: {\"error\":{\"message\":\"out of memory\"}}\n\ndata: [DONE]\n\n",
    );
    let failed = failure(vec![Act::Send(failed)]).await;
    assert!(failed.error.unwrap().message.contains("out of memory"));
    assert_eq!(failed.text, "Grüße, ");
    let mut garbled = start;
    garbled.extend_from_slice(b"data: {not json}\n\n");
    let garbled = failure(vec![Act::Send(garbled)]).await;
    assert_eq!(garbled.error.unwrap().code, ErrorCode::UpstreamFailed);
}

/// Reads until the server hangs, then disconnects. Returns the time until the server notices.
async fn leave_during(acts: Vec<Act>) -> Duration {
    let mut server = serve(acts).await;
    let spec = connector(&server.url, ProviderName::from_static("openai"));
    let mut patient = config();
    patient.first_byte_timeout = Duration::from_secs(60);
    patient.stall_timeout = Duration::from_secs(60);
    let model = load(spec, patient).await.unwrap();
    let mut chunks = open(&model, &[]).await;
    let hangs = &mut server.hangs;
    let reading = async {
        while let Some(batch) = chunks.next().await {
            batch.unwrap();
        }
    };
    tokio::select! {
        () = reading => panic!("the answer has no end"),
        () = async { hangs.recv().await.unwrap() } => {}
    }
    let dropped = Instant::now();
    drop(chunks);
    let left = tokio::time::timeout(Duration::from_secs(20), &mut server.left).await;
    left.expect("the server sees it").unwrap() - dropped
}

#[tokio::test]
async fn dropping_the_stream_closes_the_socket_at_once_in_every_phase() {
    let phases = [
        ("before the head", vec![]),
        ("before an event", vec![Act::Send(events(&[]))]),
        ("between events", vec![Act::Send(events(&OPENAI[..2]))]),
        (
            "inside an event",
            vec![
                Act::Send(events(&OPENAI[..2])),
                Act::Send(b"data: {".into()),
            ],
        ),
        (
            "inside a whole body",
            vec![Act::Send(head("200 OK", "application/json"))],
        ),
        (
            "inside an error's body",
            vec![Act::Send(head("500 Oops", "application/json"))],
        ),
    ];
    for (phase, acts) in phases {
        let acts = acts.into_iter().chain([Act::Hang]).collect::<Vec<_>>();
        // The machine may be busy, so that the best of several rounds counts.
        let mut took = Duration::MAX;
        for _ in 0..5 {
            took = took.min(leave_during(acts.clone()).await);
        }
        eprintln!("closed after leaving {phase}: {took:?}");
        assert!(took < Duration::from_millis(50), "{phase}: {took:?}");
    }
}

#[tokio::test]
async fn chunks_that_arrive_together_are_one_batch() {
    let server = serve(vec![Act::Send(events(&OPENAI))]).await;
    let model = load(
        connector(&server.url, ProviderName::from_static("openai")),
        config(),
    );
    let batches: Vec<_> = open(&model.await.unwrap(), &[]).await.collect().await;
    assert_eq!(batches.len(), 1);
    assert_eq!(batches[0].as_ref().unwrap().num_rows(), 3);
}

#[tokio::test]
async fn a_name_that_leads_where_calls_may_not_go_is_the_connectors_fault() {
    let mut private = config();
    private.allow_private = false;
    let spec = connector("http://localhost:1/v1", ProviderName::from_static("openai"));
    // Host names are checked when they are resolved.
    let error = load(spec, private).await.err().unwrap();
    assert_eq!(error.code, ErrorCode::InvalidInput);
    assert!(error.message.contains("may not be called"), "{error}");
}

#[tokio::test]
async fn a_secret_that_cannot_be_read_is_said_without_saying_where() {
    let server = serve(vec![Act::Send(events(&OPENAI))]).await;
    for (reference, kind) in [
        (
            CredentialRef::Env("VOLLEY_NO_SUCH_VARIABLE".to_owned()),
            "environment variable",
        ),
        (CredentialRef::File("/no/such/place".to_owned()), "file"),
    ] {
        let mut spec = connector(&server.url, ProviderName::from_static("anthropic"));
        spec.credential = Some(reference);
        let model = load(spec, config()).await.unwrap();
        let error = read(open(&model, &[]).await).await.error.unwrap();
        assert_eq!(error.code, ErrorCode::Unavailable);
        assert!(error.message.contains(kind));
        assert!(!error.message.contains("no/such") && !error.message.contains("NO_SUCH"));
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_can_be_tried_elsewhere() {
    let gone = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let spec = connector(
        &format!("http://{gone}/v1"),
        ProviderName::from_static("openai"),
    );
    let model = load(spec, config()).await.unwrap();
    let error = read(open(&model, &[]).await).await.error.unwrap();
    assert_eq!(error.code, ErrorCode::Unavailable);
    assert!(
        !error.message.contains(&gone.port().to_string()),
        "no addresses in messages"
    );
    let mut private = config();
    private.allow_private = false;
    let refused = load(
        connector(
            &format!("http://{gone}/"),
            ProviderName::from_static("openai"),
        ),
        private,
    )
    .await;
    assert_eq!(refused.err().unwrap().code, ErrorCode::InvalidInput);
}

#[tokio::test]
async fn several_answers_are_several_calls_each_with_a_seed_of_its_own() {
    let answer = || vec![Act::Send(events(&OPENAI))];
    let mut server = serve_each(vec![answer(), answer(), answer()]).await;
    let model = load(
        connector(&server.url, ProviderName::from_static("openai")),
        config(),
    );
    let parameters = [("n", ParamValue::Int(3)), ("seed", ParamValue::Int(7))];
    let chunks = open(&model.await.unwrap(), &parameters).await;
    let batches: Vec<_> = chunks.map(Result::unwrap).collect().await;
    let rows = || {
        let rows = batches
            .iter()
            .map(|batch| GenerationRow::rows(batch).unwrap());
        rows.flatten()
    };
    for choice in 0..3 {
        let text: String = rows()
            .filter(|row| row.choice() == choice)
            .filter_map(|row| row.text())
            .collect();
        assert!(text.starts_with("Grüße, "), "{choice}: {text}");
        let ends = rows().filter(|row| row.choice() == choice && row.finish_reason().is_some());
        assert_eq!(ends.count(), 1);
    }
    assert_eq!(rows().filter(|row| row.last()).count(), 1);
    let mut seeds = Vec::new();
    for _ in 0..3 {
        let request = server.requests.recv().await.unwrap();
        let (_, body) = request.split_once("\r\n\r\n").unwrap();
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(body["n"], 1);
        seeds.push(body["seed"].as_i64().unwrap());
    }
    seeds.sort_unstable();
    assert_eq!(seeds, [7, 8, 9]);
}
