//! The verdict on a run.

/// The first violation of an invariant, if any. Later violations may only follow from it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict(Option<String>);

impl Verdict {
    /// Records a violation.
    pub fn breaks(&mut self, why: impl Into<String>) {
        self.0.get_or_insert_with(|| why.into());
    }

    /// Returns the first violation.
    #[must_use]
    pub fn broken(&self) -> Option<&str> {
        self.0.as_deref()
    }

    /// Returns whether all invariants hold.
    ///
    /// # Errors
    /// The first violation.
    pub fn check(&self) -> Result<(), String> {
        self.0.clone().map_or(Ok(()), Err)
    }
}
