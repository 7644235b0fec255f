//! The rows that wait for a model's threads, and how they are shared out. One thread after the
//! other plans a window of what waits, sorted by length, as runs; each takes the next of these.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use volley_types::PredictError;

use super::plan::{self, Budget};
use super::reading::Values;
use super::texts::Tokens;

/// Rows for each thread that are sorted by length together. More of them sort better, and make
/// others wait.
const WINDOW_ROWS: usize = 256;
/// As many runs' tokens: of long texts, fewer are sorted together.
const WINDOW_RUNS: usize = 8;

/// The rows of one batch of one request.
pub(super) type Rows = Arc<Vec<Tokens>>;
/// What the model gives for each row, in order.
pub(super) type Answer = Result<Vec<Values>, PredictError>;

/// The rows of one batch of one request, and who waits for them.
pub(super) struct Job {
    pub(super) rows: Rows,
    pub(super) answer: oneshot::Sender<Answer>,
}

/// What all threads of a model take their runs from: it makes batches of what waits.
pub(super) struct Batcher {
    waiting: Mutex<Waiting>,
    budget: Budget,
    threads: usize,
    busy: AtomicUsize,
}

/// Jobs that have rows to run.
struct Waiting {
    queue: mpsc::Receiver<Job>,
    jobs: VecDeque<Begun>,
    planned: VecDeque<Run>,
    places: usize,
    window: Duration,
}

/// A job of which `taken` rows have run, or are planned.
struct Begun {
    job: Arc<UnderWay>,
    taken: usize,
}

/// A job that a thread, or several, have rows of.
pub(super) struct UnderWay {
    pub(super) rows: Rows,
    state: Mutex<State>,
}

struct State {
    /// `None` once it is answered.
    answer: Option<oneshot::Sender<Answer>>,
    ran: usize,
    values: Vec<Values>,
}

/// Rows that run together: places of rows in the jobs of their window.
pub(super) struct Run {
    pub(super) jobs: Arc<[Arc<UnderWay>]>,
    pub(super) places: Vec<(usize, usize)>,
    /// Whether nothing else ran or waited when it was taken.
    pub(super) alone: bool,
}

impl UnderWay {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing can be half done in it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nobody waits for it any more.
    pub(super) fn is_over(&self) -> bool {
        let answer = &self.lock().answer;
        answer.as_ref().is_none_or(oneshot::Sender::is_closed)
    }

    /// Keeps what a row gave, and answers after the last.
    pub(super) fn keep(&self, row: usize, values: Values) {
        let mut state = self.lock();
        state.values[row] = values;
        state.ran += 1;
        if state.ran == self.rows.len() {
            let values = std::mem::take(&mut state.values);
            drop(state);
            self.answer(Ok(values));
        }
    }

    pub(super) fn answer(&self, answer: Answer) {
        let caller = self.lock().answer.take();
        if let Some(caller) = caller {
            // The caller may have gone in the meantime.
            let _ = caller.send(answer);
        }
    }
}

impl Batcher {
    /// Takes jobs from `queue`, `places` at a time, for so many `threads`. An idle model waits for
    /// a `window` after the first that comes.
    pub(super) fn new(
        queue: mpsc::Receiver<Job>,
        places: usize,
        window: Duration,
        budget: Budget,
        threads: usize,
    ) -> Self {
        Self {
            waiting: Mutex::new(Waiting {
                queue,
                jobs: VecDeque::new(),
                planned: VecDeque::new(),
                places,
                window,
            }),
            budget,
            threads,
            busy: AtomicUsize::new(0),
        }
    }

