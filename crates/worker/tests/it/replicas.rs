//! Loading, failing, replacing and unloading.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::StreamExt;
use volley_telemetry::Metrics;
use volley_types::registry::{BackendName, ReplicaState};
use volley_types::{ErrorCode, ErrorOrigin, ModelRef, Predict};
use volley_worker::Worker;

use super::support::*;

#[tokio::test]
async fn what_is_assigned_is_served_and_what_is_not_any_more_ends_with_its_streams() {
    let m = assignment("m", 1, &[]);
    let setting = Setting::start(&[m, assignment("n", 2, &[])], |_| {}).await;
    let (worker, coordinator) = (&setting.worker, &setting.coordinator);
    let names: Vec<_> = worker.models().await;
    assert_eq!(
        names.iter().map(|n| n.as_str()).collect::<Vec<_>>(),
        ["m", "n"]
    );
    let signature = worker
        .signature(&ModelRef::deployed(names[0].clone()))
        .await
        .unwrap();
    assert_eq!(signature, volley_types::Signature::generation());

    let paced = request("m", &[("chunks", "2"), ("first_delay_ms", "900")]);
    let stream = worker.predict(paced).await.unwrap();
    coordinator.say(orders(2, &[]));
    let draining = || (coordinator.state("m", 1)? == ReplicaState::Draining).then_some(());
    eventually("m drains", draining).await;
    // Who had not heard of it yet is still served, for a moment.
    assert!(worker.predict(request("m", &[])).await.is_ok());
    let refused = loop {
        match worker.predict(request("m", &[])).await {
            Err(error) => break error,
            Ok(stream) => drop(read(stream).await),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert_eq!(refused.code, ErrorCode::Unavailable);
    assert_eq!(refused.origin, ErrorOrigin::Worker);
    assert_eq!(
        refused.message,
        "this worker holds no ready replica of model 'm'"
    );

    let (texts, error) = read(stream).await;
    assert_eq!((texts.len(), error.is_none()), (2, true));
    let empty = || coordinator.last()?.replicas.is_empty().then_some(());
    eventually("everything is unloaded", empty).await;
    assert!(worker.models().await.is_empty());
}

#[tokio::test]
async fn a_load_that_fails_or_panics_is_told_and_tried_again() {
    let assigned = [
        assignment("errs", 1, &[("load_first", "error")]),
        assignment("panics", 1, &[("load_first", "panic")]),
        assignment("good", 1, &[]),
    ];
    let coordinator = Coordinator::start(orders(1, &assigned)).await;
    let loader = Arc::new(FlakyLoader::default());
    let _worker = Worker::start(config(&[&coordinator]), vec![loader], Metrics::new());
    let failed = |model: &'static str| {
        let coordinator = &coordinator;
        eventually("the failure is told", move || {
            match coordinator.state(model, 1)? {
                ReplicaState::Failed(reason) => Some(reason),
                _ => None,
            }
        })
    };
    assert_eq!(failed("errs").await, "the model's file is missing");
    assert_eq!(
        failed("panics").await,
        "loading the model failed unexpectedly"
    );
    coordinator.ready("good", 1).await;
    coordinator.ready("errs", 1).await;
    coordinator.ready("panics", 1).await;
}

#[tokio::test]
async fn a_kind_without_a_loader_fails_with_a_reason_and_goes_when_it_is_unassigned() {
    let mut assigned = assignment("m", 1, &[]);
    assigned.spec.backend = BackendName::ONNX;
    let setting = Setting::start(&[], |_| {}).await;
    setting.coordinator.say(orders(2, &[assigned]));
    let reason = eventually("it fails", || match setting.coordinator.state("m", 1)? {
        ReplicaState::Failed(reason) => Some(reason),
        _ => None,
    })
    .await;
    let expected = "has no backend 'onnx': upgrade the worker, or place the model by a label";
    assert!(reason.contains(expected), "{reason}");
    setting.coordinator.say(orders(3, &[]));
    let gone = || setting.coordinator.state("m", 1).is_none().then_some(());
    eventually("it goes", gone).await;
}

#[tokio::test]
async fn no_more_models_are_loaded_at_a_time_than_configured() {
    let slow = [("load_delay_ms", "200")];
    let assigned = [1, 2, 3].map(|n| assignment(&format!("m{n}"), 1, &slow));
    let started = std::time::Instant::now();
    let setting = Setting::start(&assigned, |config| config.concurrent_loads = 1).await;
    assert!(Duration::from_millis(600) <= started.elapsed());
    assert_eq!(setting.tally.loaded.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn the_old_version_serves_until_the_new_one_is_ready() {
    let v1 = assignment("m", 1, &[("text", "old")]);
    let v2 = assignment("m", 2, &[("text", "new"), ("load_delay_ms", "1500")]);
    let setting = Setting::start(&[v1], |_| {}).await;
    let (worker, coordinator) = (&setting.worker, &setting.coordinator);
    let mut long = worker
        .predict(request("m", &[("delay_ms", "2000"), ("chunks", "3")]))
        .await
        .unwrap();
    long.next().await.unwrap().unwrap();

    coordinator.say(orders(2, &[v2]));
    let loading = || (coordinator.state("m", 2)? == ReplicaState::Loading).then_some(());
    eventually("the new version loads", loading).await;
    let (texts, _) = read(worker.predict(request("m", &[])).await.unwrap()).await;
    assert_eq!(texts[0], "old");

    coordinator.ready("m", 2).await;
    let draining = || (coordinator.state("m", 1)? == ReplicaState::Draining).then_some(());
    eventually("the old version drains", draining).await;
    let (texts, _) = read(worker.predict(request("m", &[])).await.unwrap()).await;
    assert_eq!(texts[0], "new");
    let (texts, error) = read(long).await;
    assert_eq!((texts, error.is_none()), (vec!["old".to_owned(); 2], true));
    let gone = || coordinator.state("m", 1).is_none().then_some(());
    eventually("the old version goes", gone).await;
}

#[tokio::test]
async fn no_request_fails_while_versions_follow_each_other() {
    let version = |number: u32| {
        let text = number.to_string();
        let given = [("text", &*text), ("delay_ms", "2"), ("load_delay_ms", "50")];
        assignment("m", number, &given)
    };
    let setting = Setting::start(&[version(1)], |_| {}).await;
    let stop = tokio_util::sync::CancellationToken::new();
    let callers = [(); 8].map(|()| {
        let (worker, stop) = (setting.worker.clone(), stop.clone());
        tokio::spawn(async move {
            let mut answers = Vec::new();
            while !stop.is_cancelled() {
                let stream = worker.predict(request("m", &[])).await.unwrap();
                let (texts, error) = read(stream).await;
                assert_eq!((texts.len(), error.is_none()), (4, true), "{error:?}");
                assert!(texts.iter().all(|text| *text == texts[0]));
                answers.push(texts[0].parse::<u32>().unwrap());
            }
            answers
        })
    });
    for number in 2..=6 {
        let revision = u64::from(number);
        setting
            .coordinator
            .say(orders(revision, &[version(number)]));
        setting.coordinator.ready("m", number).await;
    }
    let alone = || (setting.coordinator.last()?.replicas.len() == 1).then_some(());
    eventually("the last version is alone", alone).await;
    stop.cancel();
    for caller in callers {
        let answers = caller.await.unwrap();
        assert!(
            answers.is_sorted(),
            "an old version answered after a new one"
        );
        assert_eq!((answers.first(), answers.last()), (Some(&1), Some(&6)));
    }
}

#[tokio::test]
async fn a_version_that_is_withdrawn_while_it_loads_delays_nobody() {
    let hour = [("load_delay_ms", "3600000")];
    let v1 = assignment("m", 1, &[("text", "old")]);
    let setting = Setting::start(&[v1], |config| config.concurrent_loads = 1).await;
    let (worker, coordinator) = (&setting.worker, &setting.coordinator);
    let state = |version| coordinator.state("m", version);
    coordinator.say(orders(2, &[assignment("m", 2, &hour)]));
    let loading = || (state(2)? == ReplicaState::Loading).then_some(());
    eventually("the second version loads", loading).await;

    // The third takes its turn, and the first serves until it is ready.
    let v3 = assignment("m", 3, &[("text", "new"), ("load_delay_ms", "3000")]);
    coordinator.say(orders(3, &[v3]));
    let gone = || (state(3).is_some() && state(2).is_none()).then_some(());
    eventually("the second version goes", gone).await;
    let (texts, _) = read(worker.predict(request("m", &[])).await.unwrap()).await;
    assert_eq!(texts[0], "old");
    coordinator.ready("m", 3).await;
    eventually("the first version goes", || {
        state(1).is_none().then_some(())
    })
    .await;

    // Nothing is kept for a version that nobody waits for any more.
    coordinator.say(orders(4, &[assignment("m", 4, &hour)]));
    let loading = || (state(4)? == ReplicaState::Loading).then_some(());
    eventually("the fourth version loads", loading).await;
    coordinator.say(orders(5, &[]));
    let empty = || coordinator.last()?.replicas.is_empty().then_some(());
    eventually("everything is unloaded", empty).await;
}

#[tokio::test]
async fn an_old_version_does_not_wait_for_one_that_cannot_be_loaded() {
    let v1 = assignment("m", 1, &[]);
    let v2 = assignment("m", 2, &[("load_error", "no memory")]);
    let setting = Setting::start(&[v1], |_| {}).await;
    setting.coordinator.say(orders(2, &[v2]));
    let gone = || {
        let failed = matches!(setting.coordinator.state("m", 2)?, ReplicaState::Failed(_));
        (failed && setting.coordinator.state("m", 1).is_none()).then_some(())
    };
    eventually("the old version makes room", gone).await;
}

#[tokio::test]
async fn a_stream_that_never_ends_is_cut_at_the_unload_limit() {
    let setting = Setting::start(&[assignment("m", 1, &[])], |config| {
        config.unload_timeout = Duration::from_millis(100);
    })
    .await;
    let stream = running(&setting.worker, "m").await;
    setting.coordinator.say(orders(2, &[]));
    let (_, error) = read(stream).await;
    let error = error.expect("the stream was cut");
    assert_eq!(error.code, ErrorCode::Unavailable);
    assert_eq!(setting.tally.cancelled.load(Ordering::SeqCst), 1);
    let gone = || setting.coordinator.state("m", 1).is_none().then_some(());
    eventually("the replica goes", gone).await;
}
