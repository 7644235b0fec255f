//! Borders between crates, import cycles between files, sizes of files and functions, and links between documents. Reads the
//! workspace's metadata and files; builds and runs nothing.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "a test that fails panics"
)]

#[path = "tidy/borders.rs"]
mod borders;
#[path = "tidy/compatibility.rs"]
mod compatibility;
#[path = "tidy/cycles.rs"]
mod cycles;
#[path = "tidy/deploy.rs"]
mod deploy;
#[path = "tidy/documents.rs"]
mod documents;
#[path = "tidy/providers.rs"]
mod providers;
#[path = "tidy/sources.rs"]
mod sources;
#[path = "tidy/vocabulary.rs"]
mod vocabulary;

use std::path::{Path, PathBuf};

/// The workspace's root.
fn root() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().unwrap().to_path_buf()
}

/// All files below `folder` whose name ends in `ending`, as paths from the root, sorted.
fn files(folder: &str, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().to_string_lossy().into_owned();
            if entry.file_type().unwrap().is_dir() {
                let is_source = !name.starts_with('.') && name != "target";
                folders.extend(is_source.then(|| entry.path()));
            } else if name.ends_with(ending) {
                found.push(entry.path().strip_prefix(root()).unwrap().to_path_buf());
            }
        }
    }
    found.sort();
    found
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(root().join(path)).unwrap()
}

/// Fails with every problem, not only the first.
#[track_caller]
fn assert_none(problems: &[String]) {
    assert!(problems.is_empty(), "\n{}\n", problems.join("\n"));
}
