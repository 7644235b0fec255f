use std::time::Duration;

use arrow_array::RecordBatch;
use arrow_schema::Schema;
use futures::stream;
use volley_telemetry::Metrics;
use volley_types::signature::events::marks;
use volley_types::{ErrorCode, GenerationChunk, GenerationChunks, ModelName, Signature};

use super::*;

fn row(last: bool) -> RecordBatch {
    GenerationChunks::single(&GenerationChunk {
        last,
        ..GenerationChunk::default()
    })
}

fn guarded<S>(batches: S) -> GuardedStream<S> {
    let (metrics, model) = (Metrics::new(), ModelName::new("m").unwrap());
    let record = StreamRecord::begin(&metrics, &model, Instant::now());
    GuardedStream::new(batches, record, RequestId::random())
}

async fn codes(items: impl Stream<Item = BatchResult>) -> Vec<Option<ErrorCode>> {
    items
        .map(|item| item.err().map(|error| error.code))
        .collect()
        .await
}

#[tokio::test]
async fn a_generation_without_its_last_row_ends_in_an_error() {
    let cut = guarded(stream::iter([Ok(row(false))])).with_task(Task::Generate);
    assert_eq!(codes(cut).await, [None, Some(ErrorCode::Internal)]);
    let rows = stream::iter([Ok(row(false)), Ok(row(true))]);
    let whole = guarded(rows).with_task(Task::Generate);
    assert_eq!(codes(whole).await, [None, None]);
    let empty = guarded(stream::iter([])).with_task(Task::Tensors);
    assert_eq!(codes(empty).await, []);
}

#[tokio::test]
async fn a_stream_that_ends_within_an_event_ends_in_an_error() {
    let none = std::sync::Arc::new(Schema::empty());
    let schema = Signature::events(none.clone(), &none).unwrap().output;
    let event =
        |number| RecordBatch::try_new(schema.clone(), marks(number, &[2]).to_vec()).unwrap();
    for (last, expected) in [
        (event(1), vec![None, None]),
        (
            event(1).slice(0, 1),
            vec![None, None, Some(ErrorCode::Internal)],
        ),
    ] {
        let batches = stream::iter([Ok(event(0)), Ok(last)]);
        let guarded = guarded(batches).with_task(Task::Events);
        assert_eq!(codes(guarded).await, expected);
    }
    let none = guarded(stream::iter([])).with_task(Task::Events);
    assert_eq!(codes(none).await, []);
}

#[tokio::test(start_paused = true)]
async fn the_deadline_ends_a_stream_that_stalls_and_drops_its_work() {
    struct Work(std::sync::Arc<std::sync::atomic::AtomicBool>);
    impl Drop for Work {
        fn drop(&mut self) {
            self.0.store(true, std::sync::atomic::Ordering::SeqCst);
        }
    }
    let dropped = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let work = Work(dropped.clone());
    let stalled = async_stream::stream! {
        let _work = work;
        yield Ok(row(false));
        std::future::pending::<()>().await;
    };
    let by = Deadline::after(
        tokio::time::Instant::now().into_std(),
        Duration::from_secs(5),
    );
    let ended = codes(guarded(Box::pin(stalled)).with_deadline(Some(by))).await;
    assert_eq!(ended, [None, Some(ErrorCode::DeadlineExceeded)]);
    assert!(dropped.load(std::sync::atomic::Ordering::SeqCst));
}
