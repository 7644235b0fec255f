//! Recorded answers of every provider, with faults of servers and networks.
//!
//! Each provider has a folder in `tests/fixtures/`, with answers and the expected results.

use std::path::{Path, PathBuf};

use serde_json::Value;
use volley_types::registry::ProviderName;
use volley_types::{Citation, ErrorCode, PredictError};

use crate::server::{
    Act, Read, config, connector, frames, head, load, open, read, recorded, serve_each, server_of,
};

struct Transcript {
    provider: ProviderName,
    name: String,
    body: String,
    expected: Value,
    /// Description of the server.
    server: Value,
}

impl Transcript {
    fn is_whole(&self) -> bool {
        self.name.ends_with(".json")
    }

    fn is_sse(&self) -> bool {
        self.name.ends_with(".sse")
    }

    fn is_framed(&self) -> bool {
        self.name.ends_with(".frames")
    }

    /// The bytes on the wire for a text of the transcript.
    fn wire(&self, text: &str) -> Vec<u8> {
        match self.is_framed() {
            true => frames(text),
            false => text.as_bytes().to_vec(),
        }
    }

    fn has_failed(&self) -> bool {
        self.expected["error"].is_object()
    }

    fn media(&self) -> &'static str {
        match self.name.rsplit_once('.').unwrap().1 {
            "sse" => "text/event-stream",
            "ndjson" => "application/x-ndjson",
            "frames" => "application/vnd.amazon.eventstream",
            _ => "application/json; charset=utf-8",
        }
    }

    /// Whether the answer ends with its body, so that an abort must be distinguishable.
    fn has_length(&self) -> bool {
        self.server["ending"] == "length"
    }

    fn answer(&self, body: &[u8]) -> Vec<u8> {
        self.begun(body, body.len())
    }

    /// The beginning of an answer with a body of this length.
    fn begun(&self, body: &[u8], length: usize) -> Vec<u8> {
        let mut answer = match self.has_length() {
            true => head(&format!("200 OK\r\ncontent-length: {length}"), self.media()),
            false => head("200 OK", self.media()),
        };
        answer.extend_from_slice(body);
        answer
    }

    fn ends_with_an_event(&self) -> bool {
        self.server["ending"] == "event"
    }

    /// The events, each with its end.
    fn events(&self) -> Vec<&str> {
        let end = if self.is_sse() { "\n\n" } else { "\n" };
        self.body.split_inclusive(end).collect()
    }

    fn check(&self, read: &Read, how: &str) {
        let what = format!("{} {} {how}: {read:?}", self.provider.as_str(), self.name);
        let expected = &self.expected;
        assert_eq!(read.text, expected["text"], "{what}");
        assert_eq!(read.thinking, expected["thinking"], "{what}");
        let calls = expected["calls"].as_array().unwrap();
        assert_eq!(read.calls.len(), calls.len(), "{what}");
        for (call, expected) in read.calls.iter().zip(calls) {
            let given = [&expected["id"], &expected["name"], &expected["arguments"]];
            assert_eq!(call.each_ref().map(String::as_str), given, "{what}");
        }
        let citations: Vec<_> = read.citations.iter().map(Citation::value).collect();
        let cited = expected["citations"].as_array().cloned();
        assert_eq!(citations, cited.unwrap_or_default(), "{what}");
        if let Some(error) = expected.get("error") {
            let told = read.error.as_ref().expect("it fails");
            assert_eq!(told.code.as_str(), error["code"], "{what}");
            assert!(
                told.message.contains(error["says"].as_str().unwrap()),
                "{what}"
            );
            return;
        }
        assert!(read.error.is_none(), "{what}");
        assert_eq!(
            read.finish.unwrap().as_str(),
            expected["finish_reason"],
            "{what}"
        );
        let usage = read.usage.map(|usage| {
            [
                usage.prompt_tokens,
                usage.completion_tokens,
                usage.cached_tokens,
            ]
        });
        let usage = usage.map_or(Value::Null, |usage| usage.to_vec().into());
        assert_eq!(usage, expected["usage"], "{what}");
    }
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

fn transcripts() -> Vec<Transcript> {
    let of = |provider: ProviderName| {
        let folder = fixtures().join(provider.as_str());
        let text = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
        let expected: Value = serde_json::from_str(&text("expected.json")).unwrap();
        let expected = expected.as_object().unwrap().clone();
        let answers = expected.into_iter().map(|(name, expected)| Transcript {
            provider,
            body: text(&name),
            name,
            expected,
            server: server_of(provider),
        });
        answers.collect::<Vec<_>>()
    };
    let all: Vec<_> = recorded().into_iter().flat_map(of).collect();
    assert!(recorded().len() < all.len());
    all
}

/// Plays scripts to one model in order, and returns the results.
async fn play(provider: ProviderName, scripts: Vec<Vec<Act>>) -> Vec<Read> {
    let times = scripts.len();
    let server = serve_each(scripts).await;
    let spec = connector(&server.url, provider);
    let model = load(spec, config()).await.unwrap();
    let mut all = Vec::new();
    for _ in 0..times {
        all.push(read(open(&model, &[]).await).await);
    }
    all
}

