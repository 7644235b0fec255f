//! A migrated file has the same values under the current names.

use std::collections::BTreeMap;

use proptest::prelude::*;
use toml::{Table, Value};

use super::keys::{COORDINATOR, Key, WORKER, sections};
use super::round_trip::{get, put, value};
use crate::coordinator::CoordinatorFile;
use crate::worker::WorkerFile;
use crate::{FileKind, Rename, Size, migrate, renames};

/// A renamed key, its value, and whether a size is written as a number of bytes.
type Old = (Rename, Value, bool);

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(64)
    })]

    #[test]
    fn an_old_coordinators_file_means_the_same(old in old(COORDINATOR, FileKind::Coordinator)) {
        let required = "node.id = 1\nnode.data_dir = 'd'\nlisten.public = 'h:1'\n\
                        listen.internal = 'h:2'\ncluster.join = ['h:3']\n";
        same(&old, required, FileKind::Coordinator)?;
    }

    #[test]
    fn an_old_workers_file_means_the_same(old in old(WORKER, FileKind::Worker)) {
        let required = "node.id = 'w'\nlisten.flight = 'h:1'\nlisten.http = 'h:2'\n\
                        cluster.coordinators = ['h:3']\n";
        same(&old, required, FileKind::Worker)?;
    }
}

fn old(source: &str, kind: FileKind) -> impl Strategy<Value = Vec<Old>> + use<> {
    let keys: BTreeMap<String, Key> = sections(source)
        .into_iter()
        .flat_map(|(section, keys)| {
            keys.into_iter()
                .map(move |key| (format!("{section}.{}", key.name), key))
        })
        .collect();
    let some = renames(kind).iter().map(|rename| {
        let key = keys.get(rename.new);
        let key = key.unwrap_or_else(|| panic!("no key {}", rename.new));
        assert_eq!(rename.is_size, key.kind == "size", "{}", rename.new);
        let with = (value(rename.new, &key.kind), any::<bool>());
        let with = with.prop_map(|(value, as_number)| (*rename, value, as_number));
        proptest::option::of(with)
    });
    some.collect::<Vec<_>>()
        .prop_map(|old| old.into_iter().flatten().collect())
}

fn same(old: &[Old], required: &str, kind: FileKind) -> Result<(), TestCaseError> {
    let mut before: Table = required.parse().unwrap();
    for (rename, value, as_number) in old {
        let bytes = value.as_str().and_then(|text| text.parse::<Size>().ok());
        let value = match bytes {
            Some(Size(bytes)) if rename.is_size && *as_number => {
                Value::Integer(i64::try_from(bytes).unwrap())
            }
            _ => value.clone(),
        };
        put(&mut before, rename.old, value);
    }
    let text = toml::to_string(&before).unwrap();
    let migration = migrate(&text).map_err(|error| TestCaseError::fail(error.to_string()))?;
    let read = match kind {
        FileKind::Coordinator => CoordinatorFile::parse(&migration.text).map(Table::try_from),
        FileKind::Worker => WorkerFile::parse(&migration.text).map(Table::try_from),
    };
    let read = read
        .map_err(|error| TestCaseError::fail(format!("{error}\n{text}\n{}", migration.text)))?
        .unwrap();
    for (rename, value, _) in old {
        prop_assert_eq!(get(&read, rename.new), Some(value), "{}", rename.new);
    }
    Ok(())
}
