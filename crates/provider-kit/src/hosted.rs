//! Tools that run at the provider, on the account of the connector. Pure.

use serde_json::Value;
use volley_types::registry::ProviderKind;
use volley_types::{ParamValue, Parameters, PredictError};

use crate::reserved::{PROVIDER_TOOLS, shown};

/// Types of tools that have a meaning at the provider, and run at the caller all the same.
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

/// Whether callers may have such tools run: they may, unless the connector says `reject`.
///
/// # Errors
/// `InvalidInput` when the parameter is neither.
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

/// Refuses a body that has such a tool run.
///
/// # Errors
/// `InvalidInput` naming the field.
pub fn refuse(provider: ProviderKind, body: &Value) -> Result<(), PredictError> {
    let fields = ["mcp_servers", "web_search_options", "container"];
    let given = |name: &&str| match &body[*name] {
        Value::Null => false,
        Value::Array(list) => !list.is_empty(),
        _ => true,
    };
    let field = fields.into_iter().find(|name| given(name));
    let mut tools = body["tools"].as_array().into_iter().flatten();
    let tool = tools.find_map(|tool| hosted(provider, tool));
    let what = match (field, tool) {
        (Some(field), _) => format!("field '{field}'"),
        (None, Some(kind)) => format!("field 'tools' with '{}'", shown(kind)),
        (None, None) => return Ok(()),
    };
    Err(PredictError::invalid(format!(
        "{what} is not allowed: the model's connector lets no tools run at its provider"
    )))
}

/// The type of a tool that runs at the provider.
fn hosted(provider: ProviderKind, tool: &Value) -> Option<&str> {
    if matches!(provider, ProviderKind::Gemini | ProviderKind::Vertex) {
        let mut names = tool.as_object()?.keys();
        let name = names.find(|name| !name.starts_with("function"))?;
        return Some(name.as_str());
    }
    let kind = tool["type"].as_str()?;
    let of_caller = OF_CALLERS.iter().any(|known| match known.ends_with('_') {
        true => kind.starts_with(known),
        false => kind == *known || *known == "computer" && kind.starts_with(known),
    });
    (!of_caller).then_some(kind)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_runs_at_the_provider_is_told_from_what_runs_at_the_caller() {
        let anthropic = ProviderKind::Anthropic;
        for (provider, body, named) in [
            (
                anthropic,
                json!({ "tools": [{ "type": "web_search_20260209" }] }),
                "web_search",
            ),
            (
                anthropic,
                json!({ "mcp_servers": [{ "url": "x" }] }),
                "'mcp_servers'",
            ),
            (
                ProviderKind::OpenAi,
                json!({ "web_search_options": {} }),
                "'web_search_options'",
            ),
            (
                ProviderKind::OpenAiResponses,
                json!({ "tools": [{ "type": "mcp" }] }),
                "'mcp'",
            ),
            (
                ProviderKind::Gemini,
                json!({ "tools": [{ "googleSearch": {} }] }),
                "'googleSearch'",
            ),
        ] {
            let error = refuse(provider, &body).unwrap_err();
            assert!(error.message.contains(named), "{error}");
        }
        for (provider, body) in [
            (
                anthropic,
                json!({ "tools": [{ "name": "f", "input_schema": {} }, { "type": "custom" },
                { "type": "bash_20250124" }], "mcp_servers": [] }),
            ),
            (
                ProviderKind::OpenAiResponses,
                json!({ "tools": [{ "type": "function" },
                { "type": "computer_use_preview" }, { "type": "local_shell" }] }),
            ),
            (
                ProviderKind::Gemini,
                json!({ "tools": [{ "functionDeclarations": [] }] }),
            ),
        ] {
            assert!(refuse(provider, &body).is_ok(), "{body}");
        }
    }

    #[test]
    fn the_connector_says_whether() {
        let of = |word: &str| {
            let value = ParamValue::Text(word.to_owned());
            [(PROVIDER_TOOLS.to_owned(), value)].into_iter().collect()
        };
        assert!(allowed(&Parameters::default()).unwrap() && allowed(&of("allow")).unwrap());
        assert!(!allowed(&of("reject")).unwrap());
        assert!(allowed(&of("maybe")).is_err());
    }
}
