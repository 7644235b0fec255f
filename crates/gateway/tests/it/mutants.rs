//! Mutations of real bodies. Every one gets a response, and none gets a 500 for an internal error.
//!
//! `VOLLEY_MUTANTS` sets the number of mutants of each body, and `VOLLEY_SEED` the seed.

#[path = "mutants/seeds.rs"]
mod seeds;

use std::sync::Arc;

use arrow_array::builder::{Float32Builder, ListBuilder};
use arrow_array::{ArrayRef, Float32Array, RecordBatch, UInt32Array};
use arrow_schema::{DataType, Field, Schema};
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use volley_gateway::ApiConfig;
use volley_types::{FinishReason, GenerationChunk, Signature, Task, Usage};

use self::seeds::{Seed, dialects, opensearch, tensors};
use super::support::{Edge, SOON, Script, text};

const LENGTH: &str = "inference-header-content-length";

/// Models of every kind that the bodies use.
async fn edge() -> Edge {
    let edge = Edge::with(ApiConfig::default()).await;
    let end = GenerationChunk {
        finish_reason: Some(FinishReason::Stop),
        usage: Some(Usage::default()),
        last: true,
        ..GenerationChunk::default()
    };
    edge.cluster
        .script("m", Script::Chunks(vec![text("a"), end]));
    edge.cluster.script("d", Script::Chunks(Vec::new()));
    let schema = Arc::new(Schema::new(vec![Field::new("x", DataType::Float32, false)]));
    let numbers = Signature {
        task: Task::Tensors,
        input: schema.clone(),
        output: schema,
    };
    edge.cluster
        .script("t", Script::Tensors(numbers.clone(), Box::new(Ok)));
    edge.cluster.script("s", Script::Echo(numbers));
    let embeds = Signature::embed(2);
    let output = embeds.output.clone();
    let vectors = move |rows: RecordBatch| {
        let item = Arc::new(Field::new("item", DataType::Float32, false));
        let mut lists = ListBuilder::new(Float32Builder::new()).with_field(item);
        for _ in 0..rows.num_rows() {
            lists.values().append_slice(&[0.5, 1.0]);
            lists.append(true);
        }
        let tokens = UInt32Array::from(vec![3; rows.num_rows()]);
        let columns: Vec<ArrayRef> = vec![Arc::new(lists.finish()), Arc::new(tokens)];
        Ok(RecordBatch::try_new(output.clone(), columns).unwrap())
    };
    edge.cluster
        .script("e", Script::Tensors(embeds, Box::new(vectors)));
    let ranks = Signature::rerank();
    let output = ranks.output.clone();
    let scores = move |rows: RecordBatch| {
        let scores = Float32Array::from(vec![0.5; rows.num_rows()]);
        let tokens = UInt32Array::from(vec![3; rows.num_rows()]);
        let columns: Vec<ArrayRef> = vec![Arc::new(scores), Arc::new(tokens)];
        Ok(RecordBatch::try_new(output.clone(), columns).unwrap())
    };
    edge.cluster
        .script("r", Script::Tensors(ranks, Box::new(scores)));
    edge
}

fn odd(random: &mut fastrand::Rng) -> Value {
    let deep = (0..200).fold(Value::Null, |inner, _| json!([inner]));
    let values = [
        Value::Null,
        json!(true),
        json!(-1),
        json!(0),
        json!(1e308),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(0.1),
        json!(""),
        json!("x".repeat(5_000)),
        json!("\u{0}\u{feff}"),
        json!("${parameters.x}"),
        json!("../../etc"),
        json!([]),
        json!({}),
        json!([[], {}]),
        json!({ "": null }),
        json!([1, "a", null]),
        deep,
    ];
    values[random.usize(..values.len())].clone()
}

/// Changes one place of a value.
fn change(value: &mut Value, random: &mut fastrand::Rng) {
    let inside = match value {
        Value::Array(values) => values.len(),
        Value::Object(fields) => fields.len(),
        _ => 0,
    };
    if inside == 0 || random.u8(..5) == 0 {
        *value = odd(random);
        return;
    }
    let place = random.usize(..inside);
    match value {
        Value::Array(values) => match random.u8(..6) {
            0 => drop(values.remove(place)),
            1 => values.push(values[place].clone()),
            _ => change(&mut values[place], random),
        },
        Value::Object(fields) => {
            let name = fields.keys().nth(place).unwrap().clone();
            match random.u8(..6) {
                0 => drop(fields.remove(&name)),
                1 => {
                    let moved = fields.remove(&name).unwrap();
                    fields.insert(format!("{name}\u{0}x"), moved);
                }
                _ => change(fields.get_mut(&name).unwrap(), random),
            }
        }
        _ => {}
    }
}

const PIECES: [&[u8]; 14] = [
    b"{",
    b"}",
    b"[",
    b"\"",
    b",",
    b"\\u0000",
    b"\\ud800",
    b"1e999",
    b"-",
    b"null",
    b"\n",
    b"\xff",
    b"18446744073709551616",
    b"\xef\xbb\xbf",
];

