//! One batch of one request in the queue, and its membership in a shared run.

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
    /// Options of a second run, if the first one lacked memory.
    pub(super) again: Arc<SharedRunOptions>,
    /// Its entry in the wait counts, until its run begins.
    pub(super) place: Option<Waiter>,
    /// Its membership in a shared run.
    pub(super) seat: Arc<RunSubscriber>,
    pub(super) answer: oneshot::Sender<Result<RecordBatch, PredictError>>,
}

impl Job {
    /// Whether the caller has stopped waiting.
    pub(super) fn is_left(&self) -> bool {
        self.answer.is_closed()
    }

    pub(super) fn answer(self, answer: Result<RecordBatch, PredictError>) {
        // The caller may have stopped waiting.
        let _ = self.answer.send(answer);
    }

    /// Runs the model on this batch alone.
    pub(super) fn run(
        &self,
        runner: &mut Runner,
        watch: &mut RunTimeout,
    ) -> Result<RecordBatch, PredictError> {
        let ended = guarded(runner, &self.rows, &self.options, watch);
        match ended {
            // The end of the second run shrinks the arena, whether it succeeds or not.
            Err(error) if error.code == ErrorCode::TooLarge && !watch.lacked_memory() => {
                guarded(runner, &self.rows, &self.again, watch)
            }
            ended => ended,
        }
    }
}

/// A run for several callers. It is stopped when the last of them leaves.
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

/// A caller's membership in a shared run.
#[derive(Default)]
pub(super) struct RunSubscriber(Mutex<State>);

#[derive(Default)]
enum State {
    /// The run has not begun.
    #[default]
    Waiting,
    In(Arc<SharedRun>),
    /// The caller has stopped waiting, or has its answer.
    Left,
}

impl RunSubscriber {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No update of the state can be interrupted by a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the membership; the caller has stopped waiting.
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

    /// The caller's run has ended, and another one may begin.
    pub(super) fn rise(&self) {
        let mut state = self.lock();
        if matches!(&*state, State::In(_)) {
            *state = State::Waiting;
        }
    }
}

/// Executes one run. A panic only fails this batch: the runner owns no state that a run could leave
/// inconsistent.
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

/// Stops the run that uses `options`, if there is one.
pub(super) fn stop(options: &SharedRunOptions) {
    if let Err(error) = options.terminate() {
        tracing::warn!(error = %error, "run not stopped");
    }
}
