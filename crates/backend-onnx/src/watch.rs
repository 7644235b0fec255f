//! The limit on how long a run may take.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use volley_types::{ErrorCode, ErrorOrigin, PredictError};

use crate::tensors::Options;

/// Stops runs that take longer than they may: `ONNX Runtime` ends them after the operator that
/// they are in.
#[derive(Clone, Debug)]
pub(crate) struct Watch {
    limit: Duration,
    runtime: Handle,
}

impl Watch {
    /// A watch of the runtime that this is called in.
    ///
    /// # Errors
    /// `Internal` outside of one.
    pub(crate) fn new(limit: Duration) -> Result<Self, PredictError> {
        let runtime = Handle::try_current()
            .map_err(|error| PredictError::internal("a model is loaded within a runtime", error))?;
        Ok(Self { limit, runtime })
    }

    /// What `run` gives, on this thread. `options` must be this run's alone: a late stop then
    /// hits nothing else.
    ///
    /// # Errors
    /// The run's own; `DeadlineExceeded` when it was stopped.
    pub(crate) fn over<'o, T>(
        &self,
        options: &'o Arc<Options>,
        run: impl FnOnce(&'o Options) -> Result<T, PredictError>,
    ) -> Result<T, PredictError> {
        let late = Arc::new(AtomicBool::new(false));
        let (limit, stops, stopped) = (self.limit, options.clone(), late.clone());
        let timer = self.runtime.spawn(async move {
            tokio::time::sleep(limit).await;
            stopped.store(true, Ordering::Release);
            if let Err(error) = stops.terminate() {
                tracing::warn!(error = %error, "a run could not be stopped");
            }
        });
        let result = run(options);
        timer.abort();
        match result {
            Err(error) if late.load(Ordering::Acquire) => {
                let seconds = limit.as_secs_f64();
                tracing::warn!(seconds, error = error.chain(), "a run took too long");
                let message = format!(
                    "the run took longer than {seconds} s and was stopped; send fewer rows, or \
                     raise 'onnx.run_timeout'"
                );
                let late = PredictError::new(ErrorCode::DeadlineExceeded, message);
                Err(late.with_origin(ErrorOrigin::Model))
            }
            result => result,
        }
    }
}
