//! Files without a format version.

use volley_config::FileKind;

use crate::config;

/// The plan of the migrated file, and its text.
fn migrated(text: &str) -> (String, String) {
    let migration = volley_config::migrate(text).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("c.toml");
    std::fs::write(&path, &migration.text).unwrap();
    let plan = plan_of(&path, migration.kind);
    let again = volley_config::migrate(&migration.text).unwrap();
    assert!(!again.is_changed && again.text == migration.text);
    (plan, migration.text)
}

fn plan_of(path: &std::path::Path, kind: FileKind) -> String {
    match kind {
        FileKind::Coordinator => format!("{:?}", config::coordinator::read(path).unwrap()),
        FileKind::Worker => format!("{:?}", config::worker::read(path).unwrap()),
    }
}

#[test]
fn a_file_with_every_key_means_the_same_afterwards() {
    for (old, new) in [
        (
            include_str!("migration/coordinator-before.toml"),
            include_str!("migration/coordinator.toml"),
        ),
        (
            include_str!("migration/worker-before.toml"),
            include_str!("migration/worker.toml"),
        ),
    ] {
        let (_, text) = migrated(old);
        assert_eq!(text, new);
        let migration = volley_config::migrate(old).unwrap();
        let all = volley_config::renames(migration.kind);
        let differ = all.iter().filter(|it| it.old != it.new);
        assert_eq!(migration.renamed.len(), differ.count());
    }
}

#[test]
fn what_a_migrated_file_says_is_what_the_node_does() {
    let (coordinator, _) = migrated(include_str!("migration/coordinator-before.toml"));
    for meant in [
        "max_streams: 11",
        "max_body_bytes: 1048576",
        "max_inflight_body_bytes: 3000000",
        "write_stall: 12s",
        "keep_alive: 13s",
        "max_attempts: 5",
        "activation_timeout: 14s",
        "dead_after: 4s",
        "snapshot_every: 500",
        "level: 2",
        "drain_grace: 15ms",
    ] {
        assert!(coordinator.contains(meant), "{meant}: {coordinator}");
    }
    let (worker, _) = migrated(include_str!("migration/worker-before.toml"));
    for meant in [
        "memory_budget: Some(12884901888)",
        "queue_per_replica: 7",
        "max_exchanges: 8",
        "heartbeat_interval: 250ms",
        "gpu: 1",
        "gpus: 2",
        "cache_bytes: 1099511627776",
        "process_memory: Some(4096)",
    ] {
        assert!(worker.contains(meant), "{meant}: {worker}");
    }
}

/// The sample files of the previous version.
#[test]
fn the_samples_of_the_version_before_mean_what_todays_do() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for folder in ["cluster-config", "deploy/compose"] {
        for entry in std::fs::read_dir(root.join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|it| it != "toml") {
                continue;
            }
            let today = std::fs::read_to_string(&path).unwrap();
            // They differ only in the line with the version.
            let before = today.replacen("version = 1\n\n", "", 1);
            let before = before.replacen("version = 1\n", "", 1);
            assert_ne!(before, today);
            let (plan, text) = migrated(&before);
            let kind = volley_config::migrate(&today).unwrap().kind;
            assert_eq!(plan, plan_of(&path, kind), "{text}");
            assert!(text.contains("version = 1\n"));
        }
    }
}
