//! A buffered stream: a ring of encoded events with at most one reader.
//!
//! The ring keeps read events while it has space, because the client may not have received them.
//! Unread events are never dropped: when they fill half of the ring, the writer waits.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use volley_types::{ErrorCode, PredictError, StreamId, StreamOwner};

/// Approximate size in bytes of the events that a reader receives at once.
const PIECE_BYTES: usize = 64 << 10;
/// Memory of an event besides its bytes.
const EVENT_BYTES: usize = 64;

/// How a stream has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamEnd {
    /// The last event has been written.
    Finished,
    /// The stream ended before its last event, and its events are dropped.
    Cancelled,
}

pub(super) struct BufferedStream {
    pub(super) id: StreamId,
    pub(super) owner: StreamOwner,
    limit: usize,
    state: Mutex<State>,
    /// Notified when events were added, and at the end.
    filled: Notify,
    /// Notified when events were read.
    taken: Notify,
    /// Notified when a reader attached or detached, and when the stream is cancelled.
    turned: Notify,
}

struct State {
    /// The buffered events with their ids, oldest first.
    events: VecDeque<Bytes>,
    /// Sequence number of the oldest event.
    first: u64,
    /// Memory of the events in bytes.
    bytes: usize,
    /// Memory of the stream itself in bytes.
    fixed: usize,
    /// Sequence number of the last event that was given to a reader.
    read: u64,
    /// Memory of the unread events in bytes.
    unread: usize,
    reader: Option<u64>,
    readers: u64,
    alone_since: Instant,
    end: Option<StreamEnd>,
}

impl State {
    fn last(&self) -> u64 {
        self.first + self.events.len() as u64 - 1
    }

    /// Drops read events, oldest first, until `enough` is free or none is left; returns the freed
    /// bytes.
    fn trim(&mut self, enough: impl Fn(&Self, usize) -> bool) -> usize {
        let mut freed = 0;
        while self.first <= self.read && !enough(self, freed) {
            let Some(event) = self.events.pop_front() else {
                break;
            };
            self.first += 1;
            self.bytes -= cost(&event);
            freed += cost(&event);
        }
        freed
    }
}

fn cost(event: &Bytes) -> usize {
    event.len() + EVENT_BYTES
}

/// Memory of `events` in a ring, in bytes.
pub(super) fn total(events: &[Bytes]) -> usize {
    events.iter().map(cost).sum()
}

impl BufferedStream {
    /// Creates a stream with `fixed` bytes of own memory and a ring of `limit` bytes.
    pub(super) fn new(id: StreamId, owner: StreamOwner, limit: usize, fixed: usize) -> Self {
        Self {
            id,
            owner,
            limit,
            state: Mutex::new(State {
                events: VecDeque::new(),
                first: 1,
                bytes: 0,
                fixed,
                read: 0,
                unread: 0,
                reader: None,
                readers: 0,
                alone_since: Instant::now(),
                end: None,
            }),
            filled: Notify::new(),
            taken: Notify::new(),
            turned: Notify::new(),
        }
    }

    async fn until<T>(&self, bell: &Notify, mut check: impl FnMut(&mut State) -> Option<T>) -> T {
        loop {
            let rung = bell.notified();
            tokio::pin!(rung);
            rung.as_mut().enable();
            if let Some(value) = check(&mut self.state.lock()) {
                return value;
            }
            rung.await;
        }
    }

    /// Waits until `bytes` more may be unread. If all events are read, one piece of any size is
    /// permitted.
    pub(super) async fn room(&self, bytes: usize) {
        let half = self.limit / 2;
        self.until(&self.taken, |state| {
            (state.unread == 0 || state.unread + bytes <= half).then_some(())
        })
        .await;
    }

    /// Adds events; returns the bytes that were freed for them.
    pub(super) fn push(&self, events: Vec<Bytes>) -> usize {
        let mut state = self.state.lock();
        let added = total(&events);
        state.bytes += added;
        state.unread += added;
        state.events.extend(events);
        let freed = state.trim(|state, _| state.bytes <= self.limit);
        drop(state);
        self.filled.notify_waiters();
        freed
    }

    /// Drops read events until `wanted` bytes are free; returns the freed bytes.
    pub(super) fn squeeze(&self, wanted: usize) -> usize {
        self.state.lock().trim(|_, freed| wanted <= freed)
    }

    /// When the last reader detached, if the stream is finished and read to its end.
    pub(super) fn done_since(&self) -> Option<Instant> {
        let state = self.state.lock();
        let done = state.end == Some(StreamEnd::Finished)
            && state.reader.is_none()
            && state.read == state.last();
        done.then_some(state.alone_since)
    }

    /// Whether a reader is attached.
    pub(super) fn in_use(&self) -> bool {
        self.state.lock().reader.is_some()
    }

