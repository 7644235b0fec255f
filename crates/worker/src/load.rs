//! Loading of one replica: a memory reservation, a load permit, and the loader's work within a time
//! limit.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use volley_backend::{BackendLoader, Hold, LossFuture};
use volley_types::registry::Assignment;
use volley_types::{ErrorCode, ModelRef, PredictError};

use crate::Worker;
use crate::abandoned_loads::Work;
use crate::admission::AdmissionQueue;
use crate::backend_slot::{BackendSlot, LoadedBackend};
use crate::memory_budget::Reservation;
use crate::replica::{LoadedReplica, Replica};

/// Initial and maximum delay before a failed load is retried.
const RETRY: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));

impl Worker {
    /// Loads one replica, after a delay if it has `failed` before, and retries while it is
    /// assigned.
    pub(crate) async fn load(self, replica: Arc<Replica>, failed: Option<PredictError>) {
        tokio::select! {
            () = replica.unwanted() => {}
            () = self.load_until_ready(&replica, failed) => {}
        }
    }

    async fn load_until_ready(&self, replica: &Arc<Replica>, mut failed: Option<PredictError>) {
        let (model, version) = (&replica.assignment.model, replica.assignment.spec.version);
        let (mut freed, mut wait) = (self.0.budget.freed(), RETRY.0);
        loop {
            if let Some(error) = failed.take() {
                let short = error.code == ErrorCode::Overloaded;
                tokio::select! {
                    () = tokio::time::sleep(wait.mul_f64(0.75 + fastrand::f64() / 2.0)) => {}
                    // A load that failed for lack of memory is retried as soon as memory is free.
                    _ = freed.changed(), if short => {}
                }
                wait = (wait * 2).min(RETRY.1);
            }
            freed.mark_unchanged();
            match self.load_once(replica).await {
                Ok((loaded, lost)) => {
                    tracing::info!(%model, %version, "replica ready");
                    replica.loaded(loaded);
                    self.watch(replica, lost);
                }
                Err(error) => {
                    tracing::warn!(%model, %version, error = error.chain(), "replica load failed");
                    replica.failed(error.message.clone());
                    failed = Some(error);
                }
            }
            self.notify_change();
            // The previous version may be unloaded now.
            self.0.assigned.notify_one();
            if failed.is_none() {
                return;
            }
        }
    }

    /// Waits for the loss of a model, if its backend can be lost. The replica is then marked as
    /// failed, and is retried after a long delay, because another loss is likely.
    pub(crate) fn watch(&self, replica: &Arc<Replica>, lost: Option<LossFuture>) {
        let (worker, replica) = (self.clone(), replica.clone());
        let Some(lost) = lost else { return };
        self.spawn(async move {
            let lost = tokio::select! {
                () = replica.unwanted() => None,
                lost = lost => lost,
            };
            let Some(error) = lost else { return };
            let (model, version) = (&replica.assignment.model, replica.assignment.spec.version);
            tracing::error!(%model, %version, error = error.chain(), "replica lost");
            replica.failed(error.message);
            worker.notify_change();
            tokio::select! {
                () = replica.unwanted() => {}
                () = tokio::time::sleep(RETRY.1) => worker.load(replica.clone(), None).await,
            }
        });
    }

    async fn load_once(
        &self,
        replica: &Replica,
    ) -> Result<(LoadedReplica, Option<LossFuture>), PredictError> {
        let assignment = &replica.assignment;
        let loader = self.loader(assignment)?;
        let _hold = prepare(&loader, replica).await?;
        let (of, by) = (assignment.clone(), loader.clone());
        let estimate = async move { by.estimate(&of).await };
        let bytes = self.within_limit(&loader, assignment, estimate).await?;
        let overcommit = self.0.overcommit.lock().contains(&assignment.model);
        let room = self.reserve_or_evict(bytes, overcommit);
        let memory = tokio::time::timeout(self.0.config.load_timeout, room).await;
        let memory = memory.unwrap_or_else(|_| Err(self.shortage(bytes, overcommit)))?;
        let _turn = self.0.loads.acquire().await;
        let held = self.load_backend(assignment, memory).await?;
        let model = ModelRef {
            name: assignment.model.clone(),
            version: Some(assignment.spec.version),
        };
        let (capacity, lost) = (held.backend.capacity(), held.backend.lost());
        let loaded = LoadedReplica {
            signature: held.backend.signature(&model).await?,
            admission: AdmissionQueue::new(capacity, self.0.config.queue_per_replica),
            waits: Arc::default(),
            capacity,
            slot: Arc::new(BackendSlot::new(&self.0.budget, held, overcommit)),
            abort: CancellationToken::new(),
        };
        Ok((loaded, lost))
    }

    pub(crate) fn loader(
        &self,
        assignment: &Assignment,
    ) -> Result<Arc<dyn BackendLoader>, PredictError> {
        let backend = assignment.spec.backend;
        self.0.loaders.get(&backend).cloned().ok_or_else(|| {
            let message = format!(
                "this worker's version, {}, has no backend '{backend}': upgrade the worker, or \
                 place the model by a label on workers with this backend",
                env!("CARGO_PKG_VERSION")
            );
            PredictError::new(ErrorCode::Unimplemented, message)
        })
    }

    /// Loads a backend within its memory reservation. An abandoned load keeps the reservation until
    /// it ends.
    pub(crate) async fn load_backend(
        &self,
        assignment: &Assignment,
        memory: Reservation,
    ) -> Result<LoadedBackend, PredictError> {
        let loader = self.loader(assignment)?;
        let (of, by) = (assignment.clone(), loader.clone());
        self.within_limit(&loader, assignment, async move {
            let since = Instant::now();
            let backend = by.load(&of).await?;
            Ok(LoadedBackend::new(backend, memory, since.elapsed()))
        })
        .await
    }

    /// Runs a loader's work and abandons it at the time limit.
    async fn within_limit<T: Send + 'static>(
        &self,
        loader: &Arc<dyn BackendLoader>,
        assignment: &Assignment,
        work: impl Future<Output = Result<T, PredictError>> + Send + 'static,
    ) -> Result<T, PredictError> {
        let (limit, abandoned_loads) = (self.0.config.load_timeout, &self.0.abandoned_loads);
        let key = (assignment.model.clone(), assignment.spec.version);
        let stops = loader.stops_when_dropped(assignment);
        let work = async move {
            if !stops {
                abandoned_loads.until_gone(&key).await;
                abandoned_loads.check()?;
            }
            Work::begin(abandoned_loads, key, stops, work).done().await
        };
        let done = tokio::time::timeout(limit, work).await;
        done.unwrap_or_else(|_| {
            let seconds = limit.as_secs_f64();
            let message = format!(
                "the model was not loaded within {seconds} s and the load was abandoned; its \
                 files may be damaged, or their disk slow; 'models.load_timeout' sets the limit"
            );
            Err(PredictError::new(ErrorCode::DeadlineExceeded, message))
        })
    }
}

/// Prepares the files of a model, without a time limit of the worker.
pub(crate) async fn prepare(
    loader: &Arc<dyn BackendLoader>,
    replica: &Replica,
) -> Result<Option<Hold>, PredictError> {
    let (loader, assignment) = (loader.clone(), replica.assignment.clone());
    let progress = replica.progress.clone();
    // Separate task: a panic of the loader only fails this load.
    let task = tokio::spawn(async move {
        let prepared = loader.prepare(&assignment, &progress).await;
        progress.begin(0);
        prepared
    });
    let done = AbortOnDropHandle::new(task).await;
    done.map_err(|error| PredictError::internal("fetching the model failed unexpectedly", error))?
}
