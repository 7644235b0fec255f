//! The threads that own a session each, and the rows that wait for them. One thread after the other
//! takes a part of what waits.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use volley_types::{ErrorCode, ModelName, PredictError};

use super::plan::{self, Budget};
use super::reading::Values;
use super::run::Runner;
use super::texts::Tokens;
use crate::tensors::internal;
use crate::watch::Watch;

/// Rows that are sorted by length together. More of them sort better, and make others wait.
const WINDOW_ROWS: usize = 256;
/// As many runs' tokens: of long texts, fewer are sorted together.
const WINDOW_RUNS: usize = 8;
/// Rows that are not shared out among sessions: fewer are run for less together.
const SHARE_ROWS: usize = 16;

type Rows = Arc<Vec<Tokens>>;
type Answer = Result<Vec<Values>, PredictError>;

/// How the thread takes what waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    pub(super) budget: Budget,
    /// How long it waits for more rows after the first that come to an idle model.
    pub(super) window: Duration,
}

/// The way to the threads. Dropping it ends them.
pub(super) struct Queue {
    // `Some` until it is dropped.
    jobs: Option<mpsc::Sender<Job>>,
    threads: Vec<JoinHandle<()>>,
}

/// The rows of one batch of one request.
struct Job {
    rows: Rows,
    answer: oneshot::Sender<Answer>,
}

impl Queue {
    /// Starts a thread for each of `runners`; `places` batches may wait for them; each one's watch
    /// limits its runs.
    ///
    /// # Errors
    /// `Internal` when one cannot be started.
    pub(super) fn start(
        model: &ModelName,
        runners: Vec<(Runner, Watch)>,
        pace: Pace,
        places: usize,
    ) -> Result<Self, PredictError> {
        let (jobs, queue) = mpsc::channel(places);
        let waiting = Arc::new(Mutex::new(Waiting {
            queue,
            jobs: VecDeque::new(),
            places,
            window: pace.window,
            sessions: runners.len(),
        }));
        let start = |(runner, mut watch)| {
            let waiting = waiting.clone();
            let thread = std::thread::Builder::new().name(format!("encode-{model}"));
            thread
                .spawn(move || serve(runner, &waiting, pace.budget, &mut watch))
                .map_err(|error| {
                    PredictError::internal("the model's thread could not start", error)
                })
        };
        Ok(Self {
            threads: runners.into_iter().map(start).collect::<Result<_, _>>()?,
            jobs: Some(jobs),
        })
    }

    /// What the model gives for each of `rows`, in order. Waits for a place where there is none.
    ///
    /// # Cancel safety
    /// Dropping the future takes the rows that have not run out of the queue.
    ///
    /// # Errors
    /// Those of the run.
    pub(super) async fn run(&self, rows: Rows) -> Answer {
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let ended = || internal("the model's thread has ended", "");
        let (answer, answered) = oneshot::channel();
        let jobs = self.jobs.as_ref().ok_or_else(ended)?;
        jobs.send(Job { rows, answer }).await.map_err(|_| ended())?;
        answered.await.unwrap_or_else(|_| Err(ended()))
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // Without an entrance each thread ends after the runs that it has taken.
        self.jobs.take();
        let threads = std::mem::take(&mut self.threads);
        let wait = move || {
            for thread in threads {
                if thread.join().is_err() {
                    tracing::error!("the model's thread panicked");
                }
            }
        };
        // The last handle is often a stream's, dropped on a runtime's thread, which must not be
        // held for a run.
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(wait)),
            Err(_) => wait(),
        }
    }
}

/// Jobs that have rows to run.
struct Waiting {
    queue: mpsc::Receiver<Job>,
    jobs: VecDeque<Begun>,
    places: usize,
    window: Duration,
    sessions: usize,
}

/// A job of which `taken` rows have run, or are in a window.
struct Begun {
    job: Arc<UnderWay>,
    taken: usize,
}

/// A job that a thread, or several, have rows of.
struct UnderWay {
    rows: Rows,
    state: Mutex<State>,
}

