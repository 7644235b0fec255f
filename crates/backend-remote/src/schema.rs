//! Checks answers against a JSON schema, for servers that do not enforce all of it. Pure.

use regex::RegexBuilder;
use serde_json::{Map, Value};

/// Maximum nesting of schemas and references.
const MAX_DEPTH: u32 = 64;
/// Maximum size of a pattern's automaton, in bytes.
const MAX_PATTERN_BYTES: usize = 1 << 20;

/// Describes where a value violates its schema, and by which keyword; `None` for a valid value.
pub(crate) fn fault(schema: &Value, value: &Value) -> Option<String> {
    let fault = Checker { root: schema }
        .check(schema, value, MAX_DEPTH)
        .err()?;
    let path = match fault.path.is_empty() {
        true => "the answer".to_owned(),
        false => format!("'{}'", fault.path),
    };
    Some(format!("{path} does not keep to '{}'", fault.keyword))
}

struct Fault {
    /// JSON pointer to the value, built from its end.
    path: String,
    keyword: &'static str,
}

impl Fault {
    fn below(mut self, name: &str) -> Self {
        let name: String = name.chars().filter(|c| !c.is_control()).take(64).collect();
        self.path = format!("/{name}{}", self.path);
        self
    }
}

type SchemaResult = Result<(), Fault>;

fn keep(kept: bool, keyword: &'static str) -> SchemaResult {
    let path = String::new();
    kept.then_some(()).ok_or(Fault { path, keyword })
}

struct Checker<'a> {
    root: &'a Value,
}

impl Checker<'_> {
    fn check(&self, schema: &Value, value: &Value, depth: u32) -> SchemaResult {
        let fields = match schema {
            Value::Bool(allowed) => return keep(*allowed, "false"),
            Value::Object(fields) => fields,
            _ => return Ok(()),
        };
        let Some(depth) = depth.checked_sub(1) else {
            return keep(false, "$ref");
        };
        if let Some(Value::String(name)) = fields.get("$ref") {
            let pointer = name.strip_prefix('#');
            let other = pointer.and_then(|pointer| self.root.pointer(pointer));
            other.map_or(Ok(()), |other| self.check(other, value, depth))?;
        }
        kinds(fields, value)?;
        self.combined(fields, value, depth)?;
        match value {
            Value::Number(number) => numbers(fields, number.as_f64().unwrap_or(f64::NAN)),
            Value::String(text) => texts(fields, text),
            Value::Array(list) => self.list(fields, list, depth),
            Value::Object(object) => self.object(fields, object, depth),
            Value::Null | Value::Bool(_) => Ok(()),
        }
    }

    fn fits(&self, schema: &Value, value: &Value, depth: u32) -> bool {
        self.check(schema, value, depth).is_ok()
    }

    fn combined(&self, fields: &Map<String, Value>, value: &Value, depth: u32) -> SchemaResult {
        let all = |name: &str| fields.get(name).and_then(Value::as_array);
        for schema in all("allOf").into_iter().flatten() {
            self.check(schema, value, depth)?;
        }
        let fitting = |list: &Vec<Value>| {
            let fitting = list.iter().filter(|schema| self.fits(schema, value, depth));
            fitting.count()
        };
        if let Some(list) = all("anyOf") {
            keep(0 < fitting(list), "anyOf")?;
        }
        if let Some(list) = all("oneOf") {
            keep(fitting(list) == 1, "oneOf")?;
        }
        if let Some(schema) = fields.get("not") {
            keep(!self.fits(schema, value, depth), "not")?;
        }
        if let Some(schema) = fields.get("if") {
            let name = match self.fits(schema, value, depth) {
                true => "then",
                false => "else",
            };
            let then = fields.get(name);
            then.map_or(Ok(()), |schema| self.check(schema, value, depth))?;
        }
        Ok(())
    }

    fn list(&self, fields: &Map<String, Value>, list: &[Value], depth: u32) -> SchemaResult {
        counts(fields, list.len(), ("minItems", "maxItems"))?;
        let first = fields.get("prefixItems").and_then(Value::as_array);
        let first = first.map_or(&[][..], Vec::as_slice);
        for (at, value) in list.iter().enumerate() {
            let schema = first.get(at).or_else(|| fields.get("items"));
            let checked = schema.map_or(Ok(()), |schema| self.check(schema, value, depth));
            checked.map_err(|fault| fault.below(&at.to_string()))?;
        }
        if fields.get("uniqueItems") == Some(&Value::Bool(true)) {
            let again = |(at, value)| list[..at].contains(value);
            keep(!list.iter().enumerate().any(again), "uniqueItems")?;
        }
        if let Some(schema) = fields.get("contains") {
            let fitting = list.iter().filter(|value| self.fits(schema, value, depth));
            let fitting = fitting.count();
            let least = number(fields, "minContains").unwrap_or(1.0);
            keep(least <= fitting as f64, "contains")?;
            counts(fields, fitting, ("minContains", "maxContains"))?;
        }
        Ok(())
    }

    fn object(
        &self,
        fields: &Map<String, Value>,
        object: &Map<String, Value>,
        depth: u32,
    ) -> SchemaResult {
        counts(fields, object.len(), ("minProperties", "maxProperties"))?;
        let required = fields.get("required").and_then(Value::as_array);
        let mut required = required.into_iter().flatten().filter_map(Value::as_str);
        keep(required.all(|name| object.contains_key(name)), "required")?;
        let known = fields.get("properties").and_then(Value::as_object);
        let patterns = fields.get("patternProperties").and_then(Value::as_object);
        for (name, value) in object {
            let own = known.and_then(|known| known.get(name));
            let like = patterns.into_iter().flatten();
            let like = like.filter(|(pattern, _)| matches(pattern, name));
            let mut schemas: Vec<_> = own.into_iter().chain(like.map(|(_, it)| it)).collect();
            if schemas.is_empty() {
                if fields.get("additionalProperties") == Some(&Value::Bool(false)) {
                    return keep(false, "additionalProperties").map_err(|it| it.below(name));
                }
                schemas.extend(fields.get("additionalProperties"));
            }
            for schema in schemas {
                let checked = self.check(schema, value, depth);
                checked.map_err(|fault| fault.below(name))?;
            }
            if let Some(schema) = fields.get("propertyNames") {
                let name_fits = self.fits(schema, &Value::from(name.as_str()), depth);
                keep(name_fits, "propertyNames").map_err(|it| it.below(name))?;
            }
        }
        let dependent = fields.get("dependentSchemas").and_then(Value::as_object);
        for (name, schema) in dependent.into_iter().flatten() {
            if object.contains_key(name) {
                self.check(schema, &Value::Object(object.clone()), depth)?;
            }
        }
        Ok(())
    }
}

