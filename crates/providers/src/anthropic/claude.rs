//! Capabilities of Claude models by name, and the schemas that they support. Pure.

use serde_json::{Map, Value, json};
use volley_provider_kit::effort::Effort;
use volley_types::PredictError;

/// Capabilities of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claude {
    /// Thinking is set by an effort level. Older models need a token budget.
    pub(crate) adapts: bool,
    /// The model supports a response schema.
    pub(crate) has_forms: bool,
}

impl Claude {
    /// The capabilities of a model by name, on any provider. A name without a version counts as the
    /// newest model.
    pub(crate) fn of(model: &str) -> Self {
        let version = version(model);
        let from = |least: (u32, u32)| version.is_none_or(|version| least <= version);
        let is_opus = model.contains("opus");
        Self {
            adapts: from((4, 6)),
            has_forms: from((4, 5)) || is_opus && from((4, 1)),
        }
    }
}

/// Parses the version in a name, before or after the family: `claude-3-5-sonnet-20241022`,
/// `claude-opus-4-1`, `anthropic.claude-sonnet-4-20250514-v1:0`.
fn version(model: &str) -> Option<(u32, u32)> {
    let (_, name) = model.rsplit_once("claude-")?;
    let parts: Vec<_> = name.split(['-', '@', ':', '.']).collect();
    // Larger numbers are dates.
    let number = |part: &&str| part.parse::<u32>().ok().filter(|it| *it < 100);
    let at = parts.iter().position(|part| number(part).is_some())?;
    let minor = parts.get(at + 1).and_then(number).unwrap_or(0);
    Some((number(&parts[at])?, minor))
}

/// The server's name of an effort level.
pub(crate) fn level(effort: Effort) -> &'static str {
    match effort {
        Effort::Minimal => "low",
        other => other.as_str(),
    }
}

/// Maximum number of optional properties, and of unions, in a schema.
const MAX_OPTIONAL: usize = 24;
const MAX_UNIONS: usize = 16;

/// Keywords that the server rejects in a schema. They move to the description.
const UNKNOWN: [&str; 15] = [
    "minItems",
    "maxItems",
    "uniqueItems",
    "minContains",
    "maxContains",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minLength",
    "maxLength",
    "minProperties",
    "maxProperties",
    "patternProperties",
];

/// Converts a schema for the server; `None` if its meaning would change.
pub(crate) fn fitted(schema: &Value) -> Option<Value> {
    let mut counts = Counts::default();
    let fitted = fit(schema, &mut counts)?;
    let is_object = fitted["type"] == "object";
    (is_object && counts.optional <= MAX_OPTIONAL && counts.unions <= MAX_UNIONS).then_some(fitted)
}

#[derive(Default)]
struct Counts {
    optional: usize,
    unions: usize,
}

fn fit(schema: &Value, counts: &mut Counts) -> Option<Value> {
    let Value::Object(given) = schema else {
        return None;
    };
    if ["if", "not", "dependentSchemas"]
        .iter()
        .any(|name| given.contains_key(*name))
    {
        return None;
    }
    let (mut made, mut told) = (Map::new(), Vec::new());
    for (name, value) in given {
        match name.as_str() {
            // The keyword does not affect values.
            "$schema" => {}
            name if UNKNOWN.contains(&name) => told.push(format!("{name}: {value}")),
            "oneOf" | "anyOf" => {
                counts.unions += 1;
                let all = value.as_array()?.iter().map(|one| fit(one, counts));
                made.insert("anyOf".to_owned(), all.collect::<Option<Value>>()?);
            }
            "allOf" => {
                let all = value.as_array()?.iter().map(|one| fit(one, counts));
                made.insert(name.clone(), all.collect::<Option<Value>>()?);
            }
            "properties" | "$defs" | "definitions" => {
                let all = value.as_object()?.iter();
                let all = all.map(|(name, one)| Some((name.clone(), fit(one, counts)?)));
                made.insert(name.clone(), Value::Object(all.collect::<Option<_>>()?));
            }
            "items" => _ = made.insert(name.clone(), fit(value, counts)?),
            // The server requires closed objects; closing this one would change its meaning.
            "additionalProperties" if *value != Value::Bool(false) => return None,
            _ => _ = made.insert(name.clone(), value.clone()),
        }
    }
    if made.get("type").is_some_and(Value::is_array) {
        counts.unions += 1;
    }
    let is_object = made.get("type").is_some_and(|kind| kind == "object");
    // As a closed object it would have to be empty.
    if is_object && !made.contains_key("properties") {
        return None;
    }
    if let Some(properties) = made.get("properties").and_then(Value::as_object) {
        let required = made
            .get("required")
            .and_then(Value::as_array)
            .map_or(0, Vec::len);
        counts.optional += properties.len().saturating_sub(required);
        made.insert("additionalProperties".to_owned(), false.into());
    }
    if !told.is_empty() {
        let before = given.get("description").and_then(Value::as_str);
        let told = told.join(", ");
        let said = before.map_or(told.clone(), |before| format!("{before} ({told})"));
        made.insert("description".to_owned(), said.into());
    }
    Some(made.into())
}

