//! Whether a law was broken.

/// The first law that was broken, if any was: what is broken after it may only follow from it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict(Option<String>);

impl Verdict {
    /// A law is broken.
    pub fn breaks(&mut self, why: impl Into<String>) {
        self.0.get_or_insert_with(|| why.into());
    }

    /// The first that was broken.
    #[must_use]
    pub fn broken(&self) -> Option<&str> {
        self.0.as_deref()
    }

    /// Whether all laws hold.
    ///
    /// # Errors
    /// The first that was broken.
    pub fn check(&self) -> Result<(), String> {
        self.0.clone().map_or(Ok(()), Err)
    }
}
