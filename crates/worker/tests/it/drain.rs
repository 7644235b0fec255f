//! Leaving without breaking anything.

use std::time::{Duration, Instant};

use volley_types::{ErrorCode, Predict};

use super::support::*;

/// How long it goes on taking requests once it has said that it leaves.
const GRACE: Duration = Duration::from_secs(1);

#[tokio::test]
async fn a_drain_is_told_at_once_lets_streams_end_and_then_takes_nothing() {
    let setting = Setting::start(&[assignment("m", 1, &[])], |config| {
        config.drain_grace = GRACE;
    })
    .await;
    let (worker, coordinator) = (&setting.worker, &setting.coordinator);
    let long = request("m", &[("chunks", "3"), ("delay_ms", "1500")]);
    let long = tokio::spawn(read(worker.predict(long).await.unwrap()));

    let began = Instant::now();
    let drain = tokio::spawn({
        let worker = worker.clone();
        async move { worker.drain(Duration::from_secs(60)).await }
    });
    eventually("the drain is told", || {
        coordinator.last()?.draining.then_some(())
    })
    .await;
    assert!(!worker.ready());
    // A coordinator that had not heard of it yet is still served.
    let (texts, error) = read(worker.predict(request("m", &[])).await.unwrap()).await;
    assert_eq!((texts.len(), error.is_none()), (4, true));

    let refused = loop {
        match worker.predict(request("m", &[])).await {
            Err(error) => break error,
            Ok(stream) => drop(read(stream).await),
        }
        assert!(
            began.elapsed() < Duration::from_secs(30),
            "it goes on admitting"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert_eq!(refused.code, ErrorCode::Unavailable);
    assert!(GRACE <= began.elapsed());
    assert!(!long.is_finished(), "what was admitted goes on");

    let (texts, error) = long.await.unwrap();
    assert_eq!((texts.len(), error.is_none()), (3, true));
    assert_eq!(drain.await.unwrap(), 0);
}

#[tokio::test]
async fn a_drain_gives_up_at_its_timeout_and_the_shutdown_cuts_what_is_left() {
    let setting = Setting::start(&[assignment("m", 1, &[("capacity", "1")])], |config| {
        config.drain_grace = Duration::ZERO;
    })
    .await;
    let stalled = running(&setting.worker, "m").await;
    let waiting = setting.worker.predict(request("m", &[])).await.unwrap();
    assert_eq!(setting.worker.drain(Duration::from_millis(100)).await, 2);
    setting.worker.shutdown().await;
    for stream in [stalled, waiting] {
        let (_, error) = read(stream).await;
        assert_eq!(error.unwrap().code, ErrorCode::Unavailable);
    }
    let refused = setting.worker.predict(request("m", &[])).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::Unavailable);
}
