//! The admission queue of one replica: a limit of concurrent streams and a bounded queue, in which
//! [tenants take turns](queue). A full queue rejects immediately. A request that cannot start by
//! its deadline is rejected and not queued.

mod queue;
mod service;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::oneshot;
use volley_types::{Deadline, ErrorCode, PredictError, Priority, TenantId};

use self::queue::{Queue, QueuePosition};
use self::service::ServiceTime;

/// The admission queue of one replica. Clones share their state.
#[derive(Clone, Debug)]
pub(crate) struct AdmissionQueue(Arc<QueueInner>);

#[derive(Debug)]
struct QueueInner {
    capacity: usize,
    queue_limit: usize,
    opened: Instant,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    running: usize,
    waiting: Queue<Answer>,
    service: ServiceTime,
    /// When the last stream ended.
    idle_since: Option<Instant>,
}

/// Receives the permit of a queued request.
type Answer = oneshot::Sender<Result<Permit, PredictError>>;

/// An admission request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdmissionRequest<'a> {
    /// Tenant that is charged.
    pub(crate) tenant: &'a TenantId,
    /// Scheduling priority.
    pub(crate) priority: Priority,
    /// Deadline of the complete response.
    pub(crate) deadline: Option<Deadline>,
}

/// The right to run one stream; passed to the next request when dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    queue: Option<Arc<QueueInner>>,
    since: Instant,
}

/// A position in the queue, or an immediate permit. Dropping it leaves the queue.
#[derive(Debug)]
pub(crate) struct QueuedPermit {
    queue: Arc<QueueInner>,
    place: QueuePosition,
    answer: oneshot::Receiver<Result<Permit, PredictError>>,
}

impl AdmissionQueue {
    /// Creates a queue with `capacity` concurrent streams and at most `queue_limit` queued
    /// requests.
    pub(crate) fn new(capacity: usize, queue_limit: usize) -> Self {
        Self(Arc::new(QueueInner {
            capacity: capacity.max(1),
            queue_limit,
            opened: Instant::now(),
            state: Mutex::default(),
        }))
    }

    /// Enters the queue; await the result for the permit. A queued request may still be rejected,
    /// if a more urgent request or a tenant with fewer queued requests needs its position.
    ///
    /// # Errors
    /// `Overloaded` when the queue is full, or when the expected wait exceeds the deadline.
    pub(crate) fn acquire(
        &self,
        visitor: AdmissionRequest<'_>,
    ) -> Result<QueuedPermit, PredictError> {
        let (sender, answer) = oneshot::channel();
        let mut state = self.0.state.lock();
        let place = state.waiting.place(visitor.tenant, visitor.priority);
        if state.running < self.0.capacity && state.waiting.len() == 0 {
            state.running += 1;
            drop(state);
            // The receiver is in this scope.
            let _ = sender.send(Ok(Permit::new(self.0.clone())));
        } else {
            let all = state.service.wait(state.waiting.len(), self.0.capacity);
            state.check_deadline(visitor, self.0.capacity)?;
            let out = match state.waiting.len() < self.0.queue_limit {
                true => None,
                false => {
                    let out = state.waiting.make_room(visitor.tenant, visitor.priority);
                    Some(out.ok_or_else(|| queue_full(all))?)
                }
            };
            state.waiting.push(&place, sender);
            drop(state);
            if let Some(out) = out {
                // The receiver is gone if the request has left the queue.
                let _ = out.send(Err(displaced(all)));
            }
        }
        Ok(QueuedPermit {
            queue: self.0.clone(),
            place,
            answer,
        })
    }

    /// When the last stream ended, or the queue was opened.
    pub(crate) fn idle_since(&self) -> Instant {
        self.0.state.lock().idle_since.unwrap_or(self.0.opened)
    }

    /// Number of running streams.
    pub(crate) fn running(&self) -> usize {
        self.0.state.lock().running
    }

    /// Number of queued requests.
    pub(crate) fn waiting(&self) -> usize {
        self.0.state.lock().waiting.len()
    }
}

impl State {
    /// Rejects a request that cannot start by its deadline, estimated from the requests before it.
    fn check_deadline(
        &self,
        visitor: AdmissionRequest<'_>,
        capacity: usize,
    ) -> Result<(), PredictError> {
        let Some(deadline) = visitor.deadline else {
            return Ok(());
        };
        let left = deadline.instant().saturating_duration_since(Instant::now());
        // A request that meets its deadline at the end of the queue needs no exact count.
        if self.service.wait(self.waiting.len(), capacity) <= left {
            return Ok(());
        }
        let before = self.waiting.before(visitor.tenant, visitor.priority);
        let wait = self.service.wait(before, capacity);
        if wait <= left {
            return Ok(());
        }
        Err(hopeless(wait))
    }
}

impl Permit {
    fn new(queue: Arc<QueueInner>) -> Self {
        Self {
            queue: Some(queue),
            since: Instant::now(),
        }
    }
}

impl Future for QueuedPermit {
    type Output = Result<Permit, PredictError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match Pin::new(&mut self.answer).poll(cx) {
            Poll::Ready(Ok(answer)) => Poll::Ready(answer),
            // The sender is dropped only with the queue, which this value keeps alive.
            Poll::Ready(Err(_)) | Poll::Pending => Poll::Pending,
        }
    }
}

impl Drop for QueuedPermit {
    fn drop(&mut self) {
        let left = self.queue.state.lock().waiting.remove(&self.place);
        drop(left);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let Some(queue) = self.queue.take() else {
            return;
        };
        let next = {
            let mut state = queue.state.lock();
            state.service.observe(self.since.elapsed());
            let next = state.waiting.pop();
            if next.is_none() {
                state.running -= 1;
                state.idle_since = Some(Instant::now());
            }
            next
        };
        if let Some(next) = next {
            // If the receiver is gone, the permit is released by dropping it here.
            drop(next.send(Ok(Self::new(queue))));
        }
    }
}

/// Retry delay for the current `wait` of the queue.
fn come_back(wait: Duration) -> Duration {
    wait.clamp(Duration::from_secs(1), Duration::from_secs(30))
}

fn queue_full(wait: Duration) -> PredictError {
    let message = "the model's queue is full; try again shortly, or deploy more replicas";
    PredictError::new(ErrorCode::Overloaded, message).with_retry_after(come_back(wait))
}

fn displaced(wait: Duration) -> PredictError {
    let message = "the model's queue is full, and a more urgent request or a tenant with fewer \
                   requests took the place; try again shortly";
    PredictError::new(ErrorCode::Overloaded, message).with_retry_after(come_back(wait))
}

fn hopeless(wait: Duration) -> PredictError {
    let message = format!(
        "the request would wait about {} ms for the model, which exceeds its deadline; try again \
         later, or set a longer deadline",
        wait.as_millis()
    );
    PredictError::new(ErrorCode::Overloaded, message).with_retry_after(come_back(wait))
}

#[cfg(test)]
mod tests;
