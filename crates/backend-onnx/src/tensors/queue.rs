//! The thread that owns a session, and the way to it.
//!
//! One batch after the other: `ONNX Runtime` spreads a run over its own threads, and two runs of
//! one session at a time are not safe on every device. Merging the batches of several requests
//! into one run belongs here, where the queue is taken from.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use arrow_array::RecordBatch;
use ort::session::RunOptions;
use tokio::sync::{mpsc, oneshot};
use volley_types::{ModelName, PredictError};

use super::run::Runner;
use super::{Options, internal};
use crate::watch::Watch;

/// The way to a session's thread. Dropping it ends the thread.
pub(super) struct Queue {
    // `Some` until it is dropped.
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

struct Job {
    rows: RecordBatch,
    options: Arc<Options>,
    answer: oneshot::Sender<Result<RecordBatch, PredictError>>,
}

/// Stops a run when its caller goes away.
struct Terminator(Arc<Options>);

impl Drop for Terminator {
    fn drop(&mut self) {
        if let Err(error) = self.0.terminate() {
            tracing::warn!(error = %error, "a run could not be stopped");
        }
    }
}

impl Queue {
    /// Starts the thread; `places` batches may wait for it, and each may run for `limit`.
    ///
    /// # Errors
    /// `Internal` when it cannot be started.
    pub(super) fn start(
        model: &ModelName,
        runner: Runner,
        places: usize,
        limit: Duration,
    ) -> Result<Self, PredictError> {
        let watch = Watch::new(limit)?;
        let (jobs, queue) = mpsc::channel(places);
        let thread = std::thread::Builder::new()
            .name(format!("onnx-{model}"))
            .spawn(move || serve(runner, queue, &watch))
            .map_err(|error| PredictError::internal("the model's thread could not start", error))?;
        Ok(Self {
            jobs: Some(jobs),
            thread: Some(thread),
        })
    }

    /// Runs one batch, after those that came before it. Waits for a place where there is none.
    ///
    /// # Cancel safety
    /// Dropping the future takes the batch out of the queue, or stops its run.
    ///
    /// # Errors
    /// Those of the run.
    pub(super) async fn run(&self, rows: RecordBatch) -> Result<RecordBatch, PredictError> {
        let ended = || internal("the model's thread has ended", "");
        let options = RunOptions::new()
            .map_err(|error| internal("a run could not be set up", error.to_string()))?;
        let options = Arc::new(options);
        let (answer, answered) = oneshot::channel();
        // A late stop hits nothing: the options are this run's alone.
        let _terminator = Terminator(options.clone());
        let job = Job {
            rows,
            options,
            answer,
        };
        let jobs = self.jobs.as_ref().ok_or_else(ended)?;
        jobs.send(job).await.map_err(|_| ended())?;
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
        // held for a run. The runtime waits for the thread instead when it shuts down.
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(wait)),
            Err(_) => wait(),
        }
    }
}

fn serve(mut runner: Runner, mut queue: mpsc::Receiver<Job>, watch: &Watch) {
    while let Some(job) = queue.blocking_recv() {
        if job.answer.is_closed() {
            continue;
        }
        // One batch must not take the model away from all others. A run leaves nothing half
        // done in the runner: what it makes, it owns.
        let run = || watch.over(&job.options, |options| runner.run(&job.rows, options));
        let answer = catch_unwind(AssertUnwindSafe(run))
            .unwrap_or_else(|_| Err(internal("the run panicked; see the worker's log", "")));
        // The caller may have gone in the meantime.
        let _ = job.answer.send(answer);
    }
}
