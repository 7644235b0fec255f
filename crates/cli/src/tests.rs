mod reference;

use clap::CommandFactory;

use crate::args::Arguments;
use crate::config;

#[test]
fn the_arguments_are_consistent() {
    Arguments::command().debug_assert();
}

#[test]
fn every_shipped_configuration_is_understood() {
    let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../cluster-config");
    let mut seen = 0;
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if name.starts_with("coordinator") {
            config::coordinator::read(&path).unwrap();
        } else {
            config::worker::read(&path).unwrap();
        }
        seen += 1;
    }
    assert_eq!(seen, 5);
}

#[test]
fn an_unknown_key_is_named_with_the_known_ones() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("c.toml");
    std::fs::write(&path, "[node]\nid = 1\ndata_dir = \"d\"\ncolour = 3\n").unwrap();
    let error = format!("{:#}", config::coordinator::read(&path).unwrap_err());
    assert!(
        error.contains("colour") && error.contains("data_dir"),
        "{error}"
    );
    std::fs::write(
        &path,
        "[node]\nid = 1\n[limits]\ndrain_timeout = \"soon\"\n",
    )
    .unwrap();
    let error = format!("{:#}", config::coordinator::read(&path).unwrap_err());
    assert!(error.contains("c.toml"), "{error}");
}

#[test]
fn a_connector_may_be_of_every_provider() {
    use clap::Parser;
    use volley_types::registry::ProviderKind;

    let parse = |provider: &str| {
        let line = "volley connector create --endpoint https://h/v1 --model m --provider";
        Arguments::try_parse_from(line.split(' ').chain([provider]))
    };
    for kind in ProviderKind::ALL {
        let parsed = parse(kind.as_str());
        assert!(parsed.is_ok(), "{}: {:?}", kind.as_str(), parsed.err());
    }
    let refused = parse("opnai").unwrap_err().to_string();
    assert!(
        refused.contains("bedrock") && refused.contains("open_inference"),
        "{refused}"
    );
}

#[test]
fn a_workers_memory_for_bodies_is_configured() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("w.toml");
    let memory = |limits: &str| {
        let text = format!(
            "[node]\nid = \"w\"\n[listen]\nflight = \"127.0.0.1:1\"\nhttp = \"127.0.0.1:2\"\n[cluster]\n\
             coordinators = [\"h:3\"]\n[limits]\n{limits}\n"
        );
        std::fs::write(&path, text).unwrap();
        config::worker::read(&path).unwrap().max_inflight_body_bytes
    };
    let given = memory("max_inflight_body_bytes = \"96MiB\"");
    assert_eq!(given, 96 << 20);
    assert_eq!(memory(""), 2 << 30);
}

#[test]
fn sizes_are_bytes_or_have_a_binary_unit() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("w.toml");
    let budget = |written: &str| {
        let text = format!(
            "[node]\nid = \"w\"\n[listen]\nflight = \"127.0.0.1:1\"\nhttp = \"127.0.0.1:2\"\n[cluster]\n\
             coordinators = [\"h:3\"]\n[limits]\nmemory_budget = {written}\n"
        );
        std::fs::write(&path, text).unwrap();
        config::worker::read(&path).map(|plan| plan.worker.memory_budget)
    };
    assert_eq!(budget("\"12GiB\"").unwrap(), Some(12 << 30));
    assert_eq!(budget("\"1 KiB\"").unwrap(), Some(1_024));
    assert_eq!(budget("4096").unwrap(), Some(4_096));
    for wrong in ["\"12GB\"", "\"\"", "0", "-1", "\"99999999999TiB\"", "1.5"] {
        assert!(budget(wrong).is_err(), "{wrong}");
    }
}
