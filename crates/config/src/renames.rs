//! Renamed keys: their names in files without a version, and their current names.

use crate::kind::FileKind;

/// A key of files without a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rename {
    /// The full name in files without a version.
    pub old: &'static str,
    /// The current full name; equal to `old` if only the form of the value changed.
    pub new: &'static str,
    /// Whether the value is a size. Files without a version could give it as a plain number of
    /// bytes.
    pub is_size: bool,
}

/// All renamed keys of a kind of file, and the keys whose value has a new form.
#[must_use]
pub fn renames(kind: FileKind) -> &'static [Rename] {
    match kind {
        FileKind::Coordinator => COORDINATOR,
        FileKind::Worker => WORKER,
    }
}

/// The rename of the key `old`, if any.
pub(crate) fn of(kind: FileKind, old: &str) -> Option<&'static Rename> {
    renames(kind).iter().find(|rename| rename.old == old)
}

/// Whether files without a version had the table `name` with renamed keys.
pub(crate) fn has_table(kind: FileKind, name: &str) -> bool {
    renames(kind).iter().any(|rename| is_in(rename.old, name))
}

/// Whether a renamed key is now in the table `name`. The table `limits` no longer has keys.
pub(crate) fn is_table(kind: FileKind, name: &str) -> bool {
    renames(kind).iter().any(|rename| is_in(rename.new, name))
}

fn is_in(key: &str, table: &str) -> bool {
    let rest = key.strip_prefix(table);
    rest.is_some_and(|rest| rest.starts_with('.'))
}

const fn key(old: &'static str, new: &'static str) -> Rename {
    let is_size = false;
    Rename { old, new, is_size }
}

const fn size(old: &'static str, new: &'static str) -> Rename {
    let is_size = true;
    Rename { old, new, is_size }
}

const COORDINATOR: &[Rename] = &[
    key("listen.also", "listen.additional"),
    key("cluster.wait", "cluster.await_invitation"),
    key("cluster.compatibility_level", "cluster.feature_level"),
    key("cluster.snapshot_every", "raft.snapshot_threshold"),
    key("cluster.write_timeout", "raft.write_timeout"),
    key("cluster.raft_multiplier", "raft.timeout_multiplier"),
    key("limits.max_streams", "requests.max_concurrent"),
    size("limits.max_body_bytes", "requests.max_body_size"),
    size("limits.max_tensor_bytes", "requests.max_tensor_size"),
    size("limits.max_inflight_body_bytes", "requests.max_body_memory"),
    key("limits.request_timeout", "requests.default_timeout"),
    key("limits.max_request_timeout", "requests.max_timeout"),
    key("limits.max_connections", "http.max_connections"),
    key(
        "limits.max_connections_per_address",
        "http.max_connections_per_address",
    ),
    key("limits.header_timeout", "http.header_timeout"),
    key("limits.body_timeout", "http.body_timeout"),
    key("limits.idle_timeout", "http.idle_timeout"),
    key("limits.write_stall", "http.write_timeout"),
    key("limits.keep_alive", "streams.keep_alive_interval"),
    key("limits.resume_window", "resume.window"),
    size("limits.resume_stream_bytes", "resume.max_stream_size"),
    size("limits.resume_tenant_bytes", "resume.max_tenant_size"),
    size("limits.resume_total_bytes", "resume.max_total_size"),
    key("limits.responses_age", "stored_responses.max_age"),
    key(
        "limits.responses_tenant_count",
        "stored_responses.max_per_tenant",
    ),
    size(
        "limits.responses_response_bytes",
        "stored_responses.max_response_size",
    ),
    size(
        "limits.responses_tenant_bytes",
        "stored_responses.max_tenant_size",
    ),
    size(
        "limits.responses_total_bytes",
        "stored_responses.max_total_size",
    ),
    key("limits.max_tries", "routing.max_attempts"),
    key("limits.retry_ratio", "routing.retry_ratio"),
    key("limits.hedge_after", "routing.hedge_delay"),
    key("limits.slow_start", "routing.slow_start_window"),
    key("limits.wake_timeout", "activation.timeout"),
    key("limits.max_waking", "activation.max_pending"),
    key("limits.suspect_after", "liveness.suspect_timeout"),
    key("limits.dead_after", "liveness.dead_timeout"),
    key("limits.replace_after", "placement.replacement_delay"),
    key("limits.rebalance_after", "placement.rebalance_delay"),
    key("limits.tenant_share", "registry.tenant_quota_percent"),
    key("limits.failed_auth_burst", "security.failed_auth_burst"),
    key(
        "limits.failed_auth_per_minute",
        "security.failed_auth_per_minute",
    ),
    key("limits.drain_grace", "shutdown.delay"),
    key("limits.drain_timeout", "shutdown.drain_timeout"),
];

const WORKER: &[Rename] = &[
    key("limits.heartbeat_interval", "cluster.heartbeat_interval"),
    size("limits.memory_budget", "models.memory_budget"),
    key("limits.concurrent_loads", "models.max_concurrent_loads"),
    key("limits.load_timeout", "models.load_timeout"),
    key("limits.unload_timeout", "models.unload_timeout"),
    key("limits.queue_per_replica", "queue.max_per_replica"),
    key("limits.queue_timeout", "queue.timeout"),
    key("limits.max_exchanges", "flight.max_concurrent_streams"),
    key("limits.write_stall", "flight.write_timeout"),
    key("limits.drain_timeout", "shutdown.drain_timeout"),
    key("onnx.gpu", "onnx.first_gpu"),
    key("onnx.gpus", "onnx.gpu_count"),
    size("onnx.process_memory", "onnx.process_memory"),
    key("artifacts.allow", "artifacts.allowed_urls"),
    size("artifacts.max_model_bytes", "artifacts.max_model_size"),
    size("artifacts.cache_bytes", "artifacts.cache_size"),
    size("artifacts.min_free_bytes", "artifacts.min_free_size"),
    key(
        "artifacts.concurrent_files",
        "artifacts.max_concurrent_files",
    ),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_two_keys_have_one_name() {
        for kind in [FileKind::Coordinator, FileKind::Worker] {
            let all = renames(kind);
            let old: BTreeSet<_> = all.iter().map(|rename| rename.old).collect();
            let new: BTreeSet<_> = all.iter().map(|rename| rename.new).collect();
            assert_eq!((old.len(), new.len()), (all.len(), all.len()));
            let both = old.intersection(&new).copied().collect::<Vec<_>>();
            let unchanged = all.iter().filter(|rename| rename.old == rename.new);
            assert_eq!(both, unchanged.map(|rename| rename.old).collect::<Vec<_>>());
        }
    }
}
