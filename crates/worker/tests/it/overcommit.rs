//! Models that make room for each other, and come back for their next request.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures::future::join_all;
use volley_telemetry::Metrics;
use volley_types::registry::{Assignment, ReplicaState};
use volley_types::{Assignments, Deadline, ErrorCode, ModelName, Predict, ReplicaReport};
use volley_worker::Worker;

use super::support::*;

/// A model that claims 40 of the budget's 100 bytes, and loads in `load_ms`.
fn forty(model: &str, load_ms: u64) -> Assignment {
    let delay = load_ms.to_string();
    let given = [
        ("memory_bytes", "40"),
        ("load_delay_ms", &*delay),
        ("text", model),
        ("capacity", "16"),
    ];
    assignment(model, 1, &given)
}

/// Orders in which all models may be unloaded, but for `pinned`.
fn orders_with(revision: u64, assigned: &[Assignment], pinned: &[&str]) -> Assignments {
    let names = assigned.iter().map(|assigned| assigned.model.clone());
    let overcommit: BTreeSet<ModelName> = names
        .filter(|name| !pinned.contains(&name.as_str()))
        .collect();
    Assignments {
        overcommit,
        ..orders(revision, assigned)
    }
}

/// A worker with a budget of 100 bytes that holds `assigned`, one after the other.
async fn crowded(assigned: &[Assignment], queue_timeout: Duration) -> Setting {
    let setting = Setting::start(&[], |config| {
        config.memory_budget = Some(100);
        config.queue_timeout = queue_timeout;
        config.concurrent_loads = 4;
    })
    .await;
    for count in 1..=assigned.len() {
        let revision = 1 + u64::try_from(count).unwrap();
        let assigned = &assigned[..count];
        setting
            .coordinator
            .say(orders_with(revision, assigned, &[]));
        let newest = assigned[count - 1].model.as_str();
        setting.coordinator.ready(newest, 1).await;
    }
    setting
}

fn replica(setting: &Setting, model: &str) -> Option<ReplicaReport> {
    let replicas = setting.coordinator.last()?.replicas.into_iter();
    let mut named = replicas.filter(|replica| replica.model.as_str() == model);
    named.next()
}

/// Waits until exactly these models are reported as unloaded for now.
async fn evicted(setting: &Setting, models: &[&str]) {
    let same = || {
        let replicas = setting.coordinator.last()?.replicas;
        let away = replicas.iter().filter(|replica| replica.evicted);
        let mut away: Vec<_> = away.map(|replica| replica.model.to_string()).collect();
        away.sort();
        (away == models).then_some(())
    };
    eventually(&format!("{models:?} are unloaded"), same).await;
}

async fn ask(setting: &Setting, model: &str) {
    let stream = setting.worker.predict(request(model, &[])).await.unwrap();
    let (texts, error) = read(stream).await;
    assert!(error.is_none(), "{error:?}");
    assert_eq!(texts, [model; 4]);
}

#[tokio::test]
async fn the_longest_unused_makes_room_and_comes_back_for_its_next_request() {
    let assigned = ["a", "b", "c"].map(|model| forty(model, 0));
    let setting = crowded(&assigned, Duration::from_secs(10)).await;
    evicted(&setting, &["a"]).await;
    let away = replica(&setting, "a").unwrap();
    assert_eq!((away.state, away.memory_bytes), (ReplicaState::Ready, 0));
    assert!(away.signature.is_some() && away.capacity == 16);
    let names = setting.worker.models().await;
    assert_eq!(names.len(), 3, "it can be called as before");

    // What has just been loaded stays for a quarter of a second.
    tokio::time::sleep(Duration::from_millis(300)).await;
    ask(&setting, "b").await;
    ask(&setting, "a").await;
    evicted(&setting, &["c"]).await;
    assert_eq!(replica(&setting, "a").unwrap().memory_bytes, 40);
    assert_eq!(setting.tally.loaded.load(Ordering::SeqCst), 4);
    let text = setting.metrics.encode();
    for line in [
        "volley_evictions_total{model=\"a\"} 1",
        "volley_evictions_total{model=\"c\"} 1",
        "volley_reloads_total{model=\"a\"} 1",
        "volley_evicted_replicas{model=\"c\"} 1",
        "volley_evicted_replicas{model=\"a\"} 0",
        "volley_memory_reserved_bytes 80",
        "volley_ready_replicas{model=\"c\"} 1",
    ] {
        assert!(text.contains(line), "{line} is missing in\n{text}");
    }
}

#[tokio::test]
async fn requests_that_come_together_share_one_load() {
    let assigned = [("a", 100), ("b", 0), ("c", 0)].map(|(model, ms)| forty(model, ms));
    let setting = crowded(&assigned, Duration::from_secs(10)).await;
    evicted(&setting, &["a"]).await;
    let before = setting.tally.loaded.load(Ordering::SeqCst);
    join_all((0..40).map(|_| ask(&setting, "a"))).await;
    assert_eq!(setting.tally.loaded.load(Ordering::SeqCst), before + 1);
    assert_eq!(setting.worker.active_streams(), 0);
}

