//! The knobs of a coordinator.

use std::time::Duration;

/// How silence is read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LivenessConfig {
    /// A worker not heard for this long is suspect: others are preferred.
    pub suspect_after: Duration,
    /// A worker not heard for this long is dead: it is sent nothing.
    pub dead_after: Duration,
    /// A worker dead for this long loses its replicas to others, and one dead for ten times
    /// this is forgotten.
    pub replace_after: Duration,
    /// How often silence is looked at.
    pub tick: Duration,
}

impl Default for LivenessConfig {
    fn default() -> Self {
        Self {
            suspect_after: Duration::from_millis(1_500),
            dead_after: Duration::from_millis(3_000),
            replace_after: Duration::from_secs(10),
            tick: Duration::from_millis(250),
        }
    }
}

/// How replicas are chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct RoutingConfig {
    /// This coordinator's zone: workers whose label `zone` says the same are preferred.
    pub zone: Option<String>,
    /// How long a new replica takes to get its full part of the requests.
    pub slow_start: Duration,
    /// After how long without an answer a request that is no generation goes to a second replica
    /// too; `None` means never.
    pub hedge_after: Option<Duration>,
}

impl Default for RoutingConfig {
    fn default() -> Self {
        Self {
            zone: None,
            slow_start: Duration::from_secs(10),
            hedge_after: None,
        }
    }
}

/// The knobs of a coordinator.
#[derive(Clone, Debug, PartialEq)]
pub struct CoordinatorConfig {
    /// Streams at a time; one more is refused with `overloaded`. At about 40 KiB a stream the
    /// default bounds them to 400 MiB.
    pub max_streams: usize,
    /// Retries per request, on average; a short burst of 10 is always allowed.
    pub retry_ratio: f64,
    /// Replicas tried for one request, the first included.
    pub max_attempts: usize,
    /// How replicas are chosen.
    pub routing: RoutingConfig,
    /// How long a request waits for a model that was scaled to nothing.
    pub wake_timeout: Duration,
    /// Requests that wait so at a time; one more is refused with `overloaded`.
    pub max_waking: usize,
    /// How silence is read.
    pub liveness: LivenessConfig,
    /// For how long a model, a worker and the leader must be as they are before replicas go from
    /// full workers to emptier ones.
    pub rebalance_after: Duration,
}

impl Default for CoordinatorConfig {
    fn default() -> Self {
        Self {
            max_streams: 10_000,
            retry_ratio: 0.2,
            max_attempts: 3,
            routing: RoutingConfig::default(),
            wake_timeout: Duration::from_secs(60),
            max_waking: 256,
            liveness: LivenessConfig::default(),
            rebalance_after: Duration::from_secs(60),
        }
    }
}
