//! Clients that know only Arrow Flight.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{ArrayRef, RecordBatch, StringArray};
use arrow_flight::{Action, Empty, FlightData, FlightDescriptor, Ticket};
use arrow_schema::Schema;
use futures::channel::mpsc;
use futures::{SinkExt, StreamExt, TryStreamExt, stream};
use tonic::metadata::MetadataValue;
use tonic::{Code, Request};
use volley_flight::egress::Encoder;
use volley_flight::ingress::{Decoder, Ingress};

use super::support::{Node, column, numbers, soon};

pub(super) fn path(parts: &[&str]) -> FlightDescriptor {
    FlightDescriptor::new_path(parts.iter().map(ToString::to_string).collect())
}

/// The messages that pyarrow sends: the descriptor alone, the schema, then rows, then a
/// half-close.
pub(super) fn messages(descriptor: FlightDescriptor, values: &[i64]) -> Vec<FlightData> {
    let batch = numbers(values);
    let mut encoder = Encoder::new(1 << 20);
    let mut messages = vec![
        FlightData::new().with_descriptor(descriptor),
        encoder.schema(&batch.schema()),
    ];
    encoder.batch(&batch, &mut messages).unwrap();
    messages
}

fn answers(replies: &[FlightData]) -> Vec<i64> {
    let mut decoder = Decoder::default();
    let mut rows = Vec::new();
    for reply in replies {
        if let Ingress::Batch { batch, .. } = decoder.decode(reply).unwrap() {
            rows.extend(column(&batch, "y"));
        }
    }
    rows
}

#[tokio::test]
async fn a_path_descriptor_and_a_half_close_are_enough() {
    let node = Node::start().await;
    let mut client = node.raw().await;
    for descriptor in [
        path(&["double"]),
        path(&["double:1"]),
        path(&["double", "1"]),
    ] {
        let call = client.do_exchange(stream::iter(messages(descriptor, &[3, 4])));
        let replies = soon("headers", call).await.unwrap().into_inner();
        let replies: Vec<_> = soon("the answer", replies.try_collect()).await.unwrap();
        assert_eq!(answers(&replies), [6, 8]);
    }
}

#[tokio::test]
async fn the_schema_comes_before_the_client_sends_its_own() {
    let node = Node::start().await;
    let mut client = node.raw().await;
    let (mut sender, receiver) = mpsc::channel(4);
    let mut messages = messages(path(&["double"]), &[5]).into_iter();
    sender.send(messages.next().unwrap()).await.unwrap();
    let call = client.do_exchange(receiver);
    let mut replies = soon("headers", call).await.unwrap().into_inner();
    let first = soon("the schema", replies.message())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(Schema::try_from(&first).unwrap().field(0).name(), "y");
    for message in messages {
        sender.send(message).await.unwrap();
    }
    let answer = soon("the answer", replies.message())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(answers(&[first, answer]), [10]);
}

#[tokio::test]
async fn a_table_without_rows_has_an_answer_without_rows() {
    let node = Node::start().await;
    let mut client = node.raw().await;
    let only_descriptor = messages(path(&["double"]), &[]).into_iter().take(1);
    for sent in [
        messages(path(&["double"]), &[]),
        only_descriptor.collect::<Vec<_>>(),
    ] {
        let replies = client
            .do_exchange(stream::iter(sent))
            .await
            .unwrap()
            .into_inner();
        let replies: Vec<_> = soon("the answer", replies.try_collect()).await.unwrap();
        assert_eq!(answers(&replies), [0_i64; 0]);
    }
}

