//! What an extension costs: the guides of `docs/contributing`, followed in a copy of the sources.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "a test that fails panics"
)]

use std::path::{Path, PathBuf};
use std::process::Command;

const GUIDE: &str = "docs/contributing/add-a-provider.md";
const DIALECT_GUIDE: &str = "docs/contributing/add-a-dialect.md";
const BACKEND_GUIDE: &str = "docs/contributing/add-a-backend.md";

/// The workspace's root.
fn root() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().unwrap().to_path_buf()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap()
}

/// The blocks of code of the guide.
fn blocks(guide: &str) -> Vec<&str> {
    let parts = guide.split("```rust,ignore\n").skip(1);
    let blocks = parts.map(|part| part.split("```").next().unwrap_or_default());
    blocks.collect()
}

/// Copies the Rust sources of a folder.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &to),
            false => _ = std::fs::copy(entry.path(), to).unwrap(),
        }
    }
}

#[test]
fn a_provider_is_the_file_and_the_line_of_its_guide() {
    let guide = read(GUIDE);
    let [file, line] = blocks(&guide)[..] else {
        panic!("{GUIDE} has a file and a line as its blocks of Rust");
    };
    assert_eq!(line.lines().count(), 1, "{line}");

    // A workspace of that crate alone, which takes the others from where they are.
    let scratch = tempfile::tempdir().unwrap();
    let home = scratch.path().join("crates/providers");
    copy(&root().join("crates/providers"), &home);
    workspace(scratch.path(), "providers", None);
    // The reference is generated into a copy of the templates.
    copy(
        &root().join("tests/reference"),
        &scratch.path().join("tests/reference"),
    );
    std::fs::create_dir_all(scratch.path().join("docs/reference")).unwrap();

    std::fs::write(home.join("src/acme.rs"), file).unwrap();
    insert_before(&home.join("src/lib.rs"), line, "    custom: PROVIDER;\n");

    let arguments = [
        "test",
        "--offline",
        "--lib",
        "--package",
        "volley-providers",
    ];
    let printed = cargo(scratch.path(), &arguments);
    assert!(!printed.contains("warning:"), "{printed}");
    let test = "acme::tests::the_list_finds_acme_by_its_name_and_by_its_url ... ok";
    assert!(printed.contains(test), "{printed}");
    for page in ["connectors", "connector-parameters"] {
        let page = scratch.path().join(format!("docs/reference/{page}.md"));
        let page = std::fs::read_to_string(page).unwrap();
        assert!(page.contains("| `acme` |"), "{page}");
    }
}

/// Writes the manifest of a workspace which has a copy of the crate `copied`, perhaps an `added`
/// one, and takes the others from where they are.
fn workspace(home: &Path, copied: &str, added: Option<&str>) {
    let manifest = read("Cargo.toml");
    let (head, rest) = manifest.split_once("members = ").unwrap();
    let (_, rest) = rest.split_once("[workspace.package]").unwrap();
    // Profiles of releases name packages that the copy lacks.
    let (rest, _) = rest.split_once("[profile.release]").unwrap();
    let crates = format!("path = \"{}/crates/", root().display());
    let rest = rest.replace("path = \"crates/", &crates);
    let rest = rest.replace(
        &format!("{crates}{copied}\""),
        &format!("path = \"crates/{copied}\""),
    );
    let dependencies = "[workspace.dependencies]\n";
    let added = added.map(|name| format!("volley-{name} = {{ path = \"crates/{name}\" }}\n"));
    let all = format!("{dependencies}{}", added.unwrap_or_default());
    let rest = rest.replace(dependencies, &all);
    let manifest = format!("{head}members = [\"crates/*\"]\n[workspace.package]{rest}");
    std::fs::write(home.join("Cargo.toml"), manifest).unwrap();
    for file in ["Cargo.lock", "rust-toolchain.toml"] {
        std::fs::copy(root().join(file), home.join(file)).unwrap();
    }
}

/// Adds the dependency `added` to the copy of a crate.
fn dependency(copy: &Path, copied: &str, added: &str) {
    let manifest = read(&format!("crates/{copied}/Cargo.toml"));
    let (head, rest) = manifest.split_once("[dependencies]\n").unwrap();
    let line = format!("[dependencies]\nvolley-{added}.workspace = true\n");
    std::fs::write(copy.join("Cargo.toml"), format!("{head}{line}{rest}")).unwrap();
}

