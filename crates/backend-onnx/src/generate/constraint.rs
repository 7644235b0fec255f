//! Answers of a given form: a JSON schema, a regular expression, a grammar. Before each token,
//! `llguidance` tells which tokens the form allows; the others cannot be chosen.

use std::sync::{Arc, OnceLock};

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};
use volley_types::{ErrorOrigin, Parameters, PredictError};

use super::spelling::Spellings;
use super::tools::{self, CallStyle, Function, MarkIds};

/// The longest schema, expression or grammar, in bytes.
const MAX_FORM_BYTES: usize = 64 << 10;
const GUIDED: [&str; 3] = ["guided_json", "guided_regex", "guided_grammar"];
/// White space between two parts of JSON.
const WHITE_SPACE: &str = r"[\x20\n]{0,16}";
/// Of what is wrong with a form, at most so many characters.
const MAX_REFUSAL: usize = 300;

/// The form that an answer must have.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Form {
    /// JSON that a schema allows.
    Json(Value),
    /// What matches a regular expression as a whole.
    Regex(String),
    /// What a grammar in Lark's notation derives.
    Grammar(String),
    /// A call of one of these functions.
    Call(Vec<Function>),
}

impl Form {
    /// The form that `response_format` asks for, or `guided_json`, `guided_regex` or
    /// `guided_grammar`; `None` when nothing does.
    ///
    /// # Errors
    /// `InvalidInput` when there are several, or one is malformed or too long.
    pub(crate) fn read(parameters: &Parameters) -> Result<Option<Self>, PredictError> {
        let mut forms = Vec::new();
        for name in GUIDED {
            let Some(text) = short(parameters, name)? else {
                continue;
            };
            forms.push(match name {
                "guided_json" => Self::Json(parse(&text, name)?),
                "guided_regex" => Self::Regex(text),
                _ => Self::Grammar(text),
            });
        }
        if let Some(text) = short(parameters, "response_format")? {
            forms.extend(response_format(&parse(&text, "response_format")?)?);
        }
        match forms.len() {
            0 | 1 => Ok(forms.pop()),
            _ => Err(PredictError::invalid(
                "an answer can have one form: give one of 'response_format', 'guided_json', \
                 'guided_regex' and 'guided_grammar'",
            )),
        }
    }
}

/// Whether a form is asked for that a call cannot have. `response_format` is about an answer's
/// text, of which a call has none.
pub(super) fn is_guided(parameters: &Parameters) -> bool {
    GUIDED.iter().any(|name| parameters.get(name).is_some())
}

pub(super) fn short(parameters: &Parameters, name: &str) -> Result<Option<String>, PredictError> {
    match parameters.text(name) {
        Some(text) if MAX_FORM_BYTES < text.len() => Err(PredictError::invalid(format!(
            "parameter '{name}' has {} bytes, and may have {MAX_FORM_BYTES}",
            text.len()
        ))),
        text => Ok(text),
    }
}

fn parse(text: &str, name: &str) -> Result<Value, PredictError> {
    serde_json::from_str(text)
        .map_err(|error| PredictError::invalid(format!("parameter '{name}' is no JSON: {error}")))
}

/// OpenAI's field of that name.
fn response_format(format: &Value) -> Result<Option<Form>, PredictError> {
    match format.get("type").and_then(Value::as_str) {
        Some("text") => Ok(None),
        Some("json_object") => Ok(Some(Form::Json(json!({ "type": "object" })))),
        Some("json_schema") => {
            let schema = format.pointer("/json_schema/schema");
            schema.map_or_else(
                || {
                    Err(PredictError::invalid(
                        "'response_format.json_schema.schema' is missing",
                    ))
                },
                |schema| Ok(Some(Form::Json(schema.clone()))),
            )
        }
        _ => Err(PredictError::invalid(
            "'response_format.type' must be 'text', 'json_object' or 'json_schema'",
        )),
    }
}

/// Makes constraints for one model. What that needs of the vocabulary is made at the first.
#[derive(Default)]
pub(crate) struct Constraints(OnceLock<Result<ParserFactory, String>>);

