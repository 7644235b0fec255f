//! The memory limit of runs for what the arena does not see.
//!
//! Operators keep the contents of texts, and their own containers, outside of the shared arena.
//! While runs are in flight, one thread compares the memory of the process with its memory at the
//! begin of each run, and stops the runs since whose begin it has grown by more than the limit.
//! Which of them took the memory is not known. The thread sleeps while no run is in flight.
//!
//! ONNX Runtime ends a stopped run after its current operator. A single operator can therefore
//! exceed the limit until it ends. Only the limit of a model's own process has no such gap.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ort::session::{NoSelectedOutputs, RunOptions};

use crate::malloc;

/// Time between two measurements.
const INTERVAL: Duration = Duration::from_millis(15);

static WATCH: Watch = Watch {
    state: Mutex::new(State::new()),
    wake: Condvar::new(),
};

/// The runs of this process, and the thread that watches them.
struct Watch {
    state: Mutex<State>,
    wake: Condvar,
}

struct State {
    /// Maximum growth of the memory during a run, in bytes; `None` if runs are not watched.
    limit: Option<u64>,
    /// The last measured memory of the process, in bytes.
    resident: u64,
    /// Expected bytes of the models that are being loaded.
    loading: u64,
    runs: BTreeMap<u64, WatchedRun>,
    next_key: u64,
    /// Whether a run began since the last measurement.
    fresh: bool,
    /// Whether the thread waits for a run.
    asleep: bool,
    /// Whether freed memory is returned to the system when the stopped runs have ended.
    release: bool,
}

struct WatchedRun {
    options: Arc<RunOptions<NoSelectedOutputs>>,
    /// Memory of the process when the run began, and of models that were loaded since.
    before: u64,
    stopped: bool,
}

/// Watches all later runs of this process: during a run, the memory may grow by `bytes`. Only the
/// first call of a process takes effect.
pub(crate) fn limit(bytes: u64) {
    let mut state = WATCH.lock();
    if state.limit.is_some() {
        return;
    }
    if resident().is_none() {
        tracing::warn!("memory of runs not limited: this system does not tell it");
        return;
    }
    let thread = std::thread::Builder::new().name("run-memory".to_owned());
    match thread.spawn(|| WATCH.watch()) {
        Ok(_) => state.limit = Some(bytes),
        Err(error) => tracing::warn!(%error, "memory of runs not limited"),
    }
}

/// Registers a run with `options`, which no other run uses meanwhile. `None` without a limit.
pub(crate) fn begin(options: &Arc<RunOptions<NoSelectedOutputs>>) -> Option<RunEntry> {
    let mut state = WATCH.lock();
    state.limit?;
    if std::mem::take(&mut state.asleep) {
        // The last measurement is old.
        state.resident = resident().unwrap_or(state.resident);
        WATCH.wake.notify_one();
    }
    Some(RunEntry(Some(state.begin(options))))
}

/// A run in flight.
#[derive(Debug)]
pub(crate) struct RunEntry(Option<u64>);

impl RunEntry {
    /// Ends the run. Returns the limit in bytes if the run was stopped because of it.
    pub(crate) fn end(mut self) -> Option<u64> {
        self.0.take().and_then(|key| WATCH.lock().end(key))
    }
}

impl Drop for RunEntry {
    fn drop(&mut self) {
        if let Some(key) = self.0.take() {
            WATCH.lock().end(key);
        }
    }
}

/// Excludes the weights of a model that is being loaded, about `bytes`, from the memory of runs,
/// until the result is dropped.
pub(crate) fn load(bytes: u64) -> LoadingWeights {
    WATCH.lock().load(bytes);
    LoadingWeights(bytes)
}

/// A load in progress.
#[derive(Debug)]
pub(crate) struct LoadingWeights(u64);

impl Drop for LoadingWeights {
    fn drop(&mut self) {
        let mut state = WATCH.lock();
        state.loading = state.loading.saturating_sub(self.0);
    }
}

impl Watch {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Every update of the state leaves it consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watch(&self) {
        loop {
            let mut state = self.lock();
            while state.runs.is_empty() && !state.fresh && !state.release {
                state.asleep = true;
                let woken = self.wake.wait(state);
                state = woken.unwrap_or_else(PoisonError::into_inner);
            }
            (state.fresh, state.asleep) = (false, false);
            drop(state);
            std::thread::sleep(INTERVAL);
            let Some(resident) = resident() else {
                continue;
            };
            let release = self.lock().measured(resident);
            if release {
                malloc::release();
            }
        }
    }
}

