//! Real clusters for the stories in `tests/`: the `volley` binary as processes on loopback, with
//! configuration files of their own and ports that were free.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "a test that fails panics"
)]

pub mod bucket;
pub mod callers;
pub mod chaos;
pub mod cluster;
pub mod files;
pub mod http;
pub mod judges;
pub mod metrics;
pub mod overload;
pub mod ports;
pub mod process;
pub mod recorder;
pub mod steady_decoder;
pub mod upstream;

use std::time::Duration;

/// How long anything may take before a story fails.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until `condition` gives a value; asks every 20 ms.
///
/// # Panics
/// When it does not within [`PATIENCE`].
pub async fn until<T, F>(what: &str, mut condition: impl FnMut() -> F) -> T
where
    F: Future<Output = Option<T>>,
{
    let waited = tokio::time::timeout(PATIENCE, async {
        loop {
            if let Some(value) = condition().await {
                return value;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    waited
        .await
        .unwrap_or_else(|_| panic!("not within {PATIENCE:?}: {what}"))
}
