//! The rows that wait for a model's threads, and how they are shared out. One thread after the
//! other plans a window of what waits, sorted by length, as runs; each takes the next of these.

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

/// Rows for each thread that are sorted by length together. More of them sort better, and make
/// others wait.
const WINDOW_ROWS: usize = 256;
/// As many runs' tokens: of long texts, fewer are sorted together.
const WINDOW_RUNS: usize = 8;

/// The rows of one batch of one request.
pub(super) type BatchRows = Arc<Vec<Tokens>>;
/// What the model gives for each row, in order.
pub(super) type RowResults = Result<Vec<Values>, PredictError>;

/// Which request a batch is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct RequestKey(u64);

impl RequestKey {
    /// One that no other request has.
    pub(super) fn fresh() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// The rows of one batch of one request, and who waits for them.
pub(super) struct Job {
    pub(super) request: RequestKey,
    pub(super) rows: BatchRows,
    pub(super) answer: oneshot::Sender<RowResults>,
}

/// What all threads of a model take their runs from: it makes batches of what waits.
pub(super) struct Batcher {
    waiting: Mutex<WaitingJobs>,
    budget: Budget,
    threads: usize,
    busy: AtomicUsize,
}

/// Jobs that have rows to run.
struct WaitingJobs {
    queue: mpsc::Receiver<Job>,
    jobs: VecDeque<StartedJob>,
    planned: VecDeque<PlannedRun>,
    places: usize,
    window: Duration,
    /// Whether a thread lets more come before it plans what has come.
    lingers: bool,
    /// Threads that sleep as there was nothing to run. The last is woken first, as it is the
    /// likeliest to be warm.
    asleep: Vec<Thread>,
}

/// What a thread found in the queue.
#[derive(Debug, PartialEq, Eq)]
enum QueueEvent {
    Nothing,
    /// Jobs wait; `fresh` where none did before.
    Jobs {
        fresh: bool,
    },
    /// No more can come.
    Ended,
}

/// A job of which `taken` rows have run, or are planned.
struct StartedJob {
    request: RequestKey,
    job: Arc<RunningJob>,
    taken: usize,
}

/// A job that a thread, or several, have rows of.
pub(super) struct RunningJob {
    pub(super) rows: BatchRows,
    state: Mutex<State>,
}

struct State {
    /// `None` once it is answered.
    answer: Option<oneshot::Sender<RowResults>>,
    ran: usize,
    values: Vec<Values>,
}

/// Rows that run together: places of rows in the jobs of their window.
pub(super) struct PlannedRun {
    pub(super) jobs: Arc<[Arc<RunningJob>]>,
    pub(super) places: Vec<(usize, usize)>,
    /// Whether nothing else ran or waited when it was taken.
    pub(super) alone: bool,
}

impl RunningJob {
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

    pub(super) fn answer(&self, answer: RowResults) {
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
        // Nothing can be half done in it.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells that a job was put into the queue, or that no more can come.
    pub(super) fn wake(&self) {
        let mut waiting = self.lock();
        if waiting.queue.is_closed() {
            waiting.wake_all();
        } else if !waiting.lingers {
            waiting.wake_one();
        }
    }

    /// What a thread runs next; it tells with [`Batcher::done`] when it has. Sleeps until
    /// [`Batcher::wake`] where there is nothing; `None` when no more can come.
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

    /// Takes what comes within the window, too.
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

    /// Sleeps until there may be something to run.
    fn sleep<'a>(
        &'a self,
        mut waiting: MutexGuard<'a, WaitingJobs>,
    ) -> MutexGuard<'a, WaitingJobs> {
        let own = thread::current();
        waiting.asleep.push(own.clone());
        drop(waiting);
        thread::park();
        let mut waiting = self.lock();
        // It may have woken by itself.
        waiting.asleep.retain(|thread| thread.id() != own.id());
        waiting
    }

    /// The run that a thread took has ended.
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

    /// Takes what has come.
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

    /// Whether no row waits.
    fn is_empty(&self) -> bool {
        let taken = |begun: &StartedJob| begun.taken == begun.job.rows.len();
        self.queue.is_empty() && self.jobs.iter().all(taken)
    }

    /// Plans the next window as runs, as many as `idle` threads can use.
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

    /// The next rows to run, for all `threads`: as many of each request, so that a long one does not
    /// hold up the short ones behind it, and of a request those that came first, so that its first
    /// batch is answered before its last.
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

/// How much of a window is left to a request.
#[derive(Clone, Copy, Default)]
struct Share {
    rows: usize,
    tokens: usize,
}

#[cfg(test)]
mod tests;
