//! Statistics of requests that this coordinator has answered through `infer` and over gRPC, in
//! Triton's terms.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use serde_json::{Value, json};
use volley_types::ModelName;
use volley_types::registry::RegistryState;

/// Maximum number of model versions with statistics. Beyond it, the first one by name is dropped.
const MAX_COUNTED: usize = 4_096;

pub(super) type CountsByModel = BTreeMap<(ModelName, String), Counts>;

/// Statistics of all models, by name and version.
#[derive(Debug, Default)]
pub(crate) struct Statistics(Mutex<CountsByModel>);

impl Statistics {
    /// The statistics of one version of a model.
    pub(super) fn of(&self, key: &(ModelName, String)) -> Counts {
        self.0.lock().get(key).cloned().unwrap_or_default()
    }

    /// The statistics of all requested models in `registry`, which has only those that the caller
    /// may see.
    pub(super) fn all(&self, registry: &RegistryState) -> CountsByModel {
        let mut counted = self.0.lock().clone();
        counted.retain(|(name, _), _| registry.models.contains_key(name));
        counted
    }

    /// Starts the timer of a request. The request counts as failed unless [`RequestTimer::is_done`]
    /// is called.
    pub(super) fn start(&self, model: &ModelName, version: &str) -> RequestTimer<'_> {
        RequestTimer {
            statistics: self,
            key: (model.clone(), version.to_owned()),
            rows: 0,
            started: Instant::now(),
            read: None,
            inferred: None,
            done: None,
        }
    }

    fn count(&self, key: &(ModelName, String), update: impl FnOnce(&mut Counts)) {
        let mut counted = self.0.lock();
        if let Some(counts) = counted.get_mut(key) {
            update(counts);
        } else {
            if MAX_COUNTED <= counted.len() {
                counted.pop_first();
            }
            update(counted.entry(key.clone()).or_default());
        }
    }
}

/// Timer of a running request.
pub(super) struct RequestTimer<'s> {
    statistics: &'s Statistics,
    key: (ModelName, String),
    rows: usize,
    started: Instant,
    read: Option<Instant>,
    inferred: Option<Instant>,
    done: Option<Instant>,
}

impl RequestTimer<'_> {
    /// The tensors have been converted to this number of rows.
    pub(super) fn is_read(&mut self, rows: usize) {
        self.rows = rows;
        self.read = Some(Instant::now());
    }

    /// The model has responded.
    pub(super) fn is_inferred(&mut self) {
        self.inferred = Some(Instant::now());
    }

    /// The response is formatted.
    pub(super) fn is_done(&mut self) {
        self.done = Some(Instant::now());
    }
}

impl Drop for RequestTimer<'_> {
    fn drop(&mut self) {
        let whole = self.started.elapsed();
        let rows = self.rows as u64;
        self.statistics.count(&self.key, |counts| {
            counts.last = Some(SystemTime::now());
            let (Some(read), Some(inferred), Some(done)) = (self.read, self.inferred, self.done)
            else {
                counts.fail.add(whole);
                return;
            };
            counts.rows += rows;
            counts.success.add(done.duration_since(self.started));
            counts.input.add(read.duration_since(self.started));
            counts.infer.add(inferred.duration_since(read));
            counts.output.add(done.duration_since(inferred));
        });
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Total {
    pub(super) count: u64,
    pub(super) time: Duration,
}

impl Total {
    fn add(&mut self, time: Duration) {
        self.count += 1;
        self.time += time;
    }

    pub(super) fn ns(self) -> u64 {
        u64::try_from(self.time.as_nanos()).unwrap_or(u64::MAX)
    }

    pub(super) fn json(self) -> Value {
        json!({ "count": self.count, "ns": self.ns() })
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Counts {
    last: Option<SystemTime>,
    pub(super) rows: u64,
    pub(super) success: Total,
    pub(super) fail: Total,
    pub(super) input: Total,
    pub(super) infer: Total,
    pub(super) output: Total,
}

impl Counts {
    /// End of the last request in milliseconds since 1970; 0 before the first one.
    pub(super) fn last_ms(&self) -> u64 {
        let last = self
            .last
            .and_then(|last| last.duration_since(UNIX_EPOCH).ok());
        last.map_or(0, |last| {
            u64::try_from(last.as_millis()).unwrap_or(u64::MAX)
        })
    }

    pub(super) fn json(&self, (model, version): &(ModelName, String)) -> Value {
        let none = Total::default().json();
        json!({
            "name": model.as_str(),
            "version": version,
            "last_inference": self.last_ms(),
            "inference_count": self.rows,
            "execution_count": self.success.count,
            "inference_stats": {
                "success": self.success.json(),
                "fail": self.fail.json(),
                "queue": none.clone(),
                "compute_input": self.input.json(),
                "compute_infer": self.infer.json(),
                "compute_output": self.output.json(),
                "cache_hit": none.clone(),
                "cache_miss": none,
            },
            "batch_stats": [],
        })
    }
}
