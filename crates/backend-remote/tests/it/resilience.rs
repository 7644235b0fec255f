//! Failing servers: retries, fallbacks and limits.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use serde_json::Value;
use volley_backend::{Backend, BackendLoader};
use volley_backend_remote::{RemoteConfig, RemoteLoader};
use volley_types::registry::{ConnectorEndpoint, ConnectorPolicy, ProviderName};
use volley_types::{ErrorCode, ParamValue};

use crate::server::{
    Act, Read, Server, assignment, config, connector, events, head, load, open, read, serve_each,
};

fn text(text: &str) -> String {
    format!(r#"data: {{"choices":[{{"index":0,"delta":{{"content":"{text}"}}}}]}}"#)
}

fn said(said: &str) -> Vec<Act> {
    let end = r#"data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
    vec![Act::Send(events(&[&text(said), end, "data: [DONE]"]))]
}

fn status(status: &str) -> Vec<Act> {
    vec![Act::Send(head(status, "application/json"))]
}

fn claude(said: &str) -> Vec<Act> {
    let delta = format!(
        r#"data: {{"type":"content_block_delta","index":0,"delta":{{"type":"text_delta","text":"{said}"}}}}"#
    );
    vec![Act::Send(events(&[
        &delta,
        r#"data: {"type":"message_stop"}"#,
    ]))]
}

fn endpoint(server: &Server, provider: ProviderName) -> ConnectorEndpoint {
    ConnectorEndpoint {
        provider,
        url: server.url.clone(),
        model: "the-other".to_owned(),
        credential: None,
        headers: std::collections::BTreeMap::new(),
        weight: 1,
        fallback: true,
    }
}

async fn model(url: &str, policy: ConnectorPolicy, config: RemoteConfig) -> Arc<dyn Backend> {
    let mut spec = connector(url, ProviderName::from_static("openai"));
    spec.policy = policy;
    load(spec, config).await.unwrap()
}

async fn ask(model: &Arc<dyn Backend>) -> Read {
    read(open(model, &[]).await).await
}

fn again(times: u32) -> ConnectorPolicy {
    ConnectorPolicy {
        max_retries: times,
        retry_backoff_ms: 5,
        breaker_window: 0,
        ..ConnectorPolicy::default()
    }
}

fn requests(server: &mut Server) -> usize {
    std::iter::from_fn(|| server.requests.try_recv().ok()).count()
}

#[tokio::test]
async fn a_server_that_did_no_work_is_called_again_until_it_answers() {
    let scripts = || {
        let limited = status("429 Too Many Requests\r\nretry-after: 0");
        [status("503 Service Unavailable"), limited, said("hello")]
    };
    let mut server = serve_each(scripts()).await;
    let read = ask(&model(&server.url, again(2), config()).await).await;
    assert_eq!(read.text, "hello");
    assert_eq!(requests(&mut server), 3);
    let mut server = serve_each(scripts()).await;
    let error = ask(&model(&server.url, again(1), config()).await)
        .await
        .error
        .unwrap();
    assert_eq!(error.code, ErrorCode::Overloaded);
    assert_eq!(requests(&mut server), 2);
}

#[tokio::test]
async fn a_server_that_may_have_worked_is_not_called_again() {
    let failed = r#"data: {"error":{"message":"out of memory"}}"#;
    for script in [
        status("500 Internal Server Error"),
        status("502 Bad Gateway"),
        vec![Act::Send(events(&[]))],
        vec![Act::Send(events(&[failed]))],
        vec![Act::Hang],
    ] {
        let mut server = serve_each([script, said("hello")]).await;
        let read = ask(&model(&server.url, again(3), config()).await).await;
        assert!(read.error.is_some(), "{read:?}");
        assert_eq!(requests(&mut server), 1);
    }
}

#[tokio::test]
async fn a_wait_that_is_too_long_is_the_callers() {
    let limited = status("429 Too Many Requests\r\nretry-after: 30");
    let mut server = serve_each([limited, said("hello")]).await;
    let started = Instant::now();
    let error = ask(&model(&server.url, again(3), config()).await)
        .await
        .error
        .unwrap();
    assert_eq!(error.retry_after, Some(Duration::from_secs(30)));
    assert!(started.elapsed() < Duration::from_secs(20));
    assert_eq!(requests(&mut server), 1);
}

#[tokio::test]
async fn another_providers_server_answers_where_the_first_fails_before_its_first_chunk() {
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let gone = format!("http://{}/v1/chat/completions", gone.local_addr().unwrap());
    let failed = r#"data: {"error":{"message":"out of memory"}}"#;
    let role = r#"data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}"#;
    for script in [
        None,
        Some(status("500 Internal Server Error")),
        Some(status("401 Unauthorized")),
        Some(status("429 Too Many Requests\r\nretry-after: 30")),
        Some(vec![Act::Send(events(&[role, failed]))]),
        Some(vec![Act::Send(events(&[role]))]),
        Some(vec![Act::Send(events(&[role])), Act::Hang]),
    ] {
        let what = format!("{:?}", script.as_ref().map(Vec::len));
        let first = serve_each(script.clone()).await;
        let mut second = serve_each([claude("from the other")]).await;
        let policy = ConnectorPolicy {
            endpoints: vec![endpoint(&second, ProviderName::from_static("anthropic"))],
            ..again(0)
        };
        let url = if script.is_some() { &first.url } else { &gone };
        let read = ask(&model(url, policy, config()).await).await;
        assert_eq!(read.text, "from the other", "{what}: {read:?}");
        let request = second.requests.recv().await.unwrap();
        let (_, body) = request.split_once("\r\n\r\n").unwrap();
        let body: Value = serde_json::from_str(body).unwrap();
        assert_eq!(body["model"], "the-other");
        assert_eq!(body["max_tokens"], 4_096, "it is asked in its own form");
    }
}

#[tokio::test]
async fn after_the_first_chunk_or_a_bad_request_there_is_no_other_server() {
    let bad = r#"{"error":{"type":"invalid_request_error","message":"temperature"}}"#;
    let refusal = [head("400 Bad Request", "application/json"), bad.into()].concat();
    for (script, text, code) in [
        (
            events(&[&text("begun")]),
            "begun",
            ErrorCode::UpstreamIncomplete,
        ),
        (refusal, "", ErrorCode::InvalidInput),
    ] {
        let first = serve_each([vec![Act::Send(script)]]).await;
        let mut second = serve_each([claude("from the other")]).await;
        let policy = ConnectorPolicy {
            endpoints: vec![endpoint(&second, ProviderName::from_static("anthropic"))],
            ..again(2)
        };
        let read = ask(&model(&first.url, policy, config()).await).await;
        assert_eq!((read.text.as_str(), read.error.unwrap().code), (text, code));
        assert_eq!(requests(&mut second), 0);
    }
}

#[tokio::test]
async fn servers_get_their_share_by_weight() {
    let mut first = serve_each(std::iter::repeat_with(|| said("a"))).await;
    let mut second = serve_each(std::iter::repeat_with(|| said("b"))).await;
    let other = ConnectorEndpoint {
        weight: 9,
        fallback: false,
        ..endpoint(&second, ProviderName::from_static("openai"))
    };
    let policy = ConnectorPolicy {
        endpoints: vec![other],
        ..again(0)
    };
    let model = model(&first.url, policy, config()).await;
    for _ in 0..100 {
        ask(&model).await;
    }
    let (few, many) = (requests(&mut first), requests(&mut second));
    assert_eq!(few + many, 100);
    assert!(
        (1..40).contains(&few),
        "{few} of 100 with a share of a tenth"
    );
}

#[tokio::test]
async fn a_server_that_keeps_failing_is_left_alone_for_a_while() {
    let failing = || status("500 Internal Server Error");
    let middle = vec![Act::Send(events(&[&text("begun")]))];
    let scripts = [failing(), failing(), failing(), middle].into_iter();
    let mut server = serve_each(scripts.chain(std::iter::repeat_with(|| said("well again")))).await;
    let policy = ConnectorPolicy {
        breaker_window: 4,
        breaker_open_ms: 2_000,
        ..again(2)
    };
    let model = model(&server.url, policy, config()).await;
    for _ in 0..4 {
        assert!(ask(&model).await.error.is_some());
    }
    assert_eq!(requests(&mut server), 4);
    let error = ask(&model).await.error.unwrap();
    assert_eq!(error.code, ErrorCode::Unavailable);
    assert!(error.message.contains("circuit breaker"), "{error:?}");
    assert!(error.retry_after.is_some());
    assert_eq!(requests(&mut server), 0, "it is not called");
    let deadline = Instant::now() + Duration::from_secs(60);
    while ask(&model).await.error.is_some() {
        assert!(Instant::now() < deadline, "it gets another chance");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(ask(&model).await.text, "well again");
}

#[tokio::test]
async fn what_callers_and_accounts_cause_does_not_open_the_circuit_breaker() {
    let aborted = r#"data: {"choices":[{"index":0,"delta":{},"finish_reason":"abort"}]}"#;
    let scripts = [
        status("409 Conflict"),
        status("415 Unsupported Media Type"),
        status("402 Payment Required"),
        vec![Act::Send(events(&[aborted]))],
    ];
    let scripts = scripts.into_iter();
    let mut server = serve_each(scripts.chain(std::iter::repeat_with(|| said("well")))).await;
    let policy = ConnectorPolicy {
        breaker_window: 4,
        ..again(0)
    };
    let model = model(&server.url, policy, config()).await;
    for _ in 0..4 {
        let error = ask(&model).await.error.unwrap();
        assert_eq!(error.retry_after, None, "{error:?}");
    }
    assert_eq!(ask(&model).await.text, "well");
    assert_eq!(requests(&mut server), 5);
}

#[tokio::test]
async fn a_connector_limits_its_calls_at_a_time_and_in_a_minute() {
    let impatient = RemoteConfig {
        queue_wait: Duration::from_millis(500),
        first_byte_timeout: Duration::from_secs(20),
        stall_timeout: Duration::from_secs(20),
        ..config()
    };
    let held = vec![Act::Send(events(&[&text("begun")])), Act::Hang];
    let mut server = serve_each([held, said("hello"), said("hello")]).await;
    let policy = ConnectorPolicy {
        max_concurrent: Some(1),
        max_per_minute: Some(2),
        ..again(0)
    };
    let model = model(&server.url, policy, impatient).await;
    let mut first = open(&model, &[]).await;
    first.next().await.unwrap().unwrap();
    let refused = ask(&model).await.error.unwrap();
    assert_eq!(refused.code, ErrorCode::Overloaded);
    assert!(refused.message.contains("at a time"), "{refused:?}");
    drop(first);
    assert_eq!(ask(&model).await.text, "hello");
    let refused = ask(&model).await.error.unwrap();
    assert_eq!(refused.code, ErrorCode::Overloaded);
    assert!(refused.message.contains("in a minute"), "{refused:?}");
    assert!(
        refused
            .retry_after
            .is_some_and(|after| Duration::from_secs(1) < after)
    );
    assert_eq!(requests(&mut server), 2);
}

#[tokio::test]
async fn a_caller_that_leaves_during_a_wait_is_not_called_for() {
    let limited = status("429 Too Many Requests\r\nretry-after: 2");
    let mut server = serve_each([limited, said("hello"), said("again")]).await;
    let model = model(&server.url, again(2), config()).await;
    let mut chunks = open(&model, &[]).await;
    let first = tokio::time::timeout(Duration::from_millis(500), chunks.next()).await;
    assert!(first.is_err(), "it waits");
    drop(chunks);
    // The wait of a request that went on would be over, and its call would be the next one.
    tokio::time::pause();
    tokio::time::advance(Duration::from_millis(2_200)).await;
    tokio::time::resume();
    assert_eq!(ask(&model).await.text, "hello");
    assert_eq!(requests(&mut server), 2);
}

#[tokio::test]
async fn calls_tokens_and_cost_are_counted_for_each_connector() {
    let failing = vec![Act::Send(head("503 Busy", "text/plain"))];
    let end = r#"data: {"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1000,"completion_tokens":500,"prompt_tokens_details":{"cached_tokens":400}}}"#;
    let good = || vec![Act::Send(events(&[end, "data: [DONE]"]))];
    let text = r#"data: {"choices":[{"delta":{"content":"a"}}]}"#;
    let cut = vec![Act::Send(events(&[text]))];
    let unterminated = vec![Act::Send(events(&[end]))];
    let server = serve_each([failing, good(), good(), cut, unterminated]).await;
    let mut spec = connector(&server.url, ProviderName::from_static("openai"));
    spec.policy.max_retries = 1;
    spec.policy.retry_backoff_ms = 1;
    let prices = ParamValue::Json(r#"{"prompt":2,"cached":0.5,"completion":8}"#.to_owned());
    spec.parameters.set("prices", prices).unwrap();
    let metrics = volley_telemetry::Metrics::new();
    let _ = rustls::crypto::ring::default_provider().install_default();
    let loader = RemoteLoader::new(config()).unwrap();
    let loader = loader.counted_by(metrics.clone());
    let model = loader.load(&assignment(spec)).await.unwrap();
    for _ in 0..4 {
        read(open(&model, &[]).await).await;
    }
    let told = metrics.encode();
    for line in [
        r#"volley_upstream_calls_total{connector="c",provider="openai",code="unavailable"} 1"#,
        r#"volley_upstream_calls_total{connector="c",provider="openai",code="ok"} 3"#,
        r#"volley_upstream_calls_total{connector="c",provider="openai",code="upstream_incomplete"} 1"#,
        r#"volley_upstream_retries_total{connector="c"} 1"#,
        r#"volley_upstream_tokens_total{connector="c",kind="prompt"} 3000"#,
        r#"volley_upstream_tokens_total{connector="c",kind="cached"} 1200"#,
        r#"volley_upstream_tokens_total{connector="c",kind="completion"} 1500"#,
        r#"volley_upstream_unterminated_total{connector="c"} 1"#,
    ] {
        assert!(told.contains(line), "{line}\n{told}");
    }
    let cost = told
        .lines()
        .find_map(|line| line.strip_prefix(r#"volley_upstream_cost_total{connector="c"} "#));
    let cost: f64 = cost.unwrap().parse().unwrap();
    assert!((cost - 0.0162).abs() < 1e-9, "{cost}");
}
