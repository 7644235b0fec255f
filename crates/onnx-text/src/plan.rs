//! Groups rows into runs. Pure.

use super::session_pool::SessionPool;
use volley_onnx_runtime::session::ExecutionDevice;

/// Minimum tokens of a run when rows are spread over sessions; splitting fewer tokens costs more
/// than it gains.
const SHARE_TOKENS: usize = 32;

/// Tokens per thread of a session among several. With one thread a larger batch gains nothing, and
/// makes new requests wait longer.
const LANE_TOKENS: usize = 256;

/// Maximum size of one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Budget {
    /// Maximum number of tokens, including padding.
    pub(super) tokens: usize,
    /// Maximum number of rows.
    pub(super) rows: usize,
}

impl Budget {
    /// About the size that fits a CPU's caches for a small model; larger runs are slower there.
    const CPU: Self = Self {
        tokens: 1_024,
        rows: 64,
    };
    /// Large enough to keep a GPU busy.
    const GPU: Self = Self {
        tokens: 16_384,
        rows: 256,
    };

    /// The budget of one session on `place`.
    pub(super) fn of(place: ExecutionDevice, lanes: &SessionPool) -> Self {
        match place {
            ExecutionDevice::Host if 1 < lanes.count => {
                let tokens = LANE_TOKENS.saturating_mul(lanes.threads);
                Self {
                    tokens: tokens.min(Self::CPU.tokens),
                    ..Self::CPU
                }
            }
            ExecutionDevice::Host => Self::CPU,
            ExecutionDevice::Cuda(_) => Self::GPU,
        }
    }

    /// The budget that spreads rows of these lengths over `idle` sessions as evenly as possible.
    pub(super) fn shared(self, lengths: &[usize], idle: usize) -> Self {
        if idle < 2 {
            return self;
        }
        let share = lengths.iter().sum::<usize>().div_ceil(idle);
        let half_a_row = lengths.iter().max().copied().unwrap_or(0) / 2;
        let tokens = share.saturating_add(half_a_row).max(SHARE_TOKENS);
        Self {
            tokens: self.tokens.min(tokens),
            ..self
        }
    }
}

/// Groups rows of these lengths into runs. Rows of similar length run together, because all rows of
/// a run are padded to the longest. Every row is in exactly one run. A row that exceeds the budget
/// runs alone.
pub(super) fn runs(lengths: &[usize], budget: Budget) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|row| lengths[*row]);
    let mut runs: Vec<Vec<usize>> = Vec::new();
    for row in order {
        // Rows are added in order of length, so the last one is the longest.
        let fits = runs.last().is_some_and(|run| {
            run.len() < budget.rows && (run.len() + 1) * lengths[row] <= budget.tokens
        });
        match runs.last_mut() {
            Some(run) if fits => run.push(row),
            _ => runs.push(vec![row]),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn neighbours_in_length_run_together() {
        let budget = Budget {
            tokens: 20,
            rows: 3,
        };
        let found = runs(&[10, 2, 9, 3, 2, 50, 2], budget);
        assert_eq!(found, [vec![1, 4, 6], vec![3, 2], vec![0], vec![5]]);
        assert!(runs(&[], budget).is_empty());
    }

    #[test]
    fn a_run_is_smaller_beside_others_and_evenly_shared_where_they_are_idle() {
        let tokens = |place, count, threads| {
            let lanes = SessionPool {
                count,
                threads,
                wide: None,
            };
            Budget::of(place, &lanes).tokens
        };
        assert_eq!(tokens(ExecutionDevice::Host, 1, 2), 1_024);
        assert_eq!(tokens(ExecutionDevice::Host, 2, 1), 256);
        assert_eq!(tokens(ExecutionDevice::Host, 2, 3), 768);
        assert_eq!(tokens(ExecutionDevice::Host, 2, 8), 1_024);
        assert_eq!(tokens(ExecutionDevice::Cuda(0), 2, 1), 16_384);
        let shared = |lengths: &[usize], idle| Budget::CPU.shared(lengths, idle).tokens;
        assert_eq!(shared(&[100; 8], 1), 1_024);
        assert_eq!(shared(&[100; 8], 2), 450);
        assert_eq!(shared(&[8; 2], 2), 32, "few tokens are not shared out");
        assert_eq!(shared(&[100; 80], 2), 1_024);
    }

    proptest! {
        #[test]
        fn every_row_runs_once_and_budgets_are_kept(
            lengths in proptest::collection::vec(1_usize..600, 0..300),
            tokens in 1_usize..2_000,
            rows in 1_usize..70,
        ) {
            let budget = Budget { tokens, rows };
            let runs = runs(&lengths, budget);
            for run in &runs {
                let longest = run.iter().map(|row| lengths[*row]).max().unwrap();
                prop_assert!(run.len() == 1 || run.len() * longest <= tokens);
                prop_assert!(run.len() <= rows);
            }
            let mut all: Vec<_> = runs.concat();
            all.sort_unstable();
            prop_assert_eq!(all, (0..lengths.len()).collect::<Vec<_>>());
        }
    }
}
