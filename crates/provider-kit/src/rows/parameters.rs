//! Parameter tables of servers that embed or rerank. Each parameter of a request is translated,
//! forwarded or rejected by name. Pure.

use serde_json::{Map, Value};
use volley_types::{Dialect, PredictError};

use crate::neutral::is_neutral;
use crate::options::RequestOptions;
use crate::reserved::{is_reserved, shown};

/// The request parameters that servers of one row format support.
#[derive(Debug)]
pub(super) struct RowTable {
    /// The servers' name in error messages.
    pub(super) server: &'static str,
    /// Dialects whose unknown fields are forwarded, because their callers address such a server.
    dialects: &'static [Dialect],
    /// Parameters and their names at the server.
    names: &'static [(&'static str, &'static str)],
    truncation: Truncation,
    /// Whether a request states the kind of its texts.
    pub(super) takes_kinds: bool,
}

/// How a request allows or forbids the truncation of long texts. Volley's parameter `truncate` is
/// true or false.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Truncation {
    /// A field that is true or false.
    Flag(&'static str),
    /// `truncate` is `END`, `START` or `NONE`.
    Side,
    /// `truncate_prompt_tokens` is -1. Without it, long texts are rejected.
    PromptTokens,
    /// The server has no such field. It rejects long texts.
    Never,
    /// The server has no such field, and its rule is unknown.
    Unknown,
}

/// Parameters with the same meaning in every dialect. A server whose table lacks one does not
/// support it.
const KNOWN: [&str; 6] = [
    "dimensions",
    "normalize",
    "raw_scores",
    TRUNCATE,
    TRUNCATE_TOKENS,
    "user",
];
const TRUNCATE: &str = "truncate";
const TRUNCATE_TOKENS: &str = "truncate_prompt_tokens";

/// Fields of bodies that Volley fills from the rows.
const OF_ROWS: [&str; 11] = [
    "content",
    "documents",
    "input",
    "inputText",
    "inputs",
    "instances",
    "queries",
    "query",
    "requests",
    "sources",
    "texts",
];

pub(super) static OPENAI: RowTable = RowTable {
    server: "a server of OpenAI's embeddings",
    dialects: &[Dialect::OpenAi, Dialect::Own],
    names: &[
        ("dimensions", "dimensions"),
        ("encoding_format", "encoding_format"),
        ("normalize", "normalize"),
        (TRUNCATE_TOKENS, TRUNCATE_TOKENS),
        ("user", "user"),
    ],
    truncation: Truncation::PromptTokens,
    takes_kinds: true,
};

pub(super) static MISTRAL: RowTable = RowTable {
    server: "Mistral's embeddings",
    dialects: OPENAI.dialects,
    names: &[
        ("dimensions", "output_dimension"),
        ("output_dimension", "output_dimension"),
        ("encoding_format", "encoding_format"),
        ("user", "user"),
    ],
    truncation: Truncation::Never,
    takes_kinds: false,
};

pub(super) static OLLAMA: RowTable = RowTable {
    server: "Ollama's embeddings",
    dialects: &[Dialect::Ollama, Dialect::Own],
    names: &[
        ("dimensions", "dimensions"),
        ("keep_alive", "keep_alive"),
        ("options", "options"),
    ],
    truncation: Truncation::Flag(TRUNCATE),
    takes_kinds: false,
};

pub(super) static COHERE: RowTable = RowTable {
    server: "Cohere's embeddings",
    dialects: &[Dialect::Cohere, Dialect::Own],
    names: &[
        ("dimensions", "output_dimension"),
        ("output_dimension", "output_dimension"),
        ("max_tokens", "max_tokens"),
    ],
    truncation: Truncation::Side,
    takes_kinds: true,
};

/// Version 1, whose vectors have one length.
pub(super) static COHERE_FIRST: RowTable = RowTable {
    server: "version 1 of Cohere's embeddings",
    dialects: &[Dialect::Cohere, Dialect::Own],
    names: &[],
    truncation: Truncation::Side,
    takes_kinds: true,
};

pub(super) static TITAN: RowTable = RowTable {
    server: "Amazon Titan's embeddings",
    dialects: &[Dialect::Own],
    names: &[("dimensions", "dimensions"), ("normalize", "normalize")],
    truncation: Truncation::Never,
    takes_kinds: false,
};

pub(super) static GEMINI: RowTable = RowTable {
    server: "the Gemini API's embeddings",
    dialects: &[Dialect::Own],
    names: &[
        ("dimensions", "outputDimensionality"),
        ("task_type", "taskType"),
        ("taskType", "taskType"),
        ("title", "title"),
    ],
    truncation: Truncation::Unknown,
    takes_kinds: true,
};

pub(super) static VERTEX: RowTable = RowTable {
    server: "Vertex AI's embeddings",
    truncation: Truncation::Flag("autoTruncate"),
    dialects: GEMINI.dialects,
    names: GEMINI.names,
    takes_kinds: true,
};

