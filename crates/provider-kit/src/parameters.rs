//! Parameter tables: the request parameters that each provider's server supports. Each parameter
//! with an effect is translated, forwarded or rejected by name.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use volley_types::{Dialect, PredictError};

use crate::neutral::is_neutral;
use crate::options::RequestOptions;
use crate::reserved::{is_reserved, shown};

/// The request parameters that one provider's server supports.
pub struct ParameterTable {
    /// The server's name in error messages.
    pub server: &'static str,
    /// Dialects whose unknown fields are forwarded, because their callers address this server or a
    /// compatible one.
    pub dialects: &'static [Dialect],
    /// Parameters and their paths in the body; a dot separates objects.
    pub names: &'static [(&'static str, &'static str)],
    /// Fields of the server that are sent unchanged.
    pub own: &'static [&'static str],
    /// Minimum and maximum of numeric parameters, inclusive.
    pub ranges: &'static [(&'static str, f64, f64)],
    /// Maximum number of stop sequences.
    pub stops: usize,
}

/// Describes an inclusive range. A range up to `f64::MAX` has no upper limit.
pub fn range(least: f64, greatest: f64) -> String {
    if greatest == f64::MAX {
        return format!("{least} or more");
    }
    format!("{least} to {greatest}")
}

/// Parameters with the same meaning everywhere. A server whose table lacks one does not support it.
const KNOWN: [&str; 60] = [
    "audio",
    "bad_words",
    "best_of",
    "chat_template_kwargs",
    "citation_options",
    "documents",
    "echo",
    "frequency_penalty",
    "function_call",
    "functions",
    "grammar",
    "guided_choice",
    "guided_grammar",
    "guided_json",
    "guided_regex",
    "ignore_eos",
    "include",
    "json_schema",
    "length_penalty",
    "logit_bias",
    "logprobs",
    "max_completion_tokens",
    "max_new_tokens",
    "max_output_tokens",
    "max_tokens",
    "metadata",
    "min_p",
    "min_tokens",
    "modalities",
    "moderation",
    "n",
    "output_config",
    "parallel_tool_calls",
    "prediction",
    "presence_penalty",
    "prompt_cache_key",
    "prompt_cache_retention",
    "reasoning",
    "reasoning_effort",
    "repeat_penalty",
    "repetition_penalty",
    "response_format",
    "safety_identifier",
    "safety_mode",
    "seed",
    "service_tier",
    "stop",
    "stop_sequences",
    "stop_token_ids",
    "store",
    "structured_outputs",
    "suffix",
    "temperature",
    "thinking",
    "tool_choice",
    "tools",
    "top_k",
    "top_logprobs",
    "top_p",
    "user",
];

/// Names of parameters in a dialect: dialect, name in Volley, name in the dialect.
const CALLER_NAMES: [(Dialect, &str, &str); 12] = [
    (Dialect::Anthropic, "stop", "stop_sequences"),
    (Dialect::Cohere, "stop", "stop_sequences"),
    (Dialect::Cohere, "top_k", "k"),
    (Dialect::Cohere, "top_p", "p"),
    (Dialect::Ollama, "max_tokens", "num_predict"),
    (Dialect::Ollama, "repetition_penalty", "repeat_penalty"),
    (Dialect::Ollama, "reasoning_effort", "think"),
    (Dialect::Ollama, "response_format", "format"),
    (Dialect::OpenAiResponses, "max_tokens", "max_output_tokens"),
    (Dialect::OpenAiResponses, "response_format", "text"),
    (Dialect::OpenAiResponses, "reasoning_effort", "reasoning"),
    (Dialect::OpenAiResponses, "logprobs", "top_logprobs"),
];

/// A request's parameters while its body is built.
pub struct RequestFields<'a> {
    /// The parameters that are not in the body yet.
    pub fields: Map<String, Value>,
    parameters: &'static ParameterTable,
    options: &'a RequestOptions,
    /// The connector's headers.
    headers: &'a BTreeMap<String, String>,
}

impl<'a> RequestFields<'a> {
    /// Collects the parameters of `options` that affect the server.
    ///
    /// # Errors
    /// `InvalidInput` naming a parameter out of the server's range.
    pub fn new(
        parameters: &'static ParameterTable,
        options: &'a RequestOptions,
        headers: &'a BTreeMap<String, String>,
    ) -> Result<Self, PredictError> {
        let mut fields = options.fields.clone();
        // Parameters about the connection are not part of the body.
        fields.retain(|name, value| {
            let is_said = !is_neutral(name, value) || parameters.own.contains(&name.as_str());
            name != "stream" && !is_reserved(name) && is_said
        });
        let caches = ["cache_control", "toolConfig"];
        let caches = caches.iter().any(|name| parameters.own.contains(name));
        if options.dialect == Dialect::Anthropic && !caches {
            unmark(&mut fields);
        }
        let request = Self {
            fields,
            parameters,
            options,
            headers,
        };
        request.in_range()?;
        Ok(request)
    }

