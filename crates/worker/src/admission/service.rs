//! Service time of one replica's streams.

use std::time::Duration;

/// Minimum number of streams before the mean is used.
const ENOUGH: u32 = 16;
/// Weight of the newest stream.
const NEWEST: f64 = 0.1;

/// Moving average of the duration of streams.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ServiceTime {
    seen: u32,
    mean_s: f64,
}

impl ServiceTime {
    pub(super) fn observe(&mut self, held: Duration) {
        let held = held.as_secs_f64();
        self.mean_s = match self.seen {
            0 => held,
            _ => self.mean_s + NEWEST * (held - self.mean_s),
        };
        self.seen = self.seen.saturating_add(1);
    }

    /// Expected wait for one of `capacity` permits, which are all in use, with `before` requests
    /// ahead. Zero without enough samples.
    pub(super) fn wait(&self, before: usize, capacity: usize) -> Duration {
        if self.seen < ENOUGH {
            return Duration::ZERO;
        }
        let rounds = (before + 1) as f64 / capacity as f64;
        Duration::try_from_secs_f64(self.mean_s * rounds).unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_follows_what_is_seen_and_says_nothing_before() {
        let mut service = ServiceTime::default();
        for _ in 0..ENOUGH - 1 {
            service.observe(Duration::from_secs(2));
        }
        assert_eq!(service.wait(100, 1), Duration::ZERO);
        service.observe(Duration::from_secs(2));
        assert_eq!(service.wait(3, 4), Duration::from_secs(2));
        for _ in 0..100 {
            service.observe(Duration::from_millis(20));
        }
        assert!(service.wait(0, 1) < Duration::from_millis(21));
    }
}
