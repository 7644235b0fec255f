//! The connection to the process of a model: calls go out, answers come back.
//!
//! Two tasks own the socket. Calls, credits and cancels are put down and travel with the next
//! frame; parts of answers go into the bounded queue of their stream. A stream that is dropped is
//! cancelled. If the model's code does not end then, the process is killed.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use arrow_buffer::Buffer;
use parking_lot::Mutex;
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;
use volley_types::{ErrorCode, ErrorOrigin, PredictError};

use crate::column::{Body, Column};
use crate::frame::{self, Command, Event};
use crate::log::ModelLog;
use crate::process::ProcessTree;

/// Rows that a call may send before its reader has taken some.
pub(crate) const CREDIT: u64 = 256;
/// Messages of one stream that wait for their reader. Each row needs credit, so this is never full
/// unless the process breaks the contract.
const QUEUE: usize = CREDIT as usize + 8;
/// How long the process of a model that is unloaded may go on.
const UNLOAD_TIMEOUT: Duration = Duration::from_secs(6);
/// Calls whose ends have not come, cancelled ones included.
const MAX_CALLS: usize = 4_096;

/// AnswerPart of an answer.
pub(crate) struct AnswerPart {
    pub(crate) rows: usize,
    /// The rows of each event; one event if missing.
    pub(crate) events: Option<Vec<usize>>,
    /// The credit that it took.
    credit: u64,
    pub(crate) columns: Vec<Column>,
    /// The body of the frame that the columns refer to.
    pub(crate) body: Buffer,
}

enum Delivery {
    Part(AnswerPart),
    End,
    Failed(PredictError),
}

/// A connection. Dropping the last clone closes it, and the process ends.
#[derive(Clone)]
pub(crate) struct Session(Arc<Shared>);

struct Shared {
    outgoing: Mutex<Outgoing>,
    /// Rung when there is something to send. The writer holds it, and not the session.
    bell: Arc<Notify>,
    calls: Mutex<HashMap<u64, mpsc::Sender<Delivery>>>,
    next_id: AtomicU64,
    /// How long a cancelled call may go on.
    grace: Duration,
    tree: ProcessTree,
    gone: CancellationToken,
}

/// What the next frame has.
#[derive(Default)]
struct Outgoing {
    commands: Vec<Command>,
    credits: BTreeMap<u64, u64>,
    body: Body,
}

impl Shared {
    /// What the next frame has.
    fn take_outgoing(&self) -> Outgoing {
        let mut outgoing = std::mem::take(&mut *self.outgoing.lock());
        let credits = std::mem::take(&mut outgoing.credits).into_iter();
        let credits = credits.map(|(id, rows)| Command::Credit { id, rows });
        outgoing.commands.extend(credits);
        outgoing
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // The process sees the end of its socket.
        self.gone.cancel();
        self.tree.kill_after(UNLOAD_TIMEOUT);
    }
}

impl Session {
    /// A session over `socket`, whose process has loaded its model.
    pub(crate) fn new(
        socket: UnixStream,
        tree: ProcessTree,
        grace: Duration,
        log: ModelLog,
    ) -> Self {
        let (read, write) = socket.into_split();
        let shared = Arc::new(Shared {
            outgoing: Mutex::default(),
            bell: Arc::default(),
            calls: Mutex::default(),
            next_id: AtomicU64::new(1),
            grace,
            tree,
            gone: CancellationToken::new(),
        });
        let gone = shared.gone.clone();
        let bell = shared.bell.clone();
        tokio::spawn(write_frames(
            write,
            Arc::downgrade(&shared),
            bell,
            gone.clone(),
        ));
        tokio::spawn(read_frames(read, Arc::downgrade(&shared), gone, log));
        Self(shared)
    }

    /// Cancelled at the end of the connection.
    pub(crate) fn gone(&self) -> CancellationToken {
        self.0.gone.clone()
    }

    /// Starts a call. `encode` puts its columns into the body of the next frame.
    ///
    /// # Errors
    /// `Unavailable` when the process has ended; `Overloaded` when too many calls have not ended;
    /// those of `encode`.
    pub(crate) fn call(
        &self,
        encode: impl FnOnce(u64, &mut Body) -> Result<Command, PredictError>,
    ) -> Result<Call, PredictError> {
        if self.0.gone.is_cancelled() {
            return Err(ended());
        }
        let id = self.0.next_id.fetch_add(1, Ordering::Relaxed);
        let (sender, deliveries) = mpsc::channel(QUEUE);
        {
            let mut calls = self.0.calls.lock();
            if MAX_CALLS <= calls.len() {
                let message = "too many calls of the model have not ended yet; try again later";
                return Err(PredictError::new(ErrorCode::Overloaded, message));
            }
            calls.insert(id, sender);
        }
        let call = Call {
            id,
            deliveries,
            session: self.clone(),
            unreported: 0,
            ended: false,
        };
        {
            let mut outgoing = self.0.outgoing.lock();
            let command = encode(id, &mut outgoing.body)?;
            outgoing.commands.push(command);
        }
        self.0.bell.notify_one();
        Ok(call)
    }

    fn send(&self, put: impl FnOnce(&mut Outgoing)) {
        put(&mut self.0.outgoing.lock());
        self.0.bell.notify_one();
    }

