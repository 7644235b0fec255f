//! Migration of files without a version.

use toml_edit::{Decor, DocumentMut, Item, Key, RawString, Table, Value};

use crate::error::ConfigError;
use crate::kind::FileKind;
use crate::renames::{self, Rename};
use crate::values::Size;
use crate::version::{FORMAT_VERSION, judge};

/// A migrated file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Migration {
    /// The kind of the file.
    pub kind: FileKind,
    /// The migrated text.
    pub text: String,
    /// The keys that were renamed.
    pub renamed: Vec<Rename>,
    /// Whether the text was changed.
    pub is_changed: bool,
}

/// A key that moves to another table.
struct MovedKey {
    rename: &'static Rename,
    key: Key,
    item: Item,
    /// The position of its old table in the file.
    position: Option<isize>,
    /// The comments at the header of its old table, if no key stays in that table.
    header: Option<Decor>,
}

/// Migrates a file to [`FORMAT_VERSION`]. Comments, the order of keys, and keys with free names are
/// preserved. A file that already has this version is returned unchanged. Keys and values are not
/// validated; parse the result to do so.
///
/// # Errors
/// When the text is not TOML, when the file configures neither a coordinator nor a worker, when it
/// has another version, or when it contains both the old and the new name of a key.
pub fn migrate(text: &str) -> Result<Migration, ConfigError> {
    let parsed: Result<DocumentMut, _> = text.parse();
    let mut file = parsed.map_err(|error| ConfigError::Toml(error.to_string()))?;
    let kind = kind(&file)?;
    if let Some(version) = file.get("version") {
        judge(version.as_integer()).map_err(ConfigError::Version)?;
        return Ok(Migration {
            kind,
            text: text.to_owned(),
            renamed: Vec::new(),
            is_changed: false,
        });
    }
    let mut renamed = Vec::new();
    for it in take(&mut file, kind, &mut renamed)? {
        put(&mut file, it)?;
    }
    for rename in renames::renames(kind).iter().filter(|it| it.is_size) {
        let item = split(rename.new).and_then(|(table, key)| file.get_mut(table)?.get_mut(key));
        if let Some(value) = item.and_then(Item::as_value_mut) {
            write_size(value);
        }
    }
    let text = with_version(&file.to_string());
    Ok(Migration {
        kind,
        text,
        renamed,
        is_changed: true,
    })
}

fn kind(file: &DocumentMut) -> Result<FileKind, ConfigError> {
    let listen = file.get("listen").and_then(Item::as_table_like);
    let keys = listen
        .into_iter()
        .flat_map(|it| it.iter().map(|(key, _)| key));
    FileKind::from_listeners(keys).ok_or_else(|| {
        ConfigError::Migration(
            "the file has neither 'listen.public' (a coordinator) nor 'listen.flight' (a worker)"
                .to_owned(),
        )
    })
}

fn split(name: &'static str) -> Option<(&'static str, &'static str)> {
    name.split_once('.')
}

/// Renames keys within their table. Removes and returns the keys that move to another table, in the
/// order of the file.
fn take(
    file: &mut DocumentMut,
    kind: FileKind,
    renamed: &mut Vec<Rename>,
) -> Result<Vec<MovedKey>, ConfigError> {
    let tables: Vec<_> = file.iter().map(|(name, _)| name.to_owned()).collect();
    let mut moved = Vec::new();
    for name in tables.iter().filter(|name| renames::has_table(kind, name)) {
        let Some(item) = file.get_mut(name) else {
            continue;
        };
        if let Item::Value(Value::InlineTable(inline)) = item {
            let inline = std::mem::take(inline);
            *item = Item::Table(inline.into_table());
        }
        let Item::Table(table) = item else {
            continue;
        };
        let before = moved.len();
        take_from(table, name, kind, (&mut moved, renamed))?;
        if !table.get_values().is_empty() {
            continue;
        }
        let header = table.decor().clone();
        let is_empty = table.is_empty();
        if let Some(first) = moved.get_mut(before) {
            table.set_implicit(true);
            first.header = Some(header);
        } else if is_empty && !renames::is_table(kind, name) {
            file.remove(name);
            let end = text_of(Some(file.trailing())) + &comments(&header);
            file.set_trailing(end);
        }
    }
    Ok(moved)
}

