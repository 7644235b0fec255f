//! Sizes of crates, files and functions, and what sources may not contain.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::{assert_none, files, read};

/// Of what is built outside tests, generated code aside.
const MAX_CRATE_LINES: usize = 8_000;
/// Crates that are larger still; the list only shrinks.
const LARGE_CRATES: &[&str] = &[];
const MAX_FILE_LINES: usize = 500;
const MAX_FUNCTION_LINES: usize = 70;
/// A test tells a story from its begin to its end.
const MAX_TEST_FUNCTION_LINES: usize = 120;
const MAX_MAIN_LINES: usize = 150;
/// The reasoned places with `unsafe` code: a cache that is read and written in place, an arena that
/// only the library's own interface offers, the allocator of the C library, and strings that are no
/// text.
const UNSAFE: &[&str] = &[
    "crates/onnx-runtime/src/arena.rs",
    "crates/onnx-runtime/src/kv.rs",
    "crates/onnx-runtime/src/malloc.rs",
    "crates/onnx-runtime/src/strings.rs",
];

#[test]
fn files_and_functions_are_short() {
    let mut problems = Vec::new();
    let sources = texts();
    let tests = all_test_modules(&sources);
    for (text, path) in &sources {
        let name = path.display();
        let lines = text.lines().count();
        let most = if *path == Path::new("crates/cli/src/main.rs") {
            MAX_MAIN_LINES
        } else {
            MAX_FILE_LINES
        };
        if most < lines {
            problems.push(format!("{name} has {lines} lines, more than {most}"));
        }
        let first_test = if is_test_file(path) || tests.iter().any(|module| is_of(module, path)) {
            0
        } else {
            first_test_line(text)
        };
        for (line, length) in functions(text) {
            let most = if line < first_test {
                MAX_FUNCTION_LINES
            } else {
                MAX_TEST_FUNCTION_LINES
            };
            if most < length {
                problems.push(format!(
                    "{name}:{line}: a function of {length} lines, more than {most}"
                ));
            }
        }
    }
    assert_none(&problems);
}

#[test]
fn crates_are_small() {
    let sources = texts();
    let tests = all_test_modules(&sources);
    let mut lines: BTreeMap<&str, usize> = BTreeMap::new();
    for (text, path) in &sources {
        let parts: Vec<_> = path.iter().filter_map(|part| part.to_str()).collect();
        let ["crates", name, "src", ..] = parts.as_slice() else {
            continue;
        };
        if !tests.iter().any(|module| is_of(module, path)) {
            *lines.entry(name).or_default() += text.lines().count();
        }
    }
    let mut problems = Vec::new();
    for (name, lines) in lines {
        match (MAX_CRATE_LINES < lines, LARGE_CRATES.contains(&name)) {
            (true, false) => problems.push(format!(
                "crates/{name} has {lines} lines, more than {MAX_CRATE_LINES}; move a part of it \
                 into a crate of its own"
            )),
            (false, true) => problems.push(format!(
                "crates/{name} has {lines} lines; take it from LARGE_CRATES"
            )),
            _ => {}
        }
    }
    assert_none(&problems);
}

/// All sources, with their texts.
fn texts() -> Vec<(String, PathBuf)> {
    let sources = sources().into_iter();
    sources.map(|path| (read(&path), path)).collect()
}

fn all_test_modules(sources: &[(String, PathBuf)]) -> Vec<PathBuf> {
    let modules = sources.iter();
    let modules = modules.flat_map(|(text, path)| test_modules(text, path));
    modules.collect()
}

/// Whether a file is built for tests only because of its folder: `tests` of a crate, not the
/// library of the tests' own crate.
fn is_test_file(path: &Path) -> bool {
    let parts: Vec<_> = path.iter().filter_map(|part| part.to_str()).collect();
    matches!(
        parts.as_slice(),
        ["crates", _, "tests", ..] | ["tests", "tests", ..]
    )
}

/// The line of a file's own module of tests, or a line after all others.
fn first_test_line(text: &str) -> usize {
    let lines: Vec<_> = text.lines().collect();
    let mut pairs = lines.windows(2);
    let first = pairs.position(|two| two[0] == "#[cfg(test)]" && two[1].ends_with("mod tests {"));
    first.map_or(usize::MAX, |at| at + 1)
}

/// The modules that a file has in tests only, as paths without an ending.
fn test_modules(text: &str, path: &Path) -> Vec<PathBuf> {
    let is_root = path.ends_with("src/lib.rs") || path.ends_with("src/main.rs");
    let folder = if is_root {
        path.with_file_name("")
    } else {
        path.with_extension("")
    };
    let lines: Vec<_> = text.lines().map(str::trim).collect();
    let gated = lines.windows(2).filter(|two| two[0] == "#[cfg(test)]");
    let names = gated.filter_map(|two| {
        let (_, name) = two[1].strip_suffix(';')?.rsplit_once("mod ")?;
        Some(folder.join(name))
    });
    names.collect()
}

/// Whether a file is that module, or one below it.
fn is_of(module: &Path, path: &Path) -> bool {
    path.with_extension("") == *module || path.starts_with(module)
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