/// Checks that the schema of a tool's input is an object's.
///
/// # Errors
/// `InvalidInput` for another type.
pub(crate) fn object(schema: Value) -> Result<Value, PredictError> {
    match schema.get("type") {
        Some(kind) if kind == "object" => Ok(schema),
        None if schema.is_object() => {
            let mut schema = schema;
            schema["type"] = json!("object");
            Ok(schema)
        }
        _ => Err(PredictError::invalid(
            "parameter 'response_format' must have the schema of an object for this model",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_what_a_model_can_do() {
        for (name, adapts, has_forms) in [
            ("claude-3-5-sonnet-20241022", false, false),
            ("claude-3-opus-20240229", false, false),
            ("claude-sonnet-4-20250514", false, false),
            ("claude-opus-4-1-20250805", false, true),
            ("claude-sonnet-4-5", false, true),
            ("claude-haiku-4-5@20251001", false, true),
            ("claude-opus-4-6", true, true),
            ("claude-opus-5", true, true),
            ("anthropic.claude-sonnet-4-20250514-v1:0", false, false),
            ("eu.anthropic.claude-opus-4-7-v1", true, true),
            ("claude", true, true),
            ("the-model", true, true),
        ] {
            assert_eq!(Claude::of(name), Claude { adapts, has_forms }, "{name}");
        }
    }

    #[test]
    fn a_schema_loses_what_the_server_refuses_and_says_it_in_words() {
        let given = json!({ "type": "object", "properties": {
            "age": { "type": "integer", "minimum": 0, "description": "years" },
            "pet": { "oneOf": [{ "type": "string", "minLength": 2 }, { "type": "null" }] },
            "tags": { "type": "array", "items": { "type": "string" }, "maxItems": 3 },
        }, "required": ["age"] });
        let expected = json!({ "type": "object", "additionalProperties": false, "properties": {
            "age": { "type": "integer", "description": "years (minimum: 0)" },
            "pet": { "anyOf": [
                { "type": "string", "description": "minLength: 2" }, { "type": "null" } ] },
            "tags": { "type": "array", "items": { "type": "string" }, "description": "maxItems: 3" },
        }, "required": ["age"] });
        assert_eq!(fitted(&given), Some(expected));
        for other in [
            json!({ "type": "object", "additionalProperties": { "type": "string" } }),
            json!({ "type": "array", "items": { "type": "string" } }),
            json!({ "type": "object", "if": {}, "then": {} }),
            json!({ "type": "object", "properties": { "a": true } }),
        ] {
            assert_eq!(fitted(&other), None, "{other}");
        }
        let many: Map<_, _> = (0..25)
            .map(|n| (format!("p{n}"), json!({ "type": "string" })))
            .collect();
        assert_eq!(
            fitted(&json!({ "type": "object", "properties": many })),
            None
        );
        assert!(object(json!({ "type": "array" })).is_err());
    }
}
