//! Cancels blocking work when its load is dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use volley_types::PredictError;

use crate::failure;

/// A cancellation flag that blocking work checks.
#[derive(Clone, Default)]
pub(crate) struct Cancel(Arc<AtomicBool>);

/// Cancels the work when dropped.
pub(crate) struct StopOnDrop(Cancel);

impl Cancel {
    pub(crate) fn on_drop(&self) -> StopOnDrop {
        StopOnDrop(self.clone())
    }

    /// Checks the flag.
    ///
    /// # Errors
    /// `Cancelled` once the load has been dropped.
    pub(crate) fn check(&self) -> Result<(), PredictError> {
        if self.0.load(Ordering::Relaxed) {
            return Err(failure::cancelled());
        }
        Ok(())
    }
}

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::Relaxed);
    }
}
