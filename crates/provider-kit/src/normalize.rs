//! Converts OpenAI parameters for servers with other formats.

use serde_json::{Map, Value};
use volley_types::PredictError;

use crate::reserved::shown;

/// Removes the caller's end user, `safety_identifier` or the older `user`, and returns it under the
/// name `user`. If both are given and differ, they are two tags under their own names.
pub fn take_users(body: &mut Map<String, Value>) -> Vec<(&'static str, String)> {
    let text = |value: Value| match value {
        Value::String(text) => Some(text).filter(|text| !text.is_empty()),
        Value::Null => None,
        other => Some(other.to_string()),
    };
    let safety = body.remove("safety_identifier").and_then(text);
    let user = body.remove("user").and_then(text);
    match (user, safety) {
        (Some(user), Some(safety)) if user != safety => {
            vec![("user", user), ("safety_identifier", safety)]
        }
        (user, safety) => safety
            .or(user)
            .map(|user| ("user", user))
            .into_iter()
            .collect(),
    }
}

/// Checks that a request has the tools that its choice needs, for servers that would reject the
/// translation without naming the caller's field.
///
/// # Errors
/// `InvalidInput` for a required call without tools, and for a choice of an unknown tool or of no
/// tool.
pub fn check_tool_choice(body: &Map<String, Value>) -> Result<(), PredictError> {
    let wrong = |why: &str| {
        Err(PredictError::invalid(format!(
            "parameter 'tool_choice' {why}; add the tool to 'tools', or choose another"
        )))
    };
    let choice = body.get("tool_choice").unwrap_or(&Value::Null);
    let tools = body.get("tools").and_then(Value::as_array);
    let tools = tools.map_or(&[][..], Vec::as_slice);
    // Tools in a server's own format are not known by name.
    let is_foreign = |tool: &Value| tool_name(tool).is_none();
    if body.contains_key("toolConfig") || tools.iter().any(is_foreign) {
        return Ok(());
    }
    let kind = choice.as_str().or_else(|| choice["type"].as_str());
    match kind {
        Some("required" | "any") if tools.is_empty() => {
            return wrong("requires a call, but the request has no tools");
        }
        Some("allowed_tools") if allowed_names(choice).is_empty() => {
            return wrong("has no 'allowed_tools'");
        }
        _ => {}
    }
    let named = match kind {
        Some("allowed_tools") => allowed_names(choice),
        Some("function" | "tool") => tool_name(choice).into_iter().collect(),
        _ => Vec::new(),
    };
    let known: Vec<_> = tools.iter().filter_map(tool_name).collect();
    match named.iter().find(|name| !known.contains(*name)) {
        Some(name) => wrong(&format!(
            "names the tool '{}', which 'tools' lacks",
            shown(name)
        )),
        None => Ok(()),
    }
}

/// The name of a tool, in OpenAI's format or beside its type.
fn tool_name(tool: &Value) -> Option<&str> {
    let name = tool.pointer("/function/name").or_else(|| tool.get("name"));
    name.and_then(Value::as_str)
}

/// The names of a choice of the type `allowed_tools`.
fn allowed_names(choice: &Value) -> Vec<&str> {
    // Chat completions nest the list one level deeper than responses.
    let nested = choice.pointer("/allowed_tools/tools");
    let tools = nested.or_else(|| choice.get("tools"));
    let tools = tools.and_then(Value::as_array).into_iter().flatten();
    tools.filter_map(tool_name).collect()
}

/// Resolves a tool choice of the type `allowed_tools` by removing all other tools, for servers
/// without that choice.
pub fn allowed_only(body: &mut Map<String, Value>) {
    let Some(choice) = body.get("tool_choice") else {
        return;
    };
    if choice["type"] != "allowed_tools" {
        return;
    }
    // Chat completions nest the list one level deeper than responses.
    let allowed = match &choice["allowed_tools"] {
        Value::Object(_) => &choice["allowed_tools"],
        _ => choice,
    };
    let mode = allowed["mode"].as_str().unwrap_or("auto").to_owned();
    let tools = allowed["tools"].as_array().into_iter().flatten();
    let name = |tool: &Value| {
        let name = tool.pointer("/function/name").or_else(|| tool.get("name"));
        name.and_then(Value::as_str).map(str::to_owned)
    };
    let names: Vec<_> = tools.filter_map(name).collect();
    if let Some(Value::Array(tools)) = body.get_mut("tools") {
        tools.retain(|tool| name(tool).is_some_and(|name| names.contains(&name)));
    }
    body.insert("tool_choice".to_owned(), mode.into());
}

/// Whether a request can cause at most one call: its choice names a tool, or it has at most one
/// tool. For servers without `parallel_tool_calls`.
pub fn is_one_call(body: &Map<String, Value>) -> bool {
    let named = body.get("tool_choice").is_some_and(Value::is_object);
    let tools = body.get("tools").and_then(Value::as_array);
    named || tools.is_none_or(|tools| tools.len() <= 1)
}

/// The meaning of `tool_choice`.
#[derive(Clone, Debug, PartialEq)]
pub enum ToolChoice {
    /// The model decides.
    Auto,
    /// No tool.
    None,
    /// Any tool.
    Required,
    /// The tool with this name.
    Named(String),
}

/// Removes `tool_choice` from the body and returns it; `None` if it is absent or not in OpenAI's
/// format.
pub fn take_tool_choice(body: &mut Map<String, Value>) -> Option<ToolChoice> {
    let given = body.get("tool_choice")?;
    let name = given.pointer("/function/name").and_then(Value::as_str);
    let choice = match (given.as_str(), name) {
        (Some("auto"), _) => ToolChoice::Auto,
        (Some("none"), _) => ToolChoice::None,
        (Some("required" | "any"), _) => ToolChoice::Required,
        (None, Some(name)) => ToolChoice::Named(name.to_owned()),
        _ => return None,
    };
    body.remove("tool_choice");
    Some(choice)
}

