//! Nested fields of a request that are unknown here. Only a server of the same format may know
//! them. Pure.

use serde_json::{Map, Value};
use volley_dialect_kit::beside;
use volley_dialect_kit::tools::{shown, unknown_field};

/// Known fields of the objects in a request.
const FIELDS: [(&str, &[&str]); 4] = [
    ("reasoning", &["effort", "summary", "generate_summary"]),
    ("text", &["format", "verbosity"]),
    (
        "text.format",
        &["type", "name", "description", "schema", "strict"],
    ),
    ("stream_options", &["include_obfuscation"]),
];

/// Known fields of the items of each type, besides `id`, `type` and `status`. Clients send back
/// items of answers.
const OF_ITEMS: [(&str, &[&str]); 4] = [
    ("message", &["role", "content", "phase"]),
    ("function_call", &["call_id", "name", "arguments"]),
    ("function_call_output", &["call_id", "output"]),
    ("reasoning", &["summary", "content", "encrypted_content"]),
];
/// Known fields of a part of an item.
const OF_PARTS: [&str; 8] = [
    "type",
    "text",
    "refusal",
    "annotations",
    "logprobs",
    "image_url",
    "detail",
    "prompt_cache_breakpoint",
];

/// The first field of an item, or of one of its parts, that only a server of the same format may
/// know. Items of unknown types have no other form.
pub(super) fn of_item(item: &Value) -> Option<String> {
    let kind = item["type"].as_str().unwrap_or("message");
    let (_, fields) = OF_ITEMS.iter().find(|(known, _)| *known == kind)?;
    let known = [*fields, &["id", "type", "status"][..]].concat();
    let of_parts = |name: &str| beside::unknown_in(&item[name], name, &OF_PARTS);
    beside::unknown(item, &known)
        .or_else(|| of_parts("content"))
        .or_else(|| of_parts("output"))
}

/// Known values of `include`. Most only concern tools at the provider, or have no effect here.
const INCLUDED: [&str; 8] = [
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
];

/// Known fields of a function in `tools`.
const OF_FUNCTIONS: [&str; 5] = ["type", "name", "description", "parameters", "strict"];

/// Describes the first field that only a server of the same format can honor: an unknown nested
/// field, an unknown value of `include`, or a limit of the calls at the provider.
pub(super) fn unknown(body: &Map<String, Value>) -> Option<String> {
    for (path, known) in FIELDS {
        let mut fields = at(body, path).into_iter().flatten();
        let found =
            fields.find(|(name, value)| !known.contains(&name.as_str()) && !value.is_null());
        if let Some((name, _)) = found {
            return Some(format!("field '{path}.{}' is not known", shown(name)));
        }
    }
    if body.get("max_tool_calls").is_some_and(|it| !it.is_null()) {
        return Some("field 'max_tool_calls' needs a server of OpenAI's responses".to_owned());
    }
    if let Some(field) = of_functions(body.get("tools")) {
        return Some(field);
    }
    let names = body.get("include").and_then(Value::as_array);
    let names = names.into_iter().flatten();
    let mut names = names.filter_map(Value::as_str);
    let name = names.find(|name| !INCLUDED.contains(name))?;
    Some(format!(
        "field 'include' has an unknown value '{}'",
        shown(name)
    ))
}

/// Describes the first unknown field of a function in `tools`.
fn of_functions(tools: Option<&Value>) -> Option<String> {
    let is_function = |tool: &Value| tool["type"] == "function";
    let path = unknown_field(tools?, is_function, &OF_FUNCTIONS)?;
    Some(format!("field '{path}' is not known"))
}

/// The object at a path of names.
fn at<'a>(body: &'a Map<String, Value>, path: &str) -> Option<&'a Map<String, Value>> {
    path.split('.')
        .try_fold(body, |object, name| object.get(name)?.as_object())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn unknown_fields_of_items_are_named() {
        let part = json!({ "type": "input_text", "text": "a", "bogus": 1 });
        for (item, field) in [
            (
                json!({ "role": "user", "content": "a", "bogus": 1 }),
                "bogus",
            ),
            (
                json!({ "role": "user", "content": [part] }),
                "content[].bogus",
            ),
            (
                json!({ "type": "function_call_output", "call_id": "c", "output": [part] }),
                "output[].bogus",
            ),
        ] {
            assert_eq!(of_item(&item).as_deref(), Some(field));
        }
        for item in [
            json!({ "type": "message", "id": "m", "status": "completed", "role": "assistant",
                    "phase": "final_answer", "content": [{ "type": "output_text", "text": "a",
                    "annotations": [], "logprobs": [] }] }),
            json!({ "type": "function_call", "id": "f", "call_id": "c", "name": "f",
                    "arguments": "{}", "status": "completed", "bogus": null }),
            json!({ "type": "custom_tool_call", "bogus": 1 }),
        ] {
            assert_eq!(of_item(&item), None, "{item}");
        }
    }

    #[test]
    fn unknown_nested_fields_are_named() {
        let found = |body: Value| unknown(body.as_object().unwrap());
        for (body, name) in [
            (json!({ "reasoning": { "bogus": 1 } }), "'reasoning.bogus'"),
            (json!({ "text": { "bogus": 1 } }), "'text.bogus'"),
            (
                json!({ "text": { "format": { "type": "text", "bogus": 1 } } }),
                "'text.format.bogus'",
            ),
            (
                json!({ "stream_options": { "bogus": true } }),
                "'stream_options.bogus'",
            ),
            (json!({ "include": ["bogus"] }), "'bogus'"),
            (json!({ "max_tool_calls": 1 }), "'max_tool_calls'"),
            (
                json!({ "tools": [{ "type": "function", "name": "f", "defer_loading": true }] }),
                "'tools[0].defer_loading'",
            ),
            (
                json!({ "tools": [{ "type": "function", "name": "f", "allowed_callers": ["x"] }] }),
                "'tools[0].allowed_callers'",
            ),
        ] {
            assert!(found(body).unwrap().contains(name), "{name}");
        }
        let known = json!({
            "reasoning": { "effort": "low", "summary": "auto", "bogus": null },
            "text": { "format": { "type": "text" }, "verbosity": "low" },
            "stream_options": { "include_obfuscation": false },
            "include": ["reasoning.encrypted_content"], "max_tool_calls": null,
            "tools": [
                { "type": "function", "name": "f", "description": "d", "strict": true,
                  "parameters": {}, "defer_loading": false, "allowed_callers": ["direct"] },
                { "type": "web_search", "filters": {} },
            ],
        });
        assert_eq!(found(known), None);
    }
}
