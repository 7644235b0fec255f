//! The replica table: loads what is assigned, drains and unloads what is not any more.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use volley_backend::Backend;
use volley_types::registry::{Assignment, ReplicaState};
use volley_types::{ErrorCode, ModelRef, PredictError, Revision};

use crate::Worker;
use crate::admission::Admission;
use crate::converge::converge;
use crate::replica::{Loaded, Replica};

/// Between two looks at a draining replica's streams.
const DRAIN_LOOK: Duration = Duration::from_millis(50);
/// How long a replica that is not wanted any more still takes requests: they may be on their way
/// from coordinators that have not heard yet.
const UNLOAD_GRACE: Duration = Duration::from_millis(500);
/// The first and the longest wait before a failed load is tried again.
const RETRY: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));

impl Worker {
    /// Takes assignments from a coordinator. Older ones than the newest known are ignored: that
    /// coordinator lags.
    pub(crate) fn assign(&self, revision: Revision, assignments: Vec<Assignment>) {
        let mut wanted = self.0.wanted.lock();
        if revision < wanted.0 {
            return;
        }
        *wanted = (revision, assignments);
        drop(wanted);
        self.0.assigned.notify_one();
    }

    pub(crate) async fn run_table(self) {
        loop {
            self.0.assigned.notified().await;
            let wanted = self.0.wanted.lock().1.clone();
            let held: Vec<_> = {
                let replicas = self.0.replicas.read();
                let kept = replicas
                    .iter()
                    .filter(|held| held.state() != ReplicaState::Draining);
                kept.map(|replica| replica.assignment.clone()).collect()
            };
            let actions = converge(&held, &wanted);
            for assignment in actions.load {
                let replica = Arc::new(Replica::new(assignment));
                self.0.replicas.write().push(replica.clone());
                self.spawn(self.clone().load(replica));
            }
            for assignment in &actions.unload {
                // The version that follows it is loaded first, so that one of them serves.
                if !self.serves_until_another(assignment, &wanted) {
                    self.unload(assignment);
                }
            }
            self.tell();
        }
    }

    /// Loads one replica; tries again for as long as it is wanted.
    async fn load(self, replica: Arc<Replica>) {
        tokio::select! {
            () = replica.unwanted() => {}
            () = self.load_until_ready(&replica) => {}
        }
    }

    async fn load_until_ready(&self, replica: &Replica) {
        let (model, version) = (&replica.assignment.model, replica.assignment.spec.version);
        let mut wait = RETRY.0;
        loop {
            let loaded = self.load_once(&replica.assignment).await;
            let ready = loaded.is_ok();
            match loaded {
                Ok(loaded) => {
                    tracing::info!(%model, %version, "replica ready");
                    replica.loaded(loaded);
                }
                Err(error) => {
                    tracing::warn!(%model, %version, error = error.chain(), "replica not loaded");
                    replica.failed(error.message);
                }
            }
            self.tell();
            // One that was there before it may go now.
            self.0.assigned.notify_one();
            if ready {
                return;
            }
            tokio::time::sleep(wait.mul_f64(0.75 + fastrand::f64() / 2.0)).await;
            wait = (wait * 2).min(RETRY.1);
        }
    }

    async fn load_once(&self, assignment: &Assignment) -> Result<Loaded, PredictError> {
        let _turn = self.0.loads.acquire().await;
        let kind = assignment.spec.backend;
        let loader = self.0.loaders.get(&kind).cloned().ok_or_else(|| {
            let message = format!("this worker has no backend for '{}' models", kind.as_str());
            PredictError::new(ErrorCode::Unimplemented, message)
        })?;
        let (assignment, queue) = (assignment.clone(), self.0.config.queue_per_replica);
        // Its own task: a backend that panics fails this load and nothing else.
        let task = tokio::spawn(async move {
            let backend: Arc<dyn Backend> = loader.load(&assignment).await?;
            let model = ModelRef {
                name: assignment.model.clone(),
                version: Some(assignment.spec.version),
            };
            Ok(Loaded {
                signature: backend.signature(&model).await?,
                admission: Admission::new(backend.capacity(), queue),
                backend,
                cut: CancellationToken::new(),
            })
        });
        let task = tokio_util::task::AbortOnDropHandle::new(task);
        task.await.map_err(|error| {
            PredictError::internal("loading the model failed unexpectedly", error)
        })?
    }

    fn unload(&self, assignment: &Assignment) {
        let find = |replica: &&Arc<Replica>| {
            replica.assignment == *assignment && replica.state() != ReplicaState::Draining
        };
        let Some(replica) = self.0.replicas.read().iter().find(find).cloned() else {
            return;
        };
        replica.drain();
        let worker = self.clone();
        self.spawn(async move {
            tokio::time::sleep(UNLOAD_GRACE).await;
            replica.close();
            let idle = async {
                while replica.load() != (0, 0) {
                    tokio::time::sleep(DRAIN_LOOK).await;
                }
            };
            let limit = worker.0.config.unload_timeout;
            if tokio::time::timeout(limit, idle).await.is_err() {
                tracing::warn!(model = %replica.assignment.model, "unloaded with streams running");
                replica.cut();
            }
            worker
                .0
                .replicas
                .write()
                .retain(|held| !Arc::ptr_eq(held, &replica));
            worker.tell();
        });
    }

    /// Whether this one serves while another version of its model, which follows it, is loaded
    /// for the first time.
    fn serves_until_another(&self, unwanted: &Assignment, wanted: &[Assignment]) -> bool {
        let replicas = self.0.replicas.read();
        let has = |state: ReplicaState, fits: &dyn Fn(&Assignment) -> bool| {
            replicas
                .iter()
                .any(|held| fits(&held.assignment) && held.state() == state)
        };
        has(ReplicaState::Ready, &|held| held == unwanted)
            && has(ReplicaState::Loading, &|held| {
                held.model == unwanted.model && wanted.contains(held)
            })
    }
}
