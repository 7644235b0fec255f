//! Streamed request rows and responses, through a coordinator and a worker in other processes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use arrow_array::{ArrayRef, RecordBatch, StringArray};
use futures::{StreamExt, stream};
use serde_json::json;
use volley_flight::client::{Access, FlightClient, FlightClientConfig};
use volley_types::{Input, ModelName, ModelRef, Predict, PredictRequest};

use crate::nodes::Pair;
use crate::support::{SOON, until};

const BATCHES: usize = 4;
const ROWS: usize = 4_096;

/// The request's last batch is sent only after a response has arrived. If responses were held back
/// until the end, the test would wait forever.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_embeddings_come_before_the_last_request_batch_is_sent() {
    let folder = tempfile::tempdir().unwrap();
    let pair = Pair::start(folder.path()).await;
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path: PathBuf = here.join("../backend-onnx/tests/models/text-embed");
    let path = path.canonicalize().unwrap();
    let body = json!({ "name": "encoder", "function_name": "onnx", "path": path });
    pair.client.register(&body).await.unwrap();
    pair.client.deploy("encoder", 1).await.unwrap();
    let flight = FlightClient::outside(
        &pair.internal,
        FlightClientConfig::default(),
        Access::default(),
    )
    .unwrap();
    let model = ModelRef::deployed(ModelName::new("encoder").unwrap());
    until("the encoder is deployed", async || {
        let words: ArrayRef = Arc::new(StringArray::from(vec!["a"]));
        let rows = RecordBatch::try_from_iter([("text", words)]).unwrap();
        let request = PredictRequest::new(model.clone(), Input::Batch(rows));
        flight.predict(request).await.ok()?.next().await?.ok()
    })
    .await;

    let words: ArrayRef = Arc::new(StringArray::from(vec!["a few words to embed"; ROWS]));
    let rows = RecordBatch::try_from_iter([("text", words)]).unwrap();
    let (answered, wait) = tokio::sync::oneshot::channel::<()>();
    let schema = rows.schema();
    let early = stream::iter(vec![Ok(rows.clone()); BATCHES - 1]);
    let last = stream::once(async move {
        wait.await.unwrap();
        Ok(rows)
    });
    let batches = Box::pin(early.chain(last));
    let request = PredictRequest::new(model, Input::Stream { schema, batches });
    let started = Instant::now();
    let mut answer = flight.predict(request).await.unwrap();
    let first = tokio::time::timeout(SOON, answer.next()).await.unwrap();
    let mut count = first.unwrap().unwrap().num_rows();
    let first = started.elapsed();
    answered.send(()).unwrap();
    while let Some(batch) = answer.next().await {
        count += batch.unwrap().num_rows();
    }
    assert_eq!(count, BATCHES * ROWS);
    eprintln!(
        "the first of {count} after {first:?}, the last after {:?}",
        started.elapsed()
    );
}
