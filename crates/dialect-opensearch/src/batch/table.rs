//! The batches that one coordinator runs, and their responses.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use volley_types::registry::{RegistryCommand, RegistryReply, TaskRecord, TaskState};
use volley_types::{ErrorCode, NodeId, PredictError, Registry, StoredTask, TaskSource, exact};

use crate::settings;
use volley_dialect_kit::clock::now_ms;

/// Opens the tasks of another coordinator; `None` if it is not a member.
pub type PeerTasks = Arc<dyn Fn(NodeId) -> Option<Arc<dyn TaskSource>> + Send + Sync>;

/// The batches of all coordinators.
#[derive(Clone)]
pub struct ClusterBatches {
    pub(super) own: Batches,
    peers: PeerTasks,
}

impl ClusterBatches {
    /// Combines the batches of this node with the access to those of other nodes.
    pub fn new(own: Batches, peers: PeerTasks) -> Self {
        Self { own, peers }
    }

    /// Returns a guard that ends the batches of this coordinator when it is dropped.
    pub fn end_guard(&self) -> EndGuard {
        self.own.end_guard()
    }

    pub(super) fn holder(
        &self,
        own: NodeId,
        node: NodeId,
    ) -> Result<Arc<dyn TaskSource>, PredictError> {
        if own == node {
            return Ok(Arc::new(self.own.clone()));
        }
        (self.peers)(node).ok_or_else(missing)
    }
}

pub(super) fn missing() -> PredictError {
    let message = "this batch does not exist; it may have ended more than an hour ago, or its \
                   model may have been deleted";
    PredictError::new(ErrorCode::NotFound, message)
}

/// Maximum number of batches that one coordinator keeps, running or not.
const MAX_BATCHES: usize = 100;
/// Size of all kept responses in bytes above which new batches are rejected.
const MAX_BYTES: usize = 256 << 20;
/// Minimum time for which a response is kept.
pub(super) const HELD: Duration = Duration::from_secs(3_600);
/// Maximum length of a recorded failure reason in bytes.
const MAX_WHY: usize = 500;

/// The batches of a coordinator. Clones share their state. Dropping the last one aborts running
/// batches.
#[derive(Clone, Default)]
pub struct Batches(Arc<Mutex<BatchTable>>);

#[derive(Default)]
struct BatchTable {
    batches: BTreeMap<String, Batch>,
    /// How many are admitted and not held yet.
    admitted: usize,
}

struct Batch {
    record: TaskRecord,
    work: Work,
    /// The registry with the rights of the batch's owner.
    registry: Arc<dyn Registry>,
}

enum Work {
    Running(AbortHandle),
    Ended {
        at: Instant,
        response: Option<Bytes>,
    },
}

impl Drop for BatchTable {
    fn drop(&mut self) {
        self.end_all();
    }
}

impl BatchTable {
    fn end_all(&self) {
        for batch in self.batches.values() {
            if let Work::Running(task) = &batch.work {
                task.abort();
            }
        }
    }
}

impl Batch {
    fn is_old(&self, now: Instant) -> bool {
        match &self.work {
            Work::Running(_) => false,
            Work::Ended { at, .. } => {
                self.record.state == TaskState::Cancelled
                    || HELD <= now.saturating_duration_since(*at)
            }
        }
    }

    fn bytes(&self) -> usize {
        match &self.work {
            Work::Ended { response, .. } => response.as_ref().map_or(0, Bytes::len),
            Work::Running(_) => 0,
        }
    }

    /// Ends the batch in `state` and returns its new record.
    fn end(&mut self, state: TaskState, response: Option<Bytes>) -> TaskRecord {
        let now = now_ms();
        self.record.state = state;
        self.record.updated_ms = now;
        self.record.forget_ms = now.saturating_add(millis(HELD));
        self.work = Work::Ended {
            at: Instant::now(),
            response,
        };
        self.record.clone()
    }
}

fn later(message: &str) -> PredictError {
    let error = PredictError::new(ErrorCode::Overloaded, message);
    error.with_retry_after(Duration::from_secs(10))
}

/// Weak access of the tasks of batches to the table, so that they do not keep it alive.
#[derive(Clone)]
pub(super) struct WeakBatches(Weak<Mutex<BatchTable>>);

impl WeakBatches {
    /// Stores the outcome of a batch, a body for [`exact::write`], and records in the registry that
    /// it has ended.
    pub(super) async fn finish(&self, id: &str, outcome: Result<Value, PredictError>) {
        let ended = self.0.upgrade().and_then(|held| {
            let mut held = held.lock();
            let batch = held.batches.get_mut(id)?;
            let Work::Running(_) = batch.work else {
                return None;
            };
            let (state, response) = match outcome {
                Ok(response) => (TaskState::Completed, Some(exact::write(&response).into())),
                Err(error) => (TaskState::Failed(shortened(error.message)), None),
            };
            Some((batch.registry.clone(), batch.end(state, response)))
        });
        if let Some((registry, record)) = ended {
            note(&*registry, id, record).await;
        }
    }
}

fn shortened(mut why: String) -> String {
    why.truncate(why.floor_char_boundary(MAX_WHY));
    why
}

pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Records the state of a batch in the registry, where every coordinator can read it. A failure is
/// only logged: the batch continues, and its own coordinator still knows it.
async fn note(registry: &dyn Registry, id: &str, record: TaskRecord) {
    let command = RegistryCommand::PutTask {
        id: id.to_owned(),
        record,
    };
    log_failure(id, registry.write(command).await);
}

/// Records in the registry that a batch runs. A cluster whose upgrade is not finished rejects the
/// command, and gets the one of earlier versions.
async fn note_begin(registry: &dyn Registry, id: &str, record: TaskRecord) {
    let command = RegistryCommand::BeginTask {
        id: id.to_owned(),
        record: record.clone(),
    };
    match registry.write(command).await {
        Err(error) if error.code == ErrorCode::Conflict => note(registry, id, record).await,
        noted => log_failure(id, noted),
    }
}

fn log_failure(id: &str, noted: Result<RegistryReply, PredictError>) {
    if let Err(error) = noted {
        let error = error.chain();
        tracing::warn!(task = id, error, "batch not recorded in the registry");
    }
}

/// The right to hold one more batch. Dropping it gives it back.
pub(super) struct BatchPermit(Weak<Mutex<BatchTable>>);

impl Drop for BatchPermit {
    fn drop(&mut self) {
        if let Some(held) = self.0.upgrade() {
            held.lock().admitted -= 1;
        }
    }
}

impl Batches {
    /// Makes room for one more, which the permit keeps; at most so many may run.
    ///
    /// # Errors
    /// `Overloaded` when there is none.
    pub(super) fn admit(&self, most: usize) -> Result<BatchPermit, PredictError> {
        let mut held = self.0.lock();
        let now = Instant::now();
        held.batches.retain(|_, batch| !batch.is_old(now));
        let runs = |batch: &&Batch| matches!(batch.work, Work::Running(_));
        if most <= held.batches.values().filter(runs).count() + held.admitted {
            let message = format!(
                "the limit of running batches is reached; the setting '{}' allows {most}",
                settings::MAX_BATCHES
            );
            return Err(later(&message));
        }
        let bytes: usize = held.batches.values().map(Batch::bytes).sum();
        if held.batches.len() + held.admitted < MAX_BATCHES && bytes < MAX_BYTES {
            held.admitted += 1;
            return Ok(BatchPermit(Arc::downgrade(&self.0)));
        }
        Err(later(
            "too many batches are kept here; delete finished tasks",
        ))
    }

    /// Holds a batch, whose work `begin` starts once it is noted that the batch runs, so that its
    /// end is noted later. The receiver ends when it is noted.
    pub(super) fn hold<W: Future<Output = ()> + Send + 'static>(
        &self,
        permit: BatchPermit,
        id: &str,
        record: TaskRecord,
        registry: Arc<dyn Registry>,
        begin: impl FnOnce(WeakBatches) -> W,
    ) -> oneshot::Receiver<()> {
        let (noting, noted) = oneshot::channel();
        let first = (registry.clone(), id.to_owned(), record.clone());
        let work = begin(WeakBatches(Arc::downgrade(&self.0)));
        let whole = async move {
            let (registry, id, record) = first;
            note_begin(&*registry, &id, record).await;
            drop(noting);
            work.await;
        };
        // The work waits for the lock before it can look for itself.
        let mut held = self.0.lock();
        let batch = Batch {
            record,
            work: Work::Running(tokio::spawn(whole).abort_handle()),
            registry,
        };
        held.batches.insert(id.to_owned(), batch);
        drop(held);
        drop(permit);
        noted
    }

    /// Returns a guard that ends all running batches when it is dropped.
    pub fn end_guard(&self) -> EndGuard {
        EndGuard(self.clone())
    }
}

/// Ends all running batches when it is dropped; see [`Batches::end_guard`].
pub struct EndGuard(Batches);

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.0.0.lock().end_all();
    }
}

#[async_trait]
impl TaskSource for Batches {
    async fn list(&self) -> Result<Vec<StoredTask>, PredictError> {
        let held = self.0.lock();
        let listed = held.batches.iter().map(|(id, batch)| StoredTask {
            id: id.clone(),
            record: batch.record.clone(),
            response: None,
        });
        Ok(listed.collect())
    }

    async fn get(&self, id: &str) -> Result<StoredTask, PredictError> {
        let held = self.0.lock();
        let batch = held.batches.get(id).ok_or_else(missing)?;
        let response = match &batch.work {
            Work::Ended { response, .. } => response.clone(),
            Work::Running(_) => None,
        };
        Ok(StoredTask {
            id: id.to_owned(),
            record: batch.record.clone(),
            response,
        })
    }

    async fn cancel(&self, id: &str) -> Result<(), PredictError> {
        let (registry, record) = {
            let mut held = self.0.lock();
            let batch = held.batches.get_mut(id).ok_or_else(missing)?;
            let Work::Running(task) = &batch.work else {
                return Err(super::ended());
            };
            task.abort();
            (
                batch.registry.clone(),
                batch.end(TaskState::Cancelled, None),
            )
        };
        note(&*registry, id, record).await;
        Ok(())
    }

    async fn forget(&self, id: &str) -> Result<(), PredictError> {
        let mut held = self.0.lock();
        match held.batches.get(id).map(|batch| &batch.work) {
            Some(Work::Running(_)) => Err(super::still_running()),
            Some(Work::Ended { .. }) => {
                held.batches.remove(id);
                Ok(())
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
