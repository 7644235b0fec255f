//! The tool options of a request.

use std::sync::Arc;

use serde_json::Value;
use volley_types::{Parameters, PredictError};

use volley_constraints::ConstraintForm;
use volley_tool_calls::Function;

/// Maximum number of calls in an answer that consists of calls.
const MOST_CALLS: usize = 16;

/// The available tools, and the required calls.
#[derive(Default)]
pub(super) struct Tools {
    /// The tools that the prompt lists.
    pub(super) list: Option<Arc<Value>>,
    /// The form of an answer that must consist of calls.
    pub(super) call: Option<ConstraintForm>,
    /// Whether an answer may have several calls.
    pub(super) parallel: bool,
}

impl Tools {
    /// Reads and validates the tool options.
    ///
    /// # Errors
    /// `InvalidInput` with the parameter.
    pub(super) fn read(parameters: &Parameters) -> Result<Self, PredictError> {
        let parallel = parameters.boolean("parallel_tool_calls")?.unwrap_or(true);
        let choice = parameters.text("tool_choice");
        let choice = choice.as_deref().unwrap_or("auto");
        let list = match choice {
            "none" => None,
            _ => volley_constraints::short(parameters, "tools")?,
        };
        let list = list.map(|text| tools(&text)).transpose()?.flatten();
        let functions = || {
            let tools = list
                .as_ref()
                .and_then(Value::as_array)
                .into_iter()
                .flatten();
            tools.map(Function::of).collect::<Option<Vec<_>>>().ok_or_else(|| {
                PredictError::invalid(
                    "parameter 'tools' must list functions with a 'name' and, as 'parameters', a \
                     schema",
                )
            })
        };
        let call = match choice {
            "auto" | "none" => None,
            "required" => Some((functions()?, if parallel { MOST_CALLS } else { 1 })),
            choice => {
                let name = chosen(choice)?;
                let named = functions()?
                    .into_iter()
                    .filter(|function| function.name == name);
                Some((named.collect(), 1))
            }
        };
        let none = |(functions, _): &(Vec<Function>, usize)| functions.is_empty();
        if call.as_ref().is_some_and(none) {
            if list.is_none() {
                return Err(PredictError::invalid(
                    "parameter 'tool_choice' requires a call, but 'tools' lists none; add tools, \
                     or leave 'tool_choice' out",
                ));
            }
            return Err(PredictError::invalid(
                "parameter 'tool_choice' names a function that is not in 'tools'",
            ));
        }
        if call.is_some() && volley_constraints::is_guided(parameters) {
            return Err(PredictError::invalid(
                "a required tool call cannot be combined with another response format: leave out \
                 the response format or 'tool_choice'",
            ));
        }
        Ok(Self {
            list: list.map(Arc::new),
            call: call.map(|(functions, most)| ConstraintForm::Calls { functions, most }),
            parallel,
        })
    }
}

/// The function name in a `tool_choice` object.
fn chosen(choice: &str) -> Result<String, PredictError> {
    let choice: Option<Value> = serde_json::from_str(choice).ok();
    let name = choice
        .as_ref()
        .and_then(|choice| choice.pointer("/function/name"));
    name.and_then(Value::as_str)
        .map(str::to_owned)
        .ok_or_else(|| {
            PredictError::invalid(
                "parameter 'tool_choice' must be 'auto', 'none', 'required', or \
             {\"type\": \"function\", \"function\": {\"name\": …}}",
            )
        })
}

/// Parses a JSON list of tools; `None` if it is empty.
fn tools(text: &str) -> Result<Option<Value>, PredictError> {
    let tools: Value = serde_json::from_str(text).map_err(|error| {
        PredictError::invalid(format!("parameter 'tools' is not valid JSON: {error}"))
    })?;
    match tools.as_array() {
        Some(list) if list.is_empty() => Ok(None),
        Some(list) if list.iter().all(Value::is_object) => Ok(Some(tools)),
        _ => Err(PredictError::invalid(
            "parameter 'tools' must be a list of objects",
        )),
    }
}
