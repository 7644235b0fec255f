//! What fits into the memory budget, and what does not.

use std::sync::atomic::Ordering;
use std::time::Duration;

use volley_types::registry::ReplicaState;
use volley_types::{ErrorCode, Predict};

use super::support::*;

const MIB: u64 = 1 << 20;

fn sized(model: &str, version: u32, mebibytes: u64) -> volley_types::registry::Assignment {
    let bytes = (mebibytes * MIB).to_string();
    assignment(model, version, &[("memory_bytes", &*bytes)])
}

async fn failure(setting: &Setting, model: &str, version: u32) -> String {
    let failed = || match setting.coordinator.state(model, version)? {
        ReplicaState::Failed(reason) => Some(reason),
        _ => None,
    };
    eventually("the failure is told", failed).await
}

#[tokio::test]
async fn what_does_not_fit_says_what_it_needs_and_is_loaded_once_there_is_room() {
    let (a, b) = (sized("a", 1, 60), sized("b", 1, 50));
    let setting = Setting::start(std::slice::from_ref(&a), |config| {
        config.memory_budget = Some(100 * MIB);
    })
    .await;
    setting.coordinator.say(orders(2, &[a, b.clone()]));
    let reason = failure(&setting, "b", 1).await;
    for part in ["needs 50.0 MiB", "40.0 MiB free", "budget of 100.0 MiB"] {
        assert!(reason.contains(part), "{reason}");
    }
    assert_eq!(setting.tally.loaded.load(Ordering::SeqCst), 1);
    let text = setting.metrics.encode();
    for line in [
        format!("volley_memory_budget_bytes {}", 100 * MIB),
        format!("volley_memory_reserved_bytes {}", 60 * MIB),
        format!("volley_model_memory_bytes{{model=\"a\"}} {}", 60 * MIB),
    ] {
        assert!(text.contains(&line), "{line} is missing in\n{text}");
    }
    // The other goes: nobody waits for the next try.
    setting.coordinator.say(orders(3, &[b]));
    let since = std::time::Instant::now();
    setting.coordinator.ready("b", 1).await;
    assert!(since.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn memory_is_given_back_only_when_the_last_stream_has_ended() {
    let a = sized("a", 1, 60);
    let setting = Setting::start(&[a], |config| {
        config.memory_budget = Some(100 * MIB);
        config.unload_timeout = Duration::from_secs(3_600);
    })
    .await;
    let stream = running(&setting.worker, "a").await;
    setting.coordinator.say(orders(2, &[sized("b", 1, 50)]));
    failure(&setting, "b", 1).await;
    drop(stream);
    setting.coordinator.ready("b", 1).await;
}

#[tokio::test]
async fn a_version_that_fits_only_without_the_old_one_takes_its_place() {
    let setting = Setting::start(&[sized("m", 1, 60)], |config| {
        config.memory_budget = Some(100 * MIB);
    })
    .await;
    setting.coordinator.say(orders(2, &[sized("m", 2, 70)]));
    failure(&setting, "m", 2).await;
    setting.coordinator.ready("m", 2).await;
    assert_eq!(setting.coordinator.state("m", 1), None);
}

#[tokio::test]
async fn what_is_larger_than_the_whole_budget_never_hurts_the_others() {
    let a = sized("a", 1, 60);
    let setting = Setting::start(std::slice::from_ref(&a), |config| {
        config.memory_budget = Some(100 * MIB);
    })
    .await;
    let giant = assignment("giant", 1, &[("memory_bytes", "18446744073709551615")]);
    setting.coordinator.say(orders(2, &[a, giant]));
    let reason = failure(&setting, "giant", 1).await;
    assert!(reason.contains("models.memory_budget"), "{reason}");
    let (texts, error) = read(setting.worker.predict(request("a", &[])).await.unwrap()).await;
    assert_eq!((texts.len(), error.is_none()), (4, true));
    let refused = setting.worker.predict(request("giant", &[])).await;
    assert_eq!(refused.unwrap_err().code, ErrorCode::Unavailable);
}
