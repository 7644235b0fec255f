//! The format that a request requires of its answer, in the parameters of OpenAI, vLLM, llama.cpp
//! and TGI.

use serde_json::{Map, Value, json};
use volley_types::{Parameters, PredictError};

use super::gbnf;
use super::gbnf::Grammar;
use volley_tool_calls::Function;
use volley_tool_calls::schema::{prepared, spaced};

/// Maximum length of a schema, regular expression or grammar, in bytes.
const MAX_FORM_BYTES: usize = 64 << 10;
/// Parameters that are not allowed together with required calls.
const GUIDED: [&str; 7] = [
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "json_schema",
    "grammar",
    "structured_outputs",
];
/// Fields of `structured_outputs` that are allowed beside the format.
const OPTIONS: [&str; 4] = [
    "whitespace_pattern",
    "disable_any_whitespace",
    "disable_additional_properties",
    "disable_fallback",
];

/// The required format of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum ConstraintForm {
    /// JSON that matches a schema.
    Json(Value),
    /// Text that matches a regular expression completely.
    Regex(String),
    /// Text that matches a grammar in Lark notation.
    Grammar(String),
    /// Calls of functions.
    Calls {
        /// The callable functions.
        functions: Vec<Function>,
        /// Maximum number of calls.
        most: usize,
    },
}

impl ConstraintForm {
    /// Parses the format that a request requires; `None` if it requires none.
    ///
    /// # Errors
    /// `InvalidInput` if there are several formats, or one is malformed or too long.
    pub fn read(parameters: &Parameters) -> Result<Option<Self>, PredictError> {
        let spaces = parameters.text("guided_whitespace_pattern");
        let mut forms = Vec::new();
        for name in GUIDED {
            let text = short(parameters, name)?.filter(|text| !text.is_empty());
            let Some(text) = text else {
                continue;
            };
            match name {
                "structured_outputs" => forms.extend(structured(&parse(&text, name)?)?),
                "guided_regex" => forms.push(Self::Regex(text)),
                "grammar" | "guided_grammar" => forms.push(Self::grammar(&text, name)?),
                "guided_choice" => forms.push(Self::choice(&parse(&text, name)?, name)?),
                _ => forms.push(Self::json(&parse(&text, name)?, spaces.as_deref())),
            }
        }
        if let Some(text) = short(parameters, "response_format")? {
            forms.extend(response_format(&parse(&text, "response_format")?)?);
        }
        match forms.len() {
            0 | 1 => Ok(forms.pop()),
            _ => Err(PredictError::invalid(format!(
                "an answer can have one format only: set one of 'response_format', '{}'",
                GUIDED.join("', '")
            ))),
        }
    }

    /// JSON with white space that matches `spaces`, or without white space.
    fn json(schema: &Value, spaces: Option<&str>) -> Self {
        let schema = prepared(schema);
        Self::Json(match spaces {
            Some(pattern) => spaced(schema, pattern),
            None => schema,
        })
    }

    /// Parses a grammar in GBNF or Lark notation.
    fn grammar(text: &str, name: &str) -> Result<Self, PredictError> {
        if !gbnf::is_gbnf(text) {
            return Ok(Self::Grammar(text.to_owned()));
        }
        let read = gbnf::read(text).map_err(|reason| {
            PredictError::invalid(format!(
                "parameter '{name}' is not a valid grammar: {reason}"
            ))
        })?;
        Ok(match read {
            Grammar::Regular(expression) => Self::Regex(expression),
            Grammar::Nested(lark) => Self::Grammar(lark),
        })
    }

    /// One of several texts.
    fn choice(texts: &Value, name: &str) -> Result<Self, PredictError> {
        let texts = texts.as_array().into_iter().flatten();
        let texts: Option<Vec<_>> = texts.map(Value::as_str).collect();
        match texts {
            Some(texts) if !texts.is_empty() => {
                let texts: Vec<_> = texts.into_iter().map(gbnf::literal).collect();
                Ok(Self::Regex(format!("(?:{})", texts.join("|"))))
            }
            _ => Err(PredictError::invalid(format!(
                "parameter '{name}' must be a list of at least one text"
            ))),
        }
    }
}