fn damage(bytes: &mut Vec<u8>, random: &mut fastrand::Rng) {
    for _ in 0..random.usize(1..4) {
        let place = random.usize(..=bytes.len());
        match random.u8(..6) {
            0 => bytes.truncate(place),
            1 => {
                let piece = PIECES[random.usize(..PIECES.len())];
                bytes.splice(place..place, piece.iter().copied());
            }
            2 => {
                let end = (place + random.usize(..16)).min(bytes.len());
                bytes.drain(place..end);
            }
            3 => {
                let end = (place + random.usize(..64)).min(bytes.len());
                let copy = bytes[place..end].to_vec();
                bytes.splice(place..place, copy);
            }
            _ => {
                if let Some(byte) = bytes.get_mut(place) {
                    *byte ^= 1 << random.u8(..8);
                }
            }
        }
    }
}

fn mutant(seed: &Seed, random: &mut fastrand::Rng) -> Request<Full<Bytes>> {
    let mut split = seed.split;
    let json = &seed.body[..seed.split.unwrap_or(seed.body.len())];
    let body = match serde_json::from_slice::<Value>(json) {
        Ok(mut value) if random.bool() => {
            for _ in 0..random.usize(1..3) {
                change(&mut value, random);
            }
            let told = value.to_string().into_bytes();
            split = split.map(|_| told.len());
            [told, seed.body[json.len()..].to_vec()].concat()
        }
        _ => {
            let mut body = seed.body.clone();
            damage(&mut body, random);
            body
        }
    };
    let mut request = Request::builder()
        .method(seed.method)
        .uri(seed.path)
        .header("host", "volley.test")
        .header("content-type", seed.media);
    if let Some(split) = split {
        let odd = [
            split.to_string(),
            "0".into(),
            "-1".into(),
            "99999999999999999999".into(),
        ];
        let index = if random.u8(..4) == 0 {
            random.usize(..odd.len())
        } else {
            0
        };
        request = request.header(LENGTH, &odd[index]);
    }
    request.body(Full::new(Bytes::from(body))).unwrap()
}

async fn connect(edge: &Edge) -> SendRequest<Full<Bytes>> {
    let socket = TcpStream::connect(edge.address).await.unwrap();
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(socket));
    let (sender, connection) = handshake.await.unwrap();
    tokio::spawn(connection);
    sender
}

async fn run(seeds: &[Seed]) {
    let number = |name: &str, default: u64| {
        let given = std::env::var(name).ok();
        given.map_or(default, |text| text.parse().expect("a number"))
    };
    let (count, seed) = (number("VOLLEY_MUTANTS", 60), number("VOLLEY_SEED", 7));
    let edge = edge().await;
    let mut sender = connect(&edge).await;
    for (index, from) in seeds.iter().enumerate() {
        let mut good = 0;
        for mutation in 0..count {
            let mut random = fastrand::Rng::with_seed(seed ^ (index as u64) << 48 ^ mutation);
            if sender.is_closed() || sender.ready().await.is_err() {
                sender = connect(&edge).await;
            }
            let request = mutant(from, &mut random);
            let shown = format!("{} {} mutant {mutation}", from.method, from.path);
            let answered = async {
                let (parts, body) = sender.send_request(request).await.unwrap().into_parts();
                // A stream of rows that breaks off ends its connection.
                let body = body
                    .collect()
                    .await
                    .map(http_body_util::Collected::to_bytes);
                (parts.status, body.unwrap_or_default())
            };
            let answered = tokio::time::timeout(SOON, answered).await;
            let (status, body) = answered.unwrap_or_else(|_| panic!("{shown} hangs"));
            let told = String::from_utf8_lossy(&body);
            let refusal = status == StatusCode::NOT_IMPLEMENTED;
            assert!(refusal || status.as_u16() < 500, "{shown}: {status} {told}");
            good += u64::from(status.is_success());
        }
        // The test would be meaningless if all mutants were rejected for one reason.
        assert!(good < count, "{}: no mutant was refused", from.path);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn mutants_of_every_houses_bodies_are_answered() {
    run(&dialects()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mutants_of_the_plugins_bodies_are_answered() {
    run(&opensearch()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mutants_of_tensors_and_rows_are_answered() {
    run(&tensors()).await;
}

#[tokio::test]
async fn the_bodies_themselves_are_good() {
    let edge = edge().await;
    for seed in [dialects(), opensearch(), tensors()].into_iter().flatten() {
        let mut request = Request::builder()
            .method(seed.method)
            .uri(seed.path)
            .header("host", "volley.test")
            .header("content-type", seed.media);
        if let Some(split) = seed.split {
            request = request.header(LENGTH, split);
        }
        let request = request.body(Full::new(Bytes::from(seed.body))).unwrap();
        let reply = edge.send(request).await;
        let told = String::from_utf8_lossy(&reply.body).into_owned();
        let counts = seed.path.ends_with("tokens");
        assert!(reply.status.is_success() || counts, "{}: {told}", seed.path);
    }
}
