//! Requests to each provider's server: URL, credential and format.

use std::sync::Arc;

use arrow_array::StringArray;
use serde_json::{Value, json};
use volley_types::registry::{ConnectorSpec, ProviderName};
use volley_types::{
    ChatMessage, ErrorCode, FinishReason, GenerationRow, ParamValue, Parameters, chat,
};

use crate::server::{
    Act, ask_rows, config, connector, events, frames, head, key_file, load, open, read, recorded,
    serve, serve_each, server_of,
};

fn text_of(provider: ProviderName) -> Vec<u8> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures");
    let (name, media) = match provider.as_str() {
        "ollama" => ("text.ndjson", "application/x-ndjson"),
        "bedrock" => ("text.frames", "application/vnd.amazon.eventstream"),
        _ => ("text.sse", "text/event-stream"),
    };
    let path = format!("{folder}/{}/{name}", provider.as_str());
    let body = std::fs::read_to_string(path).unwrap();
    let body = match name {
        "text.frames" => frames(&body),
        _ => body.into_bytes(),
    };
    let status = format!("200 OK\r\ncontent-length: {}", body.len());
    [head(&status, media), body].concat()
}

/// A conversation with every kind of message.
fn talk() -> Vec<ChatMessage> {
    let call = json!([{
        "id": "call_a", "type": "function",
        "function": { "name": "weather", "arguments": "{\"city\":\"Köln\"}" },
    }]);
    vec![
        ChatMessage::new("system", "Be brief."),
        ChatMessage::new("user", "How is the weather?"),
        ChatMessage {
            tool_calls: Some(call.to_string()),
            ..ChatMessage::new("assistant", "I look.")
        },
        ChatMessage {
            tool_call_id: Some("call_a".to_owned()),
            ..ChatMessage::new("tool", "21 °C")
        },
        ChatMessage::new("user", "So?"),
    ]
}

fn settings() -> Parameters {
    let tools = json!([{ "type": "function", "function": {
        "name": "weather", "description": "Tells the weather.",
        "parameters": { "type": "object", "properties": { "city": { "type": "string" } } },
    } }]);
    let text = |text: &str| ParamValue::Text(text.to_owned());
    let pairs = [
        ("max_tokens", ParamValue::Int(64)),
        ("temperature", text("0.5")),
        ("top_p", ParamValue::Float(0.9)),
        ("stop", text("END")),
        ("seed", ParamValue::Int(7)),
        ("user", text("u-1")),
        ("stream", ParamValue::Bool(false)),
        ("tools", ParamValue::Json(tools.to_string())),
        ("tool_choice", text("auto")),
    ];
    pairs
        .map(|(name, value)| (name.to_owned(), value))
        .into_iter()
        .collect()
}

fn with_key(url: &str, provider: ProviderName) -> ConnectorSpec {
    ConnectorSpec {
        credential: Some(key_file("sk-canary\n")),
        ..connector(url, provider)
    }
}

#[tokio::test]
async fn one_talk_is_sent_in_every_providers_form() {
    for provider in recorded() {
        let expected = server_of(provider);
        let text = |name: &str| expected[name].as_str().unwrap();
        let mut server = serve(vec![Act::Send(text_of(provider))]).await;
        let base = server
            .url
            .trim_end_matches("/v1/chat/completions")
            .to_owned();
        let model = load(
            with_key(&format!("{base}{}", text("url")), provider),
            config(),
        );
        let model = model.await.unwrap();
        let prompts = expected["prompts_only"] == true;
        let mut settings = settings();
        for name in expected["rejected"].as_array().unwrap() {
            settings.remove(name.as_str().unwrap());
        }
        let answer = if prompts {
            let rows = Arc::new(StringArray::from(vec!["How is the weather?"]));
            ask_rows(&model, "prompt", rows, settings).await
        } else {
            let rows = chat::conversations([Some(talk().as_slice())]);
            ask_rows(&model, "messages", rows, settings).await
        };
        let answer = read(answer).await;
        assert_eq!(
            answer.text,
            "Grüße, Fuchs 🦊",
            "{}: {answer:?}",
            provider.as_str()
        );

        let request = server.requests.recv().await.unwrap();
        let (head, body) = request.split_once("\r\n\r\n").unwrap();
        assert!(
            head.starts_with(&format!("POST {} HTTP/1.1\r\n", text("route"))),
            "{head}"
        );
        for line in [
            text("key"),
            "content-type: application/json",
            "traceparent: 00-",
        ] {
            assert!(head.contains(line), "{}: {head}", provider.as_str());
        }
        let keys = head
            .lines()
            .filter(|line| line.contains("sk-canary"))
            .count();
        assert_eq!(keys, 1, "no other header has the key");
        let accept = format!("accept: {}", text("accept"));
        assert!(head.contains(&accept), "{head}");
        let body: Value = serde_json::from_str(body).unwrap();
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures");
        let path = format!("{folder}/{}/request.json", provider.as_str());
        let expected = std::fs::read_to_string(&path).unwrap_or_else(|_| "null".to_owned());
        let expected: Value = serde_json::from_str(&expected).unwrap();
        assert_eq!(body, expected, "{}:\n{body:#}", provider.as_str());
    }
}

