//! What an extension costs: the guides of `docs/contributing`, followed in a copy of the sources.

use std::path::{Path, PathBuf};
use std::process::Command;

const GUIDE: &str = "docs/contributing/add-a-provider.md";
const DIALECT_GUIDE: &str = "docs/contributing/add-a-dialect.md";

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
    let manifest = read("Cargo.toml");
    let (head, rest) = manifest.split_once("members = ").unwrap();
    let (_, rest) = rest.split_once("[workspace.package]").unwrap();
    let crates = format!("path = \"{}/crates/", root().display());
    let rest = rest.replace("path = \"crates/", &crates);
    let own = format!("{crates}providers\"");
    let rest = rest.replace(&own, "path = \"crates/providers\"");
    let manifest = format!("{head}members = [\"crates/providers\"]\n[workspace.package]{rest}");
    std::fs::write(scratch.path().join("Cargo.toml"), manifest).unwrap();
    std::fs::copy(root().join("Cargo.lock"), scratch.path().join("Cargo.lock")).unwrap();
    // The reference is generated into a copy of the templates.
    copy(
        &root().join("tests/reference"),
        &scratch.path().join("tests/reference"),
    );
    std::fs::create_dir_all(scratch.path().join("docs/reference")).unwrap();

    std::fs::write(home.join("src/acme.rs"), file).unwrap();
    let list = std::fs::read_to_string(home.join("src/lib.rs")).unwrap();
    let last = "    custom: PROVIDER;\n";
    assert_eq!(list.matches(last).count(), 1);
    let list = list.replace(last, &format!("{line}{last}"));
    std::fs::write(home.join("src/lib.rs"), list).unwrap();

    let arguments = [
        "test",
        "--offline",
        "--lib",
        "--package",
        "volley-providers",
    ];
    let told = cargo(scratch.path(), &arguments);
    assert!(!told.contains("warning:"), "{told}");
    let test = "acme::tests::the_list_finds_acme_by_its_name_and_by_its_url ... ok";
    assert!(told.contains(test), "{told}");
    for page in ["connectors", "connector-parameters"] {
        let page = scratch.path().join(format!("docs/reference/{page}.md"));
        let page = std::fs::read_to_string(page).unwrap();
        assert!(page.contains("| `acme` |"), "{page}");
    }
}

/// Runs cargo in a scratch workspace, offline, as everything is there that the workspace itself was
/// built from. What it prints.
fn cargo(home: &Path, arguments: &[&str]) -> String {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let target = target.unwrap_or_else(|| root().join("target"));
    let cargo = Command::new(env!("CARGO"))
        .args(arguments)
        .current_dir(home)
        .env("CARGO_TARGET_DIR", target)
        .env("VOLLEY_WRITE_DOCS", "1")
        .output()
        .unwrap();
    let told = [cargo.stdout, cargo.stderr].concat();
    let told = String::from_utf8_lossy(&told).into_owned();
    assert!(cargo.status.success(), "{told}");
    told
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

    let manifest = read("crates/gateway/Cargo.toml");
    let (manifest, _) = manifest.split_once("[dev-dependencies]").unwrap();
    let named = "volley-dialect-acme.workspace = true\n";
    std::fs::write(gateway.join("Cargo.toml"), format!("{manifest}{named}")).unwrap();
    let manifest = read("Cargo.toml");
    let (head, rest) = manifest.split_once("members = ").unwrap();
    let (_, rest) = rest.split_once("[workspace.package]").unwrap();
    let crates = format!("path = \"{}/crates/", root().display());
    let rest = rest.replace("path = \"crates/", &crates);
    let rest = rest.replace(&format!("{crates}gateway\""), "path = \"crates/gateway\"");
    let dependencies = "[workspace.dependencies]\n";
    let acme = "volley-dialect-acme = { path = \"crates/dialect-acme\" }\n";
    let rest = rest.replace(dependencies, &format!("{dependencies}{acme}"));
    let manifest = format!("{head}members = [\"crates/*\"]\n[workspace.package]{rest}");
    std::fs::write(scratch.path().join("Cargo.toml"), manifest).unwrap();
    std::fs::copy(root().join("Cargo.lock"), scratch.path().join("Cargo.lock")).unwrap();

    let list = gateway.join("src/compose.rs");
    let text = std::fs::read_to_string(&list).unwrap();
    let first = "        Box::new(Anthropic::new(edge)),\n";
    assert_eq!(text.matches(first).count(), 1);
    std::fs::write(&list, text.replace(first, &format!("{line}{first}"))).unwrap();

    let gateway = ["build", "--offline", "--package", "volley-gateway"];
    let told = cargo(scratch.path(), &gateway);
    assert!(!told.contains("warning:"), "{told}");
    let acme = [
        "test",
        "--offline",
        "--lib",
        "--package",
        "volley-dialect-acme",
    ];
    let told = cargo(scratch.path(), &acme);
    assert!(told.contains("errors_have_acmes_form ... ok"), "{told}");
}