/// Removes all tools except `name`, for servers without a choice by name.
pub fn only_tool(body: &mut Map<String, Value>, name: &str) {
    if let Some(Value::Array(tools)) = body.get_mut("tools") {
        tools.retain(|tool| tool["function"]["name"] == name);
    }
}

/// The meaning of `response_format`.
#[derive(Clone, Debug, PartialEq)]
pub enum ResponseFormat {
    /// Any text.
    Text,
    /// A JSON object.
    Object,
    /// JSON that matches the schema.
    Schema(Value),
}

/// Removes `response_format` from the body and returns it; `None` if it is absent or not in
/// OpenAI's format.
pub fn take_response_format(body: &mut Map<String, Value>) -> Option<ResponseFormat> {
    let given = body.get("response_format")?.as_object()?;
    let has_only = |fields: &Map<String, Value>, known: &[&str]| {
        let mut names = fields.iter().filter(|(_, value)| !value.is_null());
        names.all(|(name, _)| known.contains(&name.as_str()))
    };
    let form = match given.get("type")?.as_str()? {
        "text" if has_only(given, &["type"]) => ResponseFormat::Text,
        // The field `schema` is that of llama.cpp.
        "json_object" if has_only(given, &["type", "schema"]) => match given.get("schema") {
            Some(schema) if !schema.is_null() => ResponseFormat::Schema(schema.clone()),
            _ => ResponseFormat::Object,
        },
        "json_schema" if has_only(given, &["type", "json_schema"]) => {
            let named = given.get("json_schema")?.as_object()?;
            let known = ["description", "name", "schema", "strict"];
            let named = Some(named).filter(|named| has_only(named, &known));
            ResponseFormat::Schema(named?.get("schema")?.clone())
        }
        _ => return None,
    };
    body.remove("response_format");
    Some(form)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(value: Value) -> Map<String, Value> {
        value.as_object().cloned().unwrap()
    }

    #[test]
    fn a_choice_among_some_leaves_those() {
        let tool = |name: &str| json!({ "type": "function", "function": { "name": name } });
        let choice = json!({ "type": "allowed_tools", "allowed_tools": {
            "mode": "required", "tools": [tool("g")] } });
        let mut body = object(json!({ "tools": [tool("f"), tool("g")], "tool_choice": choice }));
        assert!(check_tool_choice(&body).is_ok());
        allowed_only(&mut body);
        let expected = json!({ "tools": [tool("g")], "tool_choice": "required" });
        assert_eq!(Value::from(body.clone()), expected);
        assert!(is_one_call(&body));
        body.insert("tools".to_owned(), json!([tool("f"), tool("g")]));
        assert!(!is_one_call(&body));
        body.insert("tool_choice".to_owned(), tool("f"));
        assert!(is_one_call(&body));
    }

    #[test]
    fn a_choice_of_an_absent_tool_is_named() {
        let tool = |name: &str| json!({ "type": "function", "function": { "name": name } });
        let allowed = |tools: Value| json!({ "type": "allowed_tools", "allowed_tools": { "mode": "auto", "tools": tools } });
        for (tools, choice, is_fine) in [
            (json!([]), json!("required"), false),
            (json!([]), json!("auto"), true),
            (json!([tool("f")]), tool("g"), false),
            (json!([tool("f")]), tool("f"), true),
            (
                json!([tool("f")]),
                json!({ "type": "tool", "name": "g" }),
                false,
            ),
            (json!([tool("f")]), json!({ "type": "any" }), true),
            (json!([tool("f")]), allowed(json!([])), false),
            (json!([tool("f")]), allowed(json!([tool("g")])), false),
            (json!([{ "googleSearch": {} }]), json!("required"), true),
        ] {
            let body = object(json!({ "tools": tools, "tool_choice": choice }));
            let checked = check_tool_choice(&body);
            assert_eq!(checked.is_ok(), is_fine, "{choice}");
            let told = checked
                .err()
                .is_none_or(|it| it.message.contains("'tool_choice'"));
            assert!(told, "{choice}");
        }
    }

    #[test]
    fn choices_and_forms_are_read_and_others_are_left() {
        let named = json!({ "type": "function", "function": { "name": "f" } });
        for (given, expected) in [
            (json!("auto"), Some(ToolChoice::Auto)),
            (json!("required"), Some(ToolChoice::Required)),
            (named, Some(ToolChoice::Named("f".to_owned()))),
            (json!({ "type": "own" }), None),
        ] {
            let mut body = object(json!({ "tool_choice": given }));
            assert_eq!(take_tool_choice(&mut body), expected);
            assert_eq!(body.is_empty(), expected.is_some());
        }
        let schema = json!({ "type": "json_schema", "json_schema": { "schema": { "a": 1 } } });
        let mut body = object(json!({ "response_format": schema }));
        assert_eq!(
            take_response_format(&mut body),
            Some(ResponseFormat::Schema(json!({ "a": 1 })))
        );
        let object_schema = json!({ "type": "json_object", "schema": { "a": 1 } });
        let mut body = object(json!({ "response_format": object_schema }));
        assert_eq!(
            take_response_format(&mut body),
            Some(ResponseFormat::Schema(json!({ "a": 1 })))
        );
        for left in [
            json!({ "type": "own" }),
            json!({ "type": "json_object", "foo": 1 }),
            json!({ "type": "json_schema", "json_schema": { "schema": {}, "foo": 1 } }),
        ] {
            let mut own = object(json!({ "response_format": left }));
            assert_eq!((take_response_format(&mut own), own.len()), (None, 1));
        }
    }
}