    /// What a thread runs next; it tells with [`Batcher::done`] when it has. One thread at a time
    /// waits where there is nothing, and those behind it with it; `None` when no more can come.
    pub(super) fn next_run(&self) -> Option<Run> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        while waiting.planned.is_empty() {
            if !waiting.receive() {
                return None;
            }
            let idle = self.threads - self.busy.load(Ordering::Acquire);
            waiting.plan(self.budget, self.threads, idle);
        }
        let mut run = waiting.planned.pop_front()?;
        let others = self.busy.fetch_add(1, Ordering::AcqRel);
        run.alone = others == 0 && waiting.planned.is_empty() && waiting.is_empty();
        Some(run)
    }

    /// The run that a thread took has ended.
    pub(super) fn done(&self) {
        self.busy.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Waiting {
    /// Takes what has come; waits when there is nothing to do. False when no more can come.
    fn receive(&mut self) -> bool {
        let waits = |begun: &Begun| begun.taken < begun.job.rows.len() && !begun.job.is_over();
        self.jobs.retain(waits);
        if self.jobs.is_empty() {
            match self.queue.blocking_recv() {
                Some(job) => self.begin(job),
                None => return false,
            }
            if !self.window.is_zero() {
                std::thread::sleep(self.window);
            }
        }
        while self.jobs.len() < self.places {
            let Ok(job) = self.queue.try_recv() else {
                break;
            };
            self.begin(job);
        }
        true
    }

    fn begin(&mut self, Job { rows, answer }: Job) {
        let state = State {
            answer: Some(answer),
            ran: 0,
            values: vec![Values::default(); rows.len()],
        };
        let state = Mutex::new(state);
        self.jobs.push_back(Begun {
            job: Arc::new(UnderWay { rows, state }),
            taken: 0,
        });
    }

    /// Whether no row waits.
    fn is_empty(&self) -> bool {
        let taken = |begun: &Begun| begun.taken == begun.job.rows.len();
        self.queue.is_empty() && self.jobs.iter().all(taken)
    }

    /// Plans the next window as runs, as many as `idle` threads can use.
    fn plan(&mut self, budget: Budget, threads: usize, idle: usize) {
        let places = self.window(budget, threads);
        let jobs: Arc<[_]> = self.jobs.iter().map(|begun| begun.job.clone()).collect();
        let length = |(job, row): &(usize, usize)| jobs[*job].rows[*row].ids.len();
        let lengths: Vec<_> = places.iter().map(length).collect();
        let runs = plan::runs(&lengths, budget.shared(&lengths, idle));
        self.planned.extend(runs.into_iter().map(|run| Run {
            jobs: jobs.clone(),
            places: run.into_iter().map(|place| places[place]).collect(),
            alone: false,
        }));
    }

    /// The next rows to run, for all `threads`: as many of each job, so that a long one does not
    /// hold up the short ones behind it.
    fn window(&mut self, budget: Budget, threads: usize) -> Vec<(usize, usize)> {
        let jobs = self.jobs.len().max(1);
        let rows = WINDOW_ROWS.saturating_mul(threads).div_ceil(jobs);
        let runs = WINDOW_RUNS.saturating_mul(threads);
        let tokens = budget.tokens.saturating_mul(runs).div_ceil(jobs);
        let mut window = Vec::new();
        for (index, begun) in self.jobs.iter_mut().enumerate() {
            let mut left = tokens;
            let of_job = begun.job.rows.iter().enumerate();
            for (row, taken) in of_job.skip(begun.taken).take(rows) {
                if left == 0 {
                    break;
                }
                left = left.saturating_sub(taken.ids.len());
                window.push((index, row));
                begun.taken = row + 1;
            }
        }
        window
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Answers = Vec<oneshot::Receiver<Answer>>;

    /// A job with rows of these lengths.
    fn job(lengths: &[usize]) -> (Job, oneshot::Receiver<Answer>) {
        let row = |length: &usize| Tokens {
            ids: vec![0; *length],
            ..Tokens::default()
        };
        let (answer, answered) = oneshot::channel();
        let rows = Arc::new(lengths.iter().map(row).collect());
        (Job { rows, answer }, answered)
    }

    /// A batcher for so many threads, with these jobs in it and no more to come.
    fn batcher(jobs: &[Vec<usize>], threads: usize) -> (Batcher, Answers) {
        let (sender, queue) = mpsc::channel(jobs.len());
        let mut answers = Vec::new();
        for lengths in jobs {
            let (job, answered) = job(lengths);
            assert!(sender.try_send(job).is_ok());
            answers.push(answered);
        }
        let batcher = Batcher::new(queue, jobs.len(), Duration::ZERO, BUDGET, threads);
        (batcher, answers)
    }

    fn waiting(jobs: &[Vec<usize>]) -> (Waiting, Answers) {
        let (batcher, answers) = batcher(jobs, 1);
        let mut waiting = batcher.waiting.into_inner().unwrap();
        assert!(waiting.receive());
        (waiting, answers)
    }

    const BUDGET: Budget = Budget {
        tokens: 1_024,
        rows: 64,
    };

    #[test]
    fn a_window_is_as_many_rows_of_each_and_fewer_of_long_ones() {
        let counts = |waiting: &mut Waiting| {
            let mut counts = vec![0; waiting.jobs.len()];
            for (job, _) in waiting.window(BUDGET, 1) {
                counts[job] += 1;
            }
            counts
        };
        let (mut alone, _answers) = waiting(&[vec![8; 1_000]]);
        assert_eq!(counts(&mut alone), [WINDOW_ROWS]);
        // 8 runs of 1,024 tokens are 16 texts of 512.
        let (mut long, _answers) = waiting(&[vec![512; 1_000]]);
        assert_eq!(counts(&mut long), [16]);
        // A short request is not behind a long one.
        let (mut both, _answers) = waiting(&[vec![512; 1_000], vec![8; 2]]);
        assert_eq!(counts(&mut both), [8, 2]);
        // A text beyond the budget is taken, alone.
        let (mut huge, _answers) = waiting(&[vec![100_000, 8]]);
        assert_eq!(counts(&mut huge), [1]);
        assert_eq!(counts(&mut huge), [1]);
        assert_eq!(counts(&mut huge), [0]);
    }

    /// Rows of the runs that threads take one after the other, none of which ends, and whether
    /// each was alone.
    fn taken(batcher: &Batcher, threads: usize) -> Vec<(usize, bool)> {
        let runs = (0..threads).map_while(|_| batcher.next_run());
        runs.map(|run| (run.places.len(), run.alone)).collect()
    }

    #[test]
    fn what_waits_is_shared_out_among_the_idle_threads() {
        let (eight, _answers) = batcher(&vec![vec![128]; 8], 2);
        assert_eq!(taken(&eight, 2), [(4, false), (4, false)]);
        let (five, _answers) = batcher(&[vec![128; 5]], 2);
        assert_eq!(taken(&five, 2), [(3, false), (2, false)]);
        // Very few tokens are run together.
        let (few, _answers) = batcher(&vec![vec![8]; 3], 4);
        assert_eq!(taken(&few, 4), [(3, true)]);
        let (one, _answers) = batcher(&vec![vec![128]; 8], 1);
        assert_eq!(taken(&one, 1), [(8, true)]);
        // The budget of a run holds however much there is.
        let (many, _answers) = batcher(&[vec![128; 64]], 2);
        assert_eq!(taken(&many, 8), [(8, false); 8]);
    }

    #[test]
    fn a_run_is_alone_while_nothing_else_runs_or_waits() {
        let (sender, queue) = mpsc::channel(4);
        let batcher = Batcher::new(queue, 4, Duration::ZERO, BUDGET, 2);
        let mut answers = Vec::new();
        let mut send = |lengths: &[usize]| {
            let (job, answered) = job(lengths);
            assert!(sender.try_send(job).is_ok());
            answers.push(answered);
        };
        send(&[128]);
        assert_eq!(taken(&batcher, 1), [(1, true)]);
        send(&[128]);
        assert_eq!(taken(&batcher, 1), [(1, false)], "the first one runs");
        batcher.done();
        batcher.done();
        send(&[128]);
        send(&[128]);
        assert_eq!(taken(&batcher, 1), [(1, false)], "the second one waits");
        batcher.done();
        assert_eq!(taken(&batcher, 1), [(1, true)]);
    }

    proptest! {
        #[test]
        fn every_row_is_in_one_window_and_no_window_is_too_large(
            jobs in proptest::collection::vec(
                proptest::collection::vec(1_usize..3_000, 1..300), 1..12),
            threads in 1_usize..5,
        ) {
            let (mut waiting, _answers) = waiting(&jobs);
            let longest = jobs.iter().flatten().max().copied().unwrap_or(0);
            let all: usize = jobs.iter().map(Vec::len).sum();
            let mut seen = std::collections::BTreeSet::new();
            while seen.len() < all {
                let window = waiting.window(BUDGET, threads);
                prop_assert!(!window.is_empty());
                prop_assert!(window.len() < WINDOW_ROWS * threads + jobs.len());
                let tokens: usize = window.iter().map(|(job, row)| jobs[*job][*row]).sum();
                let most = BUDGET.tokens * WINDOW_RUNS * threads + jobs.len() * (longest + 1);
                prop_assert!(tokens <= most, "{tokens} of {most}");
                for place in window {
                    prop_assert!(seen.insert(place));
                }
            }
        }
    }
}
