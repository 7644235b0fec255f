//! Score of a replica from its calls: latency, failures and age. Pure: the time is an argument.

use std::time::{Duration, Instant};

/// Time constant of the latency's decay without samples (to 1/e).
const DECAY: Duration = Duration::from_secs(5);
/// Weight of one call in the failure rate.
const WEIGHT: f64 = 0.1;
/// Failure rate of an outlier: five failures in a row, or half of all calls.
const OUTLIER: f64 = 0.4;
/// Minimum difference between an outlier's failure rate and that of the others.
const MARGIN: f64 = 0.2;
/// Duration of the first and of the longest ejection.
const EJECTION: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(80));
/// Number of successive successful calls that halves the next ejection.
const FORGIVEN: u32 = 20;
/// Initial share of traffic of a new replica.
const COLD: f64 = 0.1;

/// The running score of one replica.
#[derive(Clone, Debug)]
pub struct Score {
    /// Rises immediately with a slow call, and falls slowly.
    latency_ms: Option<f64>,
    sampled: Instant,
    failing: f64,
    /// Time at which it became ready, for the slow start.
    since: Instant,
    ejected_until: Option<Instant>,
    strikes: u32,
    good: u32,
}

impl Score {
    /// The score of a replica that became ready at `now`.
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

    /// The peak-sensitive moving average of the latency. It decays without calls, so that a slow
    /// replica is tried again.
    #[must_use]
    pub fn latency_ms(&self, now: Instant) -> Option<f64> {
        Some(self.latency_ms? * self.fading(now))
    }

    fn fading(&self, now: Instant) -> f64 {
        let silence = now.saturating_duration_since(self.sampled);
        (-silence.as_secs_f64() / DECAY.as_secs_f64()).exp()
    }

    /// Recent share of failed calls, 0 to 1.
    #[must_use]
    pub fn failing(&self) -> f64 {
        self.failing
    }

    /// Records a successful call with this `latency`.
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

    /// Records a call that was dropped after `waited` without a response: its latency is at least
    /// that.
    pub fn abandoned(&mut self, now: Instant, waited: Duration) {
        let waited = waited.as_secs_f64() * 1_000.0;
        if self.latency_ms(now).is_some_and(|known| known < waited) {
            self.latency_ms = Some(waited);
            self.sampled = now;
        }
    }

    /// Records a failed call, by the replica's fault.
    pub fn failed(&mut self) {
        self.failing += (1.0 - self.failing) * WEIGHT;
        self.good = 0;
    }

    /// Ejects the replica; each ejection is longer than the previous one.
    pub fn eject(&mut self, now: Instant) {
        let factor = 1_u32 << self.strikes.min(8);
        let time = (EJECTION.0 * factor).min(EJECTION.1);
        self.strikes += 1;
        self.ejected_until = Some(now + time);
        // It returns on probation with a slow start: one failure ejects it again.
        self.failing = OUTLIER - WEIGHT / 2.0;
        self.since = now + time;
    }

    /// Whether it is ejected now.
    #[must_use]
    pub fn is_ejected(&self, now: Instant) -> bool {
        self.ejected_until.is_some_and(|until| now < until)
    }

    /// Progress of its slow start, from 0.1 to 1.
    #[must_use]
    pub fn warmth(&self, now: Instant, slow_start: Duration) -> f64 {
        let age = now.saturating_duration_since(self.since).as_secs_f64();
        let part = age / slow_start.as_secs_f64().max(f64::MIN_POSITIVE);
        part.clamp(COLD, 1.0)
    }
}

/// Whether to eject a replica that just failed: its failure rate is far above that of the `others`
/// that are not ejected, and at most half of all `count` replicas are ejected afterwards.
#[must_use]
pub fn is_outlier(failing: f64, others: &[f64], ejected: usize, count: usize) -> bool {
    let average = others.iter().sum::<f64>() / (others.len().max(1)) as f64;
    let allowed = (ejected + 1) * 2 <= count && !others.is_empty();
    // Five failures in a row come to a hair over it.
    allowed && OUTLIER <= failing && average + MARGIN <= failing
}