    fn in_range(&self) -> Result<(), PredictError> {
        for (name, least, greatest) in self.parameters.ranges {
            let given = self.fields.get(*name).and_then(Value::as_f64);
            if given.is_some_and(|given| given < *least || *greatest < given) {
                return Err(PredictError::invalid(format!(
                    "parameter '{}' must be {} for {}",
                    self.said(name),
                    range(*least, *greatest),
                    self.parameters.server
                )));
            }
        }
        let stops = self
            .fields
            .get("stop")
            .or_else(|| self.fields.get("stop_sequences"));
        let stops = stops.and_then(Value::as_array).map_or(0, Vec::len);
        if self.parameters.stops < stops {
            return Err(PredictError::invalid(format!(
                "parameter '{}' may have at most {} texts for {}",
                self.said("stop"),
                self.parameters.stops,
                self.parameters.server
            )));
        }
        Ok(())
    }

    /// The dialect of the request.
    pub fn dialect(&self) -> Dialect {
        self.options.dialect
    }

    /// Whether the request itself has the parameter.
    pub fn is_given(&self, name: &str) -> bool {
        self.options.given.contains(name)
    }

    /// Whether an Ollama caller sends a prompt that the server must not put into its template.
    pub fn is_raw(&self) -> bool {
        self.options.is_raw()
    }

    /// The connector's header; `name` is compared without case.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut all = self.headers.iter();
        let found = all.find(|(given, _)| given.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    /// The parameter's name in the caller's dialect.
    fn said<'b>(&self, name: &'b str) -> &'b str {
        let mut all = CALLER_NAMES.iter();
        let said = all.find(|(of, ours, _)| *of == self.options.dialect && *ours == name);
        said.map_or(name, |(_, _, said)| said)
    }

    /// Removes and returns a parameter.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        self.fields.remove(name)
    }

    /// The error for a parameter that the server does not support. `why` suggests an alternative;
    /// if empty, to leave the parameter out.
    pub fn refused(&self, name: &str, why: &str) -> PredictError {
        let (name, server) = (shown(self.said(name)), self.parameters.server);
        let why = if why.is_empty() { "leave it out" } else { why };
        PredictError::invalid(format!(
            "parameter '{name}' is not supported by {server}: {why}"
        ))
    }

    /// Builds the fields of the body: parameters in the table under the server's names, and
    /// parameters that are forwarded.
    ///
    /// # Errors
    /// `InvalidInput` naming an unsupported parameter, or two parameters that contradict each
    /// other.
    pub fn finish(mut self) -> Result<Map<String, Value>, PredictError> {
        let mut body = Map::new();
        for name in self.parameters.own {
            if let Some(value) = self.fields.remove(*name) {
                let mut paths = self
                    .parameters
                    .names
                    .iter()
                    .filter_map(|(_, to)| to.split_once('.'));
                if !value.is_object() && paths.any(|(object, _)| object == *name) {
                    return Err(PredictError::invalid(format!(
                        "parameter '{name}' must be an object"
                    )));
                }
                body.insert((*name).to_owned(), value);
            }
        }
        // The request's parameters are placed first, because they take precedence over the
        // connector's.
        let mut placed: BTreeMap<&str, &str> = BTreeMap::new();
        for given in [true, false] {
            for (from, to) in self.parameters.names {
                if self.options.given.contains(*from) != given {
                    continue;
                }
                let Some(value) = self.fields.remove(*from) else {
                    continue;
                };
                let root = to.split('.').next().unwrap_or(to);
                let before = placed.get(to).copied().unwrap_or(root);
                // A default does not change a field inside an object that the request sets.
                let root_given = self.options.given.contains(root);
                match place(&mut body, to)? {
                    slot @ Value::Null => *slot = value,
                    slot if *slot == value => {}
                    slot if given && !placed.contains_key(to) && !root_given => *slot = value,
                    _ if given => {
                        return Err(PredictError::invalid(format!(
                            "parameter '{from}' and parameter '{before}' contradict each other; \
                             send one of them"
                        )));
                    }
                    _ => {}
                }
                placed.insert(to, from);
            }
        }
        let left: Vec<_> = self.fields.iter().map(|(name, _)| name.clone()).collect();
        for name in left {
            if !self.is_passed_on(&name) {
                return Err(self.refused(&name, ""));
            }
            let value = self.fields.remove(&name).unwrap_or_default();
            body.insert(name, value);
        }
        Ok(body)
    }

    /// Whether a parameter in no table is forwarded: those of the connector, and those of callers
    /// in one of the server's dialects.
    fn is_passed_on(&self, name: &str) -> bool {
        if KNOWN.contains(&name) {
            return false;
        }
        !self.options.given.contains(name)
            || self.parameters.dialects.contains(&self.options.dialect)
    }
}

/// Removes the marks for a cache from tools of other dialects: these servers reject the field, and
/// find cached prefixes by content.
fn unmark(fields: &mut Map<String, Value>) {
    let tools = fields.get_mut("tools").and_then(Value::as_array_mut);
    for tool in tools.into_iter().flatten() {
        if tool.get("function").is_some_and(Value::is_object) {
            tool.as_object_mut()
                .map(|tool| tool.remove("cache_control"));
        }
    }
}

