//! The events of a run: as a number for comparison, and as text on demand.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::Instant;

/// The events so far. Clones share them.
#[derive(Clone)]
pub struct Trace(Arc<Mutex<State>>);

struct State {
    began: Option<Instant>,
    /// Sum of the hashes of all lines, so that lines of the same moment may come in any order.
    mark: u64,
    lines: Option<Vec<String>>,
}

impl Trace {
    /// Creates a trace. It keeps the lines only if `kept`.
    #[must_use]
    pub fn new(kept: bool) -> Self {
        Self(Arc::new(Mutex::new(State {
            began: None,
            mark: 0,
            lines: kept.then(Vec::new),
        })))
    }

    /// Records an event at the current time.
    pub fn line(&self, what: fmt::Arguments<'_>) {
        let mut state = self.0.lock();
        let now = Instant::now();
        let at = now - *state.began.get_or_insert(now);
        let line = format!("{:>7} ms  {what}", at.as_millis());
        let mut hasher = DefaultHasher::new();
        line.hash(&mut hasher);
        state.mark = state.mark.wrapping_add(hasher.finish());
        if let Some(lines) = &mut state.lines {
            lines.push(line);
        }
    }

    /// Returns a number that is the same for two runs with the same events.
    #[must_use]
    pub fn mark(&self) -> u64 {
        self.0.lock().mark
    }

    /// Returns the lines, if they are kept.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        self.0.lock().lines.clone().unwrap_or_default()
    }
}
