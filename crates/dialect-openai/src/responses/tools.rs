//! Converts `tools` and `tool_choice`. Pure.

use serde_json::{Map, Value, json};
use volley_types::PredictError;

use volley_http_edge::body::Fields;

/// Describes the first tool that runs at a provider, for an error.
pub(super) fn of_provider(body: &Map<String, Value>) -> Option<String> {
    let mut tools = body.get("tools")?.as_array()?.iter();
    let kind = tools.find_map(|tool| tool["type"].as_str().filter(|kind| *kind != "function"))?;
    Some(volley_dialect_kit::tools::hosted(kind))
}

/// Converts tools and `tool_choice` to the format of chat completions.
///
/// # Errors
/// `InvalidInput` naming the field.
pub(super) fn take(body: &mut Map<String, Value>) -> Result<(), PredictError> {
    let mut tools = Vec::new();
    match body.remove("tools") {
        None | Some(Value::Null) => {}
        Some(Value::Array(given)) => {
            for tool in &given {
                tools.push(function(tool)?);
            }
        }
        Some(_) => return Err(PredictError::invalid("field 'tools' must be a list")),
    }
    let choice = body.remove("tool_choice").filter(|it| !it.is_null());
    let mut made = choice.as_ref().map(tool_choice).transpose()?;
    if let Some(Choice::Among(mode, names)) = &made {
        tools.retain(|tool| {
            let name = tool.pointer("/function/name").and_then(Value::as_str);
            name.is_some_and(|name| names.iter().any(|allowed| allowed == name))
        });
        made = Some(Choice::Plain(mode.as_str().into()));
    }
    if tools.is_empty() {
        body.remove("parallel_tool_calls");
        return match made {
            Some(Choice::Plain(choice)) if choice != "auto" && choice != "none" => Err(
                PredictError::invalid("field 'tool_choice' needs 'tools' to choose from"),
            ),
            _ => Ok(()),
        };
    }
    body.insert("tools".to_owned(), tools.into());
    if let Some(Choice::Plain(choice)) = made {
        body.insert("tool_choice".to_owned(), choice);
    }
    Ok(())
}

fn function(tool: &Value) -> Result<Value, PredictError> {
    let tool = tool.as_object();
    let tool = tool.ok_or_else(|| PredictError::invalid("field 'tools' must list objects"))?;
    if tool.text("type")? != Some("function") {
        return Err(PredictError::invalid(
            "field 'tools' must list tools of the type 'function' only: tools that run at a \
             provider are not supported",
        ));
    }
    tool.required("name")?;
    let mut function = tool.clone();
    function.remove("type");
    function.retain(|_, value| !value.is_null());
    Ok(json!({ "type": "function", "function": function }))
}

enum Choice {
    Plain(Value),
    /// A mode that is restricted to these functions.
    Among(String, Vec<String>),
}

fn tool_choice(choice: &Value) -> Result<Choice, PredictError> {
    let wrong = || {
        PredictError::invalid(
            "field 'tool_choice' must be 'auto', 'none', 'required', or an object of the type \
             'function' or 'allowed_tools'",
        )
    };
    let name_of = |tool: &Value| tool.get("name").and_then(Value::as_str).map(str::to_owned);
    match choice {
        Value::String(mode) if matches!(mode.as_str(), "auto" | "none" | "required") => {
            Ok(Choice::Plain(choice.clone()))
        }
        Value::Object(fields) => match fields.text("type")? {
            Some("function") => {
                let name = name_of(choice).ok_or_else(wrong)?;
                let choice = json!({ "type": "function", "function": { "name": name } });
                Ok(Choice::Plain(choice))
            }
            Some("allowed_tools") => {
                let mode = fields.text("mode")?.unwrap_or("auto");
                let names = fields.get("tools").and_then(Value::as_array);
                let names = names.map(|tools| tools.iter().map(name_of).collect::<Option<_>>());
                match (mode, names.flatten()) {
                    ("auto" | "required", Some(names)) => Ok(Choice::Among(mode.into(), names)),
                    _ => Err(wrong()),
                }
            }
            _ => Err(wrong()),
        },
        _ => Err(wrong()),
    }
}
