//! Pages of `docs/reference` that tests generate. The text comes from a template beside this file;
//! `{{name}}`, alone on its line, is replaced by what the code declares.

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
        let part = line.strip_prefix("{{").and_then(|it| it.strip_suffix("}}"));
        let line = match part {
            None => line.to_owned(),
            Some(part) => parts
                .remove(part)
                .unwrap_or_else(|| panic!("{template} names {part}, which the code lacks")),
        };
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
