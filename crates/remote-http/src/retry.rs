//! Selects the server for a call or a retry. Pure.

use std::time::Duration;

use volley_types::{ErrorCode, ErrorReason, PredictError};

/// The priority of a server among those of its connector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rank {
    /// Share of the calls; 0 counts as 1.
    pub weight: u32,
    /// Whether the server is only called after all others have failed.
    pub fallback: bool,
}

/// State of a server during the calls for one item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Fresh,
    /// The call failed without work done. A retry is allowed after this time.
    Again(Duration),
    /// The server is not called again for this item.
    Out,
}

/// Calls for one item. Servers that have not been called come first, with fallbacks last. After
/// that, servers that did no work may be retried.
#[derive(Debug)]
pub struct RetryState<'a> {
    ranks: &'a [Rank],
    states: Vec<State>,
}

impl<'a> RetryState<'a> {
    /// Creates the state before the first call.
    pub fn new(ranks: &'a [Rank]) -> Self {
        Self {
            ranks,
            states: vec![State::Fresh; ranks.len()],
        }
    }

    /// Selects a server that has not been called, by weight. `draw` returns a random number below
    /// its argument.
    pub fn fresh(&self, draw: impl FnOnce(u64) -> u64) -> Option<usize> {
        self.one_of(|state| state == State::Fresh, draw)
    }

    /// Selects a server for a retry, and returns the wait before it. Servers with the shortest wait
    /// come first.
    pub fn again(&self, draw: impl FnOnce(u64) -> u64) -> Option<(usize, Duration)> {
        let waits = |state: State| match state {
            State::Again(wait) => Some(wait),
            State::Fresh | State::Out => None,
        };
        let shortest = self.states.iter().filter_map(|state| waits(*state)).min()?;
        let at = self.one_of(|state| waits(state) == Some(shortest), draw)?;
        Some((at, shortest))
    }

    fn one_of(&self, good: impl Fn(State) -> bool, draw: impl FnOnce(u64) -> u64) -> Option<usize> {
        let good = |at: &usize| good(self.states[*at]);
        let all: Vec<_> = (0..self.ranks.len()).filter(good).collect();
        let first = all.iter().any(|at| !self.ranks[*at].fallback);
        let tier = all.iter().filter(|at| !first || !self.ranks[**at].fallback);
        let weight = |at: usize| u64::from(self.ranks[at].weight.max(1));
        let total = tier.clone().map(|at| weight(*at)).sum::<u64>();
        let mut place = (0 < total).then(|| draw(total))?;
        for at in tier {
            match place.checked_sub(weight(*at)) {
                Some(rest) => place = rest,
                None => return Some(*at),
            }
        }
        None
    }

    /// Records a failed call to server `at`.
    pub fn failed(&mut self, at: usize, error: &PredictError) {
        self.states[at] = match error.code {
            // These codes mean that no work was done, so that a retry is not billed twice.
            ErrorCode::Unavailable | ErrorCode::Overloaded
                if error.reason != Some(ErrorReason::QuotaExhausted) =>
            {
                State::Again(error.retry_after.unwrap_or_default())
            }
            _ => State::Out,
        };
    }

    /// Excludes server `at`.
    pub fn out(&mut self, at: usize) {
        self.states[at] = State::Out;
    }
}

/// Whether the request caused the error, so that other servers would return it too.
pub fn blames_request(error: &PredictError) -> bool {
    matches!(error.code, ErrorCode::InvalidInput | ErrorCode::TooLarge)
}

/// Whether the server caused the error, so that it counts for the circuit breaker. Errors that a
/// caller or the connector can cause do not count, because the server may answer other requests:
/// an answer that does not fit the request, a rejected call, an account without credit, and a
/// missing model.
pub fn blames_server(error: &PredictError) -> bool {
    let blameless = [
        ErrorReason::AnswerUnusable,
        ErrorReason::CallRejected,
        ErrorReason::QuotaExhausted,
        ErrorReason::ModelMissing,
    ];
    if error
        .reason
        .is_some_and(|reason| blameless.contains(&reason))
    {
        return false;
    }
    matches!(
        error.code,
        ErrorCode::Unavailable
            | ErrorCode::UpstreamFailed
            | ErrorCode::UpstreamTimeout
            | ErrorCode::UpstreamIncomplete
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(weight: u32, fallback: bool) -> Rank {
        Rank { weight, fallback }
    }

    fn error(code: ErrorCode) -> PredictError {
        PredictError::new(code, "no")
    }

    #[test]
    fn shares_are_by_weight_and_fallbacks_come_last() {
        let ranks = [rank(1, false), rank(9, true), rank(3, false)];
        let mut retry = RetryState::new(&ranks);
        let drawn = |retry: &RetryState<'_>| -> Vec<_> {
            (0..4)
                .map(|n| retry.fresh(|total| n.min(total - 1)).unwrap())
                .collect()
        };
        assert_eq!(drawn(&retry), [0, 2, 2, 2]);
        retry.failed(2, &error(ErrorCode::UpstreamFailed));
        assert_eq!(drawn(&retry), [0; 4]);
        retry.failed(0, &error(ErrorCode::Overloaded));
        assert_eq!(drawn(&retry), [1; 4]);
        retry.out(1);
        assert_eq!(retry.fresh(|_| 0), None);
        assert_eq!(retry.again(|_| 0), Some((0, Duration::ZERO)));
    }

    #[test]
    fn only_who_did_no_work_is_called_again_and_the_most_patient_first() {
        let ranks = [rank(1, false); 3];
        let mut retry = RetryState::new(&ranks);
        let after = |seconds| Duration::from_secs(seconds);
        retry.failed(0, &error(ErrorCode::Overloaded).with_retry_after(after(3)));
        retry.failed(1, &error(ErrorCode::Unavailable).with_retry_after(after(2)));
        retry.failed(2, &error(ErrorCode::UpstreamTimeout));
        assert_eq!(retry.again(|_| 0), Some((1, after(2))));
        retry.failed(1, &error(ErrorCode::UpstreamIncomplete));
        assert_eq!(retry.again(|_| 0), Some((0, after(3))));
        retry.out(0);
        assert_eq!(retry.again(|_| 0), None);
    }

    #[test]
    fn what_a_caller_can_cause_does_not_count_against_the_server() {
        for code in [
            ErrorCode::Unavailable,
            ErrorCode::UpstreamFailed,
            ErrorCode::UpstreamTimeout,
            ErrorCode::UpstreamIncomplete,
        ] {
            assert!(blames_server(&error(code)), "{code}");
        }
        for (code, reason) in [
            (ErrorCode::UpstreamFailed, ErrorReason::AnswerUnusable),
            (ErrorCode::UpstreamFailed, ErrorReason::CallRejected),
            (ErrorCode::UpstreamFailed, ErrorReason::ModelMissing),
            (ErrorCode::Unavailable, ErrorReason::QuotaExhausted),
        ] {
            assert!(!blames_server(&error(code).with_reason(reason)), "{code}");
        }
    }

    #[test]
    fn there_is_no_one_to_call_where_there_is_no_server() {
        let retry = RetryState::new(&[]);
        assert_eq!(retry.fresh(|_| 0), None);
        assert_eq!(retry.again(|_| 0), None);
    }
}
