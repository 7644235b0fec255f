//! Models as functions, called as RisingWave, Databend and DuckDB's Airport call them.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow_flight::{Action, Criteria, FlightData, FlightDescriptor};
use arrow_schema::DataType;
use futures::channel::mpsc;
use futures::{SinkExt, Stream, TryStreamExt, stream};
use tonic::metadata::{MetadataKey, MetadataValue};
use tonic::{Code, Request, Status};
use volley_flight::egress::Encoder;
use volley_flight::ingress::{Decoder, Ingress};
use volley_flight::server::FlightServerConfig;

use super::plain::path;
use super::support::{MODELS, Node, soon};

const DATABEND: &[(&str, &str)] = &[("x-databend-tenant", "t"), ("x-databend-function", "f")];
const AIRPORT: &[(&str, &str)] = &[
    ("airport-user-agent", "airport/20250723"),
    ("airport-catalog", "attached"),
    ("airport-operation", "scalar_function"),
];

fn request<T>(message: T, headers: &[(&str, &str)]) -> Request<T> {
    let mut request = Request::new(message);
    for (name, value) in headers {
        let name = MetadataKey::from_bytes(name.as_bytes()).unwrap();
        let value = MetadataValue::try_from(*value).unwrap();
        request.metadata_mut().insert(name, value);
    }
    request
}

fn rows(name: &str, values: &[Option<i64>]) -> RecordBatch {
    let column: ArrayRef = Arc::new(Int64Array::from(values.to_vec()));
    RecordBatch::try_from_iter_with_nullable([(name, column, true)]).unwrap()
}

/// The messages of these batches, all with the descriptor, as RisingWave sends it.
fn messages(descriptor: &FlightDescriptor, batches: &[RecordBatch]) -> Vec<FlightData> {
    let mut encoder = Encoder::new(1 << 20);
    let mut messages = vec![encoder.schema(&batches[0].schema())];
    for batch in batches {
        messages.push(encoder.whole(batch).unwrap());
    }
    let named = |message: FlightData| message.with_descriptor(descriptor.clone());
    messages.into_iter().map(named).collect()
}

async fn call(
    node: &Node,
    messages: impl Stream<Item = FlightData> + Send + 'static,
    headers: &[(&str, &str)],
) -> Result<Vec<RecordBatch>, Status> {
    let call = request(messages, headers);
    let replies = node.raw().await.do_exchange(call).await?.into_inner();
    let replies: Vec<_> = soon("the answer", replies.try_collect()).await?;
    let mut decoder = Decoder::default();
    let read = replies
        .iter()
        .filter_map(|reply| match decoder.decode(reply) {
            Ok(Ingress::Batch { batch, .. }) => Some(batch),
            _ => None,
        });
    Ok(read.collect())
}

fn doubled(batch: &RecordBatch) -> Vec<Option<i64>> {
    assert_eq!(batch.num_columns(), 1);
    let values = batch.column(0).as_struct();
    let doubled = values.column_by_name("y").unwrap();
    let doubled = doubled.as_primitive::<Int64Type>();
    let value = |row| values.is_valid(row).then(|| doubled.value(row));
    (0..values.len()).map(value).collect()
}

#[tokio::test]
async fn unnamed_columns_call_the_function_and_batches_answer_batches() {
    let node = Node::start().await;
    let sent = [
        rows("", &[Some(1), None]),
        rows("", &[]),
        rows("", &[Some(3)]),
    ];
    let sent = messages(&path(&["double"]), &sent);
    let answers = call(&node, stream::iter(sent), &[]).await.unwrap();
    let answers: Vec<_> = answers.iter().map(doubled).collect();
    assert_eq!(answers, [vec![Some(2), None], vec![], vec![Some(6)]]);
    node.all_stopped().await;
}

#[tokio::test]
async fn arrow_udf_finds_the_function_and_its_version() {
    let node = Node::start().await;
    let mut client = node.raw().await;
    let action = Action::new("protocol_version", "");
    let version = client.do_action(action).await.unwrap().into_inner();
    let version: Vec<_> = version.try_collect().await.unwrap();
    assert_eq!(version[0].body.as_ref(), [2]);
    let info = client.get_flight_info(path(&["double"])).await.unwrap();
    let listed = client.list_flights(Criteria::default()).await.unwrap();
    let mut listed: Vec<_> = listed.into_inner().try_collect().await.unwrap();
    let name = |info: &arrow_flight::FlightInfo| info.flight_descriptor.clone().unwrap().path;
    listed.retain(|info| name(info) == ["double"]);
    for info in [info.into_inner(), listed.remove(0)] {
        assert_eq!((info.total_records, info.endpoint.len()), (1, 0));
        let schema = info.try_decode_schema().unwrap();
        assert_eq!(schema.field(0).name(), "arg1");
        assert_eq!(*schema.field(0).data_type(), DataType::Int64);
        assert!(matches!(schema.field(1).data_type(), DataType::Struct(_)));
        assert_eq!(schema.metadata()["x-databend-udf-input-count"], "1");
        assert_eq!(schema.fields().len(), 2);
    }
    let unknown = client.get_flight_info(path(&["nobody"])).await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound);
}

#[tokio::test]
async fn databend_finds_its_built_in_functions() {
    let node = Node::start().await;
    let text: ArrayRef = Arc::new(StringArray::from(vec!["here", "there"]));
    let text = RecordBatch::try_from_iter([("arg1", text)]).unwrap();
    let sent = messages(&path(&["builtin_echo"]), std::slice::from_ref(&text));
    let answers = call(&node, stream::iter(sent), DATABEND).await.unwrap();
    assert_eq!(answers[0].column(0), text.column(0));
    let sent = messages(&path(&["double"]), &[rows("a", &[Some(4)])]);
    let answers = call(&node, stream::iter(sent), DATABEND).await.unwrap();
    assert_eq!(doubled(&answers[0]), [Some(8)]);
    let sent = messages(&path(&["double"]), &[text]);
    let wrong = call(&node, stream::iter(sent), DATABEND).await.unwrap_err();
    assert_eq!(wrong.code(), Code::InvalidArgument);
    assert!(
        wrong.message().contains("has the arguments (Int64)"),
        "{}",
        wrong.message()
    );
}