/// Splits bytes at fixed positions, some of them inside characters.
fn pieces(bytes: &[u8]) -> Vec<Act> {
    let (mut acts, mut rest, mut state) = (Vec::new(), bytes, bytes.len());
    while !rest.is_empty() {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let (piece, after) = rest.split_at(rest.len().min(1 + (state >> 33) % 97));
        acts.push(Act::Send(piece.to_vec()));
        rest = after;
    }
    acts
}

#[tokio::test]
async fn every_transcript_reads_the_same_however_it_comes() {
    for transcript in transcripts() {
        let body = transcript.body.as_str();
        let whole = |body: &str| vec![Act::Send(transcript.answer(body.as_bytes()))];
        let good = transcript.answer(&transcript.wire(body));
        let mut ways = vec![
            ("whole", vec![Act::Send(good.clone())]),
            ("byte by byte", vec![Act::Drip(good.clone())]),
            ("in pieces", pieces(&good)),
        ];
        if !transcript.is_whole() && !transcript.is_framed() {
            ways.push(("with CRLF", whole(&body.replace('\n', "\r\n"))));
            ways.push(("with a BOM", whole(&format!("\u{feff}{body}"))));
            let split = [
                transcript.begun(b"\xef\xbb", body.len() + 3),
                [b"\xbf", body.as_bytes()].concat(),
            ];
            ways.push(("with a BOM in pieces", split.map(Act::Send).to_vec()));
            let junk = format!("{body}\n\nmore that nobody should read");
            if !transcript.has_failed() && transcript.ends_with_an_event() {
                ways.push(("and goes on", whole(&junk)));
            }
        }
        if transcript.is_sse() {
            ways.push(("with CR", whole(&body.replace('\n', "\r"))));
            let comments = format!(": hello\n\n{}", body.replace("\n\n", "\n\n: ping\n\n"));
            ways.push(("with comments", whole(&comments)));
            let fields = body.replace("\n\n", "\nid: 7\nretry: 1\nother\n\n");
            ways.push(("with other fields", whole(&fields)));
            ways.push(("without spaces", whole(&body.replace("data: ", "data:"))));
            let lines = body.replace("data: {", "data: {\ndata:\ndata:   ");
            ways.push(("with data of several lines", whole(&lines)));
        }
        let (names, scripts): (Vec<_>, Vec<_>) = ways.into_iter().unzip();
        let all = play(transcript.provider, scripts).await;
        for (how, read) in names.into_iter().zip(&all) {
            transcript.check(read, how);
        }
    }
}

#[tokio::test]
async fn an_event_of_8_mib_is_read_from_every_provider_and_one_of_13_ends_the_answer() {
    for transcript in transcripts() {
        if transcript.has_failed() || !transcript.name.starts_with("text.") {
            continue;
        }
        // White space between the parts of an object has no meaning.
        let first = transcript.body.find('{').unwrap() + 1;
        let (head, tail) = transcript.body.split_at(first);
        let padded = [8, 13].map(|mib| {
            let body = format!("{head}{}{tail}", " ".repeat(mib << 20));
            vec![Act::Send(transcript.answer(&transcript.wire(&body)))]
        });
        let all = play(transcript.provider, padded.to_vec()).await;
        transcript.check(&all[0], "with an event of 8 MiB");
        let error = all[1].error.as_ref().expect("it is too large");
        let what = format!("{} {error:?}", transcript.provider.as_str());
        assert_eq!(error.code, ErrorCode::UpstreamFailed, "{what}");
        assert!(
            error.message.contains("12 MiB") && all[1].text.is_empty(),
            "{what}"
        );
    }
}

/// Whether an event has the finish reason. Later events are optional.
fn tells_reason(event: &str) -> bool {
    let names = [
        "finish_reason",
        "stop_reason",
        "stopReason",
        "done_reason",
        "why",
    ];
    let told = names.map(|name| format!("\"{name}\":\""));
    // The reason in `message_start` is not final.
    !event.contains("message_start") && told.iter().any(|told| event.contains(told.as_str()))
}

