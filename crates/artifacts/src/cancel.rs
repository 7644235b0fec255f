//! Tells blocking work that the load that wanted it is gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use volley_types::PredictError;

use crate::failure;

/// Asked by work that blocks.
#[derive(Clone, Default)]
pub(crate) struct Cancel(Arc<AtomicBool>);

/// Stops when it is dropped.
pub(crate) struct StopOnDrop(Cancel);

impl Cancel {
    pub(crate) fn on_drop(&self) -> StopOnDrop {
        StopOnDrop(self.clone())
    }

    /// # Errors
    /// `Cancelled` once nobody waits any more.
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
