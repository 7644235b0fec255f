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
use tokio::sync::{mpsc, oneshot};
use volley_types::{ErrorCode, ModelName, PredictError};

use super::run::Runner;
use super::{Options, internal};
use crate::session::{self, Place};
use crate::watch::Watch;

/// The way to a session's thread. Dropping it ends the thread.
pub(super) struct Queue {
    // `Some` until it is dropped.
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    place: Place,
}

struct Job {
    rows: RecordBatch,
    options: Arc<Options>,
    /// Of a second run, where the first lacked memory.
    again: Arc<Options>,
    answer: oneshot::Sender<Result<RecordBatch, PredictError>>,
}

/// Stops runs when their caller goes away.
struct Terminator([Arc<Options>; 2]);

impl Drop for Terminator {
    fn drop(&mut self) {
        for options in &self.0 {
            if let Err(error) = options.terminate() {
                tracing::warn!(error = %error, "a run could not be stopped");
            }
        }
    }
}

impl Queue {
    /// Starts the thread; `places` batches may wait for it, and each may run for `limit`, at
    /// `place`.
    ///
    /// # Errors
    /// `Internal` when it cannot be started.
    pub(super) fn start(
        model: &ModelName,
        runner: Runner,
        places: usize,
        limit: Duration,
        place: Place,
    ) -> Result<Self, PredictError> {
        let mut watch = Watch::new(limit)?;
        let (jobs, queue) = mpsc::channel(places);
        let thread = std::thread::Builder::new()
            .name(format!("onnx-{model}"))
            .spawn(move || serve(runner, queue, &mut watch))
            .map_err(|error| PredictError::internal("the model's thread could not start", error))?;
        Ok(Self {
            jobs: Some(jobs),
            thread: Some(thread),
            place,
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
        let failed = |error: ort::Error| internal("a run could not be set up", error.to_string());
        let options = Arc::new(Options::new().map_err(failed)?);
        let again = Arc::new(session::shrinking(self.place).map_err(failed)?);
        let (answer, answered) = oneshot::channel();
        // A late stop hits nothing: the options are this batch's alone.
        let _terminator = Terminator([options.clone(), again.clone()]);
        let job = Job {
            rows,
            options,
            again,
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

fn serve(mut runner: Runner, mut queue: mpsc::Receiver<Job>, watch: &mut Watch) {
    while let Some(job) = queue.blocking_recv() {
        if job.answer.is_closed() {
            continue;
        }
        // One batch must not take the model away from all others. A run leaves nothing half
        // done in the runner: what it makes, it owns.
        let mut attempt =
            |options: &Arc<Options>| watch.over(options, |it| runner.run(&job.rows, it));
        let run = || match attempt(&job.options) {
            // Its end sets the arena back, whatever comes of it.
            Err(error) if error.code == ErrorCode::TooLarge => attempt(&job.again),
            ended => ended,
        };
        let answer = catch_unwind(AssertUnwindSafe(run))
            .unwrap_or_else(|_| Err(internal("the run panicked; see the worker's log", "")));
        // The caller may have gone in the meantime.
        let _ = job.answer.send(answer);
    }
}
