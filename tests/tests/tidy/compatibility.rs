//! `docs/compatibility.md` is written from `tests/compatibility/page.txt`, in which every row of a
//! table names the tests that back it. A line `{{include name.txt}}` puts a further file of that
//! folder in, such as a table that another test writes; `{{count name}}` is the number of tests in
//! a file of `crates/gateway/tests/it/reference`.

use std::collections::BTreeSet;
use std::path::Path;

use crate::{assert_none, files, read, root};

const FOLDER: &str = "tests/compatibility";
const PAGE: &str = "docs/compatibility.md";
const REFERENCE: &str = "crates/gateway/tests/it/reference";
const NOTE: &str = "<!-- Written from tests/compatibility/page.txt; change that. -->\n\n";
/// Writes the page anew where it is set.
const WRITE: &str = "VOLLEY_WRITE_DOCS";

#[test]
fn the_page_of_compatibility_is_written_from_rows_that_name_their_tests() {
    let known = tests();
    let mut problems = Vec::new();
    let page = format!("{NOTE}{}", rendered("page.txt", &known, &mut problems));
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(root().join(PAGE), &page).unwrap();
    }
    if read(Path::new(PAGE)) != page {
        problems.push(format!(
            "{PAGE} is stale: run this test once with {WRITE}=1 in its environment"
        ));
    }
    assert_none(&problems);
}

#[test]
fn a_row_without_a_test_or_with_one_that_is_not_there_is_a_problem() {
    let known = BTreeSet::from(["openai::a_chat".to_owned()]);
    let mut problems = Vec::new();
    let good = row("| a | b | <!-- openai::a_chat -->", &known, &mut problems);
    assert_eq!(good, "| a | b | `openai::a_chat` |");
    assert!(problems.is_empty());
    row("| a | b |", &known, &mut problems);
    row("| a | b | <!-- openai::another -->", &known, &mut problems);
    assert_eq!(problems.len(), 2, "{problems:?}");
}

/// All tests of the workspace: the stem of the file, and the name of the function.
fn tests() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for path in files("crates", ".rs")
        .into_iter()
        .chain(files("tests", ".rs"))
    {
        let stem = path.file_stem().unwrap().to_string_lossy().into_owned();
        for name in names(&read(&path)) {
            found.insert(format!("{stem}::{name}"));
        }
    }
    found
}

/// The names of a file's tests.
fn names(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut is_test = false;
    for line in text.lines().map(str::trim) {
        let attribute = line.starts_with("#[");
        is_test |= attribute && (line.contains("test]") || line.contains("::test("));
        let function = line
            .strip_prefix("async fn ")
            .or_else(|| line.strip_prefix("fn "));
        if let (Some(rest), true) = (function, is_test) {
            found.extend(rest.split_once('(').map(|(name, _)| name.to_owned()));
        }
        is_test &= attribute || line.starts_with("//");
    }
    found
}

fn rendered(name: &str, known: &BTreeSet<String>, problems: &mut Vec<String>) -> String {
    let text = read(&Path::new(FOLDER).join(name));
    let lines: Vec<_> = text.lines().collect();
    let mut page = String::new();
    for (place, line) in lines.iter().enumerate() {
        let command = line
            .strip_prefix("{{include ")
            .and_then(|it| it.strip_suffix("}}"));
        let next = lines.get(place + 1).copied().unwrap_or_default();
        if let Some(included) = command {
            page += &rendered(included, known, problems);
            continue;
        }
        page += &match line {
            line if is_rule(line) => format!("{line}---|"),
            line if line.starts_with('|') && is_rule(next) => format!("{line} tests |"),
            line if line.starts_with('|') => row(line, known, problems),
            line => counted(line),
        };
        page.push('\n');
    }
    page
}

/// Whether a line parts the head of a table from its rows.
fn is_rule(line: &str) -> bool {
    line.starts_with("|-") && line.chars().all(|c| c == '|' || c == '-')
}

fn row(line: &str, known: &BTreeSet<String>, problems: &mut Vec<String>) -> String {
    let named = line.rsplit_once("<!-- ");
    let Some((cells, tests)) = named.and_then(|(a, b)| Some((a, b.strip_suffix(" -->")?))) else {
        problems.push(format!("no test backs the row {line}"));
        return line.to_owned();
    };
    let missing = tests.split(' ').filter(|test| !known.contains(*test));
    problems.extend(missing.map(|test| format!("no test {test}, which a row names: {line}")));
    let tests = tests.split(' ').map(|test| format!("`{test}`"));
    format!("{}{} |", cells, tests.collect::<Vec<_>>().join(", "))
}

fn counted(line: &str) -> String {
    let mut line = line.to_owned();
    while let Some((before, rest)) = line.split_once("{{count ") {
        let (name, after) = rest.split_once("}}").expect("a command ends");
        let path = Path::new(REFERENCE).join(format!("{name}.rs"));
        let count = names(&read(&path)).len();
        line = format!("{before}{count}{after}");
    }
    line
}