#[tokio::test]
async fn schemas_and_actions_describe_models() {
    let node = Node::start().await;
    let mut client = node.raw().await;
    for (parts, field) in [(vec!["double"], "x"), (vec!["double", "output"], "y")] {
        let result = client.get_schema(path(&parts)).await.unwrap().into_inner();
        assert_eq!(Schema::try_from(result).unwrap().field(0).name(), field);
    }
    let mut call = Request::new(path(&["double"]));
    let rows = MetadataValue::from_static("rows");
    call.metadata_mut().insert("volley-call", rows);
    let info = client.get_flight_info(call).await.unwrap().into_inner();
    assert_eq!(
        info.total_records, 1,
        "one of the described columns is an input"
    );
    let schema = info.try_decode_schema().unwrap();
    assert_eq!(schema.metadata()["volley.inputs"], "1");
    assert_eq!(schema.fields().len(), 3);

    let known = client.list_actions(Empty {}).await.unwrap().into_inner();
    assert_eq!(known.count().await, 6);
    for (action, expected) in [("health", "\"ok\""), ("model", "\"tensors\"")] {
        let replies = client
            .do_action(Action::new(action, "double"))
            .await
            .unwrap();
        let body = replies.into_inner().message().await.unwrap().unwrap().body;
        assert!(std::str::from_utf8(&body).unwrap().contains(expected));
    }
}

#[tokio::test]
async fn what_is_not_offered_says_so() {
    let node = Node::start().await;
    let mut client = node.raw().await;
    let get = client.do_get(Ticket::new("t")).await.unwrap_err();
    let put = client.do_put(stream::iter([])).await.unwrap_err();
    let action = client.do_action(Action::new("nope", "")).await.unwrap_err();
    for status in [&get, &put, &action] {
        assert_eq!(status.code(), Code::Unimplemented);
    }
    assert!(get.message().contains("DoExchange"), "{}", get.message());
}

/// Rows of a column that the model does not take beside its own.
fn labelled(values: &[i64]) -> RecordBatch {
    let ids = values.iter().map(|value| format!("row {value}"));
    let ids: ArrayRef = Arc::new(StringArray::from_iter_values(ids));
    let numbers = numbers(values).column(0).clone();
    RecordBatch::try_from_iter([("id", ids), ("x", numbers)]).unwrap()
}

#[tokio::test]
async fn columns_that_the_model_does_not_take_pass_where_they_are_asked_for() {
    let node = Node::start().await;
    let mut client = node.raw().await;
    let messages = |descriptor: FlightDescriptor| {
        let mut encoder = Encoder::new(1 << 20);
        let schema = encoder.schema(&labelled(&[]).schema());
        let mut messages = vec![schema.with_descriptor(descriptor)];
        for values in [&[3, 4][..], &[5]] {
            encoder.batch(&labelled(values), &mut messages).unwrap();
        }
        messages
    };
    let mut by_header = Request::new(stream::iter(messages(path(&["double"]))));
    let value = MetadataValue::from_static("true");
    by_header
        .metadata_mut()
        .insert("volley-pass-columns", value);
    let command = volley_proto::predict::v1::PredictCommand {
        model: "double".to_owned(),
        pass_columns: true,
        ..Default::default()
    };
    let command = volley_proto::predict_command::encode(&command);
    let by_command = Request::new(stream::iter(messages(FlightDescriptor::new_cmd(command))));
    for call in [by_header, by_command] {
        let replies = soon("headers", client.do_exchange(call)).await.unwrap();
        let replies = replies.into_inner();
        let replies: Vec<_> = soon("the answer", replies.try_collect()).await.unwrap();
        assert_eq!(answers(&replies), [6, 8, 10]);
        let mut decoder = Decoder::default();
        let mut ids = Vec::new();
        for reply in &replies {
            if let Ingress::Batch { batch, .. } = decoder.decode(reply).unwrap() {
                let column = batch.column_by_name("id").unwrap().as_string::<i32>();
                ids.extend(column.iter().flatten().map(str::to_owned));
            }
        }
        assert_eq!(ids, ["row 3", "row 4", "row 5"]);
    }
    // Without being asked they are refused by name.
    let call = client.do_exchange(stream::iter(messages(path(&["double"]))));
    let replies = soon("headers", call).await.unwrap().into_inner();
    let refused = soon("the end", replies.try_collect::<Vec<_>>()).await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("'id'"), "{}", refused.message());
}
