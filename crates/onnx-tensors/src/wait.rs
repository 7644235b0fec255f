//! Queue policies of a model's files: priority levels, maximum queue sizes, and timeouts (Triton's
//! `ModelQueuePolicy`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use volley_types::{ErrorCode, Parameters, PredictError};

use volley_model_directory::triton::QueuePolicies;

/// `retry_after` of the error for a full queue.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The wait options of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WaitOptions {
    /// Priority level; 1 is the most urgent, and 0 means that the model has no levels.
    pub(super) level: u64,
    timeout: Option<Duration>,
}

impl WaitOptions {
    /// Reads the parameters `priority` and `timeout` (microseconds) under these policies.
    ///
    /// # Errors
    /// `InvalidInput` for a parameter that is not a number.
    pub(super) fn read(
        parameters: &Parameters,
        policies: &QueuePolicies,
    ) -> Result<Self, PredictError> {
        // Models without policies may use these names for anything.
        if *policies == QueuePolicies::default() {
            return Ok(Self::default());
        }
        let asked = parameters.unsigned("priority")?.unwrap_or(0);
        let level = match policies.levels {
            0 => 0,
            levels if (1..=levels).contains(&asked) => asked,
            _ => policies.level,
        };
        let policy = policies.of(level);
        let own = parameters.unsigned("timeout")?.filter(|us| *us != 0);
        let own = own
            .filter(|_| policy.may_override)
            .map(Duration::from_micros);
        Ok(Self {
            level,
            // A request may shorten the timeout of its queue, but not extend it.
            timeout: match (policy.timeout, own) {
                (Some(all), Some(own)) => Some(all.min(own)),
                (all, own) => all.or(own),
            },
        })
    }
}

/// Number of waiting requests per level.
#[derive(Debug)]
pub(super) struct WaitCounts {
    policies: QueuePolicies,
    counts: Vec<Arc<AtomicUsize>>,
}

impl WaitCounts {
    pub(super) fn new(policies: QueuePolicies) -> Self {
        let levels = usize::try_from(policies.levels).unwrap_or(0);
        Self {
            policies,
            counts: (0..=levels).map(|_| Arc::default()).collect(),
        }
    }

    pub(super) fn policies(&self) -> &QueuePolicies {
        &self.policies
    }

    /// Registers a waiting request.
    ///
    /// # Errors
    /// `Overloaded` when the queue of its level is full.
    pub(super) fn enter(&self, wait: WaitOptions) -> Result<WaitEntry, PredictError> {
        let policy = self.policies.of(wait.level);
        let index = usize::try_from(wait.level).unwrap_or(0);
        let count = self.counts.get(index).cloned().unwrap_or_default();
        let before = count.fetch_add(1, Ordering::AcqRel);
        let place = WaitEntry {
            count,
            level: wait.level,
            late: wait.timeout.map(|timeout| Instant::now() + timeout),
            delays: policy.delays,
            is_taken: Arc::default(),
        };
        if policy.most != 0 && policy.most <= before {
            return Err(PredictError::new(
                ErrorCode::Overloaded,
                format!(
                    "the model's queue is full: its 'max_queue_size' is {}; try again shortly",
                    policy.most
                ),
            )
            .with_retry_after(RETRY_AFTER));
        }
        Ok(place)
    }
}

/// A waiting request. It counts until its run begins or the request is dropped.
#[derive(Debug)]
pub(super) struct WaitEntry {
    count: Arc<AtomicUsize>,
    level: u64,
    late: Option<Instant>,
    delays: bool,
    is_taken: Arc<AtomicBool>,
}

impl WaitEntry {
    /// Sort key of waiting requests: delayed late requests are last, then lower levels are first.
    pub(super) fn rank(&self, now: Instant) -> (bool, u64) {
        let is_late = self.delays && self.late.is_some_and(|late| late <= now);
        (is_late, self.level)
    }

    /// The time at which the request is rejected if its run has not begun, and the flag that
    /// decides between run and rejection. `None` if it is never rejected.
    pub(super) fn refusal(&self) -> Option<(Instant, Arc<AtomicBool>)> {
        let late = self.late.filter(|_| !self.delays)?;
        Some((late, self.is_taken.clone()))
    }

    /// Marks the begin of its run. Returns whether the run may begin, which is not the case after a
    /// rejection.
    pub(super) fn take(&self) -> bool {
        !self.is_taken.swap(true, Ordering::AcqRel)
    }
}

impl Drop for WaitEntry {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The error for a request that exceeded the timeout of its queue.
pub(super) fn too_long() -> PredictError {
    PredictError::new(
        ErrorCode::DeadlineExceeded,
        "the request waited in the model's queue for longer than its queue policy allows",
    )
}

#[cfg(test)]
mod tests {
    use volley_types::ParamValue;

    use super::*;
    use volley_model_directory::triton::QueuePolicies;

    fn policies(text: &str) -> QueuePolicies {
        QueuePolicies::of_text(text).unwrap()
    }

    fn wait(policies: &QueuePolicies, parameters: &[(&str, i64)]) -> WaitOptions {
        let given = parameters.iter();
        let given = given.map(|(name, value)| ((*name).to_owned(), ParamValue::Int(*value)));
        WaitOptions::read(&given.collect(), policies).unwrap()
    }

    #[test]
    fn a_request_has_a_level_and_a_time_and_a_full_queue_refuses_it() {
        let policies = policies(
            "priority_levels: 3 default_priority_level: 2
             default_queue_policy { default_timeout_microseconds: 1000 allow_timeout_override: true
                                    max_queue_size: 1 }",
        );
        assert_eq!(wait(&policies, &[]).level, 2);
        assert_eq!(wait(&policies, &[("priority", 1)]).level, 1);
        assert_eq!(wait(&policies, &[("priority", 9)]).level, 2);
        let short = wait(&policies, &[("timeout", 10)]);
        assert_eq!(short.timeout, Some(Duration::from_micros(10)));
        let long = wait(&policies, &[("timeout", 9_000)]);
        assert_eq!(long.timeout, Some(Duration::from_millis(1)));
        let waits = WaitCounts::new(policies);
        let first = waits.enter(long).unwrap();
        let full = waits.enter(long).unwrap_err();
        assert_eq!(full.code, ErrorCode::Overloaded);
        assert_eq!(full.retry_after, Some(RETRY_AFTER));
        let urgent = WaitOptions { level: 1, ..long };
        assert!(waits.enter(urgent).is_ok(), "each level has its own");
        assert!(first.take() && !first.take());
        drop(first);
        assert!(waits.enter(long).is_ok());
    }

    #[test]
    fn what_is_delayed_goes_last() {
        let policies = policies(
            "priority_levels: 2 default_priority_level: 1
             default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 1 }",
        );
        let waits = WaitCounts::new(policies.clone());
        let urgent = waits.enter(wait(&policies, &[("priority", 1)])).unwrap();
        let other = waits.enter(wait(&policies, &[("priority", 2)])).unwrap();
        let begun = Instant::now().checked_sub(Duration::from_secs(1)).unwrap();
        assert!(urgent.rank(begun) < other.rank(begun));
        let late = Instant::now() + Duration::from_secs(1);
        assert!(other.rank(begun) < urgent.rank(late));
        assert!(urgent.refusal().is_none());
    }
}
