//! What holds for every stream that leaves the coordinator, whichever replica it comes from:
//! it keeps its deadline, and a generation ends in its last row or in an error.

use async_stream::stream;
use futures::{Stream, StreamExt, pin_mut};
use volley_types::chunk::{BatchResult as Item, ends_generation};
use volley_types::{Deadline, Task};

use crate::errors;

/// Ends `batches` with `DeadlineExceeded` once the deadline has passed. The work is dropped
/// before the error is given.
pub(crate) fn deadline(
    deadline: Option<Deadline>,
    batches: impl Stream<Item = Item> + Send,
) -> impl Stream<Item = Item> + Send {
    stream! {
        {
            pin_mut!(batches);
            let expiry = async {
                match deadline {
                    Some(deadline) => tokio::time::sleep_until(deadline.instant().into()).await,
                    None => std::future::pending().await,
                }
            };
            pin_mut!(expiry);
            loop {
                let item = tokio::select! {
                    biased;
                    item = batches.next() => item,
                    () = &mut expiry => break,
                };
                match item {
                    Some(item) => yield item,
                    None => return,
                }
            }
        }
        yield Err(errors::too_late());
    }
}

/// Turns a generation's end without a last row into an error, so that no caller takes a cut
/// answer for a whole one.
pub(crate) fn require_terminal_row(
    task: Task,
    batches: impl Stream<Item = Item> + Send,
) -> impl Stream<Item = Item> + Send {
    stream! {
        let mut complete = task != Task::Generate;
        pin_mut!(batches);
        while let Some(item) = batches.next().await {
            complete |= item.as_ref().map_or(true, ends_generation);
            yield item;
        }
        if !complete {
            yield Err(errors::silent_end());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use arrow_array::RecordBatch;
    use futures::stream;
    use volley_types::{ErrorCode, GenerationChunk, GenerationChunks};

    use super::*;

    fn row(last: bool) -> RecordBatch {
        GenerationChunks::single(&GenerationChunk {
            last,
            ..GenerationChunk::default()
        })
    }

    async fn codes(items: impl Stream<Item = Item>) -> Vec<Option<ErrorCode>> {
        items
            .map(|item| item.err().map(|error| error.code))
            .collect()
            .await
    }

    #[tokio::test]
    async fn a_generation_without_its_last_row_ends_in_an_error() {
        let cut = require_terminal_row(Task::Generate, stream::iter([Ok(row(false))]));
        assert_eq!(codes(cut).await, [None, Some(ErrorCode::Internal)]);
        let whole = require_terminal_row(
            Task::Generate,
            stream::iter([Ok(row(false)), Ok(row(true))]),
        );
        assert_eq!(codes(whole).await, [None, None]);
        let empty = require_terminal_row(Task::Tensors, stream::iter([]));
        assert_eq!(codes(empty).await, []);
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
        let stalled = stream! {
            let _work = work;
            yield Ok(row(false));
            std::future::pending::<()>().await;
        };
        let by = Deadline::after(
            tokio::time::Instant::now().into_std(),
            Duration::from_secs(5),
        );
        let ended = codes(super::deadline(Some(by), stalled)).await;
        assert_eq!(ended, [None, Some(ErrorCode::DeadlineExceeded)]);
        assert!(dropped.load(std::sync::atomic::Ordering::SeqCst));
    }
}
