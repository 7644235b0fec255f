//! Which crate may name which: the table of `docs/explanation/architecture.md`.

use std::collections::{BTreeMap, BTreeSet};

use cargo_metadata::{DependencyKind, MetadataCommand, Package};

use crate::{assert_none, files, read, root};

/// The crates of the workspace that each may depend on, without `volley-`. Dev-dependencies may
/// name anything: a test replaces the next room.
const MAY_NAME: &[(&str, &[&str])] = &[
    ("base", &[]),
    ("types", &["base"]),
    ("proto", &["types"]),
    ("telemetry", &["types"]),
    ("security", &["types"]),
    ("flight", &["types", "proto", "security"]),
    ("backend", &["types"]),
    ("artifacts", &["types", "telemetry", "backend"]),
    ("onnx-runtime", &["types"]),
    ("tool-calls", &[]),
    ("tokens", &["types", "tool-calls"]),
    ("constraints", &["types", "tool-calls", "tokens"]),
    ("chat-template", &["types", "tool-calls"]),
    ("model-directory", &["types", "onnx-runtime", "tokens"]),
    (
        "onnx-tensors",
        &["types", "backend", "onnx-runtime", "model-directory"],
    ),
    (
        "onnx-text",
        &[
            "types",
            "backend",
            "onnx-runtime",
            "model-directory",
            "tokens",
        ],
    ),
    (
        "onnx-generate",
        &[
            "types",
            "backend",
            "onnx-runtime",
            "model-directory",
            "tokens",
            "tool-calls",
            "constraints",
            "chat-template",
        ],
    ),
    (
        "backend-onnx",
        &[
            "types",
            "backend",
            "onnx-runtime",
            "model-directory",
            "tokens",
            "onnx-tensors",
            "onnx-text",
            "onnx-generate",
        ],
    ),
    (
        "model-host",
        &["types", "proto", "telemetry", "flight", "backend"],
    ),
    ("provider-kit", &["types", "backend"]),
    ("providers", &["types", "backend", "provider-kit"]),
    ("remote-http", &["types", "provider-kit"]),
    (
        "backend-remote",
        &[
            "types",
            "telemetry",
            "backend",
            "provider-kit",
            "providers",
            "remote-http",
        ],
    ),
    (
        "backend-python",
        &[
            "types",
            "telemetry",
            "backend",
            "model-directory",
            "model-host",
        ],
    ),
    // The list of backends. Its line for a backend is all that names it.
    (
        "backends",
        &[
            "types",
            "telemetry",
            "artifacts",
            "backend",
            "backend-onnx",
            "backend-python",
            "backend-remote",
            "model-host",
        ],
    ),
    (
        "worker",
        &["types", "proto", "telemetry", "backend", "security"],
    ),
    ("registry", &["types"]),
    ("placement", &["types"]),
    ("cluster", &["types", "proto", "security", "registry"]),
    (
        "coordinator",
        &[
            "types",
            "proto",
            "telemetry",
            "placement",
            "cluster",
            "security",
        ],
    ),
    ("http-edge", &["types", "security"]),
    ("dialect-kit", &["types", "http-edge"]),
    ("shared-memory", &["types"]),
    // No dialect depends on another.
    ("dialect-anthropic", DIALECT),
    ("dialect-cohere", DIALECT),
    ("dialect-huggingface", DIALECT),
    ("dialect-model-routes", DIALECT),
    ("dialect-ollama", DIALECT),
    ("dialect-openai", DIALECT),
    (
        "dialect-opensearch",
        &["types", "http-edge", "dialect-kit", "security", "providers"],
    ),
    (
        "dialect-oip",
        &[
            "types",
            "proto",
            "http-edge",
            "dialect-kit",
            "security",
            "shared-memory",
        ],
    ),
    (
        "admin-api",
        &["types", "http-edge", "dialect-kit", "security"],
    ),
    (
        "gateway",
        &[
            "types",
            "security",
            "http-edge",
            "dialect-kit",
            "admin-api",
            "dialect-anthropic",
            "dialect-cohere",
            "dialect-huggingface",
            "dialect-model-routes",
            "dialect-oip",
            "dialect-ollama",
            "dialect-openai",
            "dialect-opensearch",
        ],
    ),
    ("client", &[]),
    ("config", &[]),
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
            "backends",
            "backend-onnx",
            "backend-python",
            "backend-remote",
            "worker",
            "registry",
            "cluster",
            "coordinator",
            "gateway",
            "client",
            "config",
            "sql",
        ],
    ),
    // The decode loop is measured against a bare one over the same library.
    ("bench", &["types", "backend", "backend-onnx", "client"]),
    (
        "sim",
        &[
            "types",
            "proto",
            "registry",
            "placement",
            "coordinator",
            "sim-kit",
        ],
    ),
    ("sim-kit", &[]),
    ("codegen", &[]),
];

/// What a dialect may depend on: the edge, and what dialects share.
const DIALECT: &[&str] = &["types", "http-edge", "dialect-kit"];

