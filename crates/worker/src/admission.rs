//! The door of one replica: so many streams at a time, a bounded queue before it. The more
//! urgent go first; within one priority the tenants take turns, however many requests each has
//! waiting (start-time fair queueing, Goyal et al. 1996, with every request of one length), and
//! within one tenant the earlier goes first. A full queue refuses at once; what could not begin
//! by its deadline is refused rather than queued.

mod service;

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::oneshot;
use volley_types::{Deadline, ErrorCode, PredictError, Priority, TenantId};

use self::service::ServiceTime;

/// The door of one replica. Cloning gives another handle.
#[derive(Clone, Debug)]
pub(crate) struct Admission(Arc<Door>);

#[derive(Debug)]
struct Door {
    capacity: usize,
    queue_limit: usize,
    opened: Instant,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    running: usize,
    next_ticket: u64,
    waiting: BTreeMap<Place, Waiting>,
    tenants: HashMap<TenantId, Turns>,
    /// The turn of whoever was let in last.
    turn: u64,
    service: ServiceTime,
    /// When the last stream ended.
    idle_since: Option<Instant>,
}

/// A place in the queue; the least is the first. By urgency, then by the tenant's turn, then by
/// arrival.
type Place = (Reverse<Priority>, u64, u64);

#[derive(Debug)]
struct Waiting {
    tenant: TenantId,
    answer: oneshot::Sender<Result<Permit, PredictError>>,
}

/// What one tenant has in the queue.
#[derive(Debug, Default)]
struct Turns {
    waiting: usize,
    /// The turn of its next request.
    next: u64,
}

/// Who asks to be let in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Visitor<'a> {
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
    door: Option<Arc<Door>>,
    since: Instant,
}

/// A place in the queue, or the permit at once. Dropping it leaves the queue.
#[derive(Debug)]
pub(crate) struct Ticket {
    door: Arc<Door>,
    place: Place,
    answer: oneshot::Receiver<Result<Permit, PredictError>>,
}