struct State {
    /// `None` once it is answered.
    answer: Option<oneshot::Sender<Answer>>,
    ran: usize,
    values: Vec<Values>,
}

impl UnderWay {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing can be half done in it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nobody waits for it any more.
    fn is_over(&self) -> bool {
        let answer = &self.lock().answer;
        answer.as_ref().is_none_or(oneshot::Sender::is_closed)
    }

    /// Keeps what a row gave, and answers after the last.
    fn keep(&self, row: usize, values: Values) {
        let mut state = self.lock();
        state.values[row] = values;
        state.ran += 1;
        if state.ran == self.rows.len() {
            let values = std::mem::take(&mut state.values);
            drop(state);
            self.answer(Ok(values));
        }
    }

    fn answer(&self, answer: Answer) {
        let caller = self.lock().answer.take();
        if let Some(caller) = caller {
            // The caller may have gone in the meantime.
            let _ = caller.send(answer);
        }
    }
}

/// Rows that one thread sorts by length and runs: places of rows in their jobs.
struct Window {
    jobs: Vec<Arc<UnderWay>>,
    places: Vec<(usize, usize)>,
}

impl Waiting {
    /// The rows that a thread runs next. One thread at a time waits where there are none, and those
    /// behind it with it; `None` when no more can come.
    fn next_of(waiting: &Mutex<Self>, budget: Budget) -> Option<Window> {
        let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.receive().then(|| waiting.window(budget))
    }

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

    /// The next rows to run: as many of each job, so that a long one does not hold up the short
    /// ones behind it, and of many rows this session's share.
    fn window(&mut self, budget: Budget) -> Window {
        let waiting = self
            .jobs
            .iter()
            .map(|begun| begun.job.rows.len() - begun.taken);
        let share = match self.sessions {
            0 | 1 => WINDOW_ROWS,
            sessions => waiting.sum::<usize>().div_ceil(sessions),
        };
        let jobs = self.jobs.len().max(1);
        let rows = share.clamp(SHARE_ROWS, WINDOW_ROWS).div_ceil(jobs);
        let tokens = budget.tokens.saturating_mul(WINDOW_RUNS).div_ceil(jobs);
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
        Window {
            jobs: self.jobs.iter().map(|begun| begun.job.clone()).collect(),
            places: window,
        }
    }
}

fn serve(mut runner: Runner, waiting: &Mutex<Waiting>, budget: Budget, watch: &mut Watch) {
    while let Some(Window { jobs, places }) = Waiting::next_of(waiting, budget) {
        let length = |(job, row): &(usize, usize)| jobs[*job].rows[*row].ids.len();
        let lengths: Vec<_> = places.iter().map(length).collect();
        for run in plan::runs(&lengths, budget) {
            let places: Vec<_> = run.into_iter().map(|place| places[place]).collect();
            run_once(&mut runner, &jobs, &places, watch);
        }
    }
}

/// Runs the rows at `places` together, but for those that nobody waits for. Where that fails and
/// they are of several callers, each caller's are run again by themselves: what is wrong with a
/// row is only its own caller's concern.
fn run_once(
    runner: &mut Runner,
    jobs: &[Arc<UnderWay>],
    places: &[(usize, usize)],
    watch: &mut Watch,
) {
    let Err(error) = run_rows(runner, jobs, places, watch) else {
        return;
    };
    let apart = by_job(places);
    let mut late = usize::from(error.code == ErrorCode::DeadlineExceeded);
    if apart.len() < 2 {
        fail(jobs, places, &error);
        return;
    }
    for places in apart {
        // A second one that takes too long means that the model does.
        let ran = if 2 <= late {
            Err(error.clone())
        } else {
            run_rows(runner, jobs, &places, watch)
        };
        if let Err(error) = ran {
            late += usize::from(error.code == ErrorCode::DeadlineExceeded);
            fail(jobs, &places, &error);
        }
    }
}

