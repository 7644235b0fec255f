//! Links between documents lead somewhere, and every document can be found.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{assert_none, borders, files, read, root};

#[test]
fn the_path_of_one_request_is_that_of_the_code() {
    let page = read(Path::new("docs/explanation/one-request.md"));
    let linked = borders::linked_into("volley-cli");
    let mut problems = Vec::new();
    for row in page.lines().filter(|line| line.starts_with("| ")) {
        let named: Vec<_> = row.split('`').skip(1).step_by(2).collect();
        let is_file = |name: &&str| name.ends_with(".rs");
        let (files, names): (Vec<_>, Vec<_>) = named.into_iter().partition(is_file);
        let mut sources = String::new();
        for file in &files {
            let crate_name = file.split('/').next().unwrap_or_default();
            if !linked.contains(&format!("volley-{crate_name}")) {
                problems.push(format!("{file}: the binary has no such crate"));
            }
            match std::fs::read_to_string(root().join("crates").join(file)) {
                Ok(source) => sources.push_str(&source),
                Err(_) => problems.push(format!("crates/{file} is not there")),
            }
        }
        // What a row names of the code is in a file of that row.
        for name in names.into_iter().filter(|_| !files.is_empty()) {
            let last = name.rsplit("::").next().unwrap_or_default();
            let word = last.trim_end_matches(['!', '(', ')']);
            let is_code = word.chars().all(|c| c.is_alphanumeric() || c == '_');
            let word = word.split('<').next().unwrap_or_default();
            if is_code && !OUTSIDE.contains(&word) && !sources.contains(word) {
                problems.push(format!("{}: no `{name}`", files.join(", ")));
            }
        }
    }
    assert_none(&problems);
}

/// Words of the page that are names of protocols, not of the code in that row.
const OUTSIDE: &[&str] = &["Host", "Origin", "DoExchange"];

#[test]
fn the_code_map_names_files_that_are_there() {
    let mut problems = Vec::new();
    let map = read(Path::new("docs/contributing/code-map.md"));
    for name in map.split('`').skip(1).step_by(2) {
        let is_path = name.starts_with("crates/") && !name.contains(['<', '*', ' ']);
        if is_path && !root().join(name).exists() {
            problems.push(format!("code-map.md: {name} is not there"));
        }
    }
    assert_none(&problems);
}

#[test]
fn a_how_to_has_300_to_900_words() {
    let pages = files("docs/how-to", ".md").into_iter();
    let sized = pages.map(|path| (read(&path).split_whitespace().count(), path));
    let wrong = sized.filter(|(words, _)| !(300..=900).contains(words));
    let problems = wrong.map(|(words, path)| format!("{} has {words} words", path.display()));
    assert_none(&problems.collect::<Vec<_>>());
}

/// Changes that guides show are changes of this code: they apply to it.
#[test]
fn the_changes_of_the_guides_apply() {
    let mut problems = Vec::new();
    for guide in files("docs/contributing", ".md") {
        let page = read(&guide);
        let blocks = page.split("```diff\n").skip(1);
        for block in blocks.map(|rest| rest.split("\n```").next().unwrap_or_default()) {
            let mut apply = Command::new("git");
            apply.args(["apply", "--check", "--unidiff-zero", "-"]);
            let apply = apply.current_dir(root()).stdin(Stdio::piped());
            let mut apply = apply.stderr(Stdio::piped()).spawn().unwrap();
            let mut input = apply.stdin.take().unwrap();
            input.write_all(format!("{block}\n").as_bytes()).unwrap();
            drop(input);
            let output = apply.wait_with_output().unwrap();
            if !output.status.success() {
                let reason = String::from_utf8_lossy(&output.stderr).into_owned();
                problems.push(format!("{}: {reason}", guide.display()));
            }
        }
    }
    assert_none(&problems);
}

