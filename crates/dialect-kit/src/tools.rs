//! Checks of the tools in a request. Pure.

use serde_json::{Value, json};

/// Describes a tool of the type `kind`, which runs at its provider, for an error.
#[must_use]
pub fn hosted(kind: &str) -> String {
    format!(
        "field 'tools' has a tool of the type '{}', which runs at its provider",
        shown(kind)
    )
}

/// The path of the first field of a function in `tools` that is not in `known` and has an effect,
/// such as `tools[0].defer_loading`. Null, false, empty lists and calls by the model alone are the
/// defaults of such fields. `is_function` selects the tools that are checked.
#[must_use]
pub fn unknown_field(
    tools: &Value,
    is_function: impl Fn(&Value) -> bool,
    known: &[&str],
) -> Option<String> {
    let tools = tools.as_array()?.iter().enumerate();
    let mut functions = tools.filter(|(_, tool)| is_function(tool));
    functions.find_map(|(index, tool)| {
        let mut fields = tool.as_object()?.iter();
        let (name, _) = fields
            .find(|(name, value)| !is_default(name, value) && !known.contains(&name.as_str()))?;
        Some(format!("tools[{index}].{}", shown(name)))
    })
}

fn is_default(name: &str, value: &Value) -> bool {
    value.is_null()
        || *value == Value::Bool(false)
        || value.as_array().is_some_and(Vec::is_empty)
        || name == "allowed_callers" && *value == json!(["direct"])
}

/// A name of the caller as error messages show it: at most 64 characters, without control
/// characters.
#[must_use]
pub fn shown(name: &str) -> String {
    name.chars().filter(|c| !c.is_control()).take(64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_unknown_field_with_an_effect_is_named() {
        let tools = json!([
            { "type": "web_search", "filters": 1 },
            { "type": "function", "name": "f", "defer_loading": false, "strict": null,
              "input_examples": [], "allowed_callers": ["direct"] },
            { "type": "function", "name": "g", "new\u{7}est": 1 },
        ]);
        let unknown = |tools: &Value| {
            let is_function = |tool: &Value| tool["type"] == "function";
            unknown_field(tools, is_function, &["type", "name"])
        };
        assert_eq!(unknown(&tools).as_deref(), Some("tools[2].newest"));
        assert_eq!(unknown(&json!([tools[0], tools[1]])), None);
        let by_code = json!([{ "type": "function", "allowed_callers": ["code_execution"] }]);
        assert_eq!(
            unknown(&by_code).as_deref(),
            Some("tools[0].allowed_callers")
        );
        assert_eq!(unknown(&json!("none")), None);
    }

    #[test]
    fn a_long_name_is_shortened() {
        assert!(hosted(&"x".repeat(100)).contains(&format!("'{}'", "x".repeat(64))));
    }
}