impl State {
    const fn new() -> Self {
        Self {
            limit: None,
            resident: 0,
            loading: 0,
            runs: BTreeMap::new(),
            next_key: 0,
            fresh: false,
            asleep: false,
            release: false,
        }
    }

    fn begin(&mut self, options: &Arc<RunOptions<NoSelectedOutputs>>) -> u64 {
        let key = self.next_key;
        self.next_key += 1;
        self.fresh = true;
        let run = WatchedRun {
            options: options.clone(),
            before: self.resident.saturating_add(self.loading),
            stopped: false,
        };
        self.runs.insert(key, run);
        key
    }

    fn end(&mut self, key: u64) -> Option<u64> {
        let run = self.runs.remove(&key)?;
        self.limit.filter(|_| run.stopped)
    }

    fn load(&mut self, bytes: u64) {
        self.loading = self.loading.saturating_add(bytes);
        for run in self.runs.values_mut() {
            run.before = run.before.saturating_add(bytes);
        }
    }

    /// Stops the runs during which the memory grew to `resident` bytes, beyond the limit. Returns
    /// whether freed memory should be returned to the system.
    fn measured(&mut self, resident: u64) -> bool {
        self.resident = resident;
        let Some(limit) = self.limit else {
            return false;
        };
        for run in self.runs.values_mut() {
            if run.stopped || resident <= run.before.saturating_add(limit) {
                continue;
            }
            let grown = resident - run.before;
            tracing::warn!(grown, limit, "run stopped: it exceeded the memory limit");
            // The lock is held until `terminate` returns, so a late stop cannot hit the next run.
            run.stopped = true;
            self.release = true;
            if let Err(error) = run.options.terminate() {
                tracing::warn!(error = %error, "run not stopped");
            }
        }
        let ended = !self.runs.values().any(|run| run.stopped);
        self.release && ended && std::mem::take(&mut self.release)
    }
}

/// The memory of this process in bytes, without mapped files.
fn resident() -> Option<u64> {
    anonymous_bytes(&std::fs::read_to_string("/proc/self/status").ok()?)
}

/// The private resident memory in the text of `/proc/self/status`.
fn anonymous_bytes(status: &str) -> Option<u64> {
    let mut lines = status.lines();
    let line = lines.find_map(|line| line.strip_prefix("RssAnon:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1_024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Runtime;

    #[test]
    fn runs_since_whose_begin_the_memory_grew_beyond_the_limit_are_stopped() {
        let library = Runtime::locate(None).expect("run scripts/get-ort.sh before the tests");
        Runtime::init(&library).unwrap();
        let options = || Arc::new(RunOptions::new().unwrap());
        let mut state = State::new();
        (state.limit, state.resident) = (Some(100), 1_000);
        let old = state.begin(&options());
        assert!(!state.measured(1_100));
        let young = state.begin(&options());
        assert!(!state.measured(1_150), "the stopped run is in flight");
        // The memory was already in use when the second run began.
        assert_eq!(state.end(young), None);
        assert_eq!(state.end(old), Some(100));
        assert!(state.measured(1_150), "the freed memory is returned");
        assert!(!state.measured(1_150));
        assert_eq!(state.end(old), None);
    }

    #[test]
    fn weights_of_loads_do_not_count() {
        let library = Runtime::locate(None).expect("run scripts/get-ort.sh before the tests");
        Runtime::init(&library).unwrap();
        let options = || Arc::new(RunOptions::new().unwrap());
        let mut state = State::new();
        state.limit = Some(100);
        let before = state.begin(&options());
        state.load(500);
        let during = state.begin(&options());
        state.measured(550);
        assert_eq!((state.end(before), state.end(during)), (None, None));
    }

    #[test]
    fn mapped_files_do_not_count() {
        let status = "VmRSS:\t  9000 kB\nRssAnon:\t     12 kB\nRssFile:\t   8988 kB\n";
        assert_eq!(anonymous_bytes(status), Some(12 << 10));
        assert_eq!(anonymous_bytes("RssAnon: much"), None);
    }
}
