//! A resolved model, which a request carries within a process.

use std::any::Any;
use std::sync::Arc;

use crate::ids::ModelRef;
use crate::signature::Signature;

/// A resolved model: its schemas, and the data with which the resolver runs it without another
/// lookup.
#[derive(Clone)]
pub struct Resolved {
    /// The name that was resolved.
    pub model: ModelRef,
    /// The schemas of its rows.
    pub signature: Signature,
    target: Option<Arc<dyn Any + Send + Sync>>,
}

impl Resolved {
    /// A model with this signature.
    #[must_use]
    pub fn new(model: ModelRef, signature: Signature) -> Self {
        Self {
            model,
            signature,
            target: None,
        }
    }

    /// Adds the resolver's private data.
    #[must_use]
    pub fn with_target(mut self, target: impl Any + Send + Sync) -> Self {
        self.target = Some(Arc::new(target));
        self
    }

    /// The resolver's private data; `None` if another resolver set it.
    #[must_use]
    pub fn target<T: Any + Send + Sync>(&self) -> Option<&T> {
        self.target.as_ref()?.downcast_ref()
    }
}

impl std::fmt::Debug for Resolved {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resolved")
            .field("model", &self.model)
            .finish_non_exhaustive()
    }
}
