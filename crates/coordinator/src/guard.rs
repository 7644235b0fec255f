//! The checks on every stream that leaves the coordinator, whichever replica it comes from: it
//! keeps its deadline, a generation ends in its last row or in an error, a stream of events ends with a
//! whole event, and the metrics count it.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use futures::{Stream, StreamExt};
use tokio::time::{Sleep, sleep_until};
use volley_telemetry::StreamRecord;
use volley_types::chunk::{BatchResult, ends_generation};
use volley_types::signature::events::ends_event;
use volley_types::{Deadline, RequestId, Task};

use crate::errors;

/// A stream of batches with the checks of this module, in one layer.
///
/// Dropping it drops the work. The work is also dropped before an error is returned.
pub(crate) struct GuardedStream<S> {
    /// `None` once the stream has ended.
    batches: Option<S>,
    record: StreamRecord,
    request: RequestId,
    deadline: Option<(Deadline, Pin<Box<Sleep>>)>,
    task: Option<Task>,
    /// The end of `batches` is the end of the answer.
    complete: bool,
}

impl<S> GuardedStream<S> {
    /// `batches` of `request`, counted in `record`.
    pub(crate) fn new(batches: S, record: StreamRecord, request: RequestId) -> Self {
        Self {
            batches: Some(batches),
            record,
            request,
            deadline: None,
            task: None,
            complete: true,
        }
    }

    /// The same, which ends with `DeadlineExceeded` at the deadline.
    pub(crate) fn with_deadline(mut self, deadline: Option<Deadline>) -> Self {
        self.deadline = deadline.map(|it| (it, Box::pin(sleep_until(it.instant().into()))));
        self
    }

    /// The same for the answer of a model with this task. A generation that ends without a last
    /// row, or a stream that ends within an event, ends with an error, so that no caller mistakes a
    /// partial response for a complete one.
    pub(crate) fn with_task(mut self, task: Task) -> Self {
        self.task = Some(task);
        self.complete = task != Task::Generate;
        self
    }

    /// Returns `item`, or the error that replaces it.
    fn check(&mut self, item: Option<BatchResult>) -> Option<BatchResult> {
        match item {
            Some(Ok(batch)) => {
                match self.task {
                    Some(Task::Events) => {
                        self.complete = ends_event(&batch).unwrap_or(self.complete);
                    }
                    _ => self.complete |= ends_generation(&batch),
                }
                Some(Ok(batch))
            }
            None if !self.complete => Some(Err(errors::silent_end())),
            item => item,
        }
    }
}

impl<S: Stream<Item = BatchResult> + Unpin> GuardedStream<S> {
    /// Polls the next item, or returns the deadline error. The check also ends a stream that is
    /// always ready.
    fn poll_item(&mut self, cx: &mut Context<'_>) -> Poll<Option<BatchResult>> {
        let Some(batches) = &mut self.batches else {
            return Poll::Ready(None);
        };
        let polled = batches.poll_next_unpin(cx);
        let Some((deadline, timer)) = &mut self.deadline else {
            return polled;
        };
        let is_late = match &polled {
            Poll::Ready(Some(Ok(_))) => deadline.remaining(Instant::now()).is_zero(),
            Poll::Ready(_) => false,
            Poll::Pending => timer.as_mut().poll(cx).is_ready(),
        };
        match is_late {
            true => Poll::Ready(Some(Err(errors::too_late()))),
            false => polled,
        }
    }
}

impl<S: Stream<Item = BatchResult> + Unpin> Stream for GuardedStream<S> {
    type Item = BatchResult;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<BatchResult>> {
        if self.batches.is_none() {
            return Poll::Ready(None);
        }
        let item = std::task::ready!(self.poll_item(cx));
        let item = self.check(item);
        if !matches!(item, Some(Ok(_))) {
            self.batches = None;
        }
        let this = &mut *self;
        Poll::Ready(this.record.observe(item, &this.request, Instant::now()))
    }
}

#[cfg(test)]
mod tests {
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
            |number| RecordBatch::try_new(schema.clone(), marks(number, 2).to_vec()).unwrap();
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
}