/// Inserts `line` before the only line `before` of a file.
fn insert_before(file: &Path, line: &str, before: &str) {
    let text = std::fs::read_to_string(file).unwrap();
    assert_eq!(text.matches(before).count(), 1, "{}", file.display());
    std::fs::write(file, text.replace(before, &format!("{line}{before}"))).unwrap();
}

/// Runs cargo in a scratch workspace, offline, as everything is there that the workspace itself was
/// built from. What it prints.
fn cargo(home: &Path, arguments: &[&str]) -> String {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let target = target.unwrap_or_else(|| root().join("target"));
    // By its name, so that rustup chooses the toolchain for cargo and for all that cargo starts: some
    // crates bring a toolchain file of their own.
    let cargo = Command::new("cargo")
        .args(arguments)
        .current_dir(home)
        .env("CARGO_TARGET_DIR", target)
        .env("VOLLEY_WRITE_DOCS", "1")
        .output()
        .unwrap();
    let printed = [cargo.stdout, cargo.stderr].concat();
    let printed = String::from_utf8_lossy(&printed).into_owned();
    assert!(cargo.status.success(), "{printed}");
    printed
}

#[test]
fn a_dialect_is_the_crate_and_the_line_of_its_guide() {
    let guide = read(DIALECT_GUIDE);
    let [source, line] = blocks(&guide)[..] else {
        panic!("{DIALECT_GUIDE} has a crate and a line as its blocks of Rust");
    };
    assert_eq!(line.lines().count(), 1, "{line}");
    let (_, own) = guide.split_once("```toml,ignore\n").unwrap();
    let (own, _) = own.split_once("```").unwrap();

    // A workspace of the gateway and the dialect, which takes the others from where they are.
    let scratch = tempfile::tempdir().unwrap();
    let gateway = scratch.path().join("crates/gateway");
    copy(&root().join("crates/gateway/src"), &gateway.join("src"));
    let acme = scratch.path().join("crates/dialect-acme");
    std::fs::create_dir_all(acme.join("src")).unwrap();
    std::fs::write(acme.join("Cargo.toml"), own).unwrap();
    std::fs::write(acme.join("src/lib.rs"), source).unwrap();

    dependency(&gateway, "gateway", "dialect-acme");
    workspace(scratch.path(), "gateway", Some("dialect-acme"));
    let first = "        Box::new(Anthropic::new(edge)),\n";
    insert_before(&gateway.join("src/compose.rs"), line, first);

    let gateway = ["build", "--offline", "--package", "volley-gateway"];
    let printed = cargo(scratch.path(), &gateway);
    assert!(!printed.contains("warning:"), "{printed}");
    let acme = [
        "test",
        "--offline",
        "--lib",
        "--package",
        "volley-dialect-acme",
    ];
    let printed = cargo(scratch.path(), &acme);
    assert!(
        printed.contains("errors_have_acmes_form ... ok"),
        "{printed}"
    );
}

#[test]
fn a_backend_is_the_crate_and_the_line_of_its_guide() {
    let guide = read(BACKEND_GUIDE);
    let [source, line] = blocks(&guide)[..] else {
        panic!("{BACKEND_GUIDE} has a crate and a line as its blocks of Rust");
    };
    assert_eq!(line.lines().count(), 1, "{line}");
    let (_, own) = guide.split_once("```toml,ignore\n").unwrap();
    let (own, _) = own.split_once("```").unwrap();

    // A workspace of the list and the backend, which takes the others from where they are.
    let scratch = tempfile::tempdir().unwrap();
    let backends = scratch.path().join("crates/backends");
    copy(&root().join("crates/backends/src"), &backends.join("src"));
    let acme = scratch.path().join("crates/backend-acme");
    std::fs::create_dir_all(acme.join("src")).unwrap();
    std::fs::write(acme.join("Cargo.toml"), own).unwrap();
    std::fs::write(acme.join("src/lib.rs"), source).unwrap();
    dependency(&backends, "backends", "backend-acme");
    workspace(scratch.path(), "backends", Some("backend-acme"));
    let first = "    entry(&volley_backend_onnx::INFO, onnx::loader),\n";
    insert_before(&backends.join("src/lib.rs"), line, first);

    let arguments = ["test", "--offline", "--lib", "--workspace"];
    let printed = cargo(scratch.path(), &arguments);
    assert!(!printed.contains("warning:"), "{printed}");
    for test in [
        "a_prompt_comes_back_in_upper_case",
        "every_entry_makes_a_loader_of_its_name",
    ] {
        let test = format!("tests::{test} ... ok");
        assert!(printed.contains(&test), "{printed}");
    }
}
