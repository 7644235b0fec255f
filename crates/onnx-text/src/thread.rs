//! The threads that own the sessions and run the waiting rows.

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

/// The batching parameters of the threads.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchWindow {
    pub(super) budget: Budget,
    /// Time that an idle model waits for more rows after the first.
    pub(super) window: Duration,
}

/// Handle of the threads. Dropping it ends them.
pub(super) struct EncodeQueue {
    // `Some` until it is dropped.
    jobs: Option<mpsc::Sender<Job>>,
    batcher: Arc<Batcher>,
    threads: Vec<JoinHandle<()>>,
}

/// The session of one thread, and the wide session that all threads share for runs that are alone.
struct Sessions {
    own: Runner,
    wide: Option<Arc<Mutex<Runner>>>,
    watch: RunTimeout,
}

impl EncodeQueue {
    /// Starts a thread for each of `runners`. At most `places` batches wait in the channel. Runs
    /// that are alone use the session `wide`.
    ///
    /// # Errors
    /// `Internal` when a thread cannot be started.
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
        // If a thread cannot be started, dropping this ends the others.
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

    /// Returns the values of each of `rows`, in order. Waits while the channel is full. Batches of
    /// the same `request` run in order of arrival.
    ///
    /// # Cancel safety
    /// Dropping the future removes the rows that have not run.
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
        // When the channel closes, each thread ends after the runs that it has taken.
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
        // The last handle is often dropped with a stream on a runtime thread, which must not block
        // for a run.
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
            // A panic of a run is caught inside it, so the runner is intact.
            Some(Err(TryLockError::Poisoned(runner))) => Some(runner.into_inner()),
            Some(Err(TryLockError::WouldBlock)) | None => None,
        };
        let runner = free.as_deref_mut().unwrap_or(&mut self.own);
        run_once(runner, &run.jobs, &run.places, &mut self.watch);
    }
}

/// Runs the rows at `places` together, except those of callers that have gone. If that fails, the
/// rows of each caller run again alone, so that an invalid row only fails its own request.
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
        // After a second timeout the model itself is too slow; the remaining rows fail without a
        // run.
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

/// Runs the rows at `places` once and stores their values.
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
    // A panic must only fail this run, not the model.
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

/// Groups places by job, in order.
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
