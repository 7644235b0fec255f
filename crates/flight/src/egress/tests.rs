use std::sync::Arc;

use arrow_array::types::{Float32Type, Int32Type};
use arrow_array::{ArrayRef, DictionaryArray, FixedSizeListArray, Float32Array, StringArray};
use arrow_schema::{DataType, Field, Schema};
use arrow_select::concat::concat_batches;
use futures::StreamExt;
use volley_types::Signature;
use volley_types::signature::events::marks;

use super::*;
use crate::ingress::decode_all;

fn texts(values: &[&str]) -> RecordBatch {
    let column: ArrayRef = Arc::new(StringArray::from(values.to_vec()));
    RecordBatch::try_from_iter([("text", column)]).unwrap()
}

fn messages(batch: &RecordBatch, split_bytes: usize) -> Vec<FlightData> {
    let mut encoder = Encoder::new(split_bytes);
    let mut messages = vec![encoder.schema(&batch.schema())];
    encoder.batch(batch, &mut messages).unwrap();
    messages
}

#[test]
fn what_is_encoded_decodes_to_the_same_rows_however_it_is_split() {
    let rows: Vec<Option<Vec<Option<f32>>>> =
        (0..50).map(|i| Some(vec![Some(i as f32); 4])).collect();
    let tensors = FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>(rows, 4);
    let ids: ArrayRef = Arc::new(StringArray::from_iter_values(
        (0..50).map(|i| i.to_string()),
    ));
    let batch =
        RecordBatch::try_from_iter([("tensor", Arc::new(tensors) as ArrayRef), ("id", ids)])
            .unwrap();
    for (split_bytes, least) in [(1, 50), (500, 2), (1 << 20, 1)] {
        let messages = messages(&batch, split_bytes);
        assert!(messages.len() > least, "{split_bytes}: {}", messages.len());
        let decoded = decode_all(&messages).unwrap();
        let merged = arrow_select::concat::concat_batches(&batch.schema(), &decoded).unwrap();
        assert_eq!(merged, batch);
    }
}

#[test]
fn a_slice_costs_its_own_rows_and_not_its_parents() {
    let large: ArrayRef = Arc::new(Float32Array::from(vec![1.0_f32; 2_000_000]));
    let batch = RecordBatch::try_from_iter([("x", large)]).unwrap();
    let messages = messages(&batch.slice(1_000_000, 20_000), RESPONSE_MESSAGE_BYTES);
    assert_eq!(messages.len(), 2);
    assert!(messages[1].data_body.len() < 100_000);
}

#[test]
fn one_row_too_large_for_a_message_is_refused() {
    let row = "x".repeat(MAX_MESSAGE_BYTES);
    let batch = texts(&["small", &row]);
    let error = Encoder::new(RESPONSE_MESSAGE_BYTES)
        .batch(&batch, &mut Vec::new())
        .unwrap_err();
    assert_eq!(error.code, ErrorCode::TooLarge);
}

#[test]
fn empty_batches_are_nothing_and_dictionaries_are_not_sent() {
    assert_eq!(messages(&texts(&[]), 100).len(), 1);

    let words: DictionaryArray<Int32Type> = ["a", "b", "a"].into_iter().collect();
    let batch = RecordBatch::try_from_iter([("d", Arc::new(words) as ArrayRef)]).unwrap();
    let mut encoder = Encoder::new(100);
    let sent = encoder.batch(&batch, &mut Vec::new()).unwrap_err();
    assert_eq!(sent.code, ErrorCode::Internal);
}

#[tokio::test]
async fn ready_batches_merge_and_none_is_waited_for() {
    let ready = futures::stream::iter([Ok(texts(&["a"])), Ok(texts(&["b", "c"]))]);
    let batches = ready.chain(futures::stream::pending());
    let mut merged = Coalesce::new(texts(&[]).schema(), Box::pin(batches));
    let first = merged.next().await.unwrap().unwrap();
    assert_eq!(first, texts(&["a", "b", "c"]));
    assert!(futures::poll!(merged.next()).is_pending());
}

#[tokio::test]
async fn merging_stops_at_the_limit_and_keeps_errors_behind_rows() {
    let half = "x".repeat(RESPONSE_MESSAGE_BYTES * 2 / 3);
    let batches = futures::stream::iter([
        Ok(texts(&[&half])),
        Ok(texts(&[&half])),
        Ok(texts(&["end"])),
        Err(PredictError::invalid("then this")),
    ]);
    let merged: Vec<_> = Coalesce::new(texts(&[]).schema(), batches).collect().await;
    let rows: Vec<_> = merged
        .iter()
        .map(|item| item.as_ref().map(RecordBatch::num_rows).map_err(|e| e.code))
        .collect();
    assert_eq!(rows, [Ok(1), Ok(2), Err(ErrorCode::InvalidInput)]);
}

#[tokio::test]
async fn a_client_gets_each_event_and_a_node_as_many_as_are_ready() {
    let text = Schema::new(vec![Field::new("text", DataType::Utf8, false)]);
    let signature = Signature::events(Arc::new(text.clone()), &text).unwrap();
    let batch = |values: &[&str], first, events: &[usize]| {
        let texts: ArrayRef = Arc::new(StringArray::from(values.to_vec()));
        let columns = [vec![texts], marks(first, events).to_vec()].concat();
        RecordBatch::try_new(signature.output.clone(), columns).unwrap()
    };
    let sent = [
        batch(&["a", "b", "c"], 0, &[1, 2]),
        batch(&["d"], 2, &[1]),
        batch(&["e", "f"], 3, &[1, 1]),
    ];
    for (is_node, expected) in [(false, vec![1, 2, 1, 1, 1]), (true, vec![6])] {
        let ready = futures::stream::iter(sent.clone()).map(Ok);
        let chunks = ChunkStream::new(signature.output.clone(), ready);
        let encoder = Encoder::new(RESPONSE_MESSAGE_BYTES).leaving_out(is_node);
        let batches = Coalesce::for_reader(chunks, &encoder);
        let batches: Vec<_> = batches.map(|batch| batch.unwrap()).collect().await;
        let rows: Vec<_> = batches.iter().map(RecordBatch::num_rows).collect();
        assert_eq!(rows, expected);
        let all = concat_batches(&signature.output, &batches).unwrap();
        assert_eq!(all, concat_batches(&signature.output, &sent).unwrap());
    }
}
