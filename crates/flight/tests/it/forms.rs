//! Columns that come as dictionaries and views.

use std::sync::Arc;

use arrow_array::types::{Int8Type, Int32Type};
use arrow_array::{
    Array, ArrayRef, DictionaryArray, Int8Array, Int32Array, Int64Array, ListArray, RecordBatch,
    StringArray, StringViewArray,
};
use arrow_buffer::OffsetBuffer;
use arrow_flight::encode::{DictionaryHandling, FlightDataEncoderBuilder};
use arrow_flight::{FlightData, FlightDescriptor};
use arrow_schema::{DataType, Field};
use futures::{StreamExt, TryStreamExt, stream};
use volley_flight::ingress::{Decoder, Ingress, decode_all};
use volley_types::{ErrorCode, PredictError};

use super::support::{Node, column, soon};

/// The messages of `batches`, of one schema, as Arrow's own encoder writes them: with dictionaries.
pub(super) fn written(batches: &[RecordBatch]) -> Vec<FlightData> {
    let encoder = FlightDataEncoderBuilder::new()
        .with_dictionary_handling(DictionaryHandling::Resend)
        .build(stream::iter(batches.to_vec()).map(Ok));
    futures::executor::block_on(encoder.try_collect()).unwrap()
}

fn words(texts: [Option<&str>; 3]) -> DictionaryArray<Int8Type> {
    texts.into_iter().collect()
}

/// Dictionaries of texts, which change, and views of them, also inside lists.
pub(super) fn batches() -> Vec<RecordBatch> {
    let long = "a text that is too long to stand in its view";
    let batch = |texts: [Option<&str>; 3]| {
        let views = Arc::new(StringViewArray::from(texts.to_vec()));
        let item = Arc::new(Field::new("item", DataType::Utf8View, true));
        let offsets = OffsetBuffer::from_lengths([1, 0, 2]);
        let lists = ListArray::new(item, offsets, views.clone(), None);
        let columns: [(&str, ArrayRef); 3] = [
            ("words", Arc::new(words(texts))),
            ("views", views),
            ("lists", Arc::new(lists)),
        ];
        RecordBatch::try_from_iter_with_nullable(columns.map(|(name, it)| (name, it, true)))
            .unwrap()
    };
    vec![
        batch([Some("a"), Some(long), Some("a")]),
        batch([Some(long), None, Some("b")]),
    ]
}

#[test]
fn dictionaries_and_views_become_plain_values() {
    let sent = batches();
    let came = decode_all(&written(&sent)).unwrap();
    assert_eq!(came.len(), 2);
    for (sent, came) in sent.iter().zip(&came) {
        let views = sent.column(1);
        let plain = arrow_cast::cast(views, &DataType::Utf8).unwrap();
        assert_eq!(came.column(0), &plain);
        assert_eq!(came.column(1), &plain);
        let item = Arc::new(Field::new("item", DataType::Utf8, true));
        let lists = arrow_cast::cast(sent.column(2), &DataType::List(item)).unwrap();
        assert_eq!(came.column(2), &lists);
    }
}

#[tokio::test]
async fn a_model_takes_a_dictionary_of_its_numbers() {
    let node = Node::start().await;
    let rows = |numbers: Vec<i64>| {
        let indices: Int32Array = (0_i32..).take(numbers.len()).collect();
        let numbers =
            DictionaryArray::<Int32Type>::try_new(indices, Arc::new(Int64Array::from(numbers)));
        let column: ArrayRef = Arc::new(numbers.unwrap());
        RecordBatch::try_from_iter([("x", column)]).unwrap()
    };
    let mut messages = written(&[rows(vec![3, 4]), rows(vec![5])]);
    let path = FlightDescriptor::new_path(vec!["double".to_owned()]);
    messages[0].flight_descriptor = Some(path);
    let call = node.raw().await.do_exchange(stream::iter(messages)).await;
    let replies = call.unwrap().into_inner();
    let replies: Vec<_> = soon("the answer", replies.try_collect()).await.unwrap();
    let mut decoder = Decoder::default();
    let mut answers = Vec::new();
    for reply in &replies {
        if let Ingress::Batch { batch, .. } = decoder.decode(reply).unwrap() {
            answers.extend(column(&batch, "y"));
        }
    }
    assert_eq!(answers, [6, 8, 10]);
}

fn refused(batch: RecordBatch) -> PredictError {
    decode_all(&written(&[batch])).unwrap_err()
}

#[test]
fn what_a_small_message_stands_for_is_bounded() {
    let megabyte = "x".repeat(1 << 20);
    let values: ArrayRef = Arc::new(StringArray::from(vec![megabyte.as_str()]));
    let same = Int8Array::from(vec![0; 100]);
    let words = DictionaryArray::<Int8Type>::try_new(same, values).unwrap();
    let batch = |column: ArrayRef| RecordBatch::try_from_iter([("words", column)]).unwrap();
    assert_eq!(refused(batch(Arc::new(words))).code, ErrorCode::TooLarge);

    let mut views = arrow_array::builder::StringViewBuilder::new();
    let block = views.append_block(megabyte.into_bytes().into());
    for _ in 0..100 {
        views.try_append_view(block, 0, 1 << 20).unwrap();
    }
    let views = views.finish();
    assert_eq!(views.len(), 100);
    assert_eq!(refused(batch(Arc::new(views))).code, ErrorCode::TooLarge);
}
