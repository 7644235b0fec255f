//! The time limit of a run, and the end of runs beyond the memory limit.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use volley_types::{ErrorCode, ErrorOrigin, PredictError};

use crate::memory_watch;
use crate::session::SharedRunOptions;

/// Minimum limit: timers of the tokio runtime have a resolution of 1 ms.
const SHORTEST: Duration = Duration::from_millis(1);

/// Stops runs that exceed a time limit. ONNX Runtime ends a stopped run after its current operator.
///
/// One task watches all runs of a session. It sleeps in between, and starting a run does not wake
/// it.
pub struct RunTimeout {
    limit: Duration,
    under_way: Arc<CurrentRun>,
    task: AbortHandle,
    /// Whether the last run was stopped because of its memory.
    lacked_memory: bool,
}

/// The current run, if there is one.
#[derive(Default)]
struct CurrentRun(Mutex<Option<Run>>);

struct Run {
    since: Instant,
    options: Arc<SharedRunOptions>,
    /// Whether it was stopped.
    late: bool,
}

impl RunTimeout {
    /// Starts a watching task on the current tokio runtime. Dropping the result aborts the task.
    ///
    /// # Errors
    /// `Internal` outside of a tokio runtime.
    pub fn new(limit: Duration) -> Result<Self, PredictError> {
        let runtime = Handle::try_current()
            .map_err(|error| PredictError::internal("a model is loaded within a runtime", error))?;
        let limit = limit.max(SHORTEST);
        let under_way = Arc::new(CurrentRun::default());
        let watched = under_way.clone();
        let task = runtime.spawn(async move {
            let mut wait = limit;
            loop {
                // A run that starts during the sleep cannot exceed its limit before the sleep ends.
                tokio::time::sleep(wait).await;
                wait = watched.stop_late(limit);
            }
        });
        Ok(Self {
            limit,
            under_way,
            task: task.abort_handle(),
            lacked_memory: false,
        })
    }

    /// Calls `run` on this thread and returns its result. No other run may use `options` meanwhile.
    ///
    /// # Errors
    /// Those of `run`; `DeadlineExceeded` when the run was stopped because of its time, `TooLarge`
    /// because of its memory.
    pub fn over<'o, T>(
        &mut self,
        options: &'o Arc<SharedRunOptions>,
        run: impl FnOnce(&'o SharedRunOptions) -> Result<T, PredictError>,
    ) -> Result<T, PredictError> {
        *self.under_way.lock() = Some(Run {
            since: Instant::now(),
            options: options.clone(),
            late: false,
        });
        let entry = memory_watch::begin(options);
        let result = run(options);
        let memory = entry.and_then(memory_watch::RunEntry::end);
        self.lacked_memory = memory.is_some();
        let late = self.under_way.lock().take().is_some_and(|run| run.late);
        if (late || memory.is_some())
            && let Err(error) = options.unterminate()
        {
            tracing::error!(
                error = %error,
                "run options not reset; every later run of this session stops"
            );
        }
        match (result, memory) {
            (Err(error), Some(limit)) => Err(too_large(limit, error)),
            (Err(error), None) if late => {
                let seconds = self.limit.as_secs_f64();
                tracing::warn!(
                    seconds,
                    error = error.chain(),
                    "run exceeded the run timeout"
                );
                let message = format!(
                    "the run took longer than {seconds} s and was stopped; send less at once, or \
                     raise 'onnx.run_timeout'"
                );
                let late = PredictError::new(ErrorCode::DeadlineExceeded, message);
                Err(late.with_origin(ErrorOrigin::Model))
            }
            (result, _) => result,
        }
    }

    /// Whether the last run was stopped because of its memory. If it is run again, it takes as much
    /// again.
    #[must_use]
    pub fn lacked_memory(&self) -> bool {
        self.lacked_memory
    }
}

/// The error for a run that was stopped because it took more than `limit` bytes.
fn too_large(limit: u64, error: PredictError) -> PredictError {
    let message = format!(
        "the run took more memory than the limit of {} MiB and was stopped; send fewer rows or \
         smaller tensors, or raise 'models.memory_budget'",
        limit >> 20
    );
    PredictError::new(ErrorCode::TooLarge, message)
        .with_origin(ErrorOrigin::Model)
        .with_source(error)
}

impl Drop for RunTimeout {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl CurrentRun {
    fn lock(&self) -> MutexGuard<'_, Option<Run>> {
        // No update of the value can be interrupted by a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops the current run if it exceeds the limit. Returns the time until the next check.
    fn stop_late(&self, limit: Duration) -> Duration {
        let mut under_way = self.lock();
        let Some(run) = under_way.as_mut().filter(|run| !run.late) else {
            return limit;
        };
        let left = limit.saturating_sub(run.since.elapsed());
        if !left.is_zero() {
            return left;
        }
        // The lock is held until `terminate` returns, so a late stop cannot hit the next run.
        run.late = true;
        if let Err(error) = run.options.terminate() {
            tracing::warn!(error = %error, "run not stopped");
        }
        limit
    }
}

#[cfg(test)]
mod tests {
    use ort::session::RunOptions;

    use super::*;
    use crate::Runtime;

    #[tokio::test]
    async fn a_late_run_is_stopped_and_a_quick_one_is_not() {
        let library = Runtime::locate(None).expect("run scripts/get-ort.sh before the tests");
        Runtime::init(&library).unwrap();
        let options = || Arc::new(RunOptions::new().unwrap());
        let limit = Duration::from_millis(40);
        let mut watch = RunTimeout::new(limit).unwrap();
        let under_way = watch.under_way.clone();
        let failed = || Err::<(), _>(PredictError::internal("the run failed", ""));
        // A run that starts while the task sleeps gets its full time.
        assert_eq!(under_way.stop_late(limit), limit);
        let quick = watch.over(&options(), |_| {
            assert!(under_way.stop_late(limit) <= limit);
            failed()
        });
        assert_eq!(quick.unwrap_err().code, ErrorCode::Internal);
        let late = tokio::task::spawn_blocking(move || {
            let until = Instant::now() + Duration::from_secs(20);
            let result = watch.over(&options(), |_| {
                let stopped = || under_way.lock().as_ref().is_some_and(|run| run.late);
                while !stopped() && Instant::now() < until {
                    std::thread::sleep(Duration::from_millis(2));
                }
                failed()
            });
            (result, watch)
        });
        let (late, mut watch) = late.await.unwrap();
        assert_eq!(late.unwrap_err().code, ErrorCode::DeadlineExceeded);
        let next = watch.over(&options(), |_| Ok::<_, PredictError>(7));
        assert_eq!(next.unwrap(), 7);
    }
}
