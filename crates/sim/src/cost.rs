//! What a coordinator spends.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The costs of one coordinator.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    /// Processor time of everything that it did.
    pub cpu: Duration,
    /// Of this: reading heartbeats.
    pub heartbeats: Duration,
    /// Of this: planning.
    pub planning: Duration,
    /// Heartbeats and entries of the log that came in, in bytes.
    pub bytes_in: u64,
    /// Orders to workers and entries to other coordinators, in bytes.
    pub bytes_out: u64,
}

/// Counts the processor time of this thread.
pub struct Meter(Duration);

impl Meter {
    /// Begins now.
    #[must_use]
    pub fn start() -> Self {
        Self(thread_time())
    }

    /// What was spent since.
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
