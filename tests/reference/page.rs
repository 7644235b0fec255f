//! Pages of `docs/reference` that tests generate. The text comes from a template beside this file;
//! `{{name}}` is replaced by what the code declares.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// Writes the page anew where it is set.
const WRITE: &str = "VOLLEY_WRITE_DOCS";

/// Fails unless `docs/reference/{name}.md` is what `parts` make of its template. Every part must
/// be used.
pub(crate) fn assert_current(name: &str, mut parts: BTreeMap<String, String>) {
    let root = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let template = format!("tests/reference/{name}.txt");
    let text = std::fs::read_to_string(root.join(&template)).unwrap();
    let mut page = format!("<!-- Generated from the code and {template}; change these. -->\n\n");
    for line in text.lines() {
        let mut pieces = line.split("{{");
        let mut line = pieces.next().unwrap_or_default().to_owned();
        for piece in pieces {
            let (part, rest) = piece.split_once("}}").unwrap();
            let part = parts.remove(part);
            line += &part.unwrap_or_else(|| panic!("{template} has {piece}, which the code lacks"));
            line += rest;
        }
        page += line.trim_end();
        page.push('\n');
    }
    let unused: Vec<_> = parts.keys().collect();
    assert!(unused.is_empty(), "add to {template}: {unused:?}");
    let path = format!("docs/reference/{name}.md");
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(root.join(&path), &page).unwrap();
    }
    assert!(
        std::fs::read_to_string(root.join(&path)).unwrap() == page,
        "{path} is stale: run this test once with {WRITE}=1 in its environment"
    );
}
