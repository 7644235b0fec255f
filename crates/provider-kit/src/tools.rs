//! Functions among the tools of a request, in OpenAI's format. Pure.

use serde_json::Value;
use volley_types::PredictError;

use crate::reserved::shown;

/// Fields of a tool with a function.
const OF_TOOLS: [&str; 3] = ["type", "function", "cache_control"];
/// Fields of a function.
const OF_FUNCTIONS: [&str; 4] = ["name", "description", "parameters", "strict"];

/// Rejects a function with a field that servers of other formats have no counterpart of. Tools
/// without a function are the provider's own and may have any field.
///
/// # Errors
/// `InvalidInput` naming the field.
pub fn check_functions(tools: &[Value]) -> Result<(), PredictError> {
    for tool in tools.iter().filter(|tool| tool["function"].is_object()) {
        let own = unknown(tool, &OF_TOOLS);
        let of_function = || unknown(&tool["function"], &OF_FUNCTIONS);
        let inside = of_function().map(|name| format!("function.{name}"));
        if let Some(field) = own.or(inside) {
            return Err(PredictError::invalid(format!(
                "parameter 'tools' has the field '{field}', which the model's server has no \
                 counterpart of; leave it out"
            )));
        }
    }
    Ok(())
}

fn unknown(object: &Value, known: &[&str]) -> Option<String> {
    let mut fields = object.as_object()?.iter();
    let (name, _) =
        fields.find(|(name, value)| !value.is_null() && !known.contains(&name.as_str()))?;
    Some(shown(name))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn unknown_fields_of_functions_are_rejected_by_name() {
        let function = json!({ "name": "f", "parameters": {}, "strict": true, "x": null });
        let tool = json!({ "type": "function", "function": function });
        assert!(check_functions(std::slice::from_ref(&tool)).is_ok());
        assert!(check_functions(&[json!({ "googleSearch": { "any": 1 } })]).is_ok());
        for (path, field) in [
            ("/newest", "newest"),
            ("/function/newest", "function.newest"),
        ] {
            let mut tool = tool.clone();
            let (parent, name) = path.rsplit_once('/').unwrap();
            tool.pointer_mut(parent).unwrap()[name] = 1.into();
            let error = check_functions(&[tool]).unwrap_err();
            assert!(error.message.contains(&format!("'{field}'")), "{error:?}");
        }
    }
}
