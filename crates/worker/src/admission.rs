//! The admission queue of one replica: so many streams at a time, a bounded queue before it, in which
//! [tenants take turns](queue). A full queue refuses at once; what could not begin by its deadline
//! is refused rather than queued.

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

/// The admission queue of one replica. Cloning gives another handle.
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

/// Where one that waits hears of its permit.
type Answer = oneshot::Sender<Result<Permit, PredictError>>;

/// Who asks to be let in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdmissionRequest<'a> {
    /// On whose behalf.
    pub(crate) tenant: &'a TenantId,
    /// How urgent.
    pub(crate) priority: Priority,
    /// By when all must be done.
    pub(crate) deadline: Option<Deadline>,
}

/// The right to run one stream; given on when dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    queue: Option<Arc<QueueInner>>,
    since: Instant,
}

/// A place in the queue, or the permit at once. Dropping it leaves the queue.
#[derive(Debug)]
pub(crate) struct QueuedPermit {
    queue: Arc<QueueInner>,
    place: QueuePosition,
    answer: oneshot::Receiver<Result<Permit, PredictError>>,
}

impl AdmissionQueue {
    /// A queue for `capacity` streams with `queue_limit` places before it.
    pub(crate) fn new(capacity: usize, queue_limit: usize) -> Self {
        Self(Arc::new(QueueInner {
            capacity: capacity.max(1),
            queue_limit,
            opened: Instant::now(),
            state: Mutex::default(),
        }))
    }

    /// Takes a place: await the ticket for the permit. A request that waits may still be refused,
    /// when one that is more urgent, or of a tenant with fewer waiting, needs its place.
    ///
    /// # Errors
    /// `Overloaded` when the queue is full, or when the wait would outlast the deadline.
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
            // The receiver is right here.
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
                // Nobody to tell when it has left by itself.
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

    /// Streams that run.
    pub(crate) fn running(&self) -> usize {
        self.0.state.lock().running
    }

    /// Requests that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.0.state.lock().waiting.len()
    }
}

impl State {
    /// Refuses what could not begin in time, as far as the requests before it tell.
    fn check_deadline(
        &self,
        visitor: AdmissionRequest<'_>,
        capacity: usize,
    ) -> Result<(), PredictError> {
        let Some(deadline) = visitor.deadline else {
            return Ok(());
        };
        let left = deadline.instant().saturating_duration_since(Instant::now());
        // Whoever would get through behind all others need not be counted before.
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
            // The sender is dropped only with the queue, which this ticket holds open.
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
            // A receiver that has gone gives the permit back by dropping it here.
            drop(next.send(Ok(Self::new(queue))));
        }
    }
}

/// When to come back where `wait` is what the queue takes now.
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
