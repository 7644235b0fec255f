//! Discovery of the configuration keys that a type reads.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;

use serde::de::value::StrDeserializer;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, forward_to_deserialize_any};

/// The keys that a type reads, by table. The path of the root is empty; other tables have the path
/// `section` or `section.table`. A list of tables has the path of one element. A table with free
/// keys has no entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schema {
    tables: BTreeMap<String, &'static [&'static str]>,
}

impl Schema {
    /// Collects the keys of `T` from its [`Deserialize`] implementation.
    #[must_use]
    pub fn of<T: for<'de> Deserialize<'de>>() -> Self {
        let mut tables = BTreeMap::new();
        let mut paths = vec![Vec::new()];
        while let Some(path) = paths.pop() {
            let Some(keys) = keys_at::<T>(&path) else {
                continue;
            };
            paths.extend(keys.iter().map(|key| [path.as_slice(), &[*key]].concat()));
            tables.insert(path.join("."), keys);
        }
        Self { tables }
    }

    /// The keys of a table; `None` if `table` is a value or has free keys.
    #[must_use]
    pub fn keys(&self, table: &str) -> Option<&'static [&'static str]> {
        self.tables.get(table).copied()
    }

    /// The full names of all keys that are not tables.
    pub fn leaves(&self) -> impl Iterator<Item = String> + '_ {
        let names = self.tables.iter().flat_map(|(table, keys)| {
            let name = move |key: &&str| join(table, key);
            keys.iter().map(name)
        });
        names.filter(|name| !self.tables.contains_key(name))
    }
}

/// The full name of `key` in `table`.
pub(crate) fn join(table: &str, key: &str) -> String {
    match table {
        "" => key.to_owned(),
        table => format!("{table}.{key}"),
    }
}

/// The keys of the table at `path` of `T`; `None` if `path` is not a table.
fn keys_at<T: for<'de> Deserialize<'de>>(path: &[&'static str]) -> Option<&'static [&'static str]> {
    let found = Cell::new(None);
    // Always an error: the probe stops as soon as it has the keys.
    let _: Result<T, Stop> = T::deserialize(Probe {
        path,
        found: &found,
    });
    found.get()
}

/// A deserializer without data. It walks to one table and records its keys.
#[derive(Clone, Copy)]
struct Probe<'p> {
    path: &'p [&'static str],
    found: &'p Cell<Option<&'static [&'static str]>>,
}

/// The error that ends a walk.
#[derive(Debug)]
struct Stop;

impl fmt::Display for Stop {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the walk ends")
    }
}

impl std::error::Error for Stop {}

impl Error for Stop {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self
    }
}

impl<'de> Deserializer<'de> for Probe<'_> {
    type Error = Stop;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Stop> {
        Err(Stop)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Stop> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Stop> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Stop> {
        visitor.visit_seq(self)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Stop> {
        if self.path.is_empty() {
            self.found.set(Some(fields));
            return Err(Stop);
        }
        visitor.visit_map(self)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct tuple tuple_struct map enum identifier ignored_any
    }
}

/// A list: every element has the same keys.
impl<'de> SeqAccess<'de> for Probe<'_> {
    type Error = Stop;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Stop> {
        seed.deserialize(*self).map(Some)
    }
}

/// A table with one key, the next one of the path.
impl<'de> MapAccess<'de> for Probe<'_> {
    type Error = Stop;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Stop> {
        let (key, rest) = self.path.split_first().ok_or(Stop)?;
        self.path = rest;
        seed.deserialize(StrDeserializer::new(key)).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Stop> {
        seed.deserialize(*self)?;
        // One key is sufficient.
        Err(Stop)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::{Size, TimeSpan};

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only its keys are looked at")]
    struct File {
        node: Node,
        #[serde(default)]
        http: Http,
        list: Option<Vec<Node>>,
    }

    #[derive(Deserialize)]
    #[expect(dead_code, reason = "only its keys are looked at")]
    struct Node {
        id: u64,
        labels: BTreeMap<String, String>,
        tls: Option<Tls>,
    }

    #[derive(Deserialize)]
    #[expect(dead_code, reason = "only its keys are looked at")]
    struct Tls {
        key: String,
    }

    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Http {
        size: Option<Size>,
        timeout: Option<TimeSpan>,
    }

    #[test]
    fn the_keys_of_every_table_are_found() {
        let schema = Schema::of::<File>();
        assert_eq!(schema.keys(""), Some(&["node", "http", "list"][..]));
        assert_eq!(schema.keys("node"), Some(&["id", "labels", "tls"][..]));
        assert_eq!(schema.keys("node.tls"), Some(&["key"][..]));
        assert_eq!(schema.keys("list.tls"), Some(&["key"][..]));
        assert_eq!(schema.keys("http"), Some(&["size", "timeout"][..]));
        assert_eq!(schema.keys("node.labels"), None);
        assert_eq!(schema.keys("http.size"), None);
        let leaves: Vec<_> = schema.leaves().collect();
        let expected = [
            "http.size",
            "http.timeout",
            "list.id",
            "list.labels",
            "list.tls.key",
            "node.id",
            "node.labels",
            "node.tls.key",
        ];
        assert_eq!(leaves, expected);
    }
}