/// Heavy dependencies, and the only crates that may name them.
const HEAVY: &[(&str, &[&str])] = &[
    ("arrow-flight", &["flight"]),
    ("async-compression", &["http-edge"]),
    ("axum", &["http-edge"]),
    ("aws-sigv4", &["remote-http"]),
    ("aws-smithy-eventstream", &["remote-http"]),
    ("datafusion", &["sql"]),
    ("object_store", &["artifacts"]),
    ("openraft", &["cluster"]),
    ("opentelemetry-proto", &["telemetry"]),
    ("nvml-wrapper", &["worker"]),
    ("llguidance", &["constraints"]),
    ("minijinja", &["chat-template", "coordinator"]),
    ("ort", &["onnx-runtime"]),
    ("prometheus-client", &["telemetry"]),
    ("protox", &["codegen"]),
    ("redb", &["cluster"]),
    // In artifacts it makes the clients that object_store calls with.
    ("reqwest", &["artifacts", "remote-http", "client", "tests"]),
    ("rmpv", &["flight"]),
    ("serde_json_path", &["provider-kit"]),
    ("tar", &["artifacts"]),
    ("tokenizers", &["tokens"]),
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
    (
        "base",
        &["tokio", "tonic", "axum", "reqwest", "parking_lot"],
    ),
    ("proto", &["tokio", "axum"]),
    ("backend", &["tonic", "axum", "openraft"]),
    ("artifacts", &["tonic", "axum", "openraft", "ort"]),
    ("backend-onnx", &["tonic", "axum", "openraft"]),
    ("backend-python", &["tonic", "axum", "openraft"]),
    ("backend-remote", &["tonic", "axum", "openraft"]),
    ("provider-kit", &["tokio", "futures", "reqwest", "axum"]),
    ("providers", &["tokio", "futures", "reqwest", "axum"]),
    ("model-host", &["axum", "openraft", "ort"]),
    ("worker", &["axum", "openraft"]),
    ("cluster", &["axum", "arrow-array", "arrow-schema"]),
    ("coordinator", &["axum", "ort", "reqwest"]),
    (
        "placement",
        &["tokio", "futures", "tonic", "openraft", "redb"],
    ),
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
fn the_edge_knows_no_dialect_and_no_route() {
    let names = [
        "openai",
        "anthropic",
        "cohere",
        "ollama",
        "opensearch",
        "huggingface",
        "triton",
        "\"/v1",
        "\"/v2",
        "\"/api/",
        "\"/_plugins",
        "\"/_volley",
    ];
    let mut problems = Vec::new();
    for path in files("crates/http-edge/src", "rs") {
        let text = read(&path);
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        for (number, line) in code.lines().enumerate() {
            let line = line.to_ascii_lowercase();
            let line = line.split("//").next().unwrap_or_default();
            if let Some(name) = names.iter().find(|name| line.contains(**name)) {
                problems.push(format!("{}:{}: names {name}", path.display(), number + 1));
            }
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

#[test]
fn the_workspace_lists_only_dependencies_that_a_crate_has() {
    let manifest = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let (_, listed) = manifest.split_once("[workspace.dependencies]\n").unwrap();
    let listed = listed.lines().take_while(|line| !line.starts_with('['));
    let listed = listed.filter_map(|line| Some(line.split_once(" = ")?.0));
    let named: BTreeSet<_> = packages()
        .into_iter()
        .flat_map(|package| package.dependencies)
        .map(|dependency| dependency.name)
        .collect();
    let unused = listed.filter(|name| !named.contains(*name));
    let problems = unused.map(|name| format!("no crate has the dependency {name}"));
    assert_none(&problems.collect::<Vec<_>>());
}

/// What each crate names, dev-dependencies aside.
fn rooms() -> BTreeMap<String, BTreeSet<String>> {
    let room = |package: &Package| {
        let name = package.name.to_string();
        let names = package.dependencies.iter();
        let names = names.filter(|dependency| dependency.kind != DependencyKind::Development);
        let names = names.map(|dependency| dependency.name.clone()).collect();
        (name.trim_start_matches("volley-").to_owned(), names)
    };
    packages().iter().map(room).collect()
}

fn packages() -> Vec<Package> {
    let manifest = root().join("Cargo.toml");
    let mut command = MetadataCommand::new();
    let metadata = command.manifest_path(manifest).no_deps().exec();
    metadata.unwrap().packages
}

/// The crates of the workspace that end up in the program of `package`, itself included.
pub(crate) fn linked_into(package: &str) -> BTreeSet<String> {
    let packages = packages();
    let mut linked = BTreeSet::new();
    let mut open = vec![package.to_owned()];
    while let Some(name) = open.pop() {
        let found = packages.iter().find(|it| *it.name == name);
        if let Some(found) = found.filter(|_| linked.insert(name)) {
            let normal = found.dependencies.iter();
            let normal = normal.filter(|it| it.kind == DependencyKind::Normal);
            open.extend(normal.map(|it| it.name.clone()));
        }
    }
    linked
}
