//! Watchdog for stalled response streams. An HTTP/2 client can stall one stream while its
//! connection lives. Then no task polls the stream's body, so a separate timer must abort it;
//! otherwise it would occupy the model forever.

use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::Body;
use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame};
use parking_lot::Mutex;

#[derive(Default)]
struct WatchState {
    body: Option<Body>,
    /// When the last frame was handed out without a following poll.
    idle_since: Option<Instant>,
}

/// The streams of one connection.
#[derive(Clone, Default)]
pub struct BodyWatchdogs(Arc<Mutex<Vec<Weak<Mutex<WatchState>>>>>);

impl BodyWatchdogs {
    /// Wraps `body` with the watchdog.
    pub fn watch(&self, body: Body) -> Body {
        let watched = Arc::new(Mutex::new(WatchState {
            body: Some(body),
            idle_since: None,
        }));
        let mut all = self.0.lock();
        all.retain(|other| other.strong_count() != 0);
        all.push(Arc::downgrade(&watched));
        Body::new(WatchedBody(watched))
    }

    /// Drops the streams that were not polled in the `limit` before `now`.
    pub fn abort_stalled(&self, now: Instant, limit: Duration) {
        let all: Vec<_> = self.0.lock().iter().filter_map(Weak::upgrade).collect();
        for watched in all {
            let mut watched = watched.lock();
            let stalled = |since| limit <= now.saturating_duration_since(since);
            if watched.idle_since.is_some_and(stalled) {
                let body = watched.body.take();
                drop(watched);
                drop(body);
                tracing::debug!("stream aborted: the client stopped reading");
            }
        }
    }
}

struct WatchedBody(Arc<Mutex<WatchState>>);

impl HttpBody for WatchedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let mut watched = self.0.lock();
        watched.idle_since = None;
        let Some(body) = &mut watched.body else {
            return Poll::Ready(Some(Err(axum::Error::new("the client stopped reading"))));
        };
        let polled = Pin::new(body).poll_frame(cx);
        if polled.is_ready() {
            watched.idle_since = Some(Instant::now());
        }
        polled
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test]
    async fn only_a_stream_that_is_not_asked_for_more_is_cut() {
        let pieces = futures::stream::repeat_with(|| Ok::<_, axum::Error>(Bytes::from("x")));
        let quiet = futures::stream::pending::<Result<Bytes, axum::Error>>();
        let watches = BodyWatchdogs::default();
        let mut stalled = watches.watch(Body::from_stream(pieces));
        let mut waiting = watches.watch(Body::from_stream(quiet));
        stalled.frame().await.unwrap().unwrap();
        assert!(futures::poll!(waiting.frame()).is_pending());
        let limit = Duration::from_secs(60);
        watches.abort_stalled(Instant::now(), limit);
        stalled.frame().await.unwrap().unwrap();
        watches.abort_stalled(Instant::now() + limit, limit);
        assert!(stalled.frame().await.unwrap().is_err());
        assert!(futures::poll!(waiting.frame()).is_pending());
    }
}
