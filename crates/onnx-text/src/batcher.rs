//! The rows that wait for a model's threads, and their distribution. One thread at a time plans a
//! window of waiting rows, sorted by length, as runs; each thread takes the next planned run.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread};
use std::time::Duration;

use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::{mpsc, oneshot};
use volley_types::PredictError;

use super::plan;
use super::plan::Budget;
use super::pooling::Values;
use super::texts::Tokens;

/// Rows per thread that are sorted by length together. A larger window sorts better, but delays
/// requests.
const WINDOW_ROWS: usize = 256;
/// Maximum size of a window in runs per thread; long texts reach it before `WINDOW_ROWS`.
const WINDOW_RUNS: usize = 8;

/// The rows of one batch of one request.
pub(super) type BatchRows = Arc<Vec<Tokens>>;
/// The values of each row, in order.
pub(super) type RowResults = Result<Vec<Values>, PredictError>;

/// Identifies the request of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct RequestKey(u64);

impl RequestKey {
    /// A new unique key.
    pub(super) fn fresh() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// The rows of one batch of one request, and the channel for the answer.
pub(super) struct Job {
    pub(super) request: RequestKey,
    pub(super) rows: BatchRows,
    pub(super) answer: oneshot::Sender<RowResults>,
}

/// The queue from which all threads of a model take their runs.
pub(super) struct Batcher {
    waiting: Mutex<WaitingJobs>,
    budget: Budget,
    threads: usize,
    busy: AtomicUsize,
}

/// The jobs with rows that have not run.
struct WaitingJobs {
    queue: mpsc::Receiver<Job>,
    jobs: VecDeque<StartedJob>,
    planned: VecDeque<PlannedRun>,
    places: usize,
    window: Duration,
    /// Whether a thread is waiting for more rows before it plans the next window.
    lingers: bool,
    /// Threads that sleep because there was nothing to run. The last one is woken first, because
    /// its caches are most likely to be warm.
    asleep: Vec<Thread>,
}

/// The result of reading the queue.
#[derive(Debug, PartialEq, Eq)]
enum QueueEvent {
    Nothing,
    /// Jobs are waiting; `fresh` if none were waiting before.
    Jobs {
        fresh: bool,
    },
    /// The queue is empty and closed.
    Ended,
}

/// A job of which `taken` rows have run or are planned.
struct StartedJob {
    request: RequestKey,
    job: Arc<RunningJob>,
    taken: usize,
}

/// A job whose rows one or more threads run.
pub(super) struct RunningJob {
    pub(super) rows: BatchRows,
    state: Mutex<State>,
}

struct State {
    /// `None` once the job is answered.
    answer: Option<oneshot::Sender<RowResults>>,
    ran: usize,
    values: Vec<Values>,
}

/// Rows that run together, as indices of jobs in their window and of rows in these jobs.
pub(super) struct PlannedRun {
    pub(super) jobs: Arc<[Arc<RunningJob>]>,
    pub(super) places: Vec<(usize, usize)>,
    /// Whether nothing else was running or waiting when the run was taken.
    pub(super) alone: bool,
}

impl RunningJob {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No update of the state can be interrupted by a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the job is answered, or its caller has stopped waiting.
    pub(super) fn is_over(&self) -> bool {
        let answer = &self.lock().answer;
        answer.as_ref().is_none_or(oneshot::Sender::is_closed)
    }

    /// Stores the values of a row, and answers after the last row.
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

    pub(super) fn answer(&self, answer: RowResults) {
        let caller = self.lock().answer.take();
        if let Some(caller) = caller {
            // The caller may have stopped waiting.
            let _ = caller.send(answer);
        }
    }
}

impl Batcher {
    /// Creates a batcher for `threads` threads that holds at most `places` jobs from `queue`. An
    /// idle model waits for `window` after the first job.
    pub(super) fn new(
        queue: mpsc::Receiver<Job>,
        places: usize,
        window: Duration,
        budget: Budget,
        threads: usize,
    ) -> Self {
        Self {
            waiting: Mutex::new(WaitingJobs {
                queue,
                jobs: VecDeque::new(),
                planned: VecDeque::new(),
                places,
                window,
                lingers: false,
                asleep: Vec::new(),
            }),
            budget,
            threads,
            busy: AtomicUsize::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, WaitingJobs> {
        // No update of the state can be interrupted by a panic.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes a thread after a job was sent, or all threads after the queue was closed.
    pub(super) fn wake(&self) {
        let mut waiting = self.lock();
        if waiting.queue.is_closed() {
            waiting.wake_all();
        } else if !waiting.lingers {
            waiting.wake_one();
        }
    }

    /// Returns the next run of a thread, which must call [`Batcher::done`] after the run. Blocks
    /// until [`Batcher::wake`] while nothing waits; `None` when the queue is closed and empty.
    pub(super) fn next_run(&self) -> Option<PlannedRun> {
        let mut waiting = self.lock();
        while waiting.planned.is_empty() {
            if waiting.lingers {
                waiting = self.sleep(waiting);
                continue;
            }
            match waiting.receive() {
                QueueEvent::Nothing => waiting = self.sleep(waiting),
                QueueEvent::Ended => {
                    waiting.wake_all();
                    return None;
                }
                QueueEvent::Jobs { fresh } => {
                    if fresh && !waiting.window.is_zero() {
                        waiting = self.linger(waiting);
                    }
                    let idle = self.threads - self.busy.load(Ordering::Acquire);
                    waiting.plan(self.budget, self.threads, idle);
                }
            }
        }
        let mut run = waiting.planned.pop_front()?;
        let others = self.busy.fetch_add(1, Ordering::AcqRel);
        let nothing_waits = waiting.planned.is_empty() && waiting.is_empty();
        run.alone = others == 0 && nothing_waits;
        if !nothing_waits {
            waiting.wake_one();
        }
        Some(run)
    }

    /// Waits for the window, and takes the jobs that arrive meanwhile.
    fn linger<'a>(
        &'a self,
        mut waiting: MutexGuard<'a, WaitingJobs>,
    ) -> MutexGuard<'a, WaitingJobs> {
        let window = waiting.window;
        waiting.lingers = true;
        drop(waiting);
        thread::sleep(window);
        let mut waiting = self.lock();
        waiting.lingers = false;
        waiting.receive();
        waiting
    }

    /// Blocks until there may be something to run.
    fn sleep<'a>(
        &'a self,
        mut waiting: MutexGuard<'a, WaitingJobs>,
    ) -> MutexGuard<'a, WaitingJobs> {
        let own = thread::current();
        waiting.asleep.push(own.clone());
        drop(waiting);
        thread::park();
        let mut waiting = self.lock();
        // `park` may return spuriously.
        waiting.asleep.retain(|thread| thread.id() != own.id());
        waiting
    }