#[tokio::test]
async fn a_cut_answer_is_never_a_success_and_what_came_before_the_cut_is_kept() {
    for transcript in transcripts() {
        if transcript.has_failed() || transcript.is_whole() {
            continue;
        }
        let events = transcript.events();
        // Such a stream ends with its body after the finish reason, which is in the last event.
        let last = match transcript.events().last() {
            Some(end) if end.contains("finishReason") || end.contains("blockReason") => 1,
            _ => events.len().min(2),
        };
        let whole = |count: usize| transcript.wire(&events[..count].concat());
        let told = |count: usize| events[..count].iter().any(|event| tells_reason(event));
        let mut reasons: Vec<_> = (0..events.len()).map(told).collect();
        let mut scripts: Vec<_> = (0..events.len()).map(whole).collect();
        // Also inside the last events.
        for count in events.len() - last..events.len() {
            let (start, end) = (whole(count).len(), whole(count + 1).len());
            let mut bytes = whole(count + 1);
            bytes.truncate(start + (end - start) / 2 - 1);
            scripts.push(bytes);
            reasons.push(told(count));
        }
        let length = transcript.wire(&transcript.body).len();
        let acts = scripts
            .iter()
            .map(|body| vec![Act::Send(transcript.begun(body, length))]);
        let all = play(transcript.provider, acts.collect()).await;
        for ((script, read), told) in scripts.iter().zip(&all).zip(&reasons) {
            let what = format!(
                "{} {}: {} {read:?}",
                transcript.provider.as_str(),
                transcript.name,
                String::from_utf8_lossy(script)
            );
            let code = read.error.as_ref().map(|error| error.code);
            let expected = (!told).then_some(ErrorCode::UpstreamIncomplete);
            assert_eq!(code, expected, "{what}");
            assert_eq!(read.last, *told, "{what}");
            let text = transcript.expected["text"].as_str().unwrap();
            assert!(text.starts_with(&read.text), "{what}");
        }
        let most = &all[events.len() - 1];
        assert_eq!(
            most.thinking, transcript.expected["thinking"],
            "{}",
            transcript.name
        );
    }
}

#[tokio::test]
async fn silence_in_the_middle_is_a_timeout_after_what_was_said() {
    for transcript in transcripts() {
        if transcript.has_failed() || !transcript.name.starts_with("text.") {
            continue;
        }
        let events = transcript.events();
        // After the finish reason, silence is not an error.
        let told = events.iter().position(|event| tells_reason(event));
        let before = told.unwrap_or(events.len() - 1);
        let start = transcript.wire(&events[..before].concat());
        let start = transcript.begun(&start, transcript.wire(&transcript.body).len());
        let all = play(transcript.provider, vec![vec![Act::Send(start), Act::Hang]]).await;
        let code = all[0].error.as_ref().map(|error| error.code);
        assert_eq!(
            code,
            Some(ErrorCode::UpstreamTimeout),
            "{}",
            transcript.provider.as_str()
        );
        let said = transcript.expected["text"].as_str().unwrap();
        assert!(!all[0].text.is_empty() && said.starts_with(&all[0].text));
    }
}

async fn refused(provider: ProviderName, status: &str, body: &str) -> PredictError {
    let mut answer = head(status, "application/json");
    answer.extend_from_slice(body.as_bytes());
    let mut all = play(provider, vec![vec![Act::Send(answer)]]).await;
    all.remove(0).error.expect("an error")
}

#[tokio::test]
async fn each_provider_refuses_in_its_own_words() {
    let limited = "429 Too Many Requests\r\nretry-after: 7";
    for (provider, status, body, code, says) in [
        (
            ProviderName::from_static("azure"),
            "400 Bad Request",
            r#"{"error":{"message":"The response was filtered","type":null,"param":"prompt","code":"content_filter","status":400}}"#,
            ErrorCode::InvalidInput,
            "filtered",
        ),
        (
            ProviderName::from_static("cohere"),
            "400 Bad Request",
            r#"{"id":"x","message":"invalid request: all elements in history must have a message"}"#,
            ErrorCode::InvalidInput,
            "all elements",
        ),
        (
            ProviderName::from_static("cohere"),
            limited,
            r#"{"message":"You are past the per minute request limit"}"#,
            ErrorCode::Overloaded,
            "per minute",
        ),
        (
            ProviderName::from_static("mistral"),
            "422 Unprocessable Entity",
            r#"{"detail":[{"type":"extra_forbidden","loc":["body","top_k"],"msg":"Extra inputs are not permitted","input":"the prompt"}]}"#,
            ErrorCode::InvalidInput,
            "body.top_k: Extra inputs",
        ),
        (
            ProviderName::from_static("gemini"),
            "400 Bad Request",
            r#"{"error":{"code":400,"message":"Invalid value at 'generation_config'","status":"INVALID_ARGUMENT"}}"#,
            ErrorCode::InvalidInput,
            "generation_config",
        ),
        (
            ProviderName::from_static("vertex"),
            "503 Service Unavailable",
            r#"[{"error":{"code":503,"message":"Try again","status":"UNAVAILABLE"}}]"#,
            ErrorCode::Unavailable,
            "Try again",
        ),
        (
            ProviderName::from_static("ollama"),
            "404 Not Found",
            r#"{"error":"model 'm' not found"}"#,
            ErrorCode::UpstreamFailed,
            "not found",
        ),
        (
            ProviderName::from_static("ollama"),
            "400 Bad Request",
            r#"{"error":"m does not support tools"}"#,
            ErrorCode::InvalidInput,
            "does not support tools",
        ),
    ] {
        let error = refused(provider, status, body).await;
        assert_eq!(error.code, code, "{error:?}");
        assert!(error.message.contains(says), "{error:?}");
        assert!(!error.message.contains("the prompt"), "{error:?}");
        let comes_back = status == limited || code == ErrorCode::Unavailable;
        assert_eq!(error.retry_after.is_some(), comes_back);
    }
}
