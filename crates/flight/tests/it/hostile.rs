//! Clients that send what no client should.

use std::sync::Arc;

use arrow_array::builder::{
    FixedSizeListBuilder, Float32Builder, ListBuilder, StringBuilder, StructBuilder,
};
use arrow_array::{ArrayRef, RecordBatch};
use arrow_flight::{FlightData, FlightDescriptor};
use futures::{TryStreamExt, stream};
use proptest::prelude::*;
use tonic::{Code, Status};
use volley_flight::egress::Encoder;
use volley_flight::ingress::decode_all;
use volley_types::Predict;
use volley_types::chat::message_fields;

use super::forms;
use super::support::{Node, numbers, request, soon};

fn good() -> Vec<FlightData> {
    encoded(&numbers(&[1, 2, 3, 4, 5]))
}

fn encoded(batch: &RecordBatch) -> Vec<FlightData> {
    let mut encoder = Encoder::new(1 << 20);
    let mut messages = vec![encoder.schema(&batch.schema())];
    encoder.batch(batch, &mut messages).unwrap();
    messages
}

/// Tensors and chats: fixed-size lists, lists of structs.
fn nested() -> Vec<FlightData> {
    let tensors = FixedSizeListBuilder::new(Float32Builder::new(), 4);
    let messages = ListBuilder::new(StructBuilder::from_fields(message_fields(), 4));
    let (mut tensors, mut messages) = (tensors, messages);
    for row in 0..4 {
        tensors.values().append_slice(&[0.5; 4]);
        tensors.append(row != 2);
        for text in ["user", "what is new?"] {
            let message = messages.values();
            for column in 0..message_fields().len() {
                let texts = message.field_builder::<StringBuilder>(column).unwrap();
                texts.append_value(text);
            }
            message.append(true);
        }
        messages.append(row != 1);
    }
    let columns: [(&str, ArrayRef); 2] = [
        ("tensor", Arc::new(tensors.finish())),
        ("messages", Arc::new(messages.finish())),
    ];
    encoded(&RecordBatch::try_from_iter(columns).unwrap())
}

/// Every flat type of a response: numbers, text, binary, booleans, with nulls.
fn flat() -> Vec<FlightData> {
    let row = volley_types::GenerationChunk {
        text: Some("some text".into()),
        citations: Some("[]".to_owned()),
        ..Default::default()
    };
    let mut rows = volley_types::GenerationChunks::default();
    (0..5).for_each(|_| rows.push(&row));
    encoded(&rows.finish())
}

async fn exchange(node: &Node, messages: Vec<FlightData>) -> Result<Vec<FlightData>, Status> {
    let mut client = node.raw().await;
    let replies = client.do_exchange(stream::iter(messages)).await?;
    soon("an end", replies.into_inner().try_collect()).await
}

fn described(descriptor: FlightDescriptor) -> Vec<FlightData> {
    let mut messages = good();
    messages[0].flight_descriptor = Some(descriptor);
    messages
}

#[tokio::test]
async fn bad_descriptors_and_schemas_are_refused_by_name() {
    let node = Node::start().await;
    let path = |name: &str| FlightDescriptor::new_path(vec![name.to_owned()]);
    let mut wrong_column = flat();
    wrong_column[0].flight_descriptor = Some(path("double"));
    let cases = [
        (good(), Code::InvalidArgument, "descriptor"),
        (vec![], Code::InvalidArgument, "descriptor"),
        (
            described(FlightDescriptor::default()),
            Code::InvalidArgument,
            "path",
        ),
        (described(path("a//b")), Code::InvalidArgument, "model name"),
        (described(path("missing")), Code::NotFound, "missing"),
        (
            described(FlightDescriptor::new_cmd("\x0a\x02hi")),
            Code::InvalidArgument,
            "VLY1",
        ),
        (wrong_column, Code::InvalidArgument, "'item'"),
        (
            vec![described(path("double")).remove(0), good().remove(0)],
            Code::InvalidArgument,
            "schema",
        ),
    ];
    for (messages, code, text) in cases {
        let status = exchange(&node, messages).await.unwrap_err();
        assert_eq!(status.code(), code, "{status:?}");
        assert!(status.message().contains(text), "{text}: {status:?}");
        assert!(!status.details().is_empty());
    }
    assert_lives(&node).await;
}

#[tokio::test]
async fn an_input_without_the_promised_end_marker_is_not_complete() {
    let node = Node::start().await;
    let sent = request("double", &[1]);
    let command = volley_proto::predict_command::to_wire(&sent, std::time::Instant::now());
    let command = volley_proto::predict_command::encode(&command);
    let status = exchange(&node, described(FlightDescriptor::new_cmd(command)))
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::Cancelled);
    assert!(status.message().contains("end marker"));
}

