//! Tools that run at the provider, on the account of the connector. Pure.

use serde_json::Value;
use volley_types::{ParamValue, Parameters, PredictError};

use crate::reserved::{PROVIDER_TOOLS, shown};

/// Tool types that a provider defines, but that run at the caller.
const OF_CALLERS: [&str; 9] = [
    "apply_patch",
    "bash_",
    "computer",
    "custom",
    "function",
    "local_shell",
    "memory_",
    "shell",
    "text_editor_",
];

/// Whether callers may use tools that run at the provider. The default is yes.
///
/// # Errors
/// `InvalidInput` if the connector's parameter is neither `allow` nor `reject`.
pub fn allowed(connector: &Parameters) -> Result<bool, PredictError> {
    match connector.get(PROVIDER_TOOLS) {
        None => Ok(true),
        Some(ParamValue::Text(word)) if word == "allow" => Ok(true),
        Some(ParamValue::Text(word)) if word == "reject" => Ok(false),
        Some(_) => Err(PredictError::invalid(format!(
            "parameter '{PROVIDER_TOOLS}' of a connector must be 'allow' or 'reject'"
        ))),
    }
}

/// Rejects a body that uses a tool that runs at the provider.
///
/// # Errors
/// `InvalidInput` naming the field.
pub fn refuse(body: &Value, hosted: fn(&Value) -> Option<&str>) -> Result<(), PredictError> {
    let fields = ["mcp_servers", "web_search_options", "container"];
    let given = |name: &&str| match &body[*name] {
        Value::Null => false,
        Value::Array(list) => !list.is_empty(),
        _ => true,
    };
    let field = fields.into_iter().find(|name| given(name));
    let mut tools = body["tools"].as_array().into_iter().flatten();
    let tool = tools.find_map(hosted);
    let what = match (field, tool) {
        (Some(field), _) => format!("field '{field}'"),
        (None, Some(kind)) => format!("field 'tools' with '{}'", shown(kind)),
        (None, None) => return Ok(()),
    };
    Err(PredictError::invalid(format!(
        "{what} is not allowed: the model's connector does not allow tools that run at its provider"
    )))
}

/// The type of a tool that runs at the provider, for tools with the field `type`.
pub fn of_type(tool: &Value) -> Option<&str> {
    let kind = tool["type"].as_str()?;
    let of_caller = OF_CALLERS.iter().any(|known| match known.ends_with('_') {
        true => kind.starts_with(known),
        false => kind == *known || *known == "computer" && kind.starts_with(known),
    });
    (!of_caller).then_some(kind)
}
