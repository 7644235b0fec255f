//! What is learnt of a replica from the calls that were made to it: how long it takes, how often
//! it fails, since when it is there. Pure: the time is an argument.

use std::time::{Duration, Instant};

/// After this long without a sample, a latency counts for a third.
const DECAY: Duration = Duration::from_secs(5);
/// What one call adds to or takes from the failing part.
const WEIGHT: f64 = 0.1;
/// A replica that fails this much is an outlier: five calls in a row, or half of all.
const OUTLIER: f64 = 0.4;
/// By how much an outlier fails more than the others together.
const MARGIN: f64 = 0.2;
/// The first and the longest time for which an outlier is left alone.
const EJECTION: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(80));
/// This many good calls in a row halve the next ejection.
const FORGIVEN: u32 = 20;
/// How much of the traffic a new replica gets at first.
const COLD: f64 = 0.1;

/// The running score of one replica.
#[derive(Clone, Debug)]
pub struct Score {
    /// Rises with a slow call at once, and falls slowly.
    latency_ms: Option<f64>,
    sampled: Instant,
    failing: f64,
    /// Since when it takes requests, for the slow start.
    since: Instant,
    ejected_until: Option<Instant>,
    strikes: u32,
    good: u32,
}

impl Score {
    /// Of a replica that takes requests since `now`.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            latency_ms: None,
            sampled: now,
            failing: 0.0,
            since: now,
            ejected_until: None,
            strikes: 0,
            good: 0,
        }
    }

    /// The peak-sensitive moving average of the latency. It fades while nobody calls, so that a
    /// replica that was slow is tried again.
    #[must_use]
    pub fn latency_ms(&self, now: Instant) -> Option<f64> {
        Some(self.latency_ms? * self.fading(now))
    }

    fn fading(&self, now: Instant) -> f64 {
        let silence = now.saturating_duration_since(self.sampled);
        (-silence.as_secs_f64() / DECAY.as_secs_f64()).exp()
    }

    /// The part of the calls that failed of late.
    #[must_use]
    pub fn failing(&self) -> f64 {
        self.failing
    }

    /// A call was answered after `latency`.
    pub fn succeeded(&mut self, now: Instant, latency: Duration) {
        let sample = latency.as_secs_f64() * 1_000.0;
        self.latency_ms = Some(match self.latency_ms {
            Some(known) if sample <= known * self.fading(now) => {
                let kept = self.fading(now);
                known * kept + sample * (1.0 - kept)
            }
            _ => sample,
        });
        self.sampled = now;
        self.failing *= 1.0 - WEIGHT;
        self.good += 1;
        if self.good == FORGIVEN {
            self.good = 0;
            self.strikes = self.strikes.saturating_sub(1);
        }
    }

    /// A call was given up after `waited` without an answer: it would have taken longer.
    pub fn abandoned(&mut self, now: Instant, waited: Duration) {
        let waited = waited.as_secs_f64() * 1_000.0;
        if self.latency_ms(now).is_some_and(|known| known < waited) {
            self.latency_ms = Some(waited);
            self.sampled = now;
        }
    }

    /// A call failed, by the replica's own fault.
    pub fn failed(&mut self) {
        self.failing += (1.0 - self.failing) * WEIGHT;
        self.good = 0;
    }

    /// Leaves the replica alone, longer with each time.
    pub fn eject(&mut self, now: Instant) {
        let factor = 1_u32 << self.strikes.min(8);
        let time = (EJECTION.0 * factor).min(EJECTION.1);
        self.strikes += 1;
        self.ejected_until = Some(now + time);
        // It comes back on probation, with a slow start: one failure ejects it again.
        self.failing = OUTLIER - WEIGHT / 2.0;
        self.since = now + time;
    }

    /// Whether it is left alone now.
    #[must_use]
    pub fn is_ejected(&self, now: Instant) -> bool {
        self.ejected_until.is_some_and(|until| now < until)
    }

    /// How far its slow start has come: from a tenth to 1.
    #[must_use]
    pub fn warmth(&self, now: Instant, slow_start: Duration) -> f64 {
        let age = now.saturating_duration_since(self.since).as_secs_f64();
        let part = age / slow_start.as_secs_f64().max(f64::MIN_POSITIVE);
        part.clamp(COLD, 1.0)
    }
}

/// Whether a replica that just failed is to be ejected: it fails far more than the `others`
/// that are not ejected do, and at most half of all `count` replicas are ejected then.
#[must_use]
pub fn is_outlier(failing: f64, others: &[f64], ejected: usize, count: usize) -> bool {
    let average = others.iter().sum::<f64>() / (others.len().max(1)) as f64;
    let allowed = (ejected + 1) * 2 <= count && !others.is_empty();
    // Five failures in a row come to a hair over it.
    allowed && OUTLIER <= failing && average + MARGIN <= failing
}
