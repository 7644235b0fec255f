//! Costs of a coordinator: processor time and bytes.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The costs of one coordinator.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    /// Total processor time.
    pub cpu: Duration,
    /// Part of it for decoding and handling heartbeats.
    pub heartbeats: Duration,
    /// Part of it for planning.
    pub planning: Duration,
    /// Size of the received heartbeats and log entries in bytes.
    pub bytes_in: u64,
    /// Size of the sent assignments and log entries in bytes.
    pub bytes_out: u64,
}

/// Measures the processor time of the current thread.
pub struct Meter(Duration);

impl Meter {
    /// Starts the measurement.
    #[must_use]
    pub fn start() -> Self {
        Self(thread_time())
    }

    /// Returns the processor time since the start.
    #[must_use]
    pub fn stop(self) -> Duration {
        thread_time().saturating_sub(self.0)
    }
}

fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}
