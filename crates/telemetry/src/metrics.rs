//! The metrics of one node, and their text format.

mod artifacts;
mod certificates;
mod gpus;
mod raft;
#[cfg(test)]
mod reference;
mod replicas;
mod routing;
mod upstream;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use volley_types::{ErrorCode, ModelName};

use self::upstream::Upstream;
use crate::otlp::Tracer;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ModelLabel {
    pub(crate) model: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct OutcomeLabel {
    pub(crate) model: String,
    pub(crate) code: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct LivenessLabel {
    pub(crate) liveness: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct CodeLabel {
    pub(crate) code: &'static str,
}

/// The metrics of one node. Clones share their values.
#[derive(Clone)]
pub struct Metrics(Arc<Families>);

pub(crate) struct Families {
    registry: Registry,
    pub(crate) requests: Family<OutcomeLabel, Counter>,
    pub(crate) chunks: Family<ModelLabel, Counter>,
    pub(crate) first_chunk: Family<ModelLabel, Histogram>,
    pub(crate) duration: Family<ModelLabel, Histogram>,
    pub(crate) queue_wait: Family<ModelLabel, Histogram>,
    pub(crate) active: Family<ModelLabel, Gauge>,
    pub(crate) batch_rows: Family<ModelLabel, Histogram>,
    retries: Family<ModelLabel, Counter>,
    workers: Family<LivenessLabel, Gauge>,
    replicas: Family<ModelLabel, Gauge>,
    memory_budget: Gauge,
    memory_reserved: Gauge,
    model_memory: Family<ModelLabel, Gauge>,
    abandoned_loads: Gauge,
    resumable_streams: Gauge,
    resume_buffer_bytes: Gauge,
    streams_resumed: Counter,
    streams_abandoned: Counter,
    evicted_replicas: Family<ModelLabel, Gauge>,
    evictions: Family<ModelLabel, Counter>,
    reloads: Family<ModelLabel, Counter>,
    model_process_exits: Family<ModelLabel, Counter>,
    raft: raft::Raft,
    artifact_bytes: Counter,
    artifact_fetches: Family<CodeLabel, Counter>,
    artifact_cache_bytes: Gauge,
    certificates: certificates::Certificates,
    gpus: gpus::Gpus,
    routing: routing::Routing,
    upstream: Upstream,
    pub(crate) tracer: OnceLock<Tracer>,
}

/// The resumable streams of a coordinator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResumeCounts {
    /// Streams in the buffer now.
    pub streams: usize,
    /// Memory of their buffers, in bytes.
    pub bytes: usize,
    /// Successful resumptions since the start. A stream that is resumed twice counts twice.
    pub taken_up: u64,
    /// Streams since the start that no client resumed.
    pub abandoned: u64,
}

/// The number of workers by liveness.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerCounts {
    /// Their heartbeat is in time.
    pub alive: usize,
    /// Their heartbeat is late.
    pub suspect: usize,
    /// Their heartbeat has been missing for too long.
    pub dead: usize,
    /// They are shutting down.
    pub draining: usize,
}

fn seconds() -> Histogram {
    // 1 ms to 65 s, in powers of two.
    Histogram::new(exponential_buckets(0.001, 2.0, 17))
}

fn rows() -> Histogram {
    Histogram::new(exponential_buckets(1.0, 2.0, 17))
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// Creates all metrics with the value zero.
    #[must_use]
    pub fn new() -> Self {
        let mut families = Families {
            registry: Registry::with_prefix("volley"),
            requests: Family::default(),
            chunks: Family::default(),
            first_chunk: Family::new_with_constructor(seconds),
            duration: Family::new_with_constructor(seconds),
            queue_wait: Family::new_with_constructor(seconds),
            active: Family::default(),
            batch_rows: Family::new_with_constructor(rows),
            retries: Family::default(),
            workers: Family::default(),
            replicas: Family::default(),
            memory_budget: Gauge::default(),
            memory_reserved: Gauge::default(),
            model_memory: Family::default(),
            abandoned_loads: Gauge::default(),
            resumable_streams: Gauge::default(),
            resume_buffer_bytes: Gauge::default(),
            streams_resumed: Counter::default(),
            streams_abandoned: Counter::default(),
            evicted_replicas: Family::default(),
            evictions: Family::default(),
            reloads: Family::default(),
            model_process_exits: Family::default(),
            raft: raft::Raft::default(),
            artifact_bytes: Counter::default(),
            artifact_fetches: Family::default(),
            artifact_cache_bytes: Gauge::default(),
            certificates: certificates::Certificates::default(),
            gpus: gpus::Gpus::default(),
            routing: routing::Routing::default(),
            upstream: Upstream::default(),
            tracer: OnceLock::new(),
        };
        families.register_predictions();
        families.register_memory();
        families.register_cluster();
        families.register_artifacts();
        families.register_routing();
        families.certificates.register(&mut families.registry);
        families.gpus.register(&mut families.registry);
        families.upstream.register(&mut families.registry);
        Self(Arc::new(families))
    }

    /// Renders the metrics in the OpenMetrics text format.
    #[must_use]
    pub fn encode(&self) -> String {
        let mut out = String::new();
        let encoded = text::encode(&mut out, &self.0.registry);
        debug_assert!(encoded.is_ok(), "writing to a string cannot fail");
        out
    }

    /// Counts a request that was rejected before its stream started. `model` is `None` when the
    /// model is not registered, so that callers cannot create labels.
    pub fn refused(&self, model: Option<&ModelName>, code: ErrorCode) {
        let model = model.map_or_else(|| "unknown".to_owned(), ToString::to_string);
        self.0
            .requests
            .get_or_create(&OutcomeLabel {
                model,
                code: code.as_str(),
            })
            .inc();
    }

    /// Counts an attempt on another replica.
    pub fn retried(&self, model: &ModelName) {
        self.0
            .retries
            .get_or_create(&ModelLabel {
                model: model.to_string(),
            })
            .inc();
    }

    /// Records how long a request waited for its permit.
    pub fn queue_wait(&self, model: &ModelName, wait: Duration) {
        let label = ModelLabel {
            model: model.to_string(),
        };
        self.0
            .queue_wait
            .get_or_create(&label)
            .observe(wait.as_secs_f64());
    }

    /// Sets the number of workers that this coordinator sees, by liveness.
    pub fn set_workers(&self, counts: WorkerCounts) {
        let states = [
            ("alive", counts.alive),
            ("suspect", counts.suspect),
            ("dead", counts.dead),
            ("draining", counts.draining),
        ];
        for (liveness, count) in states {
            let gauge = self.0.workers.get_or_create(&LivenessLabel { liveness });
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    /// Sets the number of resumable streams and the memory of their buffers.
    pub fn set_resumable_streams(&self, held: ResumeCounts) {
        let number = |value: usize| i64::try_from(value).unwrap_or(i64::MAX);
        self.0.resumable_streams.set(number(held.streams));
        self.0.resume_buffer_bytes.set(number(held.bytes));
        let since = |counter: &Counter, now: u64| {
            counter.inner().store(now, Ordering::Relaxed);
        };
        since(&self.0.streams_resumed, held.taken_up);
        since(&self.0.streams_abandoned, held.abandoned);
    }

    /// Sets the number of ready replicas of each model: on this node (worker), or in the cluster
    /// (coordinator).
    pub fn set_ready_replicas(&self, counts: &BTreeMap<ModelName, usize>) {
        self.0.replicas.clear();
        for (model, count) in counts {
            let gauge = self.0.replicas.get_or_create(&ModelLabel {
                model: model.to_string(),
            });
            gauge.set(i64::try_from(*count).unwrap_or(i64::MAX));
        }
    }

    /// Sets the memory budget of this worker, its reserved part, and the memory of each model, all
    /// in bytes.
    pub fn set_memory(&self, budget: u64, reserved: u64, models: &BTreeMap<ModelName, u64>) {
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        self.0.memory_budget.set(number(budget));
        self.0.memory_reserved.set(number(reserved));
        self.0.model_memory.clear();
        for (model, bytes) in models {
            let model = model.to_string();
            let gauge = self.0.model_memory.get_or_create(&ModelLabel { model });
            gauge.set(number(*bytes));
        }
    }

    /// Sets the number of loads that were abandoned and still occupy a thread.
    pub fn set_abandoned_loads(&self, count: usize) {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        self.0.abandoned_loads.set(count);
    }

    pub(crate) fn families(&self) -> &Families {
        &self.0
    }
}

impl Families {
    fn register_predictions(&mut self) {
        let registry = &mut self.registry;
        registry.register(
            "requests",
            "Predictions that ended. A coordinator counts each request once, a worker counts each attempt",
            self.requests.clone(),
        );
        registry.register(
            "chunks",
            "Response rows that were forwarded",
            self.chunks.clone(),
        );
        registry.register(
            "time_to_first_chunk_seconds",
            "Time from acceptance to the first response row",
            self.first_chunk.clone(),
        );
        registry.register(
            "request_duration_seconds",
            "Time from acceptance to the end of the stream",
            self.duration.clone(),
        );
        registry.register(
            "queue_wait_seconds",
            "Time from acceptance by the worker to the permit to run",
            self.queue_wait.clone(),
        );
        registry.register(
            "active_streams",
            "Running streams, including those that wait for a permit",
            self.active.clone(),
        );
        registry.register(
            "batch_rows",
            "Rows in each response batch",
            self.batch_rows.clone(),
        );
        registry.register(
            "retries",
            "Attempts on another replica",
            self.retries.clone(),
        );
        registry.register(
            "ready_replicas",
            "Replicas that accept requests: on this worker, or in total as this coordinator sees them",
            self.replicas.clone(),
        );
    }

    fn register_memory(&mut self) {
        let registry = &mut self.registry;
        registry.register(
            "memory_budget_bytes",
            "Memory that all models of this worker may use together",
            self.memory_budget.clone(),
        );
        registry.register(
            "memory_reserved_bytes",
            "Part of the budget that loaded and loading models use",
            self.memory_reserved.clone(),
        );
        registry.register(
            "model_memory_bytes",
            "Memory that each model uses",
            self.model_memory.clone(),
        );
        registry.register(
            "abandoned_loads",
            "Abandoned loads that still occupy a thread",
            self.abandoned_loads.clone(),
        );
        registry.register(
            "evicted_replicas",
            "Replicas that are evicted and will be loaded for the next request",
            self.evicted_replicas.clone(),
        );
        registry.register(
            "evictions",
            "Idle replicas that were unloaded to make room",
            self.evictions.clone(),
        );
        registry.register(
            "reloads",
            "Evicted replicas that were loaded for a request",
            self.reloads.clone(),
        );
        registry.register(
            "model_process_exits",
            "Processes of models that ended unexpectedly",
            self.model_process_exits.clone(),
        );
    }

    fn register_cluster(&mut self) {
        let registry = &mut self.registry;
        registry.register("workers", "Workers by liveness", self.workers.clone());
        registry.register(
            "resumable_streams",
            "Resumable streams that are kept, including ended ones",
            self.resumable_streams.clone(),
        );
        registry.register(
            "resume_buffer_bytes",
            "Memory of the resumable streams that are kept",
            self.resume_buffer_bytes.clone(),
        );
        registry.register(
            "streams_resumed",
            "Resumable streams that a client resumed",
            self.streams_resumed.clone(),
        );
        registry.register(
            "streams_abandoned",
            "Resumable streams that were canceled because no client resumed them",
            self.streams_abandoned.clone(),
        );
        self.raft.register(registry);
    }
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Metrics")
    }
}