    fn cancel(&self, id: u64) {
        self.send(|outgoing| {
            outgoing.credits.remove(&id);
            outgoing.commands.push(Command::Cancel { id });
        });
        let shared = Arc::downgrade(&self.0);
        let (gone, grace) = (self.0.gone.clone(), self.0.grace);
        let watch = async move {
            tokio::select! {
                () = gone.cancelled() => return,
                () = tokio::time::sleep(grace) => {}
            }
            let Some(shared) = shared.upgrade() else {
                return;
            };
            if shared.calls.lock().contains_key(&id) {
                tracing::warn!(grace = ?grace, "cancelled call did not end; model process killed");
                shared.tree.kill();
            }
        };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(watch);
        }
    }
}

/// A running call. Dropping it cancels it.
pub(crate) struct Call {
    id: u64,
    deliveries: mpsc::Receiver<Delivery>,
    session: Session,
    /// Rows that were taken since the last credit.
    unreported: u64,
    ended: bool,
}

impl Call {
    /// The next part of the answer; `None` at its end. Cancel safe.
    ///
    /// # Errors
    /// The model's error; `Unavailable` when the process ended.
    pub(crate) async fn next(&mut self) -> Result<Option<AnswerPart>, PredictError> {
        match self.deliveries.recv().await {
            Some(Delivery::Part(part)) => {
                self.unreported = self.unreported.saturating_add(part.credit);
                if CREDIT / 2 <= self.unreported {
                    let (id, rows) = (self.id, std::mem::take(&mut self.unreported));
                    self.session
                        .send(|outgoing| *outgoing.credits.entry(id).or_default() += rows);
                }
                Ok(Some(part))
            }
            Some(Delivery::End) => {
                self.ended = true;
                Ok(None)
            }
            Some(Delivery::Failed(error)) => {
                self.ended = true;
                Err(error)
            }
            None => {
                self.ended = true;
                Err(ended())
            }
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if !self.ended && !self.session.0.gone.is_cancelled() {
            self.session.cancel(self.id);
        }
    }
}

fn ended() -> PredictError {
    let message = "the model's process has ended";
    PredictError::new(ErrorCode::Unavailable, message).with_origin(ErrorOrigin::Model)
}

async fn write_frames(
    mut socket: OwnedWriteHalf,
    shared: Weak<Shared>,
    bell: Arc<Notify>,
    gone: CancellationToken,
) {
    loop {
        let Some(outgoing) = shared.upgrade().map(|shared| shared.take_outgoing()) else {
            return;
        };
        let work = async {
            match outgoing.commands.is_empty() {
                true => {
                    bell.notified().await;
                    Ok(())
                }
                false => frame::write(&mut socket, &outgoing.commands, &outgoing.body).await,
            }
        };
        tokio::select! {
            done = work => if done.is_err() { return },
            () = gone.cancelled() => return,
        }
    }
}

async fn read_frames(
    mut socket: OwnedReadHalf,
    shared: Weak<Shared>,
    gone: CancellationToken,
    log: ModelLog,
) {
    loop {
        let frame = tokio::select! {
            frame = frame::read(&mut socket) => frame,
            () = gone.cancelled() => break,
        };
        let frame = match frame {
            Ok(Some(frame)) => frame,
            Ok(None) => break,
            Err(error) => {
                tracing::warn!(%error, "connection to the model process broke");
                break;
            }
        };
        let Some(shared) = shared.upgrade() else {
            break;
        };
        for event in frame.events {
            if !deliver(&shared, event, &frame.body, &log) {
                tracing::warn!("model process sent more than it had credit for; killed");
                shared.tree.kill();
            }
        }
    }
    gone.cancel();
    if let Some(shared) = shared.upgrade() {
        shared.tree.kill();
        shared.calls.lock().clear();
    }
}

/// Hands an event to its stream; false when the stream's queue is full.
fn deliver(shared: &Shared, event: Event, body: &Buffer, log: &ModelLog) -> bool {
    let (id, delivery, is_last) = match event {
        Event::Rows {
            id,
            rows,
            columns,
            events,
            credit,
        } => {
            let body = body.clone();
            (
                id,
                Delivery::Part(AnswerPart {
                    rows,
                    events,
                    credit: credit.unwrap_or(rows as u64),
                    columns,
                    body,
                }),
                false,
            )
        }
        Event::End { id } => (id, Delivery::End, true),
        Event::Error { id, code, message } => (id, Delivery::Failed(error(&code, message)), true),
        Event::Log { level, message, .. } => {
            log.record(&level, &message);
            return true;
        }
        Event::Loaded(_) | Event::Failed { .. } => return true,
    };
    let mut calls = shared.calls.lock();
    let Some(sender) = calls.get(&id) else {
        return true;
    };
    let sent = sender.try_send(delivery);
    if is_last {
        calls.remove(&id);
    }
    // A cancelled call has no reader.
    !matches!(sent, Err(mpsc::error::TrySendError::Full(_)))
}

/// The error of a call. Codes that are not the model's to give are `Internal`.
fn error(code: &str, message: String) -> PredictError {
    let code = match code {
        // What a model does not support is wrong in its request.
        "invalid_input" | "unsupported" => ErrorCode::InvalidInput,
        "not_found" => ErrorCode::NotFound,
        "overloaded" => ErrorCode::Overloaded,
        "cancelled" => ErrorCode::Cancelled,
        _ => ErrorCode::Internal,
    };
    let message: String = message.chars().take(4_096).collect();
    PredictError::new(code, message).with_origin(ErrorOrigin::Model)
}
