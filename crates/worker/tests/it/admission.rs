//! Who runs, who waits, and who is refused.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use arrow_array::{ArrayRef, Int32Array, RecordBatch};
use futures::{FutureExt, StreamExt};
use volley_types::{ChunkStream, Deadline, ErrorCode, Input, Predict, Priority};

use super::support::*;

/// One model `m` that runs one stream at a time, with two places before it.
async fn narrow() -> Setting {
    Setting::start(&[assignment("m", 1, &[("capacity", "1")])], |config| {
        config.queue_per_replica = 2;
    })
    .await
}

async fn queued(setting: &Setting, priority: Priority) -> ChunkStream {
    let mut request = request("m", &[("chunks", "1"), ("text", "ran")]);
    request.priority = priority;
    setting.worker.predict(request).await.unwrap()
}

#[tokio::test]
async fn a_full_queue_refuses_at_once_and_the_urgent_run_first() {
    let setting = narrow().await;
    let holder = running(&setting.worker, "m").await;
    let mut low = queued(&setting, Priority::Low).await;
    let mut high = queued(&setting, Priority::High).await;
    let report = || {
        let report = setting.coordinator.last()?;
        ((report.active, report.queued) == (1, 2)).then_some(report)
    };
    let report = eventually("the load is reported", report).await;
    assert_eq!(
        (report.replicas[0].active, report.replicas[0].queued),
        (1, 2)
    );

    let mut soonest = Duration::MAX;
    for _ in 0..5 {
        let asked = Instant::now();
        let mut one_more = request("m", &[]);
        one_more.priority = Priority::Low;
        let refused = setting.worker.predict(one_more).await.unwrap_err();
        // The machine may be busy; the promise is not about its worst moment.
        soonest = soonest.min(asked.elapsed());
        assert_eq!(refused.code, ErrorCode::Overloaded);
        assert!(refused.retry_after.is_some());
        assert!(refused.code.may_retry_elsewhere());
    }
    assert!(soonest < Duration::from_millis(50), "{soonest:?}");

    assert!(low.next().now_or_never().is_none());
    assert!(high.next().now_or_never().is_none());
    drop(holder);
    high.next().await.unwrap().unwrap();
    assert!(low.next().now_or_never().is_none(), "one at a time");
    drop(high);
    let (texts, error) = read(low).await;
    assert_eq!((texts, error.is_none()), (vec!["ran".to_owned()], true));
    assert_eq!(setting.worker.active_streams(), 0);

    let text = setting.metrics.encode();
    for line in [
        "volley_queue_wait_seconds_count{model=\"m\"} 3",
        "volley_requests_total{model=\"m\",code=\"overloaded\"} 5",
        "volley_active_streams{model=\"m\"} 0",
        "volley_ready_replicas{model=\"m\"} 1",
    ] {
        assert!(text.contains(line), "{line} is missing in\n{text}");
    }
}

#[tokio::test]
async fn dropping_a_stream_stops_its_work_and_lets_the_next_run() {
    let setting = narrow().await;
    let holder = running(&setting.worker, "m").await;
    let next = queued(&setting, Priority::Normal).await;
    let left = queued(&setting, Priority::High).await;
    drop(left);
    drop(holder);
    assert_eq!(setting.tally.cancelled.load(Ordering::SeqCst), 1);
    let (texts, _) = read(next).await;
    assert_eq!(texts, ["ran"]);
    // Read to its end, a stream gives its place on though it is still there.
    let done = queued(&setting, Priority::Normal).await;
    let mut done = Box::pin(done);
    while done.next().await.is_some() {}
    assert_eq!(setting.worker.active_streams(), 0);
}

#[tokio::test]
async fn a_deadline_covers_the_queue_and_the_whole_stream() {
    let setting = narrow().await;
    let soon = || Some(Deadline::after(Instant::now(), Duration::from_secs(1)));
    let mut running = request("m", &[("stall_after", "1")]);
    running.deadline = soon();
    let mut running = setting.worker.predict(running).await.unwrap();
    running.next().await.unwrap().unwrap();
    let mut waiting = request("m", &[]);
    waiting.deadline = soon();
    let waiting = setting.worker.predict(waiting).await.unwrap();

    let (texts, error) = read(waiting).await;
    assert_eq!(
        (texts.len(), error.unwrap().code),
        (0, ErrorCode::DeadlineExceeded)
    );
    let (_, error) = read(running).await;
    assert_eq!(error.unwrap().code, ErrorCode::DeadlineExceeded);
    assert_eq!(setting.tally.cancelled.load(Ordering::SeqCst), 1);
    assert_eq!(setting.worker.active_streams(), 0);
}

#[tokio::test]
async fn what_comes_too_late_is_not_begun() {
    let setting = narrow().await;
    let mut late = request("m", &[]);
    late.deadline = Some(Deadline::after(Instant::now(), Duration::ZERO));
    let (texts, error) = read(setting.worker.predict(late).await.unwrap()).await;
    assert_eq!(
        (texts.len(), error.unwrap().code),
        (0, ErrorCode::DeadlineExceeded)
    );
    assert_eq!(setting.tally.begun.load(Ordering::SeqCst), 0);
    assert_eq!(setting.worker.active_streams(), 0);
}

#[tokio::test]
async fn a_request_does_not_wait_for_ever() {
    let setting = Setting::start(&[assignment("m", 1, &[("capacity", "1")])], |config| {
        config.queue_timeout = Duration::from_millis(50);
    })
    .await;
    let _holder = running(&setting.worker, "m").await;
    let (_, error) = read(queued(&setting, Priority::High).await).await;
    let error = error.unwrap();
    assert_eq!(error.code, ErrorCode::Overloaded);
    assert!(error.retry_after.is_some());
    assert_eq!(setting.worker.active_streams(), 1);
}

#[tokio::test]
async fn a_backend_that_panics_ends_its_own_stream_and_nothing_else() {
    let setting = narrow().await;
    let panics = request("m", &[("panic_after", "2")]);
    let (texts, error) = read(setting.worker.predict(panics).await.unwrap()).await;
    let error = error.unwrap();
    assert_eq!((texts.len(), error.code), (2, ErrorCode::Internal));
    assert_eq!(error.message, "the model's backend failed unexpectedly");
    let (texts, error) = read(queued(&setting, Priority::Normal).await).await;
    assert_eq!((texts.len(), error.is_none()), (1, true));
}

#[tokio::test]
async fn a_failed_stream_has_given_its_place_on_when_its_error_is_read() {
    let setting = narrow().await;
    let fails = request(
        "m",
        &[("fail_after", "0"), ("fail_code", "upstream_failed")],
    );
    let mut stream = setting.worker.predict(fails).await.unwrap();
    let error = stream.next().await.unwrap().unwrap_err();
    assert_eq!(error.code, ErrorCode::UpstreamFailed);
    assert_eq!(setting.worker.active_streams(), 0);
    assert!(stream.next().await.is_none());
}

#[tokio::test]
async fn columns_that_the_model_does_not_take_are_refused_without_a_place() {
    let setting = narrow().await;
    let mut bad = request("m", &[]);
    let numbers: ArrayRef = Arc::new(Int32Array::from(vec![1]));
    bad.input = Input::Batch(RecordBatch::try_from_iter([("prompt", numbers)]).unwrap()).into();
    let refused = setting.worker.predict(bad).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::InvalidInput);
    assert!(refused.message.contains("'prompt'"), "{}", refused.message);
    assert_eq!(setting.worker.active_streams(), 0);
}
