//! One batch of one request on its way through the queue, and its seat in a run with others.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow_array::RecordBatch;
use tokio::sync::oneshot;
use volley_onnx_runtime::failure::internal;
use volley_onnx_runtime::run_timeout::RunTimeout;
use volley_onnx_runtime::session::SharedRunOptions;
use volley_types::{ErrorCode, PredictError};

use super::run::Runner;
use super::wait::WaitEntry as Waiter;

/// One batch of one request.
pub(super) struct Job {
    pub(super) rows: RecordBatch,
    pub(super) options: Arc<SharedRunOptions>,
    /// Of a second run, where the first lacked memory.
    pub(super) again: Arc<SharedRunOptions>,
    /// Its place among those that wait, until its run begins.
    pub(super) place: Option<Waiter>,
    /// Its place in a run with others.
    pub(super) seat: Arc<RunSubscriber>,
    pub(super) answer: oneshot::Sender<Result<RecordBatch, PredictError>>,
}

impl Job {
    /// Whether nobody waits for it any more.
    pub(super) fn is_left(&self) -> bool {
        self.answer.is_closed()
    }

    pub(super) fn answer(self, answer: Result<RecordBatch, PredictError>) {
        // The caller may have gone in the meantime.
        let _ = self.answer.send(answer);
    }

    /// What the model gives for it alone.
    pub(super) fn run(
        &self,
        runner: &mut Runner,
        watch: &mut RunTimeout,
    ) -> Result<RecordBatch, PredictError> {
        let mut attempt =
            |options: &Arc<SharedRunOptions>| guarded(runner, &self.rows, options, &mut *watch);
        match attempt(&self.options) {
            // Its end sets the arena back, whatever comes of it.
            Err(error) if error.code == ErrorCode::TooLarge => attempt(&self.again),
            ended => ended,
        }
    }
}

/// A run that several callers wait for. It is stopped when the last of them leaves.
pub(super) struct SharedRun {
    pub(super) options: Arc<SharedRunOptions>,
    pub(super) callers: AtomicUsize,
}

impl SharedRun {
    pub(super) fn leave(&self) {
        if self.callers.fetch_sub(1, Ordering::AcqRel) == 1 {
            stop(&self.options);
        }
    }
}

/// A caller's place in such a run.
#[derive(Default)]
pub(super) struct RunSubscriber(Mutex<State>);

#[derive(Default)]
enum State {
    /// Its run has not begun.
    #[default]
    Waiting,
    In(Arc<SharedRun>),
    /// The caller has gone, or has its answer.
    Left,
}

impl RunSubscriber {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing can be half done in it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The caller does not wait any more.
    pub(super) fn leave(&self) {
        let before = std::mem::replace(&mut *self.lock(), State::Left);
        if let State::In(run) = before {
            run.leave();
        }
    }

    /// The caller's run begins.
    pub(super) fn join(&self, run: &Arc<SharedRun>) {
        let mut state = self.lock();
        match &*state {
            State::Left => run.leave(),
            State::Waiting | State::In(_) => *state = State::In(run.clone()),
        }
    }

    /// The caller's run ended, and another one may begin.
    pub(super) fn rise(&self) {
        let mut state = self.lock();
        if matches!(&*state, State::In(_)) {
            *state = State::Waiting;
        }
    }
}

/// One run. A batch must not take the model away from all others; a run leaves nothing half done in
/// the runner: what it makes, it owns.
pub(super) fn guarded(
    runner: &mut Runner,
    rows: &RecordBatch,
    options: &Arc<SharedRunOptions>,
    watch: &mut RunTimeout,
) -> Result<RecordBatch, PredictError> {
    let run = || watch.over(options, |it| runner.run(rows, it));
    catch_unwind(AssertUnwindSafe(run))
        .unwrap_or_else(|_| Err(internal("the run panicked; see the worker's log", "")))
}

/// Stops what runs with `options`, if anything does.
pub(super) fn stop(options: &SharedRunOptions) {
    if let Err(error) = options.terminate() {
        tracing::warn!(error = %error, "run not stopped");
    }
}