    /// Marks the end of a run that a thread has taken.
    pub(super) fn done(&self) {
        self.busy.fetch_sub(1, Ordering::AcqRel);
    }
}

impl WaitingJobs {
    fn wake_one(&mut self) {
        if let Some(thread) = self.asleep.pop() {
            thread.unpark();
        }
    }

    fn wake_all(&mut self) {
        self.asleep.drain(..).for_each(|thread| thread.unpark());
    }

    /// Takes the jobs that have arrived.
    fn receive(&mut self) -> QueueEvent {
        let waits = |begun: &StartedJob| begun.taken < begun.job.rows.len() && !begun.job.is_over();
        self.jobs.retain(waits);
        let fresh = self.jobs.is_empty();
        while self.jobs.len() < self.places {
            match self.queue.try_recv() {
                Ok(job) => self.begin(job),
                Err(TryRecvError::Disconnected) if self.jobs.is_empty() => {
                    return QueueEvent::Ended;
                }
                Err(TryRecvError::Disconnected | TryRecvError::Empty) => break,
            }
        }
        if self.jobs.is_empty() {
            QueueEvent::Nothing
        } else {
            QueueEvent::Jobs { fresh }
        }
    }

    fn begin(&mut self, job: Job) {
        let Job {
            request,
            rows,
            answer,
        } = job;
        let state = State {
            answer: Some(answer),
            ran: 0,
            values: vec![Values::default(); rows.len()],
        };
        let state = Mutex::new(state);
        self.jobs.push_back(StartedJob {
            request,
            job: Arc::new(RunningJob { rows, state }),
            taken: 0,
        });
    }

    /// Whether no row is waiting.
    fn is_empty(&self) -> bool {
        let taken = |begun: &StartedJob| begun.taken == begun.job.rows.len();
        self.queue.is_empty() && self.jobs.iter().all(taken)
    }

    /// Plans the next window as runs, spread over `idle` threads.
    fn plan(&mut self, budget: Budget, threads: usize, idle: usize) {
        let places = self.window(budget, threads);
        let jobs: Arc<[_]> = self.jobs.iter().map(|begun| begun.job.clone()).collect();
        let length = |(job, row): &(usize, usize)| jobs[*job].rows[*row].ids.len();
        let lengths: Vec<_> = places.iter().map(length).collect();
        let runs = plan::runs(&lengths, budget.shared(&lengths, idle));
        self.planned.extend(runs.into_iter().map(|run| PlannedRun {
            jobs: jobs.clone(),
            places: run.into_iter().map(|place| places[place]).collect(),
            alone: false,
        }));
    }

    /// Takes the next window of rows for all `threads`. Each request gets an equal share, so that a
    /// long request does not delay short ones behind it. The rows of a request are taken in order,
    /// so that its first batch is answered before its last.
    fn window(&mut self, budget: Budget, threads: usize) -> Vec<(usize, usize)> {
        let mut shares: HashMap<RequestKey, Share> = HashMap::new();
        for begun in self.jobs.iter().filter(|begun| begun.waits()) {
            shares.insert(begun.request, Share::default());
        }
        let requests = shares.len().max(1);
        let rows = WINDOW_ROWS.saturating_mul(threads).div_ceil(requests);
        let runs = WINDOW_RUNS.saturating_mul(threads);
        let tokens = budget.tokens.saturating_mul(runs).div_ceil(requests);
        shares
            .values_mut()
            .for_each(|share| *share = Share { rows, tokens });
        let mut window = Vec::new();
        for (index, begun) in self.jobs.iter_mut().enumerate() {
            let Some(share) = shares.get_mut(&begun.request) else {
                continue;
            };
            let of_job = begun.job.rows.iter().enumerate();
            for (row, taken) in of_job.skip(begun.taken) {
                if share.rows == 0 || share.tokens == 0 {
                    break;
                }
                share.rows -= 1;
                share.tokens = share.tokens.saturating_sub(taken.ids.len());
                window.push((index, row));
                begun.taken = row + 1;
            }
        }
        window
    }
}

impl StartedJob {
    fn waits(&self) -> bool {
        self.taken < self.job.rows.len()
    }
}

/// The unused part of a request's share of a window.
#[derive(Clone, Copy, Default)]
struct Share {
    rows: usize,
    tokens: usize,
}

#[cfg(test)]
mod tests;
