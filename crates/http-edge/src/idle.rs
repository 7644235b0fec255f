//! Idle connections. An HTTP/2 client can keep a connection open forever by answering pings, so the
//! server closes it gracefully after the idle timeout.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use parking_lot::Mutex;

/// Activity of one connection. Clones share their state.
#[derive(Clone, Debug)]
pub struct Idle(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    running: usize,
    /// When the last request ended.
    since: Instant,
}

/// A running request.
#[derive(Debug)]
pub struct RunningRequest(Idle);

impl Idle {
    /// Idle since `now`.
    pub fn since(now: Instant) -> Self {
        let state = State {
            running: 0,
            since: now,
        };
        Self(Arc::new(Mutex::new(state)))
    }

    /// Records a new request, which ends when the returned value is dropped.
    pub fn asked(&self) -> RunningRequest {
        self.0.lock().running += 1;
        RunningRequest(self.clone())
    }

    /// Whether the connection was idle for `limit` before `now`.
    pub fn is_over(&self, now: Instant, limit: Duration) -> bool {
        let state = self.0.lock();
        state.running == 0 && limit <= now.saturating_duration_since(state.since)
    }
}

impl RunningRequest {
    /// Ends the request with the body of its response.
    pub fn until_sent(self, answer: Response) -> Response {
        until_sent(answer, self)
    }
}

/// Keeps `held` until the body of `answer` was sent or dropped.
pub fn until_sent<T: Send + Sync + Unpin + 'static>(answer: Response, held: T) -> Response {
    answer.map(|body| Body::new(SentBody { body, _held: held }))
}

impl Drop for RunningRequest {
    fn drop(&mut self) {
        let mut state = self.0.0.lock();
        state.running -= 1;
        state.since = Instant::now();
    }
}

struct SentBody<T> {
    body: Body,
    _held: T,
}

impl<T: Unpin> HttpBody for SentBody<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_idle_once_the_last_answer_was_sent_for_so_long() {
        let begun = Instant::now();
        let limit = Duration::from_secs(60);
        let idle = Idle::since(begun);
        assert!(!idle.is_over(begun, limit) && idle.is_over(begun + limit, limit));
        let answer = idle.asked().until_sent(Response::new(Body::from("whole")));
        assert_eq!(answer.body().size_hint().exact(), Some(5));
        let other = idle.asked();
        drop(other);
        assert!(!idle.is_over(begun + 100 * limit, limit));
        drop(answer);
        assert!(!idle.is_over(begun + limit, limit));
        assert!(idle.is_over(Instant::now() + limit, limit));
    }
}