#[tokio::test]
async fn what_is_in_use_stays_and_who_waits_for_its_room_waits_within_its_limits() {
    let assigned = ["a", "b", "c"].map(|model| forty(model, 0));
    let setting = crowded(&assigned, Duration::from_secs(3)).await;
    evicted(&setting, &["a"]).await;
    let b = running(&setting.worker, "b").await;
    let c = running(&setting.worker, "c").await;

    let mut hurried = request("a", &[]);
    let soon = Deadline::after(Instant::now(), Duration::from_millis(100));
    hurried.deadline = Some(soon);
    let (_, error) = read(setting.worker.predict(hurried).await.unwrap()).await;
    assert_eq!(error.unwrap().code, ErrorCode::DeadlineExceeded);
    let (_, error) = read(setting.worker.predict(request("a", &[])).await.unwrap()).await;
    let error = error.unwrap();
    assert_eq!(error.code, ErrorCode::Overloaded);
    assert!(error.retry_after.is_some());

    // Nobody waits any more: the room that there is now is not taken.
    let before = setting.tally.loaded.load(Ordering::SeqCst);
    let text = || setting.metrics.encode();
    drop(b);
    evicted(&setting, &["a"]).await;
    assert!(!text().contains("volley_evictions_total{model=\"b\"}"));
    assert_eq!(setting.tally.loaded.load(Ordering::SeqCst), before);

    // One that does wait has it as soon as the other ends.
    let b = running(&setting.worker, "b").await;
    let waits = setting.worker.predict(request("a", &[])).await.unwrap();
    let waits = tokio::spawn(read(waits));
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!waits.is_finished());
    drop(c);
    let (texts, error) = waits.await.unwrap();
    assert_eq!((texts.len(), error.is_none()), (4, true), "{error:?}");
    evicted(&setting, &["c"]).await;
    drop(b);
}

#[tokio::test]
async fn models_that_push_each_other_out_lose_no_request_and_load_at_a_bounded_rate() {
    let assigned = ["a", "b", "c", "d"].map(|model| forty(model, 10));
    let setting = crowded(&assigned, Duration::from_secs(10)).await;
    let before = setting.tally.loaded.load(Ordering::SeqCst);
    let since = Instant::now();
    let callers = ["a", "b", "c", "d", "a", "b", "c", "d"].map(|model| {
        let setting = &setting;
        async move {
            let mut answers = 0;
            while since.elapsed() < Duration::from_secs(3) {
                ask(setting, model).await;
                answers += 1;
            }
            answers
        }
    });
    let answers: Vec<u32> = join_all(callers).await;
    assert!(answers.iter().all(|count| 0 < *count), "{answers:?}");
    // Two fit, and each stays for a quarter of a second at least.
    let quarters = since.elapsed().as_millis() / 250;
    let loads = setting.tally.loaded.load(Ordering::SeqCst) - before;
    assert!(u128::from(loads) <= 2 * (quarters + 1), "{loads} loads");
}

#[tokio::test]
async fn one_that_must_stay_takes_the_room_of_those_that_need_not_and_never_gives_it_back() {
    let assigned = ["a", "b", "c"].map(|model| forty(model, 0));
    let setting = crowded(&assigned[..2], Duration::from_secs(10)).await;
    setting
        .coordinator
        .say(orders_with(10, &assigned, &["b", "c"]));
    setting.coordinator.ready("c", 1).await;
    evicted(&setting, &["a"]).await;
    // There is no room for it as long as those stay; it says so instead of waiting for nothing.
    let stream = setting.worker.predict(request("a", &[])).await.unwrap();
    let (_, error) = read(stream).await;
    let error = error.unwrap();
    assert_eq!(error.code, ErrorCode::Unavailable);
    assert!(error.message.contains("needs 40 B "), "{}", error.message);
    let failed =
        || matches!(setting.coordinator.state("a", 1)?, ReplicaState::Failed(_)).then_some(());
    eventually("it has failed", failed).await;
    // It is back as soon as one of them may go, and stays once it must.
    setting.coordinator.say(orders_with(11, &assigned, &["c"]));
    setting.coordinator.ready("a", 1).await;
    evicted(&setting, &["b"]).await;
    setting
        .coordinator
        .say(orders_with(12, &assigned[..2], &["b"]));
    evicted(&setting, &[]).await;
}

#[tokio::test]
async fn a_model_that_cannot_be_loaded_again_has_failed_and_is_tried_again() {
    let mut a = forty("a", 0);
    let again = volley_types::ParamValue::Text("error".to_owned());
    a.spec.parameters.set("load_again", again).unwrap();
    let assigned = [a, forty("b", 0), forty("c", 0)];
    let coordinator = Coordinator::start(orders_with(1, &assigned[..1], &[])).await;
    let mut config = config(&[&coordinator]);
    config.memory_budget = Some(100);
    let loader = Arc::new(FlakyLoader::default());
    let worker = Worker::start(config, vec![loader], Metrics::new());
    coordinator.ready("a", 1).await;
    coordinator.say(orders_with(2, &assigned, &[]));
    coordinator.ready("b", 1).await;
    coordinator.ready("c", 1).await;

    let (_, error) = read(worker.predict(request("a", &[])).await.unwrap()).await;
    let error = error.unwrap();
    assert_eq!(error.code, ErrorCode::Unavailable);
    assert!(error.code.may_retry_elsewhere());
    assert!(
        error.message.contains("the model's file is gone"),
        "{error}"
    );
    assert!(worker.predict(request("a", &[])).await.is_err());
    let failed = || matches!(coordinator.state("a", 1)?, ReplicaState::Failed(_)).then_some(());
    eventually("it has failed", failed).await;
    coordinator.ready("a", 1).await;
    let (texts, error) = read(worker.predict(request("a", &[])).await.unwrap()).await;
    assert_eq!((texts.len(), error.is_none()), (4, true));
}
