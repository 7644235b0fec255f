//! OpenAI's deprecated `functions` and `function_call`, the predecessors of `tools`. Pure.

use serde_json::{Map, Value, json};
use volley_types::PredictError;

/// Converts `functions` and `function_call` to `tools` and `tool_choice`. Returns whether the body
/// has functions.
///
/// # Errors
/// `InvalidInput` naming the field.
pub(super) fn take(body: &mut Map<String, Value>) -> Result<bool, PredictError> {
    let functions = body.remove("functions").filter(|value| !value.is_null());
    let choice = body
        .remove("function_call")
        .filter(|value| !value.is_null());
    let Some(functions) = functions else {
        return match choice {
            None => Ok(false),
            Some(_) => Err(PredictError::invalid(
                "field 'function_call' needs 'functions' to choose from",
            )),
        };
    };
    if body.get("tools").is_some_and(|tools| !tools.is_null()) {
        return Err(PredictError::invalid(
            "fields 'functions' and 'tools' exclude each other; give 'tools'",
        ));
    }
    let named = |function: &Value| function.get("name").is_some_and(Value::is_string);
    let functions = match functions {
        Value::Array(functions) if functions.iter().all(named) && !functions.is_empty() => {
            functions
        }
        _ => {
            return Err(PredictError::invalid(
                "field 'functions' must be a list of at least one function with a 'name'",
            ));
        }
    };
    let tools = functions
        .into_iter()
        .map(|function| json!({ "type": "function", "function": function }));
    body.insert("tools".to_owned(), tools.collect());
    // A response in the old format has space for one call only.
    body.insert("parallel_tool_calls".to_owned(), false.into());
    let choice = match choice {
        None => return Ok(true),
        Some(mode) if mode == "auto" || mode == "none" => mode,
        Some(one) if named(&one) => {
            json!({ "type": "function", "function": { "name": one["name"] } })
        }
        Some(_) => {
            return Err(PredictError::invalid(
                "field 'function_call' must be 'auto', 'none', or an object with a 'name'",
            ));
        }
    };
    body.insert("tool_choice".to_owned(), choice);
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(body: Value) -> Result<(bool, Value), PredictError> {
        let mut body = body.as_object().cloned().unwrap();
        take(&mut body).map(|legacy| (legacy, body.into()))
    }

    #[test]
    fn functions_become_tools() {
        assert_eq!(
            taken(json!({ "a": 1 })).unwrap(),
            (false, json!({ "a": 1 }))
        );
        let function = json!({ "name": "f", "parameters": { "type": "object" } });
        let given = json!({ "functions": [function], "function_call": { "name": "f" } });
        let expected = json!({
            "tools": [{ "type": "function", "function": function }],
            "tool_choice": { "type": "function", "function": { "name": "f" } },
            "parallel_tool_calls": false,
        });
        assert_eq!(taken(given).unwrap(), (true, expected));
        for (wrong, name) in [
            (json!({ "function_call": "auto" }), "'function_call'"),
            (json!({ "functions": [] }), "'functions'"),
            (json!({ "functions": [{}] }), "'functions'"),
            (
                json!({ "functions": [function], "function_call": 7 }),
                "'function_call'",
            ),
            (json!({ "functions": [function], "tools": [] }), "'tools'"),
        ] {
            assert!(taken(wrong).unwrap_err().message.contains(name), "{name}");
        }
    }
}
