//! Deadlines: instants, never durations. The clock is read by the caller.

use std::time::{Duration, Instant};

/// What gRPC's `grpc-timeout` says: up to eight digits and a unit; `None` where it is malformed.
#[must_use]
pub fn grpc_timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || 8 < digits.len() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(count * 3_600)),
        "M" => Some(Duration::from_secs(count * 60)),
        "S" => Some(Duration::from_secs(count)),
        "m" => Some(Duration::from_millis(count)),
        "u" => Some(Duration::from_micros(count)),
        "n" => Some(Duration::from_nanos(count)),
        _ => None,
    }
}

/// The instant by which a request must be finished, its whole stream included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Instant);

impl Deadline {
    /// The deadline `timeout` after `now`. A timeout too large for the clock means 100 days.
    #[must_use]
    pub fn after(now: Instant, timeout: Duration) -> Self {
        const FAR: Duration = Duration::from_secs(100 * 24 * 3600);
        Self(now + timeout.min(FAR))
    }

    /// The instant itself.
    #[must_use]
    pub fn instant(self) -> Instant {
        self.0
    }

    /// What is left at `now`; zero once passed. This is what travels to the next hop.
    #[must_use]
    pub fn remaining(self, now: Instant) -> Duration {
        self.0.saturating_duration_since(now)
    }

    /// The earlier of two deadlines.
    #[must_use]
    pub fn earlier(self, other: Self) -> Self {
        Self(self.0.min(other.0))
    }
}
