//! The CPU time of a chunk. A debug build runs each case once. For measurements, run
//! `cargo test --release -p volley-backend-remote --lib -- --nocapture cost` on an idle machine.

use std::fmt::Write;
use std::hint::black_box;
use std::time::{Duration, Instant};

use bytes::Bytes;
use volley_provider_kit::framing::Framing;
use volley_remote_http::sse::Parser;

use crate::answer::UpstreamAnswer;
use crate::merge::{AnswerIndex, Merge};
use crate::tests::provider;
use volley_providers::Provider;

const CHUNKS: usize = 500;
const ROUNDS: usize = if cfg!(debug_assertions) { 1 } else { 400 };
const TO: AnswerIndex = AnswerIndex { item: 0, choice: 0 };

fn openai(escaped: bool) -> String {
    let mut body = String::new();
    for chunk in 0..CHUNKS {
        // A chunk with an escape must be parsed.
        let text = if escaped { "\\ntoken" } else { " token" };
        write!(
            body,
            "data: {{\"id\":\"chatcmpl-0123456789abcdef0123456789\",\"object\":\"chat.completion.chunk\",\
             \"created\":1760000000,\"model\":\"gpt-x-2026-01-01\",\"service_tier\":\"default\",\
             \"system_fingerprint\":\"fp_0123456789\",\"choices\":[{{\"index\":0,\"delta\":{{\
             \"content\":\"{text}{}\"}},\"logprobs\":null,\"finish_reason\":null}}],\"usage\":null}}\n\n",
            chunk % 10
        )
        .unwrap();
    }
    body.push_str(
        "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n",
    );
    body
}

fn anthropic() -> String {
    let mut body = String::new();
    for chunk in 0..CHUNKS {
        write!(
            body,
            "event: content_block_delta\ndata: {{\"type\":\"content_block_delta\",\"index\":0,\
             \"delta\":{{\"type\":\"text_delta\",\"text\":\" token{}\"}}}}\n\n",
            chunk % 10
        )
        .unwrap();
    }
    body.push_str("event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n");
    body
}

/// The minimum time of a chunk over many short rounds, most of which are not interrupted.
fn time(provider: &'static Provider, pieces: &[Bytes], rows: bool) -> Duration {
    let round = || {
        let (mut answer, mut merge) = (UpstreamAnswer::new(provider, 0), Merge::new(1));
        let started = Instant::now();
        for piece in pieces {
            let part = answer.read(Some(piece.clone()), str::to_owned);
            if rows {
                black_box(merge.part(TO, part));
            } else {
                black_box(part);
            }
        }
        assert!(answer.has_ended());
        started.elapsed()
    };
    (0..ROUNDS).map(|_| round()).min().unwrap() / CHUNKS as u32
}

/// The time to parse the same events as JSON trees, for comparison.
fn time_of_trees(body: &Bytes) -> Duration {
    let round = || {
        let (mut parser, mut events) = (Parser::new(Framing::Sse), Vec::new());
        let started = Instant::now();
        parser.push(body.clone(), &mut events).unwrap();
        for event in events.iter().take(CHUNKS) {
            let tree: serde_json::Value = serde_json::from_str(event.text().unwrap()).unwrap();
            black_box(tree["choices"][0]["delta"]["content"].as_str());
        }
        started.elapsed()
    };
    (0..ROUNDS).map(|_| round()).min().unwrap() / CHUNKS as u32
}

#[test]
fn cost_of_a_chunk() {
    let cases = [
        ("openai, plain", provider("openai"), openai(false)),
        ("openai, with an escape", provider("openai"), openai(true)),
        ("anthropic, plain", provider("anthropic"), anthropic()),
    ];
    let tree = time_of_trees(&Bytes::from(openai(true)));
    eprintln!("openai, as trees of JSON: {tree:?}");
    for (name, provider, body) in cases {
        let whole = Bytes::from(body);
        let mut events = Vec::new();
        let mut from = 0;
        while let Some(length) = memchr::memmem::find(&whole[from..], b"\n\n") {
            events.push(whole.slice(from..from + length + 2));
            from += length + 2;
        }
        let reads: Vec<_> = (0..whole.len())
            .step_by(16 << 10)
            .map(|from| whole.slice(from..whole.len().min(from + (16 << 10))))
            .collect();
        for (how, pieces) in [("one to a read", &events), ("reads of 16 KiB", &reads)] {
            let (read, rows) = (time(provider, pieces, false), time(provider, pieces, true));
            eprintln!("{name}, {how}: {read:?} to read, {rows:?} with its row");
        }
    }
}

/// The minimum time of an event, from received bytes to the delta.
fn time_of_an_event(provider: &'static Provider, event: &Bytes) -> Duration {
    let round = || {
        let mut answer = UpstreamAnswer::new(provider, 0);
        let pieces: Vec<_> = (0..event.len())
            .step_by(1_460)
            .map(|from| event.slice(from..event.len().min(from + 1_460)))
            .collect();
        let started = Instant::now();
        let mut deltas = 0;
        for piece in pieces {
            deltas += black_box(answer.read(Some(piece), str::to_owned))
                .deltas
                .len();
        }
        let took = started.elapsed();
        assert_eq!(deltas, 1);
        took
    };
    (0..ROUNDS.min(30)).map(|_| round()).min().unwrap()
}

#[test]
fn cost_of_an_event_of_8_mib() {
    for (name, provider, start, end) in [
        (
            "openai",
            provider("openai"),
            "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"",
            "\"}}]}\n\n",
        ),
        (
            "anthropic",
            provider("anthropic"),
            "data: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\
             \"text_delta\",\"text\":\"",
            "\"}}\n\n",
        ),
    ] {
        for (how, word) in [("plain", "a word "), ("an escape a line", LINE)] {
            let text = word.repeat((8 << 20) / word.len());
            let took = time_of_an_event(provider, &format!("{start}{text}{end}").into());
            eprintln!("{name}, an event of 8 MiB, {how}: {took:?}");
            assert!(
                cfg!(debug_assertions) || took < Duration::from_millis(10),
                "{took:?}"
            );
        }
    }
}

/// A line of typical text.
const LINE: &str = "The quick brown fox jumps over the lazy dog, and then it sleeps in the sun.\\n";
