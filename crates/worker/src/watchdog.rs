//! Streams that nobody reads. A stream goes on only while it is asked for more; one whose reader
//! has stopped would hold its place past its deadline, or for ever. A clock beside the streams
//! ends it.

use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::Stream;
use parking_lot::Mutex;
use tokio::time::Instant;
use volley_types::chunk::BatchResult;
use volley_types::{ErrorCode, ErrorOrigin, PredictError, RequestId};

use crate::predict::too_late;

/// Between two looks at all streams.
const TICK: Duration = Duration::from_millis(100);

struct WatchState<S> {
    /// `None` once it was ended.
    batches: Option<S>,
    request: RequestId,
    deadline: Option<Instant>,
    /// Since when nobody has asked for more; `None` while somebody waits.
    idle_since: Option<Instant>,
    ended: Option<PredictError>,
}

/// Something that may be ended from beside.
trait Abort: Send + Sync {
    /// Ends it where it is due. False where it is ended already.
    fn abort(&self, now: Instant, stall: Duration) -> bool;
}

impl<S: Send> Abort for Mutex<WatchState<S>> {
    fn abort(&self, now: Instant, stall: Duration) -> bool {
        // Whoever holds the lock is asking for more.
        let Some(mut watched) = self.try_lock() else {
            return true;
        };
        // Somebody who waits is told by the stream itself.
        let Some(idle_since) = watched.idle_since else {
            return true;
        };
        let error = if watched.deadline.is_some_and(|deadline| deadline <= now) {
            too_late()
        } else if stall <= now.saturating_duration_since(idle_since) {
            stalled(stall)
        } else {
            return true;
        };
        let batches = watched.batches.take();
        if batches.is_some() {
            tracing::info!(
                request_id = %watched.request, code = %error.code, reason = error.message,
                "a stream was ended: nobody reads it"
            );
            watched.ended = Some(error);
        }
        drop(watched);
        drop(batches);
        false
    }
}

fn stalled(stall: Duration) -> PredictError {
    let message = format!(
        "the answer was not read for {} seconds",
        stall.as_secs_f32()
    );
    PredictError::new(ErrorCode::Cancelled, message).with_origin(ErrorOrigin::Worker)
}

/// The clock beside the streams of a worker. Cloning gives another handle.
#[derive(Clone, Default)]
pub(crate) struct StreamWatchdog(Arc<Mutex<Vec<Weak<dyn Abort>>>>);

impl StreamWatchdog {
    /// `batches`, until they are ended: past the deadline, or once they were not read for too
    /// long. What they hold is dropped then, whether anybody asks for more or not.
    pub(crate) fn watch<S>(
        &self,
        batches: S,
        request: RequestId,
        deadline: Option<Instant>,
    ) -> impl Stream<Item = BatchResult> + Send + use<S>
    where
        S: Stream<Item = BatchResult> + Send + Unpin + 'static,
    {
        let watched = Arc::new(Mutex::new(WatchState {
            batches: Some(batches),
            request,
            deadline,
            idle_since: Some(Instant::now()),
            ended: None,
        }));
        let weak: Weak<dyn Abort> = Arc::downgrade(&(watched.clone() as Arc<dyn Abort>));
        self.0.lock().push(weak);
        WatchedStream(watched)
    }

    /// Looks at all streams again and again.
    pub(crate) async fn run(self, stall: Duration) {
        let mut tick = tokio::time::interval(TICK.min(stall).max(Duration::from_millis(1)));
        loop {
            tick.tick().await;
            self.abort(Instant::now(), stall);
        }
    }

    fn abort(&self, now: Instant, stall: Duration) {
        let all = std::mem::take(&mut *self.0.lock());
        let live = |weak: &Weak<dyn Abort>| {
            let watched = weak.upgrade();
            watched.is_some_and(|watched| watched.abort(now, stall))
        };
        let mut live: Vec<_> = all.into_iter().filter(live).collect();
        self.0.lock().append(&mut live);
    }
}

struct WatchedStream<S>(Arc<Mutex<WatchState<S>>>);

impl<S: Stream<Item = BatchResult> + Unpin> Stream for WatchedStream<S> {
    type Item = BatchResult;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<BatchResult>> {
        let mut watched = self.0.lock();
        let Some(batches) = &mut watched.batches else {
            return Poll::Ready(watched.ended.take().map(Err));
        };
        let polled = Pin::new(batches).poll_next(cx);
        if matches!(polled, Poll::Ready(None | Some(Err(_)))) {
            watched.batches = None;
        }
        watched.idle_since = polled.is_ready().then(Instant::now);
        polled
    }
}

#[cfg(test)]
mod tests {
    use futures::{StreamExt, stream};
    use volley_types::{GenerationChunk, GenerationChunks};

    use super::*;

    const STALL: Duration = Duration::from_secs(60);

    fn chunks() -> impl Stream<Item = BatchResult> + Unpin + Send {
        let chunk = GenerationChunks::single(&GenerationChunk::default());
        stream::repeat_with(move || Ok(chunk.clone()))
    }

    #[tokio::test(start_paused = true)]
    async fn only_what_is_not_read_is_ended_and_its_reader_is_told() {
        let watchdog = StreamWatchdog::default();
        let id = RequestId::random;
        let mut unread = watchdog.watch(chunks(), id(), None);
        let mut waited_for = watchdog.watch(stream::pending(), id(), Some(Instant::now()));
        let mut read = watchdog.watch(chunks(), id(), None);
        let mut late = watchdog.watch(chunks(), id(), Some(Instant::now() + STALL / 2));
        for stream in [&mut unread, &mut late] {
            stream.next().await.unwrap().unwrap();
        }
        assert!(futures::poll!(waited_for.next()).is_pending());
        tokio::time::advance(STALL / 2).await;
        read.next().await.unwrap().unwrap();
        watchdog.abort(Instant::now(), STALL);
        let code = |item: Option<BatchResult>| item.unwrap().unwrap_err().code;
        assert_eq!(code(late.next().await), ErrorCode::DeadlineExceeded);
        tokio::time::advance(STALL / 2).await;
        watchdog.abort(Instant::now(), STALL);
        assert_eq!(code(unread.next().await), ErrorCode::Cancelled);
        assert!(unread.next().await.is_none());
        assert!(read.next().await.unwrap().is_ok());
        assert!(futures::poll!(waited_for.next()).is_pending());
        drop((read, waited_for));
        watchdog.abort(Instant::now(), STALL);
        assert!(
            watchdog.0.lock().is_empty(),
            "nothing is kept of what is gone"
        );
    }
}
