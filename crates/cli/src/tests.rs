mod documents;
mod migration;
mod reference;

use clap::CommandFactory;

use crate::args::Arguments;
use crate::config;

#[test]
fn the_arguments_are_consistent() {
    Arguments::command().debug_assert();
}

#[test]
fn options_without_effect_and_impossible_numbers_are_rejected() {
    let parse = |line: &str| Arguments::command().try_get_matches_from(line.split(' '));
    parse("volley model register m --from https://h/m.zip --sha256 00 --deploy 2").unwrap();
    for (line, named) in [
        ("register m --path /m --sha256 00", "--sha256"),
        ("register m --connector c --sha256 00", "--sha256"),
        ("register m --text --sha256 00", "--sha256"),
        ("register --repository /r --sha256 00", "--sha256"),
        ("register m --text --deploy 0", "--deploy"),
        ("register m --text --deploy=1001", "--deploy"),
        ("deploy m --replicas 0", "--replicas"),
    ] {
        let error = parse(&format!("volley model {line}")).unwrap_err();
        assert!(error.to_string().contains(named), "{line}: {error}");
    }
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
fn an_unknown_key_is_named_with_its_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("c.toml");
    std::fs::write(
        &path,
        "version = 1\n[node]\nid = 1\ndata_dir = \"d\"\ncolour = 3\n",
    )
    .unwrap();
    let error = format!("{:#}", config::coordinator::read(&path).unwrap_err());
    assert!(
        error.contains("colour") && error.contains("data_dir"),
        "{error}"
    );
    std::fs::write(
        &path,
        "version = 1\n[node]\nid = 1\n[shutdown]\ndrain_timeout = \"soon\"\n",
    )
    .unwrap();
    let error = format!("{:#}", config::coordinator::read(&path).unwrap_err());
    assert!(error.contains("c.toml"), "{error}");
}

#[test]
fn a_workers_memory_for_bodies_is_configured() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("w.toml");
    let memory = |flight: &str| {
        let text = format!(
            "version = 1\n[node]\nid = \"w\"\n[listen]\nflight = \"127.0.0.1:1\"\nhttp = \"127.0.0.1:2\"\n\
             [cluster]\ncoordinators = [\"h:3\"]\n[flight]\n{flight}\n"
        );
        std::fs::write(&path, text).unwrap();
        config::worker::read(&path).unwrap().max_body_memory
    };
    assert_eq!(memory("max_body_memory = \"96MiB\""), 96 << 20);
    assert_eq!(memory(""), 2 << 30);
}
