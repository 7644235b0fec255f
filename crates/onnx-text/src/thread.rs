//! The threads that own a session each, and run what waits for them.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, TryLockError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use volley_types::{ErrorCode, ModelName, PredictError};

use super::batcher::{BatchRows, Batcher, Job, PlannedRun, RequestKey, RowResults, RunningJob};
use super::plan::Budget;
use super::run::Runner;
use volley_onnx_runtime::failure::internal;
use volley_onnx_runtime::run_timeout::RunTimeout;

/// How the threads take what waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchWindow {
    pub(super) budget: Budget,
    /// How long they wait for more rows after the first that come to an idle model.
    pub(super) window: Duration,
}

/// The way to the threads. Dropping it ends them.
pub(super) struct EncodeQueue {
    // `Some` until it is dropped.
    jobs: Option<mpsc::Sender<Job>>,
    batcher: Arc<Batcher>,
    threads: Vec<JoinHandle<()>>,
}

/// The session of one thread, and the one that all have together for a run that is alone.
struct Sessions {
    own: Runner,
    wide: Option<Arc<Mutex<Runner>>>,
    watch: RunTimeout,
}

impl EncodeQueue {
    /// Starts a thread for each of `runners`; `places` batches may wait for them; each one's watch
    /// limits its runs. A run that is alone has the `wide` one.
    ///
    /// # Errors
    /// `Internal` when one cannot be started.
    pub(super) fn start(
        model: &ModelName,
        runners: Vec<(Runner, RunTimeout)>,
        wide: Option<Runner>,
        pace: BatchWindow,
        places: usize,
    ) -> Result<Self, PredictError> {
        let (jobs, queue) = mpsc::channel(places);
        let batcher = Batcher::new(queue, places, pace.window, pace.budget, runners.len());
        let (batcher, wide) = (
            Arc::new(batcher),
            wide.map(|wide| Arc::new(Mutex::new(wide))),
        );
        // Where one does not start, dropping it ends the others.
        let mut started = Self {
            jobs: Some(jobs),
            batcher,
            threads: Vec::new(),
        };
        for (own, watch) in runners {
            let (batcher, wide) = (started.batcher.clone(), wide.clone());
            let sessions = Sessions { own, wide, watch };
            let thread = thread::Builder::new().name(format!("encode-{model}"));
            let thread = thread
                .spawn(move || serve(sessions, &batcher))
                .map_err(|error| {
                    PredictError::internal("the model's thread could not start", error)
                })?;
            started.threads.push(thread);
        }
        Ok(started)
    }

    /// What the model gives for each of `rows`, in order. Waits for a place where there is none.
    /// Batches of one `request` run in the order in which they come.
    ///
    /// # Cancel safety
    /// Dropping the future takes the rows that have not run out of the queue.
    ///
    /// # Errors
    /// Those of the run.
    pub(super) async fn run(&self, request: RequestKey, rows: BatchRows) -> RowResults {
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let ended = || internal("the model's thread has ended", "");
        let (answer, answered) = oneshot::channel();
        let jobs = self.jobs.as_ref().ok_or_else(ended)?;
        let job = Job {
            request,
            rows,
            answer,
        };
        jobs.send(job).await.map_err(|_| ended())?;
        self.batcher.wake();
        answered.await.unwrap_or_else(|_| Err(ended()))
    }
}

impl Drop for EncodeQueue {
    fn drop(&mut self) {
        // Without an entrance each thread ends after the runs that it has taken.
        self.jobs.take();
        self.batcher.wake();
        let threads = std::mem::take(&mut self.threads);
        let wait = move || {
            for thread in threads {
                if thread.join().is_err() {
                    tracing::error!("model thread panicked");
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

fn serve(mut sessions: Sessions, batcher: &Batcher) {
    while let Some(run) = batcher.next_run() {
        sessions.run(&run);
        batcher.done();
    }
}

impl Sessions {
    fn run(&mut self, run: &PlannedRun) {
        let wide = self.wide.as_deref().filter(|_| run.alone);
        let mut free = match wide.map(Mutex::try_lock) {
            Some(Ok(runner)) => Some(runner),
            // What panics in a run is caught there.
            Some(Err(TryLockError::Poisoned(runner))) => Some(runner.into_inner()),
            Some(Err(TryLockError::WouldBlock)) | None => None,
        };
        let runner = free.as_deref_mut().unwrap_or(&mut self.own);
        run_once(runner, &run.jobs, &run.places, &mut self.watch);
    }
}

/// Runs the rows at `places` together, but for those that nobody waits for. Where that fails and
/// they are of several callers, each caller's are run again by themselves: what is wrong with a
/// row is only its own caller's concern.
fn run_once(
    runner: &mut Runner,
    jobs: &[Arc<RunningJob>],
    places: &[(usize, usize)],
    watch: &mut RunTimeout,
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
    jobs: &[Arc<RunningJob>],
    places: &[(usize, usize)],
    watch: &mut RunTimeout,
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

fn fail(jobs: &[Arc<RunningJob>], places: &[(usize, usize)], error: &PredictError) {
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
    use super::*;

    #[test]
    fn rows_are_told_apart_by_their_callers() {
        let places = [(2, 0), (0, 1), (2, 1), (0, 0)];
        let apart = by_job(&places);
        assert_eq!(apart, [vec![(0, 1), (0, 0)], vec![(2, 0), (2, 1)]]);
        assert!(by_job(&[]).is_empty());
    }
}