#[tokio::test]
async fn a_key_that_a_provider_repeats_is_taken_out_even_in_the_middle_of_an_answer() {
    let begun = r#"{"message":{"role":"assistant","content":"Grü"},"done":false}"#;
    let failed = format!("{begun}\n{{\"error\":\"key sk-canary is out of credit\"}}\n");
    let mut answer = head("200 OK", "application/x-ndjson");
    answer.extend_from_slice(failed.as_bytes());
    let mut refusal = head("500 Oops", "application/json");
    refusal.extend_from_slice(br#"{"error":"key sk-canary is unknown"}"#);
    for (bytes, text) in [(answer, "Grü"), (refusal, "")] {
        let server = serve(vec![Act::Send(bytes)]).await;
        let model = load(
            with_key(&server.url, ProviderName::from_static("ollama")),
            config(),
        );
        let answer = read(open(&model.await.unwrap(), &[]).await).await;
        assert_eq!(answer.text, text);
        let error = answer.error.unwrap();
        assert!(error.message.contains("key [redacted] is"), "{error:?}");
    }
}

#[tokio::test]
async fn what_a_provider_cannot_do_is_refused_before_it_is_asked() {
    let mut server = serve(vec![Act::Send(text_of(ProviderName::from_static(
        "ollama",
    )))])
    .await;
    let model = load(
        connector(&server.url, ProviderName::from_static("ollama")),
        config(),
    );
    let model = model.await.unwrap();
    let required = ParamValue::Text("required".to_owned());
    let error = read(open(&model, &[("tool_choice", required)]).await)
        .await
        .error
        .unwrap();
    assert_eq!(error.code, ErrorCode::InvalidInput);
    assert!(error.message.contains("'tool_choice'"));
    let options = ParamValue::Text("hot".to_owned());
    let error = read(open(&model, &[("options", options)]).await)
        .await
        .error
        .unwrap();
    assert_eq!(error.code, ErrorCode::InvalidInput);
    assert!(server.requests.try_recv().is_err(), "nothing was sent");
}

fn said(text: &str) -> Vec<Act> {
    let delta = json!({ "choices": [{ "index": 0, "delta": { "content": text } }] });
    let end = json!({
        "choices": [{ "index": 0, "delta": {}, "finish_reason": "stop" }],
        "usage": { "prompt_tokens": 2, "completion_tokens": 3 },
    });
    let (delta, end) = (format!("data: {delta}"), format!("data: {end}"));
    vec![Act::Send(events(&[&delta, &end, "data: [DONE]"]))]
}

#[tokio::test]
async fn each_row_is_asked_by_itself_and_one_that_fails_leaves_the_others_whole() {
    let failing = vec![Act::Send(head("500 Oops", "text/plain"))];
    let server = serve_each([said("one"), failing, said("three")]).await;
    let model = load(
        connector(&server.url, ProviderName::from_static("openai")),
        config(),
    );
    let model = model.await.unwrap();
    let prompts = Arc::new(StringArray::from(vec!["a", "b", "c"]));
    let mut chunks = ask_rows(&model, "prompt", prompts, Parameters::default()).await;
    let (mut texts, mut ends, mut last) = (vec![String::new(); 3], Vec::new(), None);
    while let Some(batch) = futures::StreamExt::next(&mut chunks).await {
        for row in GenerationRow::rows(&batch.unwrap()).unwrap() {
            assert!(last.is_none(), "nothing follows the last row");
            let item = row.item() as usize;
            texts[item].push_str(row.text().unwrap_or_default());
            if let Some(reason) = row.finish_reason() {
                let code = row.error().map(|(code, _)| code.to_owned());
                ends.push((item, reason, code));
            }
            last = row.last().then(|| row.usage()).or(last);
        }
    }
    // The network decides which row fails.
    let failed: Vec<_> = ends
        .iter()
        .filter(|end| end.1 == FinishReason::Error)
        .collect();
    assert_eq!((ends.len(), failed.len()), (3, 1));
    assert_eq!(failed[0].2.as_deref(), Some("upstream_failed"));
    assert_eq!(texts[failed[0].0], "");
    texts.sort_unstable();
    assert_eq!(texts, ["", "one", "three"]);
    let usage = last.expect("a last row").expect("its usage");
    assert_eq!((usage.prompt_tokens, usage.completion_tokens), (4, 6));
}

#[tokio::test]
async fn a_provider_that_knows_no_talks_says_where_to_go() {
    for provider in [
        ProviderName::from_static("tgi"),
        ProviderName::from_static("open_inference"),
    ] {
        let mut server = serve(vec![Act::Send(text_of(provider))]).await;
        let model = load(connector(&server.url, provider), config())
            .await
            .unwrap();
        let rows = chat::conversations([Some(talk().as_slice())]);
        let chunks = ask_rows(&model, "messages", rows, Parameters::default()).await;
        let error = read(chunks).await.error.unwrap();
        assert_eq!(error.code, ErrorCode::InvalidInput);
        assert!(error.message.contains("chat completions"), "{error:?}");
        assert!(server.requests.try_recv().is_err(), "nothing was sent");
    }
}

#[tokio::test]
async fn an_end_that_may_be_a_cut_is_no_success() {
    // Without a length and chunks, the body ends with the connection, for any reason.
    let event = "data: {\"text_output\":\"hello\"}\n\n";
    let open_ended = [head("200 OK", "text/event-stream"), event.into()].concat();
    let chunked = format!("{:x}\r\n{event}\r\n", event.len());
    let head = head("200 OK\r\ntransfer-encoding: chunked", "text/event-stream");
    let cut = [head.clone(), chunked.clone().into()].concat();
    let whole = [head, format!("{chunked}0\r\n\r\n").into()].concat();
    for (answer, is_good) in [(open_ended, false), (cut, false), (whole, true)] {
        let server = serve(vec![Act::Send(answer)]).await;
        let spec = connector(&server.url, ProviderName::from_static("open_inference"));
        let answer = read(open(&load(spec, config()).await.unwrap(), &[]).await).await;
        assert_eq!(answer.text, "hello");
        let code = answer.error.map(|error| error.code);
        assert_eq!(code, (!is_good).then_some(ErrorCode::UpstreamIncomplete));
    }
}