#[tokio::test]
async fn airport_reads_the_schema_first_and_then_one_answer_for_each_batch() {
    let node = Node::start().await;
    let (mut sender, receiver) = mpsc::channel(1);
    let batches = [[Some(1), Some(2)], [None, Some(4)]].map(|values| rows("arg1", &values));
    let mut sent = messages(&path(&["double"]), &batches).into_iter();
    sender.send(sent.next().unwrap()).await.unwrap();
    let mut client = node.raw().await;
    let replies = client
        .do_exchange(request(receiver, AIRPORT))
        .await
        .unwrap();
    let mut replies = replies.into_inner();
    let mut decoder = Decoder::default();
    let schema = soon("the schema", replies.message())
        .await
        .unwrap()
        .unwrap();
    assert!(matches!(
        decoder.decode(&schema),
        Ok(Ingress::Schema { .. })
    ));
    for expected in [[Some(2), Some(4)], [None, Some(8)]] {
        sender.send(sent.next().unwrap()).await.unwrap();
        let reply = soon("an answer", replies.message()).await.unwrap().unwrap();
        let Ok(Ingress::Batch { batch, .. }) = decoder.decode(&reply) else {
            panic!("a batch");
        };
        assert_eq!(doubled(&batch), expected);
    }
    drop(replies);
    node.all_stopped().await;
}

#[tokio::test]
async fn airport_attaches_a_catalogue_of_functions() {
    let node = Node::start().await;
    let mut client = node.raw().await;
    for action in ["list_schemas", "catalog_version", "create_transaction"] {
        let call = request(Action::new(action, ""), AIRPORT);
        let replies = client.do_action(call).await.unwrap().into_inner();
        assert_eq!(replies.try_collect::<Vec<_>>().await.unwrap().len(), 1);
    }
    for (schema, models) in [("models", MODELS.len()), ("other", 0)] {
        let mut headers = AIRPORT.to_vec();
        headers.push(("airport-list-flights-filter-schema", schema));
        let call = request(Criteria::default(), &headers);
        let flights = client.list_flights(call).await.unwrap().into_inner();
        let flights: Vec<_> = flights.try_collect().await.unwrap();
        assert_eq!(flights.len(), models);
        for info in flights {
            let metadata = String::from_utf8_lossy(&info.app_metadata).into_owned();
            assert!(metadata.contains("scalar_function"), "{metadata}");
            assert!(metadata.contains("attached"), "{metadata}");
            assert_eq!(info.try_decode_schema().unwrap().fields().len(), 1);
        }
    }
    let mut headers = AIRPORT.to_vec();
    headers[2].1 = "table_function_in_out";
    let sent = messages(&path(&["double"]), &[rows("arg1", &[Some(1)])]);
    let refused = call(&node, stream::iter(sent), &headers).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unimplemented);
    let details = String::from_utf8_lossy(refused.details()).into_owned();
    assert!(details.contains("InvalidInputException"), "{details}");
}

#[tokio::test]
async fn what_may_pass_is_unavailable_and_failures_keep_their_code() {
    let node = Node::start().await;
    for (model, code) in [
        ("refuse", Code::Unavailable),
        ("late_error", Code::Internal),
        ("panic", Code::Internal),
        ("nobody", Code::NotFound),
    ] {
        let sent = messages(&path(&[model]), &[rows("", &[Some(1)])]);
        let headers = [("volley-call", "function")];
        let error = call(&node, stream::iter(sent), &headers).await.unwrap_err();
        assert_eq!(error.code(), code, "{model}: {error}");
    }
    node.all_stopped().await;
}

#[tokio::test]
async fn a_function_whose_caller_leaves_is_stopped() {
    let node = Node::start().await;
    let sent = messages(
        &path(&["drip"]),
        &[rows("", &[Some(1)]), rows("", &[Some(2)])],
    );
    let mut client = node.raw().await;
    let replies = client.do_exchange(stream::iter(sent)).await.unwrap();
    let mut replies = replies.into_inner();
    soon("the schema", replies.message()).await.unwrap();
    super::support::eventually("the model runs", || async {
        node.model.running.load(std::sync::atomic::Ordering::SeqCst) > 0
    })
    .await;
    drop(replies);
    node.all_stopped().await;
}

#[tokio::test]
async fn who_names_its_columns_or_asks_for_rows_gets_rows() {
    let config = FlightServerConfig {
        function_grace: std::time::Duration::from_millis(50),
        ..FlightServerConfig::default()
    };
    let node = Node::with(config, 1).await;
    let sent = messages(&path(&["double"]), &[rows("x", &[Some(5)])]);
    let answers = call(&node, stream::iter(sent.clone()), &[]).await.unwrap();
    assert_eq!(answers[0].num_columns(), 2, "the model's own columns");
    let headers = [("volley-call", "rows")];
    let answers = call(&node, stream::iter(sent), &headers).await.unwrap();
    assert_eq!(answers[0].num_columns(), 2);
    let sent = messages(&path(&["double"]), &[rows("z", &[Some(5)])]);
    let wrong = call(&node, stream::iter(sent), &[]).await.unwrap_err();
    assert!(wrong.message().contains("'z'"), "{}", wrong.message());
}
