//! JSON without duplicate names in objects.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use volley_types::PredictError;

use super::content::{is_blank, parsed};

/// As [`super::parse`], but rejects duplicate names in an object.
///
/// # Errors
/// `InvalidInput` naming it.
pub(super) fn parse(bytes: &[u8]) -> Result<Map<String, Value>, PredictError> {
    if is_blank(bytes) {
        return Ok(Map::new());
    }
    parsed(serde_json::from_slice(bytes).map(|Unique(value)| value))
}

/// A value without duplicate names in objects.
#[derive(Debug)]
pub struct Unique(pub Value);

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Names).map(Self)
    }
}

struct Names;

impl<'de> Visitor<'de> for Names {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut all = Vec::new();
        while let Some(Unique(item)) = items.next_element()? {
            all.push(item);
        }
        Ok(all.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut all = Map::new();
        while let Some(name) = members.next_key::<String>()? {
            if all.contains_key(&name) {
                let name: String = name.chars().filter(|c| !c.is_control()).take(64).collect();
                return Err(A::Error::custom(format!("'{name}' occurs twice")));
            }
            let Unique(value) = members.next_value()?;
            all.insert(name, value);
        }
        Ok(all.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stands_once_wherever_it_is() {
        let told = r#"{"a":[{"b":1.5,"c":null},{"b":"x","d":[true,-2,18446744073709551615]}]}"#;
        let read = Value::Object(parse(told.as_bytes()).unwrap());
        assert_eq!(read, serde_json::from_str::<Value>(told).unwrap());
        assert!(parse(b" ").unwrap().is_empty());
        for (bad, name) in [
            (r#"{"role":"viewer","role":"cluster_admin"}"#, "'role'"),
            (r#"{"a":[{"b":{"c":1,"c":1}}]}"#, "'c'"),
            (r#"{"role":1,"r\u006fle":2}"#, "'role'"),
        ] {
            let error = parse(bad.as_bytes()).unwrap_err().message;
            assert!(error.contains(name) && error.contains("twice"), "{error}");
        }
        assert!(parse(b"[]").is_err() && parse(b"{").is_err());
        assert!(parse("[".repeat(1_000).as_bytes()).is_err());
    }
}