async fn assert_lives(node: &Node) {
    let stream = node.client.predict(request("double", &[4])).await.unwrap();
    assert_eq!(
        soon("an answer", stream.try_collect::<Vec<_>>())
            .await
            .unwrap()
            .len(),
        1
    );
}

/// One change of one byte, or a cut, in the header or the body.
#[derive(Clone, Debug)]
struct Mutation {
    message: prop::sample::Index,
    body: bool,
    at: prop::sample::Index,
    change: Change,
}

#[derive(Clone, Debug)]
enum Change {
    Set(u8),
    Flip(u8),
    Word(i64),
    Cut,
    Grow,
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let change = prop_oneof![
        any::<u8>().prop_map(Change::Set),
        (0_u8..8).prop_map(Change::Flip),
        prop_oneof![
            Just(-1),
            Just(i64::MAX),
            Just(i64::MIN),
            Just(1 << 40),
            any::<i64>()
        ]
        .prop_map(Change::Word),
        Just(Change::Cut),
        Just(Change::Grow),
    ];
    let place = (
        any::<prop::sample::Index>(),
        any::<bool>(),
        any::<prop::sample::Index>(),
    );
    (place, change).prop_map(|((message, body, at), change)| Mutation {
        message,
        body,
        at,
        change,
    })
}

impl Mutation {
    fn apply(&self, messages: &mut [FlightData]) {
        let message = self.message.get_mut(messages);
        let part = if self.body {
            &mut message.data_body
        } else {
            &mut message.data_header
        };
        let mut bytes = part.to_vec();
        if !bytes.is_empty() {
            let at = self.at.index(bytes.len());
            match self.change {
                Change::Set(value) => bytes[at] = value,
                Change::Flip(bit) => bytes[at] ^= 1 << bit,
                Change::Word(word) => {
                    let at = at / 8 * 8;
                    let end = bytes.len().min(at + 8);
                    bytes[at..end].copy_from_slice(&word.to_le_bytes()[..end - at]);
                }
                Change::Cut => bytes.truncate(at),
                Change::Grow => bytes.resize(bytes.len() + at, 0xff),
            }
        }
        *part = bytes.into();
    }
}

/// That many cases, or what `PROPTEST_CASES` says. Failures are not written to disk.
fn cases(default: u32) -> ProptestConfig {
    let given = std::env::var("PROPTEST_CASES").ok();
    ProptestConfig {
        cases: given.and_then(|text| text.parse().ok()).unwrap_or(default),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(cases(20_000))]

    /// Whatever the bytes: rows or a refusal, never a panic that escapes, never a hang. Rows
    /// that were accepted can be read and written again.
    #[test]
    fn mutated_messages_decode_or_are_refused(
        mutations in prop::collection::vec(mutation(), 1..4),
        table in 0..4,
    ) {
        let mut messages = match table {
            0 => good(),
            1 => flat(),
            2 => nested(),
            _ => forms::written(&forms::batches()),
        };
        for mutation in &mutations {
            mutation.apply(&mut messages);
        }
        if let Ok(batches) = decode_all(&messages) {
            for batch in batches {
                let _shown = format!("{batch:?}");
                Encoder::new(1 << 20).batch(&batch, &mut Vec::new()).ok();
            }
        }
    }
}

#[test]
fn a_server_outlives_thousands_of_mutated_calls() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let node = runtime.block_on(Node::start());
    let client = runtime.block_on(node.raw());
    let descriptor = FlightDescriptor::new_path(vec!["double".to_owned()]);
    let mut runner = proptest::test_runner::TestRunner::new(cases(2_000));
    let mutations = prop::collection::vec(mutation(), 1..3);
    runner
        .run(&mutations, |mutations| {
            let mut messages = described(descriptor.clone());
            for mutation in &mutations {
                mutation.apply(&mut messages);
            }
            let mut client = client.clone();
            let outcome: Result<Vec<_>, Status> = runtime.block_on(async move {
                let replies = client.do_exchange(stream::iter(messages)).await?;
                soon("an end", replies.into_inner().try_collect()).await
            });
            if let Err(status) = outcome {
                prop_assert!(
                    matches!(status.code(), Code::InvalidArgument | Code::OutOfRange),
                    "{status:?}"
                );
            }
            Ok(())
        })
        .unwrap();
    runtime.block_on(assert_lives(&node));
}
