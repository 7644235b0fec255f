//! The thread that owns a session, and the rows that wait for it.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::sync::{mpsc, oneshot};
use volley_types::{ModelName, PredictError};

use super::plan::{self, Budget};
use super::run::{Runner, Values};
use super::texts::Tokens;
use crate::tensors::internal;

/// Rows that are sorted by length together. More of them sort better, and make others wait.
const WINDOW: usize = 256;

type Rows = Arc<Vec<Tokens>>;
type Answer = Result<Vec<Values>, PredictError>;

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
    /// Starts the thread; `places` batches may wait for it.
    ///
    /// # Errors
    /// `Internal` when it cannot be started.
    pub(super) fn start(
        model: &ModelName,
        runner: Runner,
        budget: Budget,
        places: usize,
    ) -> Result<Self, PredictError> {
        let (jobs, queue) = mpsc::channel(places);
        let mut waiting = Waiting {
            queue,
            jobs: VecDeque::new(),
            places,
        };
        let thread = std::thread::Builder::new()
            .name(format!("encode-{model}"))
            .spawn(move || serve(runner, &mut waiting, budget))
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
}

/// A job of which `taken` rows have run, or are in the window.
struct Begun {
    rows: Rows,
    answer: oneshot::Sender<Answer>,
    taken: usize,
    values: Vec<Values>,
}

impl Waiting {
    /// Takes what has come; waits when there is nothing to do. False when no more can come.
    fn receive(&mut self) -> bool {
        self.jobs.retain(|job| !job.answer.is_closed());
        if self.jobs.is_empty() {
            match self.queue.blocking_recv() {
                Some(job) => self.begin(job),
                None => return false,
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
            values: vec![Values::default(); rows.len()],
            rows,
            answer,
        });
    }

    /// The next rows to run, as (job, row): as many of each job, so that a long one does not
    /// hold up the short ones behind it.
    fn window(&mut self) -> Vec<(usize, usize)> {
        let share = WINDOW.div_ceil(self.jobs.len().max(1));
        let mut window = Vec::new();
        for (index, job) in self.jobs.iter_mut().enumerate() {
            let end = job.rows.len().min(job.taken + share);
            window.extend((job.taken..end).map(|row| (index, row)));
            job.taken = end;
        }
        window
    }

    /// Answers the jobs that are done.
    fn answer(&mut self) {
        let mut left = VecDeque::with_capacity(self.jobs.len());
        for job in self.jobs.drain(..) {
            if job.taken == job.rows.len() {
                // The caller may have gone in the meantime.
                let _ = job.answer.send(Ok(job.values));
            } else {
                left.push_back(job);
            }
        }
        self.jobs = left;
    }

    /// A run failed: whose rows were in it are told.
    fn fail(&mut self, window: &[(usize, usize)], error: &PredictError) {
        let failed = |index| window.iter().any(|(job, _)| *job == index);
        let mut left = VecDeque::new();
        for (index, job) in self.jobs.drain(..).enumerate() {
            if failed(index) {
                let _ = job.answer.send(Err(error.clone()));
            } else {
                left.push_back(job);
            }
        }
        self.jobs = left;
    }
}

fn serve(mut runner: Runner, waiting: &mut Waiting, budget: Budget) {
    while waiting.receive() {
        let window = waiting.window();
        let run = || run_window(&mut runner, waiting, &window, budget);
        // A defect must not take the model away from all others.
        let result = catch_unwind(AssertUnwindSafe(run))
            .unwrap_or_else(|_| Err(internal("the run panicked; see the worker's log", "")));
        match result {
            Ok(()) => waiting.answer(),
            Err(error) => waiting.fail(&window, &error),
        }
    }
}

fn run_window(
    runner: &mut Runner,
    waiting: &mut Waiting,
    window: &[(usize, usize)],
    budget: Budget,
) -> Result<(), PredictError> {
    let length = |(job, row): &(usize, usize)| waiting.jobs[*job].rows[*row].ids.len();
    let lengths: Vec<_> = window.iter().map(length).collect();
    for mut run in plan::runs(&lengths, budget) {
        run.retain(|place| !waiting.jobs[window[*place].0].answer.is_closed());
        if run.is_empty() {
            continue;
        }
        let rows: Vec<_> = run
            .iter()
            .map(|place| &waiting.jobs[window[*place].0].rows[window[*place].1])
            .collect();
        let values = runner.run(&rows)?;
        for (place, values) in run.iter().zip(values) {
            let (job, row) = window[*place];
            waiting.jobs[job].values[row] = values;
        }
    }
    Ok(())
}
