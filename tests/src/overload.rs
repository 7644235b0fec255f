//! What the cluster promises under more than it can take, and to clients that misbehave: each
//! scene runs real processes and gives a [`Figure`]. Small in the tests, in full with
//! `scripts/promises.sh`.

pub mod client;
pub mod hostile;
pub mod idle_streams;
pub mod losses;
pub mod stage;
pub mod streams;

use std::time::Duration;

/// What one scene showed.
#[derive(Clone, Debug)]
pub struct Figure {
    /// What is promised.
    pub promise: &'static str,
    /// What was measured.
    pub told: String,
    /// Whether the promise was kept.
    pub held: bool,
}

/// How much of everything.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Streams that are open and silent.
    pub idle: usize,
    /// Readers that do not read.
    pub stalled: usize,
    /// When they are cut.
    pub write_stall: Duration,
    /// Senders that are slow, of each kind.
    pub slow: usize,
    /// Connections past the cap.
    pub flood: usize,
    /// Requests that are taken back as they are sent.
    pub resets: usize,
    /// Streams that are left after their first chunk.
    pub cancels: usize,
    /// How long there is too much to do.
    pub overload: Duration,
    /// Streams in all, to see whether any is kept.
    pub streams: usize,
    /// Streams of which a rate is made.
    pub rated: usize,
    /// Leaders, and workers, that are killed.
    pub rounds: usize,
    /// Rounds in which every node is restarted.
    pub restarts: usize,
    /// Bounds on times and on memory are this many times those of the promise: a debug build
    /// beside other tests is neither fast nor small.
    pub slack: f64,
}

impl Scale {
    /// For the tests.
    #[must_use]
    pub fn small() -> Self {
        Self {
            idle: 300,
            stalled: 20,
            write_stall: Duration::from_secs(4),
            slow: 40,
            flood: 200,
            resets: 20_000,
            cancels: 200,
            overload: Duration::from_secs(4),
            streams: 800,
            rated: 100,
            rounds: 2,
            restarts: 1,
            slack: 6.0,
        }
    }

    /// What is promised.
    #[must_use]
    pub fn full() -> Self {
        Self {
            idle: 10_000,
            stalled: 200,
            write_stall: Duration::from_secs(60),
            slow: 500,
            flood: 5_000,
            resets: 1_000_000,
            cancels: 10_000,
            overload: Duration::from_secs(20),
            streams: 1_000_000,
            rated: 2_000,
            rounds: 30,
            restarts: 10,
            slack: 1.0,
        }
    }
}

/// The scenes, by name.
pub const SCENES: [&str; 13] = [
    "leader",
    "quorum",
    "worker",
    "restarts",
    "idle",
    "stalled",
    "slow",
    "handshakes",
    "flood",
    "resets",
    "cancels",
    "overload",
    "leaks",
];

/// Plays one of [`SCENES`].
///
/// # Panics
/// When the cluster does not do what every scene needs, or there is no such scene.
pub async fn play(scene: &str, scale: &Scale) -> Figure {
    match scene {
        "leader" => losses::leader(scale).await,
        "quorum" => losses::quorum(scale).await,
        "worker" => losses::lost_worker(scale).await,
        "restarts" => losses::restarts(scale).await,
        "idle" => idle_streams::idle(scale).await,
        "stalled" => idle_streams::stalled(scale).await,
        "slow" => hostile::slow(scale).await,
        "handshakes" => hostile::handshakes(scale).await,
        "flood" => hostile::flood(scale).await,
        "resets" => hostile::resets(scale).await,
        "cancels" => streams::cancels(scale).await,
        "overload" => streams::overload(scale).await,
        "leaks" => streams::leaks(scale).await,
        other => panic!("no scene is called '{other}'"),
    }
}

/// The value that so many thousandths of all are no greater than.
#[must_use]
pub fn quantile(values: &mut [f64], thousandths: usize) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = (values.len() * thousandths / 1_000).min(values.len().saturating_sub(1));
    values.get(at).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_the_sorted_values() {
        let mut values: Vec<f64> = (0..100).rev().map(f64::from).collect();
        assert_eq!(quantile(&mut values, 500), 50.0);
        assert_eq!(quantile(&mut values, 990), 99.0);
        assert_eq!(quantile(&mut values, 1_000), 99.0);
        assert!(quantile(&mut [], 500).is_nan());
    }
}
