//! The door of one replica: so many streams at a time, a bounded queue before it, the more
//! urgent first and within one priority the earlier. Full means refused at once.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::oneshot;
use volley_types::{ErrorCode, PredictError, Priority};

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
    /// By urgency, then by arrival.
    waiting: BTreeMap<(Reverse<Priority>, u64), oneshot::Sender<Permit>>,
    /// When the last stream ended.
    idle_since: Option<Instant>,
}

/// The right to run one stream; given on when dropped.
#[derive(Debug)]
pub(crate) struct Permit(Option<Arc<Door>>);

/// A place in the queue, or the permit at once. Dropping it leaves the queue.
#[derive(Debug)]
pub(crate) struct Ticket {
    door: Arc<Door>,
    key: (Reverse<Priority>, u64),
    permit: oneshot::Receiver<Permit>,
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

    /// Takes a place: await the ticket for the permit.
    ///
    /// # Errors
    /// `Overloaded` when the queue is full.
    pub(crate) fn enter(&self, priority: Priority) -> Result<Ticket, PredictError> {
        let (sender, permit) = oneshot::channel();
        let mut state = self.0.state.lock();
        let key = (Reverse(priority), state.next_ticket);
        state.next_ticket += 1;
        if state.running < self.0.capacity && state.waiting.is_empty() {
            state.running += 1;
            drop(state);
            // The receiver is right here.
            let _ = sender.send(Permit(Some(self.0.clone())));
        } else if state.waiting.len() < self.0.queue_limit {
            state.waiting.insert(key, sender);
        } else {
            let message = "the model's queue is full; try again shortly, or deploy more replicas";
            return Err(PredictError::new(ErrorCode::Overloaded, message)
                .with_retry_after(Duration::from_secs(1)));
        }
        Ok(Ticket {
            door: self.0.clone(),
            key,
            permit,
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

impl Future for Ticket {
    type Output = Permit;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Permit> {
        match Pin::new(&mut self.permit).poll(cx) {
            Poll::Ready(Ok(permit)) => Poll::Ready(permit),
            // The sender is dropped only with the door, which this ticket holds open.
            Poll::Ready(Err(_)) | Poll::Pending => Poll::Pending,
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let left = self.door.state.lock().waiting.remove(&self.key);
        drop(left);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let Some(door) = self.0.take() else { return };
        let next = {
            let mut state = door.state.lock();
            let next = state.waiting.pop_first();
            if next.is_none() {
                state.running -= 1;
                state.idle_since = Some(Instant::now());
            }
            next
        };
        if let Some((_, next)) = next {
            // A receiver that has gone gives the permit back by dropping it here.
            drop(next.send(Self(Some(door))));
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn the_urgent_go_first_the_full_queue_refuses_and_leaving_makes_room() {
        let door = Admission::new(1, 3);
        let running = door
            .enter(Priority::Normal)
            .unwrap()
            .now_or_never()
            .unwrap();
        let mut low = door.enter(Priority::Low).unwrap();
        let mut normal = door.enter(Priority::Normal).unwrap();
        let mut high = door.enter(Priority::High).unwrap();
        let refused = door.enter(Priority::High).unwrap_err();
        assert_eq!(refused.code, ErrorCode::Overloaded);
        assert!(refused.retry_after.is_some());
        assert_eq!((door.running(), door.waiting()), (1, 3));

        drop(running);
        assert!((&mut low).now_or_never().is_none() && (&mut normal).now_or_never().is_none());
        let running = (&mut high)
            .now_or_never()
            .expect("the urgent one goes first");
        drop(normal);
        assert_eq!(door.waiting(), 1);
        drop(running);
        let running = (&mut low)
            .now_or_never()
            .expect("the one that left is passed over");
        drop(running);
        assert_eq!((door.running(), door.waiting()), (0, 0));
    }

    #[test]
    fn a_permit_that_nobody_takes_goes_on_to_the_next() {
        let door = Admission::new(1, 8);
        let running = door
            .enter(Priority::Normal)
            .unwrap()
            .now_or_never()
            .unwrap();
        let gone = door.enter(Priority::Normal).unwrap();
        let mut stays = door.enter(Priority::Normal).unwrap();
        drop(running);
        // Its permit was sent and never received.
        drop(gone);
        assert!((&mut stays).now_or_never().is_some());
        assert_eq!(door.running(), 0);
    }

    proptest::proptest! {
        #[test]
        fn never_more_than_capacity_and_nothing_leaks(
            steps in proptest::collection::vec((0_u8..4, 0_usize..8), 1..200)
        ) {
            let door = Admission::new(3, 4);
            let (mut tickets, mut permits) = (Vec::new(), Vec::new());
            for (step, index) in steps {
                match step {
                    0 | 1 => tickets.extend(door.enter(Priority::Normal).ok()),
                    2 if index < tickets.len() => drop(tickets.remove(index)),
                    3 if index < permits.len() => drop(permits.remove(index)),
                    _ => {}
                }
                let mut waiting = Vec::new();
                for mut ticket in tickets.drain(..) {
                    match (&mut ticket).now_or_never() {
                        Some(permit) => permits.push(permit),
                        None => waiting.push(ticket),
                    }
                }
                tickets = waiting;
                proptest::prop_assert!(permits.len() <= 3);
                proptest::prop_assert_eq!(door.running(), permits.len());
                proptest::prop_assert_eq!(door.waiting(), tickets.len());
                proptest::prop_assert!(tickets.is_empty() || permits.len() == 3);
            }
            drop((tickets, permits));
            proptest::prop_assert_eq!((door.running(), door.waiting()), (0, 0));
        }
    }
}
