//! Unknown keys in a file, with suggestions.

use toml::de::{DeTable, DeValue};

use crate::kind::FileKind;
use crate::renames;
use crate::schema::{Schema, join};

/// Maximum number of unknown keys that are listed; the rest are counted.
const MOST_NAMED: usize = 20;
/// Minimum similarity (Jaro-Winkler, 0 to 1) of a suggestion.
const ALIKE: f64 = 0.8;

/// A key that the format does not have.
#[derive(Debug)]
struct UnknownKey {
    table: String,
    key: String,
    line: usize,
}

/// The errors in the keys of `file`, one line each. `text` is the source of `file`.
pub(crate) fn problems(
    file: &DeTable<'_>,
    text: &str,
    schema: &Schema,
    kind: FileKind,
) -> Vec<String> {
    let mut unknown = Vec::new();
    collect(file, text, schema, kind, "", &mut unknown);
    unknown.sort_by_key(|it| it.line);
    let count = unknown.len();
    let named = unknown.iter().take(MOST_NAMED);
    let mut lines: Vec<_> = named.map(|it| it.describe(schema, kind)).collect();
    if MOST_NAMED < count {
        lines.push(format!("and {} more unknown keys", count - MOST_NAMED));
    }
    lines
}

fn collect(
    table: &DeTable<'_>,
    text: &str,
    schema: &Schema,
    kind: FileKind,
    path: &str,
    unknown: &mut Vec<UnknownKey>,
) {
    let keys = schema.keys(path);
    for (key, value) in table {
        let name = join(path, key.get_ref());
        let is_known = keys.is_some_and(|keys| keys.contains(&key.get_ref().as_ref()));
        let is_old_table = || {
            let has_keys = value.get_ref().as_table().is_some_and(|it| !it.is_empty());
            has_keys && renames::has_table(kind, &name)
        };
        if is_known && schema.keys(&name).is_none() {
            continue;
        }
        if !is_known && !is_old_table() {
            unknown.push(UnknownKey {
                table: path.to_owned(),
                key: key.get_ref().to_string(),
                line: line_of(text, key.span().start),
            });
            continue;
        }
        match value.get_ref() {
            DeValue::Table(table) => collect(table, text, schema, kind, &name, unknown),
            DeValue::Array(list) => {
                let tables = list.iter().filter_map(|it| it.get_ref().as_table());
                tables.for_each(|table| collect(table, text, schema, kind, &name, unknown));
            }
            // The wrong type is reported by the deserializer.
            _ => {}
        }
    }
}

fn line_of(text: &str, start: usize) -> usize {
    let before = text.bytes().take(start);
    1 + before.filter(|byte| *byte == b'\n').count()
}

impl UnknownKey {
    fn describe(&self, schema: &Schema, kind: FileKind) -> String {
        let (line, name) = (self.line, join(&self.table, &self.key));
        if let Some(rename) = renames::of(kind, &name) {
            return format!("line {line}: '{name}' is now '{}'", rename.new);
        }
        if let Some(nearest) = self.nearest(schema) {
            return format!("line {line}: unknown key '{name}'; did you mean '{nearest}'?");
        }
        match schema.keys(&self.table) {
            Some(keys) if self.table.is_empty() => format!(
                "line {line}: unknown key '{name}'; a {kind}'s file has {}",
                keys.join(", ")
            ),
            Some(keys) => format!(
                "line {line}: unknown key '{name}'; '{}' has {}",
                self.table,
                keys.join(", ")
            ),
            None => format!("line {line}: unknown key '{name}'"),
        }
    }

    /// The key that was probably meant: the most similar key of the same table, otherwise the most
    /// similar key of all tables.
    fn nearest(&self, schema: &Schema) -> Option<String> {
        let own = schema.keys(&self.table).unwrap_or_default();
        let own = own.iter().map(|key| {
            let alike = strsim::jaro_winkler(key, &self.key);
            (alike, join(&self.table, key))
        });
        best(own).or_else(|| {
            let all = schema.leaves().map(|name| {
                let key = name.rsplit_once('.').map_or(name.as_str(), |(_, key)| key);
                (strsim::jaro_winkler(key, &self.key), name)
            });
            best(all)
        })
    }
}

fn best(names: impl Iterator<Item = (f64, String)>) -> Option<String> {
    let alike = names.filter(|(alike, _)| ALIKE <= *alike);
    let best = alike.max_by(|(one, _), (other, _)| one.total_cmp(other));
    best.map(|(_, name)| name)
}