/// One run of the rows at `places`. What they give is kept.
fn run_rows(
    runner: &mut Runner,
    jobs: &[Arc<UnderWay>],
    places: &[(usize, usize)],
    watch: &mut Watch,
) -> Result<(), PredictError> {
    let wanted = places.iter().filter(|(job, _)| !jobs[*job].is_over());
    let places: Vec<_> = wanted.copied().collect();
    if places.is_empty() {
        return Ok(());
    }
    let rows: Vec<_> = places
        .iter()
        .map(|(job, row)| &jobs[*job].rows[*row])
        .collect();
    // A defect must not take the model away from all others.
    let values = catch_unwind(AssertUnwindSafe(|| runner.run(&rows, watch)))
        .unwrap_or_else(|_| Err(internal("the run panicked; see the worker's log", "")))?;
    for ((job, row), values) in places.into_iter().zip(values) {
        jobs[job].keep(row, values);
    }
    Ok(())
}

fn fail(jobs: &[Arc<UnderWay>], places: &[(usize, usize)], error: &PredictError) {
    for (job, _) in places {
        jobs[*job].answer(Err(error.clone()));
    }
}

/// The places of each job, the jobs in order.
fn by_job(places: &[(usize, usize)]) -> Vec<Vec<(usize, usize)>> {
    let mut jobs: BTreeMap<usize, Vec<_>> = BTreeMap::new();
    for place in places {
        jobs.entry(place.0).or_default().push(*place);
    }
    jobs.into_values().collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What waits: jobs with rows of these lengths.
    fn waiting(jobs: &[Vec<usize>]) -> (Waiting, Vec<oneshot::Receiver<Answer>>) {
        let (_, queue) = mpsc::channel(1);
        let mut waiting = Waiting {
            queue,
            jobs: VecDeque::new(),
            places: jobs.len(),
            window: Duration::ZERO,
            sessions: 1,
        };
        let mut answers = Vec::new();
        for lengths in jobs {
            let row = |length: &usize| Tokens {
                ids: vec![0; *length],
                ..Tokens::default()
            };
            let (answer, answered) = oneshot::channel();
            let rows = Arc::new(lengths.iter().map(row).collect());
            waiting.begin(Job { rows, answer });
            answers.push(answered);
        }
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
            for (job, _) in waiting.window(BUDGET).places {
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

    #[test]
    fn many_rows_are_shared_out_among_sessions_and_few_are_not() {
        let (mut many, _answers) = waiting(&[vec![8; 100]]);
        many.sessions = 2;
        assert_eq!(many.window(BUDGET).places.len(), 50);
        assert_eq!(many.window(BUDGET).places.len(), 25);
        let (mut few, _answers) = waiting(&vec![vec![8; 2]; 8]);
        few.sessions = 4;
        assert_eq!(few.window(BUDGET).places.len(), 16);
    }

    #[test]
    fn rows_are_told_apart_by_their_callers() {
        let places = [(2, 0), (0, 1), (2, 1), (0, 0)];
        let apart = by_job(&places);
        assert_eq!(apart, [vec![(0, 1), (0, 0)], vec![(2, 0), (2, 1)]]);
        assert!(by_job(&[]).is_empty());
    }

    proptest! {
        #[test]
        fn every_row_is_in_one_window_and_no_window_is_too_large(
            jobs in proptest::collection::vec(
                proptest::collection::vec(1_usize..3_000, 1..300), 1..12),
        ) {
            let (mut waiting, _answers) = waiting(&jobs);
            let longest = jobs.iter().flatten().max().copied().unwrap_or(0);
            let all: usize = jobs.iter().map(Vec::len).sum();
            let mut seen = std::collections::BTreeSet::new();
            while seen.len() < all {
                let window = waiting.window(BUDGET).places;
                prop_assert!(!window.is_empty());
                prop_assert!(window.len() < WINDOW_ROWS + jobs.len());
                let tokens: usize = window.iter().map(|(job, row)| jobs[*job][*row]).sum();
                let most = BUDGET.tokens * WINDOW_RUNS + jobs.len() * (longest + 1);
                prop_assert!(tokens <= most, "{tokens} of {most}");
                for place in window {
                    prop_assert!(seen.insert(place));
                }
            }
        }
    }
}
