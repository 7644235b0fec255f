//! Which crate may name which: the table of `docs/architecture.md`.

use std::collections::{BTreeMap, BTreeSet};

use cargo_metadata::{DependencyKind, MetadataCommand, Package};

use crate::{assert_none, root};

/// The crates of the workspace that each may depend on, without `volley-`. Dev-dependencies may
/// name anything: a test replaces the next room.
const MAY_NAME: &[(&str, &[&str])] = &[
    ("types", &[]),
    ("proto", &["types"]),
    ("telemetry", &["types"]),
    ("security", &["types"]),
    ("flight", &["types", "proto", "security"]),
    ("backend", &["types"]),
    ("artifacts", &["types", "telemetry", "backend"]),
    ("backend-onnx", &["types", "backend"]),
    (
        "model-host",
        &["types", "proto", "telemetry", "flight", "backend"],
    ),
    ("backend-remote", &["types", "telemetry", "backend"]),
    (
        "worker",
        &["types", "proto", "telemetry", "backend", "security"],
    ),
    ("cluster", &["types", "proto", "security"]),
    (
        "coordinator",
        &["types", "proto", "telemetry", "cluster", "security"],
    ),
    ("api", &["types", "proto", "security"]),
    ("client", &[]),
    ("sql", &["types", "flight"]),
    (
        "cli",
        &[
            "types",
            "telemetry",
            "security",
            "flight",
            "artifacts",
            "model-host",
            "backend",
            "backend-onnx",
            "backend-remote",
            "worker",
            "cluster",
            "coordinator",
            "api",
            "client",
            "sql",
        ],
    ),
    // The decode loop is measured against a bare one over the same library.
    ("bench", &["types", "backend", "backend-onnx", "client"]),
    ("sim", &["types", "proto", "cluster", "coordinator"]),
    ("codegen", &[]),
];

/// Heavy dependencies, and the only crates that may name them.
const HEAVY: &[(&str, &[&str])] = &[
    ("arrow-flight", &["flight"]),
    ("axum", &["api"]),
    ("datafusion", &["sql"]),
    ("datafusion-common", &["types"]),
    ("object_store", &["artifacts"]),
    ("openraft", &["cluster"]),
    ("nvml-wrapper", &["worker"]),
    ("ort", &["backend-onnx"]),
    ("prometheus-client", &["telemetry"]),
    ("protox", &["codegen"]),
    ("redb", &["cluster"]),
    // In artifacts it makes the clients that object_store calls with.
    (
        "reqwest",
        &["artifacts", "backend-remote", "client", "tests"],
    ),
    ("tar", &["artifacts"]),
    ("tokenizers", &["backend-onnx"]),
    ("tonic-prost-build", &["codegen"]),
    ("x509-parser", &["security"]),
    ("zip", &["artifacts", "tests"]),
];

/// What a room may not name although others may.
const NEVER: &[(&str, &[&str])] = &[
    (
        "types",
        &["tokio", "tonic", "axum", "reqwest", "parking_lot"],
    ),
    ("proto", &["tokio", "axum"]),
    ("backend", &["tonic", "axum", "openraft"]),
    ("artifacts", &["tonic", "axum", "openraft", "ort"]),
    ("backend-onnx", &["tonic", "axum", "openraft"]),
    ("backend-remote", &["tonic", "axum", "openraft"]),
    ("model-host", &["axum", "openraft", "ort"]),
    ("worker", &["axum", "openraft"]),
    ("cluster", &["axum", "arrow-array", "arrow-schema"]),
    ("coordinator", &["axum", "ort", "reqwest"]),
    ("client", &["tonic", "axum", "openraft"]),
];

#[test]
fn crates_name_only_what_their_room_allows() {
    let rooms = rooms();
    let table: BTreeMap<_, _> = MAY_NAME.iter().copied().collect();
    let mut problems = Vec::new();
    for (room, names) in &rooms {
        // Whole-cluster stories may see everything.
        if room == "tests" {
            continue;
        }
        let Some(allowed) = table.get(room.as_str()) else {
            problems.push(format!(
                "{room} is not in the table of tests/tests/tidy/borders.rs"
            ));
            continue;
        };
        let ours = names.iter().filter_map(|name| name.strip_prefix("volley-"));
        for other in ours.filter(|other| !allowed.contains(other)) {
            problems.push(format!("{room} may not depend on {other}"));
        }
    }
    for (room, never) in NEVER {
        for name in never.iter().filter(|name| rooms[*room].contains(**name)) {
            problems.push(format!("{room} may not name {name}"));
        }
    }
    assert_none(&problems);
}

#[test]
fn heavy_dependencies_are_named_in_one_place() {
    let mut problems = Vec::new();
    for (room, names) in rooms() {
        for (heavy, places) in HEAVY {
            if names.contains(*heavy) && !places.contains(&room.as_str()) {
                problems.push(format!(
                    "{heavy} is named in {room}; it belongs in {places:?}"
                ));
            }
        }
    }
    assert_none(&problems);
}

/// What each crate names, dev-dependencies aside.
fn rooms() -> BTreeMap<String, BTreeSet<String>> {
    let manifest = root().join("Cargo.toml");
    let mut command = MetadataCommand::new();
    let metadata = command.manifest_path(manifest).no_deps().exec().unwrap();
    let room = |package: &Package| {
        let name = package.name.to_string();
        let names = package.dependencies.iter();
        let names = names.filter(|dependency| dependency.kind != DependencyKind::Development);
        let names = names.map(|dependency| dependency.name.clone()).collect();
        (name.trim_start_matches("volley-").to_owned(), names)
    };
    metadata.packages.iter().map(room).collect()
}
