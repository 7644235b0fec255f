use proptest::prelude::*;
use volley_types::{GenerationChunk, GenerationChunks, Usage};

use super::*;
use crate::egress::Encoder;
use crate::ingress::{Decoder, Ingress};

fn rows(chunks: &[GenerationChunk]) -> RecordBatch {
    let mut rows = GenerationChunks::default();
    chunks.iter().for_each(|chunk| rows.push(chunk));
    rows.finish()
}

fn chunk() -> impl Strategy<Value = GenerationChunk> {
    let numbers = (0..2_u32, any::<u32>(), any::<Option<u32>>(), any::<bool>());
    let texts = (proptest::option::of(".{0,9}"), proptest::option::of("x?"));
    (numbers, texts).prop_map(|(numbers, texts)| GenerationChunk {
        item: numbers.0,
        sequence: numbers.1,
        token_id: numbers.2,
        last: numbers.3,
        usage: numbers.3.then(Usage::default),
        text: texts.0,
        thinking: texts.1,
        ..GenerationChunk::default()
    })
}

fn sent(batch: &RecordBatch) -> Vec<arrow_flight::FlightData> {
    let mut encoder = Encoder::new(1 << 20).leaving_out(true);
    let mut messages = vec![encoder.schema(&batch.schema())];
    encoder.batch(batch, &mut messages).unwrap();
    messages
}

proptest! {
    #[test]
    fn what_is_left_out_is_made_again(chunks in proptest::collection::vec(chunk(), 1..6)) {
        let batch = rows(&chunks);
        let mut decoder = Decoder::default().with_columns_left_out();
        let mut read = Vec::new();
        for message in sent(&batch) {
            if let Ingress::Batch { batch, .. } = decoder.decode(&message).unwrap() {
                read.push(batch);
            }
        }
        prop_assert_eq!(read, [batch]);
    }

    #[test]
    fn batches_are_joined_as_arrow_joins_them(
        parts in proptest::collection::vec(proptest::collection::vec(chunk(), 1..4), 1..5),
    ) {
        let parts: Vec<_> = parts.iter().map(|chunks| rows(chunks)).collect();
        let schema = parts[0].schema();
        let joined = arrow_select::concat::concat_batches(&schema, &parts).unwrap();
        prop_assert_eq!(concat(&schema, &parts).unwrap(), joined);
    }

    #[test]
    fn any_metadata_is_refused_or_read(bits: u64, other: Vec<u8>) {
        let batch = rows(&[GenerationChunk::default()]);
        for metadata in [Columns(bits).name(), other.into()] {
            let mut messages = sent(&batch);
            messages[1].app_metadata = metadata;
            let mut decoder = Decoder::default().with_columns_left_out();
            decoder.decode(&messages[0]).unwrap();
            decoder.decode(&messages[1]).ok();
        }
    }
}

#[test]
fn a_message_of_text_has_the_columns_that_say_something_and_is_small() {
    let batch = rows(&[GenerationChunk {
        sequence: 7,
        text: Some("word".into()),
        ..GenerationChunk::default()
    }]);
    let lean = &sent(&batch)[1];
    assert_eq!(Columns::named(&lean.app_metadata), Some(Columns(0b1100)));
    let mut plain = Vec::new();
    Encoder::new(1 << 20).batch(&batch, &mut plain).unwrap();
    let bytes = |it: &arrow_flight::FlightData| it.data_header.len() + it.data_body.len();
    assert!(4 * bytes(lean) < bytes(&plain[0]), "{}", bytes(lean));
}

#[test]
fn whoever_did_not_ask_for_it_does_not_read_it() {
    let batch = rows(&[
        GenerationChunk::default(),
        GenerationChunk {
            sequence: 1,
            ..GenerationChunk::default()
        },
    ]);
    let messages = sent(&batch);
    let mut decoder = Decoder::default();
    decoder.decode(&messages[0]).unwrap();
    assert!(decoder.decode(&messages[1]).is_err());
}
