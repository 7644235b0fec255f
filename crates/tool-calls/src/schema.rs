//! Prepares schemas for constrained answers: compact JSON, and closed objects.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

/// Field with llguidance's options in a schema.
const OPTIONS: &str = "x-guidance";
/// Keywords that determine whether an object is open.
const OPENS: [&str; 3] = [
    "additionalProperties",
    "patternProperties",
    "unevaluatedProperties",
];
/// Keywords that combine schemas, so that one schema does not list all fields.
const JOINS: [&str; 6] = ["allOf", "anyOf", "oneOf", "$ref", "if", "dependentSchemas"];
/// Keywords with subschemas.
const NAMED: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];
const LISTED: [&str; 3] = ["anyOf", "oneOf", "prefixItems"];
const SINGLE: [&str; 2] = ["additionalProperties", "items"];

/// Returns the schema without white space between tokens, in which objects are closed unless they
/// state otherwise.
pub fn prepared(schema: &Value) -> Value {
    let mut schema = match schema {
        // Allows any value.
        Value::Bool(true) => json!({}),
        schema => schema.clone(),
    };
    let mut joined = HashSet::new();
    joined_definitions(&schema, false, &mut joined);
    close(&mut schema, true, &joined);
    if let Some(fields) = schema.as_object_mut() {
        fields
            .entry(OPTIONS)
            .or_insert_with(|| json!({ "whitespace_flexible": false }));
    }
    schema
}

/// Sets a regular expression for the white space in a prepared schema.
pub fn spaced(mut schema: Value, pattern: &str) -> Value {
    if let Some(fields) = schema.as_object_mut() {
        let options = json!({ "whitespace_pattern": pattern });
        fields.insert(OPTIONS.to_owned(), options);
    }
    schema
}

/// Names of definitions that an `allOf` combines with others.
fn joined_definitions(schema: &Value, joins: bool, found: &mut HashSet<String>) {
    match schema {
        Value::Object(fields) => {
            let reference = fields.get("$ref").and_then(Value::as_str);
            if joins && let Some((_, name)) = reference.and_then(|path| path.rsplit_once('/')) {
                found.insert(name.to_owned());
            }
            for (name, value) in fields {
                joined_definitions(value, name == "allOf", found);
            }
        }
        Value::Array(values) => values
            .iter()
            .for_each(|value| joined_definitions(value, joins, found)),
        _ => {}
    }
}

/// Closes the objects in a schema. The schema itself is closed only if it is `whole`.
fn close(schema: &mut Value, whole: bool, joined: &HashSet<String>) {
    let Some(fields) = schema.as_object_mut() else {
        return;
    };
    let has = |fields: &Map<String, Value>, names: &[&str]| {
        names.iter().any(|name| fields.contains_key(*name))
    };
    let names_fields = fields.get("properties").is_some_and(Value::is_object);
    if whole && names_fields && !has(fields, &OPENS) && !has(fields, &JOINS) {
        fields.insert("additionalProperties".to_owned(), false.into());
    }
    for (name, value) in fields.iter_mut() {
        let name = name.as_str();
        if NAMED.contains(&name) {
            let parts = value.as_object_mut().into_iter().flatten();
            for (part, value) in parts {
                let defines = matches!(name, "$defs" | "definitions");
                close(value, !(defines && joined.contains(part)), joined);
            }
        } else if LISTED.contains(&name) {
            let alone = name == "prefixItems" || whole && !names_fields;
            let parts = value.as_array_mut().into_iter().flatten();
            parts.for_each(|part| close(part, alone, joined));
        } else if name == "allOf" {
            let parts = value.as_array_mut().into_iter().flatten();
            parts.for_each(|part| close(part, false, joined));
        } else if SINGLE.contains(&name) {
            match value {
                Value::Array(parts) => parts.iter_mut().for_each(|part| close(part, true, joined)),
                value => close(value, true, joined),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_closed_unless_they_say_otherwise() {
        let point = json!({ "type": "object", "properties": { "x": { "type": "number" } } });
        let closed = |mut schema: Value| {
            schema["additionalProperties"] = false.into();
            schema
        };
        let mut schema = prepared(&json!({
            "type": "object",
            "properties": { "at": point, "all": { "type": "array", "items": point } },
            "$defs": { "a": point, "b": point },
            "anyOf": [{ "required": ["at"] }],
        }));
        schema.as_object_mut().unwrap().remove(OPTIONS);
        let expected = json!({
            "type": "object",
            "properties": {
                "at": closed(point.clone()),
                "all": { "type": "array", "items": closed(point.clone()) },
            },
            "$defs": { "a": closed(point.clone()), "b": closed(point.clone()) },
            "anyOf": [{ "required": ["at"] }],
        });
        assert_eq!(schema, expected);
        for open in [
            json!({ "type": "object" }),
            json!({ "properties": {}, "additionalProperties": true }),
            json!({ "properties": {}, "additionalProperties": { "type": "string" } }),
            json!({ "properties": {}, "patternProperties": { "^x": {} } }),
            json!({ "allOf": [point, { "properties": { "y": {} } }] }),
            json!({ "allOf": [{ "$ref": "#/$defs/p" }], "$defs": { "p": point } }),
        ] {
            let mut same = prepared(&open);
            same.as_object_mut().unwrap().remove(OPTIONS);
            assert_eq!(same, open);
        }
    }
}