impl Admission {
    /// A door for `capacity` streams with `queue_limit` places before it.
    pub(crate) fn new(capacity: usize, queue_limit: usize) -> Self {
        Self(Arc::new(Door {
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
    pub(crate) fn enter(&self, visitor: Visitor<'_>) -> Result<Ticket, PredictError> {
        let (sender, answer) = oneshot::channel();
        let mut state = self.0.state.lock();
        let place;
        if state.running < self.0.capacity && state.waiting.is_empty() {
            state.running += 1;
            place = state.arrive(visitor);
            drop(state);
            // The receiver is right here.
            let _ = sender.send(Ok(Permit::new(self.0.clone())));
        } else {
            let all = state.service.wait(state.waiting.len(), self.0.capacity);
            state.check_deadline(visitor, self.0.capacity)?;
            let out = match state.waiting.len() < self.0.queue_limit {
                true => None,
                false => Some(state.make_room(visitor).ok_or_else(|| queue_full(all))?),
            };
            place = state.arrive(visitor);
            state.queue(place, visitor, sender);
            drop(state);
            if let Some(out) = out {
                // Nobody to tell when it has left by itself.
                let _ = out.answer.send(Err(displaced(all)));
            }
        }
        Ok(Ticket {
            door: self.0.clone(),
            place,
            answer,
        })
    }

    /// When the last stream ended, or the door was opened.
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
    /// A place for whoever comes now.
    fn arrive(&mut self, visitor: Visitor<'_>) -> Place {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let next = self.tenants.get(visitor.tenant).map_or(0, |own| own.next);
        (Reverse(visitor.priority), next.max(self.turn), ticket)
    }

    fn queue(
        &mut self,
        place: Place,
        visitor: Visitor<'_>,
        answer: oneshot::Sender<Result<Permit, PredictError>>,
    ) {
        let own = self.tenants.entry(visitor.tenant.clone()).or_default();
        own.waiting += 1;
        own.next = place.1 + 1;
        let tenant = visitor.tenant.clone();
        self.waiting.insert(place, Waiting { tenant, answer });
    }

    /// Takes whoever waits at `place` out of the queue.
    fn remove(&mut self, place: &Place) -> Option<Waiting> {
        let left = self.waiting.remove(place)?;
        if let Some(own) = self.tenants.get_mut(&left.tenant) {
            own.waiting -= 1;
            // Its next turn is no later than anybody's who comes new.
            if own.waiting == 0 {
                self.tenants.remove(&left.tenant);
            }
        }
        Some(left)
    }

    /// The first in the queue, whose turn it is.
    fn next(&mut self) -> Option<Waiting> {
        let place = *self.waiting.first_key_value()?.0;
        self.turn = self.turn.max(place.1);
        self.remove(&place)
    }

    /// Takes out whoever must yield to `visitor`: the last of those that are less urgent, else
    /// the last of a tenant that has more waiting of the same urgency.
    fn make_room(&mut self, visitor: Visitor<'_>) -> Option<Waiting> {
        let last = *self.waiting.last_key_value()?.0;
        let Reverse(least) = last.0;
        if least < visitor.priority {
            return self.remove(&last);
        }
        if visitor.priority < least {
            return None;
        }
        let waits = |tenant| self.tenants.get(tenant).map_or(0, |own| own.waiting);
        let own = waits(visitor.tenant);
        let same = (last.0, 0, 0)..=last;
        let heaviest = self.waiting.range(same).map(|(place, waiting)| {
            let count = waits(&waiting.tenant);
            (count, *place)
        });
        let (count, place) = heaviest.max()?;
        match own + 1 < count {
            true => self.remove(&place),
            false => None,
        }
    }

    /// Refuses what could not begin in time, as far as the requests before it tell.
    fn check_deadline(&self, visitor: Visitor<'_>, capacity: usize) -> Result<(), PredictError> {
        let Some(deadline) = visitor.deadline else {
            return Ok(());
        };
        let left = deadline.instant().saturating_duration_since(Instant::now());
        // Whoever would get through behind all others need not be counted before.
        if self.service.wait(self.waiting.len(), capacity) <= left {
            return Ok(());
        }
        let next = self.tenants.get(visitor.tenant).map_or(0, |own| own.next);
        let place = (Reverse(visitor.priority), next.max(self.turn), u64::MAX);
        let before = self.waiting.range(..place).count();
        let wait = self.service.wait(before, capacity);
        if wait <= left {
            return Ok(());
        }
        Err(hopeless(wait))
    }
}

impl Permit {
    fn new(door: Arc<Door>) -> Self {
        Self {
            door: Some(door),
            since: Instant::now(),
        }
    }
}

impl Future for Ticket {
    type Output = Result<Permit, PredictError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match Pin::new(&mut self.answer).poll(cx) {
            Poll::Ready(Ok(answer)) => Poll::Ready(answer),
            // The sender is dropped only with the door, which this ticket holds open.
            Poll::Ready(Err(_)) | Poll::Pending => Poll::Pending,
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let left = self.door.state.lock().remove(&self.place);
        drop(left);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let Some(door) = self.door.take() else { return };
        let next = {
            let mut state = door.state.lock();
            state.service.observe(self.since.elapsed());
            let next = state.next();
            if next.is_none() {
                state.running -= 1;
                state.idle_since = Some(Instant::now());
            }
            next
        };
        if let Some(next) = next {
            // A receiver that has gone gives the permit back by dropping it here.
            drop(next.answer.send(Ok(Self::new(door))));
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
    let message = "the model's queue is full, and the place was needed for a request that is \
                   more urgent or of a tenant with fewer; try again shortly";
    PredictError::new(ErrorCode::Overloaded, message).with_retry_after(come_back(wait))
}

fn hopeless(wait: Duration) -> PredictError {
    let message = format!(
        "the request would wait about {} ms for the model, which is past its deadline; try again \
         later, or allow more time",
        wait.as_millis()
    );
    PredictError::new(ErrorCode::Overloaded, message).with_retry_after(come_back(wait))
}

#[cfg(test)]
mod tests;