/// The slot in a body for a path. Creates the objects in between.
fn place<'a>(body: &'a mut Map<String, Value>, path: &str) -> Result<&'a mut Value, PredictError> {
    let Some((object, rest)) = path.split_once('.') else {
        return Ok(body.entry(path).or_insert(Value::Null));
    };
    let inner = body.entry(object).or_insert_with(|| Map::new().into());
    match inner {
        Value::Object(inner) => place(inner, rest),
        _ => Err(PredictError::invalid(format!(
            "parameter '{object}' must be an object"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    static PARAMETERS: ParameterTable = ParameterTable {
        server: "a test",
        dialects: &[Dialect::Own, Dialect::Cohere],
        names: &[
            ("max_tokens", "options.limit"),
            ("max_completion_tokens", "options.limit"),
            ("stop", "stops"),
        ],
        own: &["options", "native"],
        ranges: &[("temperature", 0.0, 1.0), ("max_tokens", 1.0, f64::MAX)],
        stops: 2,
    };

    fn options(given: Value, defaults: Value, dialect: Dialect) -> RequestOptions {
        let given = given.as_object().cloned().unwrap();
        let names = given.keys().cloned().collect();
        let mut fields = defaults.as_object().cloned().unwrap();
        fields.extend(given);
        RequestOptions {
            fields,
            given: names,
            dialect,
            whole: false,
        }
    }

    fn made(given: Value, defaults: Value, dialect: Dialect) -> Result<Value, String> {
        let options = options(given, defaults, dialect);
        let headers = BTreeMap::new();
        let request =
            RequestFields::new(&PARAMETERS, &options, &headers).map_err(|error| error.message)?;
        let body = request.finish().map_err(|error| error.message)?;
        Ok(body.into())
    }

    #[test]
    fn what_the_table_has_is_placed_and_what_it_lacks_is_named() {
        let given = json!({ "max_tokens": 9, "native": 1, "stop": ["a"], "n": 1, "stream": true });
        let body = made(given, json!({}), Dialect::OpenAi).unwrap();
        let expected = json!({ "native": 1, "options": { "limit": 9 }, "stops": ["a"] });
        assert_eq!(body, expected);
        for name in ["seed", "logit_bias", "temprature"] {
            let error = made(json!({ name: 3 }), json!({}), Dialect::OpenAi).unwrap_err();
            assert!(error.contains(&format!("'{name}'")), "{error}");
        }
        let own = made(json!({ "newest": 3 }), json!({}), Dialect::Cohere).unwrap();
        assert_eq!(
            own,
            json!({ "newest": 3 }),
            "who speaks so means the server"
        );
        assert!(made(json!({ "seed": 3 }), json!({}), Dialect::Cohere).is_err());
        let default = made(json!({}), json!({ "newest": 3 }), Dialect::OpenAi).unwrap();
        assert_eq!(default, json!({ "newest": 3 }));
        let message = made(json!({ "top_k": 3 }), json!({}), Dialect::Cohere).unwrap_err();
        assert!(message.contains("'k'"), "{message}");
    }

    #[test]
    fn the_requests_own_win_and_may_not_contradict_each_other() {
        let limits = |given: Value, defaults: Value| made(given, defaults, Dialect::Own);
        let body = limits(
            json!({ "max_tokens": 9 }),
            json!({ "max_completion_tokens": 5 }),
        );
        assert_eq!(body.unwrap(), json!({ "options": { "limit": 9 } }));
        let body = limits(
            json!({ "max_completion_tokens": 5 }),
            json!({ "max_tokens": 9 }),
        );
        assert_eq!(body.unwrap(), json!({ "options": { "limit": 5 } }));
        let body = limits(
            json!({ "max_tokens": 5 }),
            json!({ "options": { "limit": 7 } }),
        );
        assert_eq!(body.unwrap(), json!({ "options": { "limit": 5 } }));
        let both = json!({ "max_tokens": 9, "max_completion_tokens": 5 });
        let error = limits(both, json!({})).unwrap_err();
        assert!(error.contains("'max_tokens'"), "{error}");
        let both = json!({ "max_tokens": 9, "options": { "limit": 7 } });
        assert!(limits(both, json!({})).unwrap_err().contains("'options'"));
        let wrong = limits(json!({ "max_tokens": 9, "options": 7 }), json!({}));
        assert!(wrong.unwrap_err().contains("'options'"));
    }

    #[test]
    fn what_is_out_of_range_is_named() {
        let error = made(json!({ "temperature": 1.5 }), json!({}), Dialect::OpenAi);
        assert!(error.unwrap_err().contains("'temperature' must be 0 to 1"));
        let open = made(json!({ "max_tokens": 0 }), json!({}), Dialect::OpenAi);
        let error = open.unwrap_err();
        assert!(
            error.contains("'max_tokens' must be 1 or more for"),
            "{error}"
        );
        let stops = json!({ "stop": ["a", "b", "c"] });
        let error = made(stops, json!({}), Dialect::Anthropic).unwrap_err();
        assert!(
            error.contains("'stop_sequences' may have at most 2"),
            "{error}"
        );
    }
}
