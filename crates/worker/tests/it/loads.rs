//! Loads that take too long.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};
use volley_backend::fake::FakeLoader;
use volley_backend::{Backend, BackendLoader, Hold, LoadProgress, LossFuture};
use volley_telemetry::Metrics;
use volley_types::registry::{Assignment, BackendName, ReplicaState};
use volley_types::{
    Assignments, ChunkStream, ErrorCode, ModelName, ModelRef, Predict, PredictError,
    PredictRequest, Signature,
};
use volley_worker::Worker;

use super::support::*;

/// Loads on a thread that nothing can stop: it ends when the gate says so.
struct StubbornLoader {
    gate: Arc<Semaphore>,
    inner: FakeLoader,
}

#[async_trait]
impl BackendLoader for StubbornLoader {
    fn name(&self) -> BackendName {
        BackendName::FAKE
    }

    fn stops_when_dropped(&self, _: &Assignment) -> bool {
        false
    }

    async fn estimate(&self, assignment: &Assignment) -> Result<u64, PredictError> {
        self.inner.estimate(assignment).await
    }

    async fn load(&self, assignment: &Assignment) -> Result<Arc<dyn Backend>, PredictError> {
        if assignment.spec.parameters.text("stubborn").is_some() {
            let (gate, runtime) = (self.gate.clone(), tokio::runtime::Handle::current());
            let (sender, receiver) = tokio::sync::oneshot::channel();
            std::thread::spawn(move || {
                runtime.block_on(gate.acquire()).unwrap().forget();
                let _ = sender.send(());
            });
            receiver.await.unwrap();
        }
        self.inner.load(assignment).await
    }
}

/// Brings its models slowly, and loses them when it is told to.
struct FragileLoader {
    /// How long bringing a model takes from now on.
    slow: Arc<Mutex<Duration>>,
    lose: watch::Sender<bool>,
    inner: FakeLoader,
}

/// A model that can be lost.
struct Fragile {
    inner: Arc<dyn Backend>,
    lose: watch::Receiver<bool>,
}

#[async_trait]
impl BackendLoader for FragileLoader {
    fn name(&self) -> BackendName {
        BackendName::FAKE
    }

    async fn prepare(
        &self,
        _: &Assignment,
        _: &LoadProgress,
    ) -> Result<Option<Hold>, PredictError> {
        let slow = *self.slow.lock();
        tokio::time::sleep(slow).await;
        Ok(None)
    }

    async fn estimate(&self, assignment: &Assignment) -> Result<u64, PredictError> {
        self.inner.estimate(assignment).await
    }

    async fn load(&self, assignment: &Assignment) -> Result<Arc<dyn Backend>, PredictError> {
        Ok(Arc::new(Fragile {
            inner: self.inner.load(assignment).await?,
            lose: self.lose.subscribe(),
        }))
    }
}

#[async_trait]
impl Predict for Fragile {
    async fn predict(&self, request: PredictRequest) -> Result<ChunkStream, PredictError> {
        self.inner.predict(request).await
    }

    async fn signature(&self, model: &ModelRef) -> Result<Signature, PredictError> {
        self.inner.signature(model).await
    }

    async fn models(&self) -> Vec<ModelName> {
        self.inner.models().await
    }
}

impl Backend for Fragile {
    fn capacity(&self) -> usize {
        self.inner.capacity()
    }

    fn memory_bytes(&self) -> u64 {
        self.inner.memory_bytes()
    }

    fn lost(&self) -> Option<LossFuture> {
        let mut lose = self.lose.clone();
        Some(Box::pin(async move {
            lose.wait_for(|lose| *lose).await.ok()?;
            Some(PredictError::new(
                ErrorCode::Unavailable,
                "its process has gone",
            ))
        }))
    }
}

#[tokio::test]
async fn what_an_unloaded_model_lacks_is_brought_again_outside_the_limit_on_loading() {
    let models = ["one", "other"].map(|model| {
        let given = [("memory_bytes", "60"), ("text", model)];
        assignment(model, 1, &given)
    });
    let all_may_go = |revision, assigned: &[Assignment]| Assignments {
        overcommit: assigned.iter().map(|it| it.model.clone()).collect(),
        ..orders(revision, assigned)
    };
    let coordinator = Coordinator::start(all_may_go(1, &models[..1])).await;
    let mut config = config(&[&coordinator]);
    config.load_timeout = Duration::from_millis(300);
    config.memory_budget = Some(100);
    let slow = Arc::new(Mutex::new(Duration::ZERO));
    let loader = FragileLoader {
        slow: slow.clone(),
        lose: watch::Sender::new(false),
        inner: FakeLoader::default(),
    };
    let worker = Worker::start(config, vec![Arc::new(loader)], Metrics::new());
    coordinator.ready("one", 1).await;
    coordinator.say(all_may_go(2, &models));
    coordinator.ready("other", 1).await;

    *slow.lock() = Duration::from_millis(900);
    let stream = worker.predict(request("one", &[])).await.unwrap();
    let (texts, error) = read(stream).await;
    assert!(error.is_none(), "{error:?}");
    assert_eq!(texts, ["one"; 4]);
    worker.shutdown().await;
}

