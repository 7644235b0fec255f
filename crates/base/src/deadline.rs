//! Deadlines, as instants and not durations. Callers read the clock.

use std::time::{Duration, Instant};

/// Parses the gRPC header `grpc-timeout`: one to eight digits and a unit. `None` when malformed.
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

/// The instant by which a request and its whole stream must be complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Instant);

impl Deadline {
    /// The deadline `timeout` after `now`. Timeouts above 100 days are reduced to 100 days.
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

    /// The time left at `now`, zero after the deadline. Nodes send this to the next hop.
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
