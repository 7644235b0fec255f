//! The thread that owns a session, and the rows that wait for it.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use volley_types::{ModelName, PredictError};

use super::plan::{self, Budget};
use super::run::{Runner, Values};
use super::texts::Tokens;
use crate::tensors::internal;
use crate::watch::Watch;

/// Rows that are sorted by length together. More of them sort better, and make others wait.
const WINDOW_ROWS: usize = 256;
/// As many runs' tokens: of long texts, fewer are sorted together.
const WINDOW_RUNS: usize = 8;

type Rows = Arc<Vec<Tokens>>;
type Answer = Result<Vec<Values>, PredictError>;

/// How the thread takes what waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    pub(super) budget: Budget,
    /// How long it waits for more rows after the first that come to an idle model.
    pub(super) window: Duration,
}

/// The way to the thread. Dropping it ends the thread.
pub(super) struct Queue {
    // `Some` until it is dropped.
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

/// The rows of one batch of one request.
struct Job {
    rows: Rows,
    answer: oneshot::Sender<Answer>,
}

impl Queue {
    /// Starts the thread; `places` batches may wait for it; `watch` limits its runs.
    ///
    /// # Errors
    /// `Internal` when it cannot be started.
    pub(super) fn start(
        model: &ModelName,
        runner: Runner,
        pace: Pace,
        places: usize,
        watch: Watch,
    ) -> Result<Self, PredictError> {
        let (jobs, queue) = mpsc::channel(places);
        let mut waiting = Waiting {
            queue,
            jobs: VecDeque::new(),
            places,
            window: pace.window,
        };
        let thread = std::thread::Builder::new()
            .name(format!("encode-{model}"))
            .spawn(move || serve(runner, &mut waiting, pace.budget, &watch))
            .map_err(|error| PredictError::internal("the model's thread could not start", error))?;
        Ok(Self {
            jobs: Some(jobs),
            thread: Some(thread),
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
        // Without an entrance the thread ends after the run that it is in.
        self.jobs.take();
        let Some(thread) = self.thread.take() else {
            return;
        };
        let wait = move || {
            if thread.join().is_err() {
                tracing::error!("the model's thread panicked");
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
}

/// A job of which `taken` rows have run, or are in the window.
struct Begun {
    rows: Rows,
    /// `None` once it is answered.
    answer: Option<oneshot::Sender<Answer>>,
    taken: usize,
    ran: usize,
    values: Vec<Values>,
}

impl Begun {
    /// Whether nobody waits for it any more.
    fn is_over(&self) -> bool {
        self.answer.as_ref().is_none_or(oneshot::Sender::is_closed)
    }

    /// Keeps what a row gave, and answers after the last.
    fn keep(&mut self, row: usize, values: Values) {
        self.values[row] = values;
        self.ran += 1;
        if self.ran == self.rows.len() {
            let values = std::mem::take(&mut self.values);
            self.answer(Ok(values));
        }
    }

    fn answer(&mut self, answer: Answer) {
        if let Some(caller) = self.answer.take() {
            // The caller may have gone in the meantime.
            let _ = caller.send(answer);
        }
    }
}

impl Waiting {
    /// Takes what has come; waits when there is nothing to do. False when no more can come.
    fn receive(&mut self) -> bool {
        self.jobs.retain(|job| !job.is_over());
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
        self.jobs.push_back(Begun {
            taken: 0,
            ran: 0,
            values: vec![Values::default(); rows.len()],
            rows,
            answer: Some(answer),
        });
    }

    /// The next rows to run, as (job, row): as much of each job, so that a long one does not
    /// hold up the short ones behind it.
    fn window(&mut self, budget: Budget) -> Vec<(usize, usize)> {
        let jobs = self.jobs.len().max(1);
        let rows = WINDOW_ROWS.div_ceil(jobs);
        let tokens = budget.tokens.saturating_mul(WINDOW_RUNS).div_ceil(jobs);
        let mut window = Vec::new();
        for (index, job) in self.jobs.iter_mut().enumerate() {
            let mut left = tokens;
            for (row, taken) in job.rows.iter().enumerate().skip(job.taken).take(rows) {
                if left == 0 {
                    break;
                }
                left = left.saturating_sub(taken.ids.len());
                window.push((index, row));
                job.taken = row + 1;
            }
        }
        window
    }
}

fn serve(mut runner: Runner, waiting: &mut Waiting, budget: Budget, watch: &Watch) {
    while waiting.receive() {
        let window = waiting.window(budget);
        let length = |(job, row): &(usize, usize)| waiting.jobs[*job].rows[*row].ids.len();
        let lengths: Vec<_> = window.iter().map(length).collect();
        for run in plan::runs(&lengths, budget) {
            let places: Vec<_> = run.into_iter().map(|place| window[place]).collect();
            run_once(&mut runner, waiting, &places, watch);
        }
    }
}

/// Runs the rows at `places` together, but for those that nobody waits for. Where that fails,
/// only whose rows were in it are told.
fn run_once(runner: &mut Runner, waiting: &mut Waiting, places: &[(usize, usize)], watch: &Watch) {
    let jobs = &mut waiting.jobs;
    let wanted = places.iter().filter(|(job, _)| !jobs[*job].is_over());
    let places: Vec<_> = wanted.copied().collect();
    if places.is_empty() {
        return;
    }
    let rows: Vec<_> = places
        .iter()
        .map(|(job, row)| &jobs[*job].rows[*row])
        .collect();
    // A defect must not take the model away from all others.
    let result = catch_unwind(AssertUnwindSafe(|| runner.run(&rows, watch)))
        .unwrap_or_else(|_| Err(internal("the run panicked; see the worker's log", "")));
    match result {
        Ok(values) => {
            for ((job, row), values) in places.into_iter().zip(values) {
                jobs[job].keep(row, values);
            }
        }
        Err(error) => {
            for (job, _) in places {
                jobs[job].answer(Err(error.clone()));
            }
        }
    }
}