fn take_from(
    table: &mut Table,
    name: &str,
    kind: FileKind,
    (moved, done): (&mut Vec<MovedKey>, &mut Vec<Rename>),
) -> Result<(), ConfigError> {
    let position = last_position(table);
    let keys: Vec<_> = table.iter().map(|(key, _)| key.to_owned()).collect();
    for old in keys {
        let Some((key, item)) = table.remove_entry(&old) else {
            continue;
        };
        let rename = renames::of(kind, &format!("{name}.{old}"));
        done.extend(rename.filter(|rename| rename.old != rename.new));
        match rename.and_then(|rename| Some((rename, split(rename.new)?))) {
            Some((_, (target, new))) if target == name => {
                if new != old && table.contains_key(new) {
                    return Err(twice(&format!("{name}.{old}"), &format!("{name}.{new}")));
                }
                table.insert_formatted(&renamed(&key, new), item);
            }
            Some((rename, _)) => moved.push(MovedKey {
                rename,
                key,
                item,
                position,
                header: None,
            }),
            None => {
                table.insert_formatted(&key, item);
            }
        }
    }
    Ok(())
}

/// The position of the last one of `table` and its subtables.
fn last_position(table: &Table) -> Option<isize> {
    let below = table.iter().filter_map(|(_, item)| item.as_table());
    let below = below.filter_map(last_position);
    below.chain(table.position()).max()
}

fn renamed(key: &Key, new: &str) -> Key {
    Key::new(new)
        .with_leaf_decor(key.leaf_decor().clone())
        .with_dotted_decor(key.dotted_decor().clone())
}

fn put(file: &mut DocumentMut, moved: MovedKey) -> Result<(), ConfigError> {
    let Some((name, new)) = split(moved.rename.new) else {
        return Ok(());
    };
    let mut key = renamed(&moved.key, new);
    let comment = moved.header.as_ref().map(comments).unwrap_or_default();
    if file.contains_key(name) {
        let own = text_of(key.leaf_decor().prefix());
        key.leaf_decor_mut().set_prefix(comment + &own);
    } else {
        let mut table = Table::new();
        table.set_position(moved.position);
        *table.decor_mut() = moved.header.unwrap_or_else(|| Decor::new("\n", ""));
        file.insert(name, Item::Table(table));
    }
    let table = file.get_mut(name).and_then(Item::as_table_like_mut);
    let Some(table) = table else {
        return Err(ConfigError::Migration(format!("'{name}' is not a table")));
    };
    if table.contains_key(new) {
        return Err(twice(moved.rename.old, moved.rename.new));
    }
    table.entry_format(&key).or_insert(moved.item);
    Ok(())
}

/// The comments of a header, one per line.
fn comments(header: &Decor) -> String {
    let (before, behind) = (text_of(header.prefix()), text_of(header.suffix()));
    let lines = before.lines().chain(behind.lines()).map(str::trim);
    let comments = lines.filter(|line| line.starts_with('#'));
    comments.map(|line| format!("{line}\n")).collect()
}

fn text_of(raw: Option<&RawString>) -> String {
    raw.and_then(RawString::as_str)
        .unwrap_or_default()
        .to_owned()
}

fn twice(old: &str, new: &str) -> ConfigError {
    ConfigError::Migration(format!(
        "the file has both '{old}' and its new name '{new}': remove one of them"
    ))
}

/// Adds a unit to a size in bytes.
fn write_size(value: &mut Value) {
    let bytes = match &*value {
        Value::Integer(number) => u64::try_from(*number.value()).ok(),
        Value::String(text) => text.value().trim().parse().ok(),
        _ => None,
    };
    if let Some(bytes) = bytes {
        let decor = value.decor().clone();
        *value = Value::from(Size(bytes).to_string());
        *value.decor_mut() = decor;
    }
}

/// Inserts the version as the first key, below the leading comment of the file.
fn with_version(text: &str) -> String {
    let comment = text
        .split_inclusive('\n')
        .take_while(|line| line.starts_with('#'));
    let end = comment.map(str::len).sum::<usize>();
    // A comment that is not followed by an empty line belongs to the first key.
    let end = match text[end..].starts_with(['\n', '\r']) {
        true => end,
        false => 0,
    };
    let (comment, rest) = text.split_at(end);
    let rest = rest.trim_start_matches(['\n', '\r']);
    let gap = if rest.is_empty() { "" } else { "\n" };
    format!("{comment}version = {FORMAT_VERSION}\n{gap}{rest}")
}

#[cfg(test)]
mod tests;
