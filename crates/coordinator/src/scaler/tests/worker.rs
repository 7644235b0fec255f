//! A worker that holds what the registry says, at once, and whose reports are late.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use volley_backend::fake::FakeLoader;
use volley_backend::{Backend, BackendLoader};
use volley_types::registry::{Assignment, ReplicaState};
use volley_types::worker::{ReplicaReport, WorkerReport};
use volley_types::{
    ChunkStream, ErrorCode, ErrorOrigin, Incarnation, ModelName, ModelRef, Predict, PredictError,
    PredictRequest, Signature, WorkerId,
};

use crate::Coordinator;

/// By so much its reports are late: longer than a request takes.
const LATE: Duration = Duration::from_millis(150);
/// Between two reports where nothing changes.
const BEAT: Duration = Duration::from_millis(100);

/// Cloning gives another handle.
#[derive(Clone, Default)]
pub(super) struct TestWorker(Arc<Shared>);

/// What it was told of a model, and what serves it.
type ServedAssignment = (Assignment, Arc<dyn Backend>);

#[derive(Default)]
struct Shared {
    held: Mutex<BTreeMap<ModelName, ServedAssignment>>,
    refused: AtomicUsize,
    held_back: AtomicUsize,
    /// Has not heard of what the registry says now.
    deaf: AtomicBool,
    /// Holds nothing, whatever the registry says.
    empty: watch::Sender<bool>,
    /// Requests for this model wait.
    waits: watch::Sender<Option<ModelName>>,
}

impl TestWorker {
    /// Requests that it refused.
    pub(super) fn refused(&self) -> usize {
        self.0.refused.load(Ordering::Relaxed)
    }

    /// Requests that it held back.
    pub(super) fn held_back(&self) -> usize {
        self.0.held_back.load(Ordering::Relaxed)
    }

    pub(super) fn has(&self, model: &ModelName) -> bool {
        self.0.held.lock().contains_key(model)
    }

    /// Unloads everything, or loads again what it shall hold.
    pub(super) fn unload_all(&self, empty: bool) {
        if empty {
            self.0.held.lock().clear();
        }
        self.0.empty.send_replace(empty);
    }

    /// Hears nothing new of the registry from now on.
    pub(super) fn deafen(&self) {
        self.0.deaf.store(true, Ordering::Relaxed);
    }

    /// Holds back requests for a model, until it is told another.
    pub(super) fn hold_back(&self, model: Option<ModelName>) {
        self.0.waits.send_replace(model);
    }

    /// Follows the registry and reports.
    pub(super) async fn run(self, coordinator: Coordinator) {
        let id = WorkerId::new("w").unwrap();
        #[expect(clippy::disallowed_methods, reason = "the test bounds its reports")]
        let (reports, mut sent) = mpsc::unbounded_channel::<(Instant, WorkerReport)>();
        let hears = coordinator.clone();
        coordinator.spawn(async move {
            while let Some((at, report)) = sent.recv().await {
                tokio::time::sleep_until(at).await;
                hears.heard(report, 1);
            }
        });
        let (loader, mut registry) = (FakeLoader::default(), coordinator.0.cluster.registry());
        let mut empty = self.0.empty.subscribe();
        let mut orders = Vec::new();
        loop {
            if !self.0.deaf.load(Ordering::Relaxed) {
                orders = registry.borrow_and_update().assignments(&id);
            }
            let mut wanted = orders.clone();
            if *empty.borrow_and_update() {
                wanted.clear();
            }
            for assignment in &wanted {
                if !self.has(&assignment.model) {
                    let backend = loader.load(assignment).await.unwrap();
                    let held = (assignment.clone(), backend);
                    self.0.held.lock().insert(assignment.model.clone(), held);
                }
            }
            let is_wanted = |held: &Assignment| wanted.contains(held);
            self.0.held.lock().retain(|_, (held, _)| is_wanted(held));
            let sent = reports.send((Instant::now() + LATE, self.report(id.clone())));
            sent.expect("somebody hears");
            tokio::select! {
                _ = registry.changed(), if !self.0.deaf.load(Ordering::Relaxed) => {}
                _ = empty.changed() => {}
                () = tokio::time::sleep(BEAT) => {}
            }
        }
    }

    fn report(&self, id: WorkerId) -> WorkerReport {
        let held = self.0.held.lock();
        let replicas = held.values().map(|(assignment, _)| ReplicaReport {
            model: assignment.model.clone(),
            version: assignment.spec.version,
            state: ReplicaState::Ready,
            active: 0,
            queued: 0,
            capacity: 64,
            queue_wait_ms: 0,
            idle_since_ms: 0,
            fetch: None,
            signature: Some(Signature::generation()),
            evicted: false,
            memory_bytes: 0,
        });
        WorkerReport {
            id,
            incarnation: Incarnation(1),
            address: "127.0.0.1:2".to_owned(),
            labels: BTreeMap::new(),
            replicas: replicas.collect(),
            draining: false,
            active: 0,
            queued: 0,
            memory_bytes: 0,
            memory_budget_bytes: 0,
            gpus: Vec::new(),
            uptime_ms: 0,
        }
    }
}

#[async_trait]
impl Predict for TestWorker {
    async fn predict(&self, request: PredictRequest) -> Result<ChunkStream, PredictError> {
        let model = &request.model.name;
        let mut waits = self.0.waits.subscribe();
        if waits.borrow().as_ref() == Some(model) {
            self.0.held_back.fetch_add(1, Ordering::Relaxed);
            let other = |now: &Option<ModelName>| now.as_ref() != Some(model);
            waits.wait_for(other).await.unwrap();
        }
        let held = self.0.held.lock().get(model).map(|held| held.1.clone());
        match held {
            Some(backend) => backend.predict(request).await,
            None => {
                self.0.refused.fetch_add(1, Ordering::Relaxed);
                let message = format!("this worker holds no ready replica of model '{model}'");
                let error = PredictError::new(ErrorCode::Unavailable, message);
                Err(error.with_origin(ErrorOrigin::Worker))
            }
        }
    }

    async fn signature(&self, _: &ModelRef) -> Result<Signature, PredictError> {
        Ok(Signature::generation())
    }

    async fn models(&self) -> Vec<ModelName> {
        self.0.held.lock().keys().cloned().collect()
    }
}