impl Constraints {
    /// A constraint to `form`. Calls are written in `style`, with the special tokens whose ids
    /// `mark` gives.
    ///
    /// # Errors
    /// `InvalidInput` with what is wrong with the form.
    pub(crate) fn make(
        &self,
        form: &Form,
        (style, mark): (CallStyle, MarkIds<'_>),
        spellings: &Spellings,
        eos: Option<u32>,
    ) -> Result<Constraint, PredictError> {
        let factory = self.0.get_or_init(|| factory(spellings, eos));
        let factory = factory.as_ref().map_err(|error| {
            PredictError::invalid("this model's vocabulary cannot be held to a form")
                .with_source(error.clone())
        })?;
        let grammar = match form {
            Form::Json(schema) => TopLevelGrammar::from_json_schema(with_little_space(schema)),
            Form::Regex(expression) => TopLevelGrammar::from_regex(expression),
            Form::Grammar(grammar) => TopLevelGrammar::from_lark(grammar.clone()),
            Form::Call(functions) => {
                TopLevelGrammar::from_lark(tools::grammar(functions, style, mark))
            }
        };
        let parser = factory.create_parser(grammar).map_err(|error| {
            let reason: String = error.to_string().chars().take(MAX_REFUSAL).collect();
            PredictError::invalid(format!(
                "the form of the answer cannot be followed: {reason}"
            ))
        })?;
        Ok(Constraint {
            matcher: Matcher::new(Ok(parser)),
            allowed: Vec::new(),
        })
    }
}

/// The schema with an end to white space between its parts: small models are fond of it, and
/// would go on with it for ever.
pub(super) fn with_little_space(schema: &Value) -> Value {
    let mut schema = schema.clone();
    if let Some(fields) = schema.as_object_mut() {
        fields
            .entry("x-guidance")
            .or_insert_with(|| json!({ "whitespace_pattern": WHITE_SPACE }));
    }
    schema
}

fn factory(spellings: &Spellings, eos: Option<u32>) -> Result<ParserFactory, String> {
    let size = u32::try_from(spellings.all().len()).map_err(|error| error.to_string())?;
    let eos = eos.ok_or("the model has no token that ends an answer")?;
    let trie = TokTrie::from(&TokRxInfo::new(size, eos), spellings.all());
    let environment = Arc::new(ApproximateTokEnv::new(trie));
    let mut factory =
        ParserFactory::new_simple(&(environment as _)).map_err(|error| error.to_string())?;
    factory.quiet();
    // Errors are for the caller, who knows the grammar.
    factory.limits_mut().verbose_errors = false;
    Ok(factory)
}

/// Holds one answer to its form.
pub(crate) struct Constraint {
    matcher: Matcher,
    /// Logits with those of all other tokens taken away; reused from step to step.
    allowed: Vec<f32>,
}

impl Constraint {
    /// Another answer of the same form, from its beginning.
    pub(crate) fn again(&self) -> Self {
        Self {
            matcher: self.matcher.deep_clone(),
            allowed: Vec::new(),
        }
    }

    /// The logits of the tokens that may come next; no number can be chosen of the others.
    ///
    /// # Errors
    /// `InvalidInput` when the form takes more work than is allowed.
    pub(crate) fn allow(&mut self, logits: &[f32]) -> Result<&[f32], PredictError> {
        let mask = self.matcher.compute_mask_or_eos().map_err(too_hard)?;
        self.allowed.clear();
        self.allowed.resize(logits.len(), f32::NEG_INFINITY);
        let allowed = &mut self.allowed;
        mask.iter_set_entries(|id| {
            if let (Some(place), Some(logit)) = (allowed.get_mut(id), logits.get(id)) {
                *place = *logit;
            }
        });
        Ok(&self.allowed)
    }

    /// Takes the token that was chosen. True when the answer is whole, and nothing may follow.
    ///
    /// # Errors
    /// As [`Constraint::allow`].
    pub(crate) fn take(&mut self, token: u32) -> Result<bool, PredictError> {
        self.matcher.consume_token(token).map_err(too_hard)?;
        Ok(self.matcher.is_stopped())
    }
}

fn too_hard(error: impl std::fmt::Display) -> PredictError {
    PredictError::invalid("the form of the answer is too hard to follow; make it simpler")
        .with_source(error.to_string())
        .with_origin(ErrorOrigin::Model)
}

#[cfg(test)]
mod tests {
    use volley_types::ParamValue;

    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Option<Form>, PredictError> {
        let pairs = pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), ParamValue::Text((*value).to_owned())));
        Form::read(&pairs.collect())
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
            Some(Form::Json(json!({ "type": "object" })))
        );
        let schema = r#"{"type":"json_schema","json_schema":{"schema":{"type":"null"}}}"#;
        let schema = read(&[("response_format", schema)]);
        assert_eq!(schema.unwrap(), Some(Form::Json(json!({ "type": "null" }))));
        let regex = read(&[("guided_regex", "a+")]);
        assert_eq!(regex.unwrap(), Some(Form::Regex("a+".to_owned())));
        for bad in [
            vec![("guided_regex", "a"), ("guided_json", "{}")],
            vec![("guided_json", "{")],
            vec![("response_format", r#"{"type":"xml"}"#)],
            vec![("response_format", r#"{"type":"json_schema"}"#)],
        ] {
            assert!(read(&bad).is_err(), "{bad:?}");
        }
        let long = "a".repeat(MAX_FORM_BYTES + 1);
        assert!(read(&[("guided_regex", &long)]).is_err());
    }
}