#[test]
fn links_lead_somewhere() {
    let mut problems = Vec::new();
    for path in documents() {
        for link in links(&read(&path)) {
            let (target, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = resolve(&path, target);
            let place = format!("{}: {link}", path.display());
            if !root().join(&target).exists() {
                problems.push(format!("{place} leads nowhere"));
            } else if !anchor.is_empty() && !headings(&read(&target)).contains(anchor) {
                problems.push(format!("{place}: no such heading"));
            }
        }
    }
    assert_none(&problems);
}

#[test]
fn every_document_is_a_page_of_the_book() {
    let summary = Path::new("docs/SUMMARY.md");
    let links = links(&read(summary)).into_iter();
    let listed: BTreeSet<_> = links.map(|link| resolve(summary, &link)).collect();
    let all = files("docs", ".md").into_iter();
    let lost = all.filter(|path| path != summary && !listed.contains(path));
    let problems = lost.map(|path| format!("{} is not in docs/SUMMARY.md", path.display()));
    assert_none(&problems.collect::<Vec<_>>());
}

#[test]
fn the_book_links_no_file_outside_of_it() {
    let mut problems = Vec::new();
    for path in files("docs", ".md") {
        for link in links(&read(&path)) {
            let target = resolve(&path, link.split('#').next().unwrap_or_default());
            if !target.starts_with("docs") {
                problems.push(format!("{} links {link}", path.display()));
            }
        }
    }
    assert_none(&problems);
}

#[test]
fn the_readme_and_scripts_name_files_that_exist() {
    let mut problems = Vec::new();
    let texts = ["README.md", "CONTRIBUTING.md", "Justfile", ".ci/run"].map(PathBuf::from);
    for path in texts.into_iter().chain(files("scripts", ".sh")) {
        let text = read(&path);
        let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || "./_-".contains(c)));
        for word in words.filter(|word| word.starts_with("scripts/") && word.ends_with(".sh")) {
            if !root().join(word).is_file() {
                problems.push(format!("{} names {word}", path.display()));
            }
        }
    }
    assert_none(&problems);
}

#[test]
fn the_tests_that_the_security_page_names_are_there() {
    let text = read(Path::new("docs/explanation/security-model.md"));
    let (_, table) = text
        .split_once("## What each promise is tested by")
        .unwrap();
    let rows = table.lines().filter(|line| line.starts_with("| "));
    let tests = rows.flat_map(|row| row.split('`').skip(1).step_by(2));
    let tests: BTreeSet<_> = tests.filter(|name| name.contains('_')).collect();
    assert!(40 < tests.len(), "{}", tests.len());
    let sources = ["crates", "tests"].into_iter();
    let sources: Vec<_> = sources.flat_map(|folder| files(folder, ".rs")).collect();
    let sources = sources.iter().map(|path| read(path)).collect::<String>();
    let missing = tests
        .iter()
        .filter(|name| !sources.contains(&format!("fn {name}(")));
    let problems =
        missing.map(|name| format!("docs/explanation/security-model.md names the test {name}"));
    assert_none(&problems.collect::<Vec<_>>());
}

/// All Markdown files.
fn documents() -> Vec<PathBuf> {
    files("", ".md")
}

/// Relative link targets, those in code aside.
fn links(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut in_code = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        if in_code {
            continue;
        }
        let mut rest = line;
        while let Some(start) = rest.find("](") {
            rest = &rest[start + 2..];
            let Some(end) = rest.find(')') else { break };
            let target = &rest[..end];
            if !target.contains("://") && !target.starts_with("mailto:") {
                found.push(target.to_owned());
            }
        }
    }
    found
}

/// `target` as a path from the root; an empty one is the document itself.
fn resolve(document: &Path, target: &str) -> PathBuf {
    if target.is_empty() {
        return document.to_path_buf();
    }
    let mut parts: Vec<_> = document.parent().unwrap().components().collect();
    let target = Path::new(target);
    for part in target.components() {
        match part {
            std::path::Component::ParentDir => {
                parts.pop();
            }
            std::path::Component::CurDir => {}
            other => parts.push(other),
        }
    }
    parts.into_iter().collect()
}

/// Headings as the anchors that they become.
fn headings(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let anchor = |line: &str| {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = title
            .chars()
            .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(anchor).collect()
}