#[tokio::test]
async fn a_model_that_is_lost_has_failed_with_the_reason() {
    let assigned = [assignment("fragile", 1, &[])];
    let coordinator = Coordinator::start(orders(1, &assigned)).await;
    let lose = watch::Sender::new(false);
    let loader = FragileLoader {
        slow: Arc::default(),
        lose: lose.clone(),
        inner: FakeLoader::default(),
    };
    let worker = Worker::start(
        config(&[&coordinator]),
        vec![Arc::new(loader)],
        Metrics::new(),
    );
    coordinator.ready("fragile", 1).await;
    lose.send_replace(true);
    let reason = || match coordinator.state("fragile", 1)? {
        ReplicaState::Failed(reason) => Some(reason),
        _ => None,
    };
    let reason = eventually("it has failed", reason).await;
    assert_eq!(reason, "its process has gone");
    let refused = worker.predict(request("fragile", &[])).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::Unavailable);
    worker.shutdown().await;
}

#[tokio::test]
async fn a_load_that_takes_too_long_has_failed_and_gives_its_turn_on() {
    let hangs = assignment("hangs", 1, &[("load_delay_ms", "3600000")]);
    let setting = Setting::start(&[], |config| {
        config.concurrent_loads = 1;
        config.load_timeout = Duration::from_millis(200);
    })
    .await;
    setting
        .coordinator
        .say(orders(2, std::slice::from_ref(&hangs)));
    let reason = || match setting.coordinator.state("hangs", 1)? {
        ReplicaState::Failed(reason) => Some(reason),
        _ => None,
    };
    let reason = eventually("it has failed", reason).await;
    assert!(reason.contains("not loaded within 0.2 s"), "{reason}");
    assert!(reason.contains("models.load_timeout"), "{reason}");
    let good = assignment("good", 1, &[]);
    setting.coordinator.say(orders(3, &[hangs, good]));
    setting.coordinator.ready("good", 1).await;
    let text = setting.metrics.encode();
    assert!(text.contains("volley_abandoned_loads 0"), "{text}");
}

#[tokio::test]
async fn a_load_that_nothing_can_stop_keeps_its_memory_until_it_ends_and_is_not_begun_twice() {
    let given = [("stubborn", "yes"), ("memory_bytes", "60")];
    let stubborn = assignment("stubborn", 1, &given);
    let large = assignment("large", 1, &[("memory_bytes", "50")]);
    let coordinator = Coordinator::start(orders(1, std::slice::from_ref(&stubborn))).await;
    let mut config = config(&[&coordinator]);
    config.concurrent_loads = 1;
    config.load_timeout = Duration::from_millis(200);
    config.memory_budget = Some(100);
    let (gate, metrics) = (Arc::new(Semaphore::new(0)), Metrics::new());
    let loader = StubbornLoader {
        gate: gate.clone(),
        inner: FakeLoader::default(),
    };
    let worker = Worker::start(config, vec![Arc::new(loader)], metrics.clone());
    let failed = |model: &'static str| {
        let coordinator = &coordinator;
        eventually("it has failed", move || {
            let state = coordinator.state(model, 1)?;
            matches!(state, ReplicaState::Failed(_)).then_some(())
        })
    };
    let abandoned = |count: usize| {
        let line = format!("volley_abandoned_loads {count}");
        let metrics = &metrics;
        eventually("given-up loads are counted", move || {
            metrics.encode().contains(&line).then_some(())
        })
    };
    failed("stubborn").await;
    abandoned(1).await;

    // Its memory is not given to others, whether it is wanted or not.
    coordinator.say(orders(2, std::slice::from_ref(&large)));
    failed("large").await;
    // Wanted again, it waits for the one that goes on.
    coordinator.say(orders(3, &[stubborn, large.clone()]));
    failed("stubborn").await;
    abandoned(1).await;

    coordinator.say(orders(4, &[large]));
    gate.add_permits(1);
    abandoned(0).await;
    coordinator.ready("large", 1).await;
    worker.shutdown().await;
}
