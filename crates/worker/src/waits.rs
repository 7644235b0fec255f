//! Recent queue waits, as input of the coordinators' scaling.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Weight of one wait in the average.
const WEIGHT: f64 = 0.2;
/// Time constant of the decay without requests (to 1/e).
const FADE: Duration = Duration::from_secs(5);

/// The moving average of one replica's queue waits.
#[derive(Debug, Default)]
pub(crate) struct WaitAverage(Mutex<Option<(f64, Instant)>>);

impl WaitAverage {
    /// Records a permit at `now` after `wait`.
    pub(crate) fn add(&self, wait: Duration, now: Instant) {
        let sample = wait.as_secs_f64() * 1_000.0;
        let mut average = self.0.lock();
        let known = faded(*average, now);
        *average = Some((known + (sample - known) * WEIGHT, now));
    }

    /// The average in milliseconds as of `now`.
    pub(crate) fn ms(&self, now: Instant) -> u32 {
        // A cast from a float saturates.
        faded(*self.0.lock(), now) as u32
    }
}

fn faded(average: Option<(f64, Instant)>, now: Instant) -> f64 {
    average.map_or(0.0, |(ms, at)| {
        let silence = now.saturating_duration_since(at);
        ms * (-silence.as_secs_f64() / FADE.as_secs_f64()).exp()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_averaged_and_fade_when_nobody_comes() {
        let (waits, start) = (WaitAverage::default(), Instant::now());
        assert_eq!(waits.ms(start), 0);
        for _ in 0..50 {
            waits.add(Duration::from_millis(400), start);
        }
        assert!((390..=400).contains(&waits.ms(start)));
        assert!(waits.ms(start + Duration::from_secs(30)) < 5);
    }
}
