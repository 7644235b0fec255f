//! Sizes, and what sources may not contain.

use std::path::{Path, PathBuf};

use crate::{assert_none, files, read};

const MAX_FILE_LINES: usize = 500;
const MAX_FUNCTION_LINES: usize = 120;
const MAX_MAIN_LINES: usize = 150;
/// The one reasoned place with `unsafe` code: a cache that is read and written in place.
const UNSAFE: &[&str] = &["crates/backend-onnx/src/generate/kv.rs"];

#[test]
fn files_and_functions_are_short() {
    let mut problems = Vec::new();
    for path in sources() {
        let (text, name) = (read(&path), path.display());
        let lines = text.lines().count();
        let most = if path == Path::new("crates/cli/src/main.rs") {
            MAX_MAIN_LINES
        } else {
            MAX_FILE_LINES
        };
        if most < lines {
            problems.push(format!("{name} has {lines} lines, more than {most}"));
        }
        for (line, length) in functions(&text) {
            if MAX_FUNCTION_LINES < length {
                problems.push(format!("{name}:{line}: a function of {length} lines"));
            }
        }
    }
    assert_none(&problems);
}

#[test]
fn nothing_is_left_to_do_and_nothing_unsafe_added() {
    // Split, so that this file does not contain what it looks for.
    let never = [
        concat!("todo", "!("),
        concat!("unimplemented", "!("),
        concat!("dbg", "!("),
        concat!("FIX", "ME"),
        concat!("TO", "DO"),
    ];
    let unsafe_word = concat!("un", "safe");
    let mut problems = Vec::new();
    for path in sources() {
        let is_allowed = UNSAFE.iter().any(|allowed| path == Path::new(allowed));
        for (index, line) in read(&path).lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            let place = format!("{}:{}", path.display(), index + 1);
            for found in never.iter().filter(|found| line.contains(**found)) {
                problems.push(format!("{place}: {found}"));
            }
            let is_not_safe = [" {", " fn", " impl"]
                .iter()
                .any(|next| code.contains(&format!("{unsafe_word}{next}")));
            if is_not_safe && !is_allowed {
                problems.push(format!("{place}: {unsafe_word} code"));
            }
        }
    }
    assert_none(&problems);
}

#[test]
fn modules_are_files_beside_their_folder() {
    let found = sources().into_iter();
    let found = found.filter(|path| path.file_name().is_some_and(|name| name == "mod.rs"));
    let problems: Vec<_> = found.map(|path| path.display().to_string()).collect();
    assert_none(&problems);
}

/// Hand-written Rust files.
fn sources() -> Vec<PathBuf> {
    let all = files("crates", ".rs")
        .into_iter()
        .chain(files("tests", ".rs"));
    all.filter(|path| {
        !path
            .components()
            .any(|part| part.as_os_str() == "generated")
    })
    .collect()
}

/// The first line, and the number of lines, of each function, as rustfmt lays them out.
fn functions(text: &str) -> Vec<(usize, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let code = line.trim_start();
        let indent = &line[..line.len() - code.len()];
        let is_function = ["fn ", "pub fn ", "async fn ", "pub async fn ", "const fn "]
            .iter()
            .any(|start| code.starts_with(start))
            || code.starts_with("pub(") && code.contains(" fn ");
        if !is_function || code.ends_with('}') || code.ends_with(';') {
            continue;
        }
        let end = lines[index..]
            .iter()
            .position(|line| *line == format!("{indent}}}"))
            .unwrap_or(0);
        found.push((index + 1, end + 1));
    }
    found
}