/// Whether a request requires a format that excludes required calls. `response_format` does not,
/// because it applies to the answer's text, which calls do not have.
pub fn is_guided(parameters: &Parameters) -> bool {
    GUIDED.iter().any(|name| parameters.get(name).is_some())
}

/// Returns the text of a parameter.
///
/// # Errors
/// `InvalidInput` if it exceeds the maximum length of a format (64 KiB).
pub fn short(parameters: &Parameters, name: &str) -> Result<Option<String>, PredictError> {
    match parameters.text(name) {
        Some(text) if MAX_FORM_BYTES < text.len() => Err(PredictError::invalid(format!(
            "parameter '{name}' has {} bytes; the limit is {MAX_FORM_BYTES}",
            text.len()
        ))),
        text => Ok(text),
    }
}

fn parse(text: &str, name: &str) -> Result<Value, PredictError> {
    serde_json::from_str(text).map_err(|error| {
        PredictError::invalid(format!("parameter '{name}' is not valid JSON: {error}"))
    })
}

/// Parses vLLM's `structured_outputs`.
fn structured(given: &Value) -> Result<Option<ConstraintForm>, PredictError> {
    let wrong =
        |what: &str| PredictError::invalid(format!("parameter 'structured_outputs' {what}"));
    let given = given
        .as_object()
        .ok_or_else(|| wrong("must be an object"))?;
    let spaces = given.get("whitespace_pattern").and_then(Value::as_str);
    let mut forms = Vec::new();
    for (name, value) in given.iter().filter(|(_, value)| !value.is_null()) {
        let text = || {
            value
                .as_str()
                .ok_or_else(|| wrong(&format!("needs '{name}' to be a text")))
        };
        let path = format!("structured_outputs.{name}");
        match name.as_str() {
            "json" => forms.push(ConstraintForm::json(&json_of(value, &path)?, spaces)),
            "json_object" if value == true => forms.push(ConstraintForm::json(&object(), spaces)),
            "json_object" if value == false => {}
            "regex" => forms.push(ConstraintForm::Regex(text()?.to_owned())),
            "choice" => forms.push(ConstraintForm::choice(value, &path)?),
            "grammar" => forms.push(ConstraintForm::grammar(text()?, &path)?),
            name if OPTIONS.contains(&name) => {}
            name => {
                let name: String = name.chars().filter(|c| !c.is_control()).take(64).collect();
                return Err(wrong(&format!("has '{name}', which is not supported")));
            }
        }
    }
    match forms.len() {
        1 => Ok(forms.pop()),
        _ => Err(wrong(
            "must have one of 'json', 'json_object', 'regex', 'choice' and 'grammar'",
        )),
    }
}

/// A schema, as JSON or as JSON text.
fn json_of(value: &Value, name: &str) -> Result<Value, PredictError> {
    match value {
        Value::String(text) => parse(text, name),
        value => Ok(value.clone()),
    }
}

fn object() -> Value {
    json!({ "type": "object" })
}