pub(super) static TEI: RowTable = RowTable {
    server: "Text Embeddings Inference",
    dialects: &[Dialect::Own],
    names: &[
        ("dimensions", "dimensions"),
        ("normalize", "normalize"),
        ("truncation_direction", "truncation_direction"),
    ],
    truncation: Truncation::Flag(TRUNCATE),
    takes_kinds: true,
};

pub(super) static RERANK: RowTable = RowTable {
    server: "a server of Cohere's reranking",
    dialects: &[Dialect::Cohere, Dialect::OpenAi, Dialect::Own],
    names: &[("user", "user"), (TRUNCATE_TOKENS, TRUNCATE_TOKENS)],
    truncation: Truncation::Flag(TRUNCATE),
    takes_kinds: false,
};

pub(super) static TEI_RERANK: RowTable = RowTable {
    server: "Text Embeddings Inference",
    dialects: &[Dialect::Own],
    names: &[
        ("raw_scores", "raw_scores"),
        ("truncation_direction", "truncation_direction"),
    ],
    truncation: Truncation::Flag(TRUNCATE),
    takes_kinds: false,
};

pub(super) static BEDROCK_RERANK: RowTable = RowTable {
    server: "Amazon Bedrock's reranking",
    dialects: &[Dialect::Own],
    names: &[],
    truncation: Truncation::Unknown,
    takes_kinds: false,
};

impl RowTable {
    /// The parameters of `options` under the server's names. Parameters of the request take
    /// precedence over those of the connector and the model.
    ///
    /// # Errors
    /// `InvalidInput` naming a parameter that the server does not support, or that contradicts
    /// another one.
    pub(super) fn fields(
        &self,
        options: &RequestOptions,
    ) -> Result<Map<String, Value>, PredictError> {
        let mut fields = Map::new();
        for given in [true, false] {
            for (name, value) in &options.fields {
                // The connector names the model, and no answer is streamed. Parameters about the
                // connection are not part of the body.
                let is_own = matches!(name.as_str(), "model" | "stream") || is_reserved(name);
                if is_own || options.given.contains(name) != given {
                    continue;
                }
                let Some((to, value)) = self.placed(name, value, given, options.dialect)? else {
                    continue;
                };
                match fields.get(&to) {
                    Some(before) if given && *before != value => {
                        return Err(PredictError::invalid(format!(
                            "parameter '{}' contradicts another parameter for '{to}'; send one of \
                             them",
                            shown(name)
                        )));
                    }
                    Some(_) => {}
                    None => _ = fields.insert(to, value),
                }
            }
        }
        Ok(fields)
    }

    /// The server's name and value of a parameter; `None` if it says nothing to the server.
    fn placed(
        &self,
        name: &str,
        value: &Value,
        given: bool,
        dialect: Dialect,
    ) -> Result<Option<(String, Value)>, PredictError> {
        if name == TRUNCATE {
            return self.truncate(name, value, given, dialect);
        }
        let to = self.names.iter().find(|(known, _)| *known == name);
        if let Some((_, to)) = to {
            return Ok(Some(((*to).to_owned(), value.clone())));
        }
        // The model's own length, as in vLLM.
        if name == TRUNCATE_TOKENS && value.as_i64() == Some(-1) {
            return self.truncate(name, &Value::Bool(true), given, dialect);
        }
        if given && is_neutral(name, value) {
            return Ok(None);
        }
        let is_known = KNOWN.contains(&name) || OF_ROWS.contains(&name) || name == "top_n";
        let is_passed = !is_known && self.dialects.contains(&dialect);
        if given && !is_passed {
            return Err(self.refused(name, dialect));
        }
        Ok(Some((name.to_owned(), value.clone())))
    }

    fn truncate(
        &self,
        name: &str,
        value: &Value,
        given: bool,
        dialect: Dialect,
    ) -> Result<Option<(String, Value)>, PredictError> {
        let (to, value) = match (self.truncation, value) {
            (Truncation::Flag(to), Value::Bool(_)) => (to, value.clone()),
            (Truncation::Side, Value::Bool(true)) => (TRUNCATE, "END".into()),
            (Truncation::Side, Value::Bool(false)) => (TRUNCATE, "NONE".into()),
            (Truncation::Side, Value::String(_)) => (TRUNCATE, value.clone()),
            (Truncation::PromptTokens, Value::Bool(true)) => (TRUNCATE_TOKENS, (-1).into()),
            (Truncation::PromptTokens | Truncation::Never, Value::Bool(false)) => return Ok(None),
            // A connector's or a compatible server's own values.
            _ if !given
                || self.truncation == Truncation::PromptTokens
                    && self.dialects.contains(&dialect) =>
            {
                (TRUNCATE, value.clone())
            }
            _ => return Err(self.refused(name, dialect)),
        };
        Ok(Some((to.to_owned(), value)))
    }

