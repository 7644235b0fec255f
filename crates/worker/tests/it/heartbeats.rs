//! Whom a worker reports to, and whom it follows.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use volley_backend::fake::FakeLoader;
use volley_telemetry::Metrics;
use volley_types::{Assignments, Predict};
use volley_worker::{Worker, WorkerConfig};

use super::support::*;

fn start(config: WorkerConfig) -> Worker {
    Worker::start(
        config,
        vec![Arc::new(FakeLoader::default())],
        Metrics::new(),
    )
}

#[tokio::test]
async fn a_worker_starts_before_its_coordinator_and_tells_it_all_about_itself() {
    let reserved = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address: SocketAddr = reserved.local_addr().unwrap();
    drop(reserved);
    let mut config = config(&[]);
    config.coordinators = vec![address.to_string()];
    config.labels.insert("zone".to_owned(), "a".to_owned());
    let _worker = start(config);

    let assigned = assignment("m", 3, &[("capacity", "7")]);
    let coordinator = Coordinator::start_at(address, orders(1, &[assigned])).await;
    coordinator.ready("m", 3).await;
    let report = coordinator.last().unwrap();
    assert_eq!(report.id.as_str(), "w1");
    assert_eq!(report.address, "127.0.0.1:9");
    assert_eq!(report.labels["zone"], "a");
    assert!(!report.draining);
    assert!(0 < report.memory_bytes);
    assert_eq!(report.replicas[0].capacity, 7);
    assert!(report.replicas[0].signature.is_some());

    let before = coordinator.heard();
    let beats = || (before + 3 <= coordinator.heard()).then_some(());
    eventually("heartbeats go on with no news", beats).await;
}

#[tokio::test]
async fn changes_are_told_at_once_whatever_the_interval() {
    let coordinator = Coordinator::start(orders(1, &[assignment("m", 1, &[])])).await;
    let mut config = config(&[&coordinator]);
    config.heartbeat_interval = Duration::from_secs(3600);
    let worker = start(config);
    coordinator.ready("m", 1).await;
    worker.begin_drain();
    let draining = || coordinator.last()?.draining.then_some(());
    eventually("the drain is told", draining).await;
}

#[tokio::test]
async fn the_highest_revision_wins_whoever_says_it() {
    let (a, b) = (assignment("a", 1, &[]), assignment("b", 1, &[]));
    let ahead = Coordinator::start(orders(7, std::slice::from_ref(&a))).await;
    let behind = Coordinator::start(orders(0, &[])).await;
    let worker = start(config(&[&ahead, &behind]));
    behind.ready("a", 1).await;

    // The one that lags says something else, and then repeats what has been undone since.
    behind.say(orders(6, std::slice::from_ref(&b)));
    ahead.say(orders(8, &[a.clone(), assignment("c", 1, &[])]));
    behind.ready("c", 1).await;
    assert_eq!(behind.state("b", 1), None);
    assert!(worker.predict(request("a", &[])).await.is_ok());

    behind.say(orders(9, &[b]));
    ahead.ready("b", 1).await;
    let gone = || ahead.state("a", 1).is_none().then_some(());
    eventually("the newest orders are followed", gone).await;
}

#[tokio::test]
async fn a_worker_serves_on_while_its_coordinator_is_away_and_finds_it_again() {
    let setting = Setting::start(&[assignment("m", 1, &[])], |_| {}).await;
    let Setting {
        coordinator,
        worker,
        tally,
        ..
    } = setting;
    let life = coordinator.last().unwrap().incarnation;
    let address = coordinator.address;
    coordinator.stop().await;
    let (texts, error) = read(worker.predict(request("m", &[])).await.unwrap()).await;
    assert_eq!((texts.len(), error.is_none()), (4, true));

    // It comes back and does not know the newest state yet: nothing is unloaded.
    let coordinator = Coordinator::start_at(address, orders(0, &[])).await;
    coordinator.ready("m", 1).await;
    assert_eq!(coordinator.last().unwrap().incarnation, life);
    let loaded = tally.loaded.load(std::sync::atomic::Ordering::SeqCst);
    assert_eq!(loaded, 1);
}

#[tokio::test]
async fn coordinators_that_join_are_reported_to_and_those_that_leave_are_not() {
    let seed = Coordinator::start(orders(1, &[])).await;
    let other = Coordinator::start(orders(0, &[])).await;
    let worker = start(config(&[&seed]));
    let say = |revision, addresses: &[SocketAddr]| {
        seed.say(Assignments {
            coordinators: addresses.iter().map(ToString::to_string).collect(),
            ..orders(revision, &[])
        });
    };
    say(2, &[seed.address, other.address]);
    eventually("the joined one hears", || other.last()).await;
    say(3, &[seed.address]);
    let closed = || (other.open() == 0).then_some(());
    eventually("the stream to the one that left is closed", closed).await;
    let still = seed.heard();
    eventually("the seed still hears", || {
        (still < seed.heard()).then_some(())
    })
    .await;

    worker.shutdown().await;
    let closed = || (seed.open() == 0).then_some(());
    eventually("a stopped worker's streams are closed", closed).await;
}
