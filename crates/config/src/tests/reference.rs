//! Generates the reference page of configuration keys.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::keys::{COORDINATOR, WORKER, sections};
use super::page::assert_current;
use crate::{FileKind, renames};

#[test]
fn the_page_of_configuration_is_generated_from_the_keys() {
    let mut parts = BTreeMap::new();
    for (node, source) in [("coordinator", COORDINATOR), ("worker", WORKER)] {
        for (section, keys) in sections(source) {
            let mut table = "| key | type | default | meaning |\n|---|---|---|---|\n".to_owned();
            for it in keys {
                let beyond = it
                    .beyond
                    .map(|beyond| format!(" {beyond}"))
                    .unwrap_or_default();
                let (name, kind, default, meaning) = (it.name, it.kind, it.default, it.meaning);
                writeln!(
                    table,
                    "| `{name}` | {kind} | {default} | {meaning}{beyond} |"
                )
                .unwrap();
            }
            parts.insert(format!("{node} {section}"), table);
        }
    }
    for kind in [FileKind::Coordinator, FileKind::Worker] {
        let mut table = "| before | now |\n|---|---|\n".to_owned();
        for rename in renames(kind).iter().filter(|it| it.old != it.new) {
            writeln!(table, "| `{}` | `{}` |", rename.old, rename.new).unwrap();
        }
        parts.insert(format!("{kind} renames"), table);
    }
    assert_current("configuration", parts);
}