    /// Ends the stream. A cancelled stream returns all its bytes, once, and its reader is
    /// disconnected.
    pub(super) fn end(&self, end: StreamEnd) -> usize {
        let mut state = self.state.lock();
        let mut freed = 0;
        match end {
            StreamEnd::Finished => {
                state.end.get_or_insert(end);
            }
            StreamEnd::Cancelled => {
                state.end = Some(end);
                state.first += state.events.len() as u64;
                state.events = VecDeque::new();
                freed = std::mem::take(&mut state.bytes) + std::mem::take(&mut state.fixed);
                state.unread = 0;
            }
        }
        drop(state);
        self.filled.notify_waiters();
        self.turned.notify_waiters();
        freed
    }

    /// Waits until the stream is cancelled.
    pub(super) async fn cancelled(&self) {
        self.until(&self.turned, |state| {
            (state.end == Some(StreamEnd::Cancelled)).then_some(())
        })
        .await;
    }

    /// Completes when no client has read for `window`.
    pub(super) async fn abandoned(&self, window: Duration) {
        let alone = |state: &mut State| state.reader.is_none().then_some(state.alone_since);
        loop {
            let since = self.until(&self.turned, alone).await;
            tokio::time::sleep_until(since + window).await;
            if alone(&mut self.state.lock()) == Some(since) {
                return;
            }
        }
    }

    /// Starts reading after the event `after` and disconnects a previous reader. `None` if that was
    /// the last event.
    ///
    /// # Errors
    /// `NotFound` when that part is no longer buffered, `InvalidInput` when the event does not
    /// exist.
    pub(super) fn read(self: &Arc<Self>, after: u64) -> Result<Option<Reader>, PredictError> {
        let mut state = self.state.lock();
        if state.end == Some(StreamEnd::Cancelled) {
            return Err(gone());
        }
        if state.last() < after {
            return Err(PredictError::invalid("the stream has no such event yet"));
        }
        if after + 1 < state.first {
            return Err(PredictError::new(
                ErrorCode::NotFound,
                "the events after that one are no longer buffered",
            ));
        }
        if state.end == Some(StreamEnd::Finished) && after == state.last() {
            return Ok(None);
        }
        let skip = usize::try_from(after + 1 - state.first).unwrap_or(usize::MAX);
        state.read = after;
        state.unread = state.events.iter().skip(skip).map(cost).sum();
        state.readers += 1;
        state.reader = Some(state.readers);
        let turn = state.readers;
        drop(state);
        self.filled.notify_waiters();
        self.turned.notify_waiters();
        Ok(Some(Reader {
            held: self.clone(),
            turn,
        }))
    }
}

/// The error for an unknown or expired stream.
pub(super) fn gone() -> PredictError {
    PredictError::new(
        ErrorCode::NotFound,
        "this stream is not available: it was cancelled, was not resumed in time, or its \
         coordinator was restarted; send the request again",
    )
}

/// The reader of a stream. When it is dropped, the stream waits for the next reader.
pub(super) struct Reader {
    held: Arc<BufferedStream>,
    turn: u64,
}

impl Reader {
    /// The next events, several at once if available; `None` after the last one. Cancel safe.
    ///
    /// # Errors
    /// `Conflict` if another reader has attached; `NotFound` if the stream is cancelled.
    pub(super) async fn next(&mut self) -> Option<Result<Bytes, PredictError>> {
        let turn = self.turn;
        let next = self.held.until(&self.held.filled, |state| {
            if state.end == Some(StreamEnd::Cancelled) {
                return Some(Some(Err(gone())));
            }
            if state.reader != Some(turn) {
                let message = "another connection has resumed this stream";
                let error = PredictError::new(ErrorCode::Conflict, message);
                return Some(Some(Err(error)));
            }
            if state.read < state.last() {
                return Some(Some(Ok(take(state))));
            }
            state.end.map(|_| None)
        });
        let next = next.await;
        self.held.taken.notify_waiters();
        next
    }
}

/// Takes the next unread events, up to one frame.
fn take(state: &mut State) -> Bytes {
    let mut at = usize::try_from(state.read + 1 - state.first).unwrap_or(usize::MAX);
    let mut piece = BytesMut::new();
    while let Some(event) = state.events.get(at) {
        if !piece.is_empty() && PIECE_BYTES < piece.len() + event.len() {
            break;
        }
        piece.extend_from_slice(event);
        state.unread -= cost(event);
        state.read += 1;
        at += 1;
    }
    piece.freeze()
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut state = self.held.state.lock();
        if state.reader == Some(self.turn) {
            state.reader = None;
            state.alone_since = Instant::now();
            drop(state);
            self.held.turned.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests;
