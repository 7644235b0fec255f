//! Loads that take too long.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Semaphore;
use volley_backend::fake::FakeLoader;
use volley_backend::{Backend, BackendLoader};
use volley_telemetry::Metrics;
use volley_types::PredictError;
use volley_types::registry::{Assignment, BackendKind, ReplicaState};
use volley_worker::Worker;

use super::support::*;

/// Loads on a thread that nothing can stop: it ends when the gate says so.
struct StubbornLoader {
    gate: Arc<Semaphore>,
    inner: FakeLoader,
}

#[async_trait]
impl BackendLoader for StubbornLoader {
    fn kind(&self) -> BackendKind {
        BackendKind::Fake
    }

    fn stops_when_dropped(&self) -> bool {
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
    assert!(reason.contains("limits.load_timeout"), "{reason}");
    let good = assignment("good", 1, &[]);
    setting.coordinator.say(orders(3, &[hangs, good]));
    setting.coordinator.ready("good", 1).await;
    let text = setting.metrics.encode();
    assert!(text.contains("volley_lingering_loads 0"), "{text}");
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
    let lingering = |count: usize| {
        let line = format!("volley_lingering_loads {count}");
        let metrics = &metrics;
        eventually("given-up loads are counted", move || {
            metrics.encode().contains(&line).then_some(())
        })
    };
    failed("stubborn").await;
    lingering(1).await;

    // Its memory is not given to others, whether it is wanted or not.
    coordinator.say(orders(2, std::slice::from_ref(&large)));
    failed("large").await;
    // Wanted again, it waits for the one that goes on.
    coordinator.say(orders(3, &[stubborn, large.clone()]));
    failed("stubborn").await;
    lingering(1).await;

    coordinator.say(orders(4, &[large]));
    gate.add_permits(1);
    lingering(0).await;
    coordinator.ready("large", 1).await;
    worker.shutdown().await;
}
