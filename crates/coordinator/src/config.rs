//! Configuration of a coordinator.

use std::time::Duration;

/// Timeouts of the liveness checks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LivenessConfig {
    /// A worker without heartbeats for this time is suspect: others are preferred.
    pub suspect_after: Duration,
    /// A worker without heartbeats for this time is dead: it receives no requests.
    pub dead_after: Duration,
    /// A worker that is dead for this time is replaced by others, and one that is dead for ten
    /// times this is forgotten.
    pub replace_after: Duration,
    /// Interval of the liveness checks.
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

/// Options of the choice of replicas.
#[derive(Clone, Debug, PartialEq)]
pub struct RoutingConfig {
    /// This coordinator's zone: workers with the same label `zone` are preferred.
    pub zone: Option<String>,
    /// Time until a new replica gets its full share of requests.
    pub slow_start: Duration,
    /// Delay without a response before a request that is not a generation is also sent to a second
    /// replica; `None` disables hedging.
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

/// Configuration of a coordinator.
#[derive(Clone, Debug, PartialEq)]
pub struct CoordinatorConfig {
    /// Maximum number of concurrent streams; further ones are rejected with `overloaded`. At about
    /// 40 KiB per stream, the default needs at most 400 MiB.
    pub max_streams: usize,
    /// Retries per request, on average; a short burst of 10 is always allowed.
    pub retry_ratio: f64,
    /// Maximum number of attempts for one request, including the first.
    pub max_attempts: usize,
    /// Options of the choice of replicas.
    pub routing: RoutingConfig,
    /// Time that a request waits for the activation of a model that is scaled to zero.
    pub activation_timeout: Duration,
    /// Maximum number of requests that wait for an activation; further ones are rejected with
    /// `overloaded`.
    pub max_pending_activations: usize,
    /// Timeouts of the liveness checks.
    pub liveness: LivenessConfig,
    /// Time without changes of a model, a worker and the leader before rebalancing moves replicas
    /// from full workers to emptier ones.
    pub rebalance_after: Duration,
}

impl Default for CoordinatorConfig {
    fn default() -> Self {
        Self {
            max_streams: 10_000,
            retry_ratio: 0.2,
            max_attempts: 3,
            routing: RoutingConfig::default(),
            activation_timeout: Duration::from_secs(60),
            max_pending_activations: 256,
            liveness: LivenessConfig::default(),
            rebalance_after: Duration::from_secs(60),
        }
    }
}
