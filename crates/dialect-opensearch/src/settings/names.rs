//! The supported settings and their effect.

use volley_types::registry::{MAX_MODEL_ON_NODE, PLACEMENT_STRATEGY, PlacementStrategy, REBALANCE};

macro_rules! ml {
    ($name:literal) => {
        concat!("plugins.ml_commons.", $name)
    };
}

pub(crate) const TRUSTED_ENDPOINTS: &str = ml!("trusted_connector_endpoints_regex");
pub(crate) const TRUSTED_URLS: &str = ml!("trusted_url_regex");
pub(crate) const VIA_URL: &str = ml!("allow_registering_model_via_url");
pub(crate) const VIA_LOCAL_FILE: &str = ml!("allow_registering_model_via_local_file");
pub(crate) const CUSTOM_PLAN: &str = ml!("allow_custom_deployment_plan");
pub(crate) const STREAM_ENABLED: &str = ml!("stream_enabled");
pub(crate) const REMOTE_ENABLED: &str = ml!("remote_inference.enabled");
pub(crate) const LOCAL_ENABLED: &str = ml!("local_model.enabled");
pub(crate) const MAX_BATCHES: &str = ml!("max_batch_inference_tasks");

/// Type and effect of a setting.
#[derive(Clone, Copy, Debug)]
pub(super) enum SettingKind {
    /// A boolean that takes effect.
    Flag,
    /// A number that takes effect.
    Count { least: u64 },
    /// A pattern that takes effect.
    Pattern,
    /// A list of patterns that takes effect.
    Patterns,
    /// The placement strategy, which takes effect.
    Strategy,
    /// Stored and returned, but without effect.
    ReadOver,
    /// Must have this value, because Volley always behaves this way.
    Only { value: bool, why: &'static str },
    /// Rejected with a hint, because this is configured elsewhere.
    Refused { why: &'static str },
}

/// A supported setting.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setting {
    pub(super) name: &'static str,
    pub(super) kind: SettingKind,
    /// Default value as JSON.
    pub(super) default: &'static str,
}

const fn setting(name: &'static str, kind: SettingKind, default: &'static str) -> Setting {
    Setting {
        name,
        kind,
        default,
    }
}

const fn read_over(name: &'static str, default: &'static str) -> Setting {
    setting(name, SettingKind::ReadOver, default)
}

const KEYS: &str = "must be false: access to models is controlled by keys";
const WORKERS: &str = "is not a setting of the cluster: set it in each worker's configuration file";

/// All settings. The defaults describe Volley, and some differ from OpenSearch's.
pub(super) const SETTINGS: &[Setting] = &[
    setting(TRUSTED_ENDPOINTS, SettingKind::Patterns, "[\".*\"]"),
    setting(TRUSTED_URLS, SettingKind::Pattern, "\".*\""),
    setting(MAX_MODEL_ON_NODE, SettingKind::Count { least: 1 }, "10000"),
    setting(PLACEMENT_STRATEGY, SettingKind::Strategy, "\"spread\""),
    setting(REBALANCE, SettingKind::Flag, "true"),
    setting(MAX_BATCHES, SettingKind::Count { least: 0 }, "100"),
    setting(VIA_URL, SettingKind::Flag, "true"),
    setting(VIA_LOCAL_FILE, SettingKind::Flag, "true"),
    setting(CUSTOM_PLAN, SettingKind::Flag, "true"),
    setting(STREAM_ENABLED, SettingKind::Flag, "true"),
    setting(REMOTE_ENABLED, SettingKind::Flag, "true"),
    setting(LOCAL_ENABLED, SettingKind::Flag, "true"),
    setting(
        ml!("model_access_control_enabled"),
        SettingKind::Only {
            value: false,
            why: KEYS,
        },
        "false",
    ),
    setting(
        ml!("connector_access_control_enabled"),
        SettingKind::Only {
            value: false,
            why: KEYS,
        },
        "false",
    ),
    setting(
        ml!("connector.private_ip_enabled"),
        SettingKind::Refused { why: WORKERS },
        "false",
    ),
    setting(
        ml!("max_ml_task_per_node"),
        SettingKind::Refused { why: WORKERS },
        "10",
    ),
    setting(
        ml!("exclude_nodes._name"),
        SettingKind::Refused { why: WORKERS },
        "\"\"",
    ),
    read_over(ml!("only_run_on_ml_node"), "true"),
    read_over(ml!("task_dispatch_policy"), "\"least_load\""),
    read_over(ml!("sync_up_job_interval_in_seconds"), "0"),
    read_over(ml!("monitoring_request_count"), "100"),
    read_over(ml!("max_register_model_tasks_per_node"), "10"),
    read_over(ml!("max_deploy_model_tasks_per_node"), "10"),
    read_over(ml!("ml_task_timeout_in_seconds"), "600"),
    read_over(ml!("native_memory_threshold"), "90"),
    read_over(ml!("jvm_heap_memory_threshold"), "85"),
    read_over(ml!("disk_free_space_threshold"), "\"5gb\""),
    read_over(ml!("model_auto_redeploy.enable"), "true"),
    read_over(ml!("model_auto_redeploy.lifetime_retry_times"), "3"),
    read_over(ml!("model_auto_redeploy_success_ratio"), "0.8"),
    read_over(ml!("model_auto_deploy.enable"), "false"),
    read_over(ml!("safe_delete_model"), "false"),
    read_over(ml!("metrics_collection_enabled"), "true"),
    read_over(ml!("metrics_static_collection_enabled"), "true"),
    read_over(ml!("memory_feature_enabled"), "false"),
    read_over(ml!("rag_pipeline_feature_enabled"), "false"),
    read_over(ml!("agent_framework_enabled"), "false"),
    read_over(ml!("controller_enabled"), "false"),
];

/// The names of the placement strategies.
pub(super) fn strategies() -> Vec<&'static str> {
    let all = PlacementStrategy::ALL.iter();
    all.map(|(name, _)| *name).collect()
}