/// Parses OpenAI's `response_format`, with the extensions of llama.cpp and TGI.
fn response_format(format: &Value) -> Result<Option<ConstraintForm>, PredictError> {
    let empty = Map::new();
    let fields = format.as_object().unwrap_or(&empty);
    let missing =
        |path: &str| PredictError::invalid(format!("'response_format.{path}' is missing"));
    let schema = match fields.get("type").and_then(Value::as_str) {
        Some("text") => return Ok(None),
        Some("json_object") => fields.get("schema").cloned().unwrap_or_else(object),
        Some("json_schema") => {
            let schema = format.pointer("/json_schema/schema");
            let schema = schema.or_else(|| fields.get("schema"));
            schema.ok_or_else(|| missing("json_schema.schema"))?.clone()
        }
        Some("json") => fields.get("value").ok_or_else(|| missing("value"))?.clone(),
        Some("regex") => {
            let expression = fields.get("value").and_then(Value::as_str);
            let expression = expression.ok_or_else(|| missing("value"))?;
            return Ok(Some(ConstraintForm::Regex(expression.to_owned())));
        }
        Some("grammar") => {
            let grammar = fields.get("grammar").or_else(|| fields.get("value"));
            let grammar = grammar.and_then(Value::as_str);
            let grammar = grammar.ok_or_else(|| missing("grammar"))?;
            return ConstraintForm::grammar(grammar, "response_format").map(Some);
        }
        _ => {
            return Err(PredictError::invalid(
                "'response_format.type' must be 'text', 'json_object', 'json_schema', 'regex' or \
                 'grammar'",
            ));
        }
    };
    Ok(Some(ConstraintForm::json(&schema, None)))
}

#[cfg(test)]
mod tests {
    use volley_types::ParamValue;

    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Option<ConstraintForm>, PredictError> {
        let pairs = pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), ParamValue::Text((*value).to_owned())));
        ConstraintForm::read(&pairs.collect())
    }

    #[test]
    fn forms_are_read_from_every_name_and_there_is_one() {
        assert_eq!(read(&[]).unwrap(), None);
        assert_eq!(
            read(&[("response_format", r#"{"type":"text"}"#)]).unwrap(),
            None
        );
        let object = read(&[("response_format", r#"{"type":"json_object"}"#)]);
        assert_eq!(
            object.unwrap(),
            Some(ConstraintForm::json(&super::object(), None))
        );
        let schema = r#"{"type":"json_schema","json_schema":{"schema":{"type":"null"}}}"#;
        let schema = read(&[("response_format", schema)]);
        assert_eq!(
            schema.unwrap(),
            Some(ConstraintForm::json(&json!({ "type": "null" }), None))
        );
        for (name, text) in [
            ("json_schema", r#"{"type":"null"}"#),
            ("structured_outputs", r#"{"json":{"type":"null"}}"#),
            ("structured_outputs", r#"{"json":"{\"type\":\"null\"}"}"#),
            (
                "response_format",
                r#"{"type":"json_object","schema":{"type":"null"}}"#,
            ),
        ] {
            let form = read(&[(name, text)]).unwrap();
            let null = ConstraintForm::json(&json!({ "type": "null" }), None);
            assert_eq!(form, Some(null), "{name}: {text}");
        }
        for (name, text) in [
            ("guided_choice", r#"["a.b","c"]"#),
            ("structured_outputs", r#"{"choice":["a.b","c"]}"#),
            ("grammar", "root ::= \"a.b\" | \"c\""),
            ("guided_grammar", "root ::= (\"a.b\" | \"c\")"),
        ] {
            let form = read(&[(name, text)]).unwrap();
            assert!(
                matches!(form, Some(ConstraintForm::Regex(_))),
                "{name}: {form:?}"
            );
        }
        let regex = read(&[("guided_regex", "a+")]);
        assert_eq!(regex.unwrap(), Some(ConstraintForm::Regex("a+".to_owned())));
        for bad in [
            vec![("guided_regex", "a"), ("guided_json", "{}")],
            vec![("guided_json", "{")],
            vec![("structured_outputs", "{}")],
            vec![(
                "structured_outputs",
                r#"{"structural_tag":"{}","regex":"a"}"#,
            )],
            vec![("structured_outputs", r#"{"regex":"a","choice":["b"]}"#)],
            vec![("guided_choice", "[]")],
            vec![("guided_choice", "[1]")],
            vec![("grammar", "root ::= missing")],
            vec![("response_format", r#"{"type":"xml"}"#)],
            vec![("response_format", r#"{"type":"json_schema"}"#)],
        ] {
            assert!(read(&bad).is_err(), "{bad:?}");
        }
        let long = "a".repeat(MAX_FORM_BYTES + 1);
        assert!(read(&[("guided_regex", &long)]).is_err());
    }
}
