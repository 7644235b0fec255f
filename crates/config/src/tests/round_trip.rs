//! Round trip of every documented key.

use std::time::Duration;

use proptest::prelude::*;
use toml::{Table, Value};

use super::keys::{COORDINATOR, Key, WORKER, sections};
use crate::coordinator::CoordinatorFile;
use crate::worker::WorkerFile;
use crate::{FileKind, Size, TimeSpan};

/// The full name of a key, and its value.
type Entry = (String, Value);

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn a_coordinators_file_is_read_as_it_was_written(entries in file(COORDINATOR)) {
        same(&entries, FileKind::Coordinator)?;
    }

    #[test]
    fn a_workers_file_is_read_as_it_was_written(entries in file(WORKER)) {
        same(&entries, FileKind::Worker)?;
    }
}

/// A strategy for files: all required keys and some of the others, with values of their types.
fn file(source: &str) -> impl Strategy<Value = Vec<Entry>> + use<> {
    let all = sections(source).into_iter().flat_map(|(section, keys)| {
        keys.into_iter()
            .filter_map(move |key| entry(&section, &key))
    });
    all.collect::<Vec<_>>()
        .prop_map(|entries| entries.into_iter().flatten().collect())
}

/// A strategy for one key; `None` if the key is left out.
fn entry(section: &str, key: &Key) -> Option<BoxedStrategy<Option<Entry>>> {
    // The keys of lists of tables have a section of their own.
    if key.kind == "list of tables" {
        return None;
    }
    let name = match section {
        "file" => key.name.clone(),
        section => format!("{section}.{}", key.name),
    };
    let value = value(&name, &key.kind);
    let entry = value.prop_map(move |value| (name.clone(), value));
    Some(match key.default.starts_with("required") {
        true => entry.prop_map(Some).boxed(),
        false => proptest::option::of(entry).boxed(),
    })
}

pub(super) fn value(name: &str, kind: &str) -> BoxedStrategy<Value> {
    let text = "[ -~]{0,12}";
    match kind {
        _ if name == "version" => Just(Value::Integer(1)).boxed(),
        "boolean" => any::<bool>().prop_map(Value::Boolean).boxed(),
        "integer" => (0..60_000_i64).prop_map(Value::Integer).boxed(),
        "positive integer" => (1..1_000_000_i64).prop_map(Value::Integer).boxed(),
        "number" => (0.0..=1.0).prop_map(Value::Float).boxed(),
        "duration" => (1..100_000_000_u64)
            .prop_map(|millis| TimeSpan(Duration::from_millis(millis)).to_string())
            .prop_map(Value::String)
            .boxed(),
        "size" => (1..1_u64 << 40)
            .prop_map(|bytes| Value::String(Size(bytes).to_string()))
            .boxed(),
        "string" | "path" => text.prop_map(Value::String).boxed(),
        "list of strings" | "list of paths" => proptest::collection::vec(text, 0..3)
            .prop_map(|list| Value::Array(list.into_iter().map(Value::String).collect()))
            .boxed(),
        "table of strings" => proptest::collection::btree_map("[ -~]{1,8}", text, 0..3)
            .prop_map(|table| {
                table
                    .into_iter()
                    .map(|(k, v)| (k, Value::String(v)))
                    .collect()
            })
            .prop_map(Value::Table)
            .boxed(),
        kind => panic!("{name}: no values of the type {kind}"),
    }
}

fn same(entries: &[Entry], kind: FileKind) -> Result<(), TestCaseError> {
    let mut written = Table::new();
    for (name, value) in entries {
        put(&mut written, name, value.clone());
    }
    // The table is required, although none of its keys is.
    written
        .entry("cluster")
        .or_insert_with(|| Table::new().into());
    let text = toml::to_string(&written).unwrap();
    let read = match kind {
        FileKind::Coordinator => CoordinatorFile::parse(&text).map(Table::try_from),
        FileKind::Worker => WorkerFile::parse(&text).map(Table::try_from),
    };
    let read = read.map_err(|error| TestCaseError::fail(format!("{error}\n{text}")))?;
    let again: Table = toml::from_str(&toml::to_string(&read.unwrap()).unwrap()).unwrap();
    for (name, value) in entries {
        prop_assert_eq!(get(&again, name), Some(value), "{}", name);
    }
    Ok(())
}

/// The only list of tables.
const LIST: &str = "security.issuers.";

pub(super) fn put(table: &mut Table, name: &str, value: Value) {
    if let Some(key) = name.strip_prefix(LIST) {
        let security = table
            .entry("security")
            .or_insert_with(|| Table::new().into());
        let security = security.as_table_mut().unwrap();
        let list = security.entry("issuers");
        let list = list.or_insert_with(|| Value::Array(vec![Table::new().into()]));
        let one = list.as_array_mut().unwrap()[0].as_table_mut().unwrap();
        one.insert(key.to_owned(), value);
        return;
    }
    match name.split_once('.') {
        None => drop(table.insert(name.to_owned(), value)),
        Some((first, rest)) => {
            let below = table.entry(first).or_insert_with(|| Table::new().into());
            put(below.as_table_mut().unwrap(), rest, value);
        }
    }
}

pub(super) fn get<'t>(table: &'t Table, name: &str) -> Option<&'t Value> {
    if let Some(key) = name.strip_prefix(LIST) {
        return table.get("security")?.get("issuers")?.get(0)?.get(key);
    }
    let mut parts = name.split('.');
    let first = table.get(parts.next()?)?;
    parts.try_fold(first, |value, part| value.get(part))
}