fn kinds(fields: &Map<String, Value>, value: &Value) -> SchemaResult {
    let is = |kind: &Value| match kind.as_str() {
        Some("null") => value.is_null(),
        Some("boolean") => value.is_boolean(),
        Some("string") => value.is_string(),
        Some("number") => value.is_number(),
        Some("integer") => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        Some("array") => value.is_array(),
        Some("object") => value.is_object(),
        _ => true,
    };
    match fields.get("type") {
        Some(Value::Array(kinds)) => keep(kinds.iter().any(is), "type")?,
        Some(kind) => keep(is(kind), "type")?,
        None => {}
    }
    if let Some(Value::Array(values)) = fields.get("enum") {
        keep(values.iter().any(|one| equal(one, value)), "enum")?;
    }
    match fields.get("const") {
        Some(one) => keep(equal(one, value), "const"),
        None => Ok(()),
    }
}

/// 1 and 1.0 are equal.
fn equal(one: &Value, other: &Value) -> bool {
    one == other || one.is_number() && one.as_f64() == other.as_f64()
}

fn number(fields: &Map<String, Value>, name: &str) -> Option<f64> {
    fields.get(name)?.as_f64()
}

fn numbers(fields: &Map<String, Value>, value: f64) -> SchemaResult {
    let bound = |name: &'static str, kept: fn(f64, f64) -> bool| {
        let bound = number(fields, name);
        keep(bound.is_none_or(|bound| kept(value, bound)), name)
    };
    bound("minimum", |value, bound| bound <= value)?;
    bound("maximum", |value, bound| value <= bound)?;
    bound("exclusiveMinimum", |value, bound| bound < value)?;
    bound("exclusiveMaximum", |value, bound| value < bound)?;
    bound("multipleOf", |value, step| {
        let times = value / step;
        (times - times.round()).abs() < 1e-9 * times.abs().max(1.0)
    })
}

fn texts(fields: &Map<String, Value>, text: &str) -> SchemaResult {
    counts(fields, text.chars().count(), ("minLength", "maxLength"))?;
    let pattern = fields.get("pattern").and_then(Value::as_str);
    let fits = pattern.is_none_or(|pattern| matches(pattern, text));
    keep(fits, "pattern")
}

/// Whether a pattern matches a text. Patterns that the regex engine does not support are not
/// checked.
fn matches(pattern: &str, text: &str) -> bool {
    let pattern = RegexBuilder::new(pattern)
        .size_limit(MAX_PATTERN_BYTES)
        .build();
    pattern.map_or(true, |pattern| pattern.is_match(text))
}

