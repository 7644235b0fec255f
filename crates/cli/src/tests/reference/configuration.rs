//! Checks the effects and defaults of configuration keys.

use super::keys::{COORDINATOR, WORKER, sections};
use crate::config;

const MINIMAL_COORDINATOR: &str = "
version = 1
node.id = 1
node.data_dir = 'data'
listen.public = '127.0.0.1:1'
listen.internal = '127.0.0.1:2'
cluster.await_invitation = true
otlp.endpoint = 'http://127.0.0.1:3'
";
const MINIMAL_WORKER: &str = "
version = 1
node.id = 'w'
listen.flight = '127.0.0.1:1'
listen.http = '127.0.0.1:2'
cluster.coordinators = ['127.0.0.1:3']
otlp.endpoint = 'http://127.0.0.1:4'
";

#[test]
fn a_key_with_its_documented_default_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("c.toml");
    let coordinator = |text: &str| {
        std::fs::write(&path, text).unwrap();
        config::coordinator::read(&path).map(|plan| format!("{plan:?}"))
    };
    let worker = |text: &str| {
        std::fs::write(&path, text).unwrap();
        config::worker::read(&path).map(|plan| format!("{plan:?}"))
    };
    let seen = defaults_hold(COORDINATOR, MINIMAL_COORDINATOR, coordinator)
        + defaults_hold(WORKER, MINIMAL_WORKER, worker);
    assert!(70 < seen, "{seen}");
}

/// Checks documented defaults; returns how many were checked.
fn defaults_hold(
    source: &str,
    minimal: &str,
    plan: impl Fn(&str) -> anyhow::Result<String>,
) -> usize {
    let usual = plan(minimal).unwrap();
    let mut seen = 0;
    for (section, keys) in sections(source) {
        for key in keys
            .iter()
            .filter(|_| !section.contains('.') && section != "file")
        {
            let value = key
                .default
                .strip_prefix('`')
                .and_then(|it| it.strip_suffix('`'));
            let Some(value) = value.filter(|it| !it.contains('`')) else {
                continue;
            };
            let name = format!("{section}.{}", key.name);
            if minimal.contains(&format!("\n{name} = ")) {
                continue;
            }
            let text = format!("{minimal}{name} = {value}\n");
            let given = plan(&text).unwrap_or_else(|error| panic!("{name}: {error:#}"));
            assert!(usual == given, "{name}: {value} is not the default");
            seen += 1;
        }
    }
    seen
}

#[test]
fn every_key_has_an_effect() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("c.toml");
    let coordinator = |text: &str| {
        std::fs::write(&path, text).unwrap();
        config::coordinator::read(&path).map(|plan| format!("{plan:?}"))
    };
    let worker = |text: &str| {
        std::fs::write(&path, text).unwrap();
        config::worker::read(&path).map(|plan| format!("{plan:?}"))
    };
    let seen = effects(COORDINATOR, MINIMAL_COORDINATOR, coordinator)
        + effects(WORKER, MINIMAL_WORKER, worker);
    assert!(90 < seen, "{seen}");
}

/// Checks that keys have an effect; returns how many were checked.
fn effects(source: &str, minimal: &str, plan: impl Fn(&str) -> anyhow::Result<String>) -> usize {
    let usual = plan(minimal).unwrap();
    let mut seen = 0;
    for (section, keys) in sections(source) {
        for key in keys {
            let name = format!("{section}.{}", key.name);
            if minimal.contains(&format!("\n{name} = ")) {
                continue;
            }
            let Some(value) = another_value(&name, &key.kind, &key.default) else {
                continue;
            };
            let text = format!("{minimal}{name} = {value}\n");
            let given = plan(&text).unwrap_or_else(|error| panic!("{name}: {error:#}"));
            assert!(usual != given, "{name} = {value} changes nothing");
            seen += 1;
        }
    }
    seen
}

/// A value that is not the default. `None` for keys that need files or exclude another key.
fn another_value(name: &str, kind: &str, default: &str) -> Option<&'static str> {
    Some(match name {
        "cluster.bootstrap" | "cluster.join" | "cluster.await_invitation" => return None,
        _ if name.starts_with("file.") || name.starts_with("security.issuers") => return None,
        _ if name.starts_with("security.") && kind.contains("path") => return None,
        // These may contain secrets, so plans do not print them.
        "artifacts.tokens" | "artifacts.options" => return None,
        "cluster.feature_level" => "1",
        "listen.shared_memory" => "false",
        "listen.additional" => "['127.0.0.1:9']",
        _ if name.starts_with("listen.") || name.starts_with("grpc.") => "'127.0.0.1:9'",
        "browser.origins" => "['https://a.example']",
        "uploads.store" => "'s3://bucket/models/'",
        "onnx.device" => "'cpu'",
        "onnx.isolation" => "'none'",
        "python.sandbox" => "'files'",
        "artifacts.allowed_urls" => "['https://a.example/']",
        _ => match kind {
            "boolean" if default == "`true`" => "false",
            "boolean" => "true",
            "integer" | "positive integer" => "7",
            "number" => "0.5",
            "duration" => "'2345ms'",
            "size" => "'3MiB'",
            "string" | "path" => "'other'",
            "list of strings" | "list of paths" => "['a.example']",
            "table of strings" => "{ zone = 'a' }",
            kind => panic!("{name}: no value of the type {kind}"),
        },
    })
}