    /// The error for a parameter that the server does not support.
    pub(super) fn refused(&self, name: &str, dialect: Dialect) -> PredictError {
        let name = match (name, dialect) {
            ("dimensions", Dialect::Cohere) => "output_dimension",
            (name, _) => name,
        };
        PredictError::invalid(format!(
            "parameter '{}' is not supported by {}: leave it out",
            shown(name),
            self.server
        ))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn made(
        table: &RowTable,
        given: Value,
        defaults: Value,
        dialect: Dialect,
    ) -> Result<Value, String> {
        let given = given.as_object().cloned().unwrap();
        let names = given.keys().cloned().collect();
        let mut fields = defaults.as_object().cloned().unwrap();
        fields.extend(given);
        let options = RequestOptions {
            fields,
            given: names,
            dialect,
            whole: true,
        };
        let fields = table.fields(&options).map_err(|error| error.message)?;
        Ok(Value::Object(fields))
    }

    #[test]
    fn each_server_is_told_by_its_own_names() {
        let given = json!({ "dimensions": 2, "truncate": true });
        for (table, expected) in [
            (
                &OPENAI,
                json!({ "dimensions": 2, "truncate_prompt_tokens": -1 }),
            ),
            (&OLLAMA, json!({ "dimensions": 2, "truncate": true })),
            (&COHERE, json!({ "output_dimension": 2, "truncate": "END" })),
            (
                &VERTEX,
                json!({ "outputDimensionality": 2, "autoTruncate": true }),
            ),
            (&TEI, json!({ "dimensions": 2, "truncate": true })),
        ] {
            let body = made(table, given.clone(), json!({}), Dialect::Own);
            assert_eq!(body, Ok(expected), "{}", table.server);
        }
        let strict = |table| {
            made(
                table,
                json!({ "truncate": false }),
                json!({}),
                Dialect::Cohere,
            )
        };
        assert_eq!(strict(&COHERE), Ok(json!({ "truncate": "NONE" })));
        assert_eq!(strict(&OPENAI), Ok(json!({})), "it rejects long texts");
        let own_length = json!({ "truncate_prompt_tokens": -1 });
        let body = made(&COHERE, own_length.clone(), json!({}), Dialect::OpenAi);
        assert_eq!(body, Ok(json!({ "truncate": "END" })));
        let body = made(&OPENAI, own_length.clone(), json!({}), Dialect::OpenAi);
        assert_eq!(body, Ok(own_length));
        let start = json!({ "truncate": "START" });
        let body = made(&COHERE, start.clone(), json!({}), Dialect::Cohere);
        assert_eq!(body, Ok(start.clone()));
        assert!(made(&OPENAI, start, json!({}), Dialect::Cohere).is_err());
    }

    #[test]
    fn what_a_server_lacks_is_refused_by_name() {
        for (table, given) in [
            (&GEMINI, json!({ "user": "u" })),
            (&GEMINI, json!({ "foo": 1 })),
            (&GEMINI, json!({ "truncate": true })),
            (&COHERE, json!({ "foo": 1 })),
            (&COHERE, json!({ "user": "u" })),
            (&COHERE, json!({ "truncate_prompt_tokens": 5 })),
            (&COHERE_FIRST, json!({ "dimensions": 2 })),
            (&TITAN, json!({ "truncate": true })),
            (&OLLAMA, json!({ "normalize": false })),
            (&RERANK, json!({ "raw_scores": true })),
            (&RERANK, json!({ "top_n": 1 })),
            (&OPENAI, json!({ "texts": ["a"] })),
        ] {
            let (name, _) = given.as_object().and_then(|it| it.iter().next()).unwrap();
            let name = format!("'{name}'");
            let error = made(table, given.clone(), json!({}), Dialect::OpenAi).unwrap_err();
            assert!(error.contains(&name), "{error}");
        }
    }

    #[test]
    fn who_speaks_the_servers_dialect_means_the_server() {
        let own = json!({ "newest": 1, "priority": 2 });
        for (table, dialect) in [
            (&COHERE, Dialect::Cohere),
            (&RERANK, Dialect::Cohere),
            (&OPENAI, Dialect::OpenAi),
            (&OLLAMA, Dialect::Ollama),
            (&TITAN, Dialect::Own),
        ] {
            assert_eq!(
                made(table, own.clone(), json!({}), dialect),
                Ok(own.clone())
            );
        }
    }

    #[test]
    fn a_connectors_values_are_defaults() {
        let defaults = json!({ "dimensions": 2, "newest": 1, "model": "m", "stream": true });
        let body = made(&COHERE, json!({}), defaults.clone(), Dialect::OpenAi);
        assert_eq!(body, Ok(json!({ "output_dimension": 2, "newest": 1 })));
        let body = made(
            &COHERE,
            json!({ "dimensions": 4 }),
            defaults,
            Dialect::OpenAi,
        );
        assert_eq!(body, Ok(json!({ "output_dimension": 4, "newest": 1 })));
        let both = json!({ "dimensions": 4, "output_dimension": 2 });
        let error = made(&COHERE, both, json!({}), Dialect::Own).unwrap_err();
        assert!(error.contains("'output_dimension'"), "{error}");
    }
}