fn counts(
    fields: &Map<String, Value>,
    count: usize,
    (least, most): (&'static str, &'static str),
) -> SchemaResult {
    let count = count as f64;
    let bound = |name| number(fields, name);
    keep(bound(least).is_none_or(|bound| bound <= count), least)?;
    keep(bound(most).is_none_or(|bound| count <= bound), most)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    type Case = (Value, Value, Value, &'static str);

    /// Checks each schema with a valid and an invalid value, and the violated keyword.
    fn check(cases: &[Case]) {
        for (schema, good, bad, keyword) in cases {
            assert_eq!(fault(schema, good), None, "{schema}");
            let told = fault(schema, bad).unwrap_or_else(|| panic!("{schema}"));
            assert!(told.contains(&format!("'{keyword}'")), "{schema}: {told}");
        }
    }

    /// A case whose keyword is the first of its schema.
    fn case(schema: Value, good: Value, bad: Value) -> Case {
        let name = schema.as_object().unwrap().keys().next().unwrap().clone();
        (schema, good, bad, name.leak())
    }

    #[test]
    fn values_keep_to_every_keyword() {
        check(&[
            case(json!({ "type": "integer" }), json!(1.0), json!(1.5)),
            case(json!({ "type": ["null", "string"] }), json!(null), json!(1)),
            case(json!({ "enum": [1, "a"] }), json!(1.0), json!("b")),
            case(json!({ "const": "a" }), json!("a"), json!("b")),
            case(json!({ "minimum": 2 }), json!(2), json!(1)),
            case(json!({ "maximum": 2 }), json!("any"), json!(3)),
            case(json!({ "exclusiveMinimum": 2 }), json!(3), json!(2)),
            case(json!({ "exclusiveMaximum": 2 }), json!(1), json!(2)),
            case(json!({ "multipleOf": 0.1 }), json!(0.3), json!(0.35)),
            case(json!({ "minLength": 2 }), json!("äö"), json!("ä")),
            case(json!({ "maxLength": 1 }), json!("ä"), json!("äö")),
            case(json!({ "pattern": "^a+$" }), json!("aa"), json!("ab")),
            case(json!({ "not": { "const": 1 } }), json!(2), json!(1)),
        ]);
        let both = |name: &str, one: Value, other: Value| json!({ name: [one, other] });
        let (one, two) = (json!({ "const": 1 }), json!({ "const": 2 }));
        let least = |least: u32| json!({ "minimum": least });
        check(&[
            case(both("anyOf", one, two), json!(2), json!(3)),
            case(both("oneOf", least(1), least(5)), json!(2), json!(6)),
            (
                both("allOf", least(1), json!({ "maximum": 5 })),
                json!(2),
                json!(6),
                "maximum",
            ),
            (
                json!({ "if": { "const": 1 }, "else": least(5) }),
                json!(1),
                json!(2),
                "minimum",
            ),
        ]);
    }

    #[test]
    fn lists_and_objects_keep_to_every_keyword() {
        let one = json!({ "const": 1 });
        check(&[
            case(json!({ "minItems": 1 }), json!([1]), json!([])),
            case(json!({ "maxItems": 1 }), json!([1]), json!([1, 2])),
            case(json!({ "uniqueItems": true }), json!([1, 2]), json!([1, 1])),
            case(json!({ "contains": one }), json!([1]), json!([2])),
            case(json!({ "required": ["a"] }), json!({ "a": 1 }), json!({})),
            case(json!({ "minProperties": 1 }), json!({ "a": 1 }), json!({})),
            case(
                json!({ "additionalProperties": false }),
                json!({}),
                json!({ "a": 1 }),
            ),
        ]);
        let of = |name: &str, inner: Value| json!({ name: inner });
        let inner = |schema: Value, good: Value, bad: Value| (schema, good, bad, "const");
        check(&[
            inner(of("items", one.clone()), json!([1]), json!([0])),
            inner(of("prefixItems", json!([one])), json!([1, 0]), json!([0])),
            inner(
                of("properties", json!({ "a": one })),
                json!({ "b": 0 }),
                json!({ "a": 0 }),
            ),
            inner(
                of("additionalProperties", one.clone()),
                json!({ "a": 1 }),
                json!({ "a": 2 }),
            ),
            inner(
                of("patternProperties", json!({ "^a": one })),
                json!({ "b": 2 }),
                json!({ "ab": 2 }),
            ),
        ]);
    }

    #[test]
    fn references_lead_into_the_schema_and_never_round_for_ever() {
        let tree = json!({ "$defs": { "node": { "type": "object", "properties": {
            "next": { "$ref": "#/$defs/node" }, "n": { "minimum": 1 } } } },
            "$ref": "#/$defs/node" });
        assert_eq!(fault(&tree, &json!({ "next": { "n": 1 } })), None);
        let told = fault(&tree, &json!({ "next": { "n": 0 } })).unwrap();
        assert_eq!(told, "'/next/n' does not keep to 'minimum'");
        let round = json!({ "$ref": "#" });
        assert!(fault(&round, &json!(1)).unwrap().contains("'$ref'"));
        let wrong = json!({ "pattern": "(?=a)b(" });
        assert_eq!(
            fault(&wrong, &json!("a")),
            None,
            "what cannot be read is not checked"
        );
    }
}
