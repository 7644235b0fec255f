//! Parameters that clients of OpenAI send, for servers that refuse what they do not know.

use serde_json::{Map, Value};
use volley_types::PredictError;

/// These say nothing about the answer, or ask only for what comes anyway.
const OF_NO_EFFECT: [&str; 8] = [
    "stream_options",
    "user",
    "store",
    "metadata",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
];

/// Takes out what has no effect on the answer: some fields always, others where they say what
/// the server does anyway.
pub(super) fn tidy(body: &mut Map<String, Value>) {
    body.retain(|name, value| match name.as_str() {
        "n" => value != 1,
        "logprobs" => value != false,
        "parallel_tool_calls" => value != true,
        name => !OF_NO_EFFECT.contains(&name),
    });
}

/// Gives parameters the server's names, from `.0` to `.1`; one that has that name already wins.
pub(super) fn rename(body: &mut Map<String, Value>, names: &[(&str, &str)]) {
    for (from, to) in names {
        if let Some(value) = body.remove(*from) {
            body.entry(*to).or_insert(value);
        }
    }
}

/// Moves parameters into an object of the body, from `.0` to `.1` in it; what is there wins.
///
/// # Errors
/// `InvalidInput` when what is there is no object.
pub(super) fn nest(
    body: &mut Map<String, Value>,
    object: &str,
    names: &[(&str, &str)],
) -> Result<(), PredictError> {
    let mut moved = match body.remove(object) {
        Some(Value::Object(given)) => given,
        None => Map::new(),
        Some(_) => {
            let message = format!("parameter '{object}' must be an object");
            return Err(PredictError::invalid(message));
        }
    };
    for (from, to) in names {
        if let Some(value) = body.remove(*from) {
            moved.entry(*to).or_insert(value);
        }
    }
    if !moved.is_empty() {
        body.insert(object.to_owned(), moved.into());
    }
    Ok(())
}

/// What `tool_choice` asks for.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Choice {
    /// The model decides.
    Auto,
    /// No tool.
    None,
    /// Some tool.
    Required,
    /// This one.
    Named(String),
}

/// Takes `tool_choice` out of the body, where it is in OpenAI's form.
pub(super) fn take_choice(body: &mut Map<String, Value>) -> Option<Choice> {
    let given = body.get("tool_choice")?;
    let name = given.pointer("/function/name").and_then(Value::as_str);
    let choice = match (given.as_str(), name) {
        (Some("auto"), _) => Choice::Auto,
        (Some("none"), _) => Choice::None,
        (Some("required" | "any"), _) => Choice::Required,
        (None, Some(name)) => Choice::Named(name.to_owned()),
        _ => return None,
    };
    body.remove("tool_choice");
    Some(choice)
}

/// Leaves only the tool of that name, for servers that cannot be told which to call.
pub(super) fn only_tool(body: &mut Map<String, Value>, name: &str) {
    if let Some(Value::Array(tools)) = body.get_mut("tools") {
        tools.retain(|tool| tool["function"]["name"] == name);
    }
}

/// The form that `response_format` asks for.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Form {
    /// Any text.
    Text,
    /// An object.
    Object,
    /// What the schema allows.
    Schema(Value),
}

/// Takes `response_format` out of the body, where it is in OpenAI's form.
pub(super) fn take_form(body: &mut Map<String, Value>) -> Option<Form> {
    let given = body.get("response_format")?;
    let form = match (
        given["type"].as_str()?,
        given.pointer("/json_schema/schema"),
    ) {
        ("text", _) => Form::Text,
        ("json_object", None) if given.get("json_schema").is_none() => Form::Object,
        ("json_schema", Some(schema)) => Form::Schema(schema.clone()),
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
    fn what_has_no_effect_is_taken_out_and_all_else_stays() {
        let mut body = object(json!({ "user": "u", "n": 1, "logprobs": true, "seed": 1 }));
        tidy(&mut body);
        assert_eq!(Value::from(body), json!({ "logprobs": true, "seed": 1 }));
    }

    #[test]
    fn the_servers_own_names_win() {
        let mut body = object(json!({ "a": 1, "b": 2, "o": { "y": 3 }, "x": 4, "z": 5 }));
        rename(&mut body, &[("a", "b")]);
        nest(&mut body, "o", &[("x", "y"), ("z", "z")]).unwrap();
        let mut wrong = object(json!({ "o": "text", "x": 4 }));
        let error = nest(&mut wrong, "o", &[("x", "y")]).unwrap_err();
        assert!(error.message.contains("'o'"));
        assert_eq!(
            Value::from(body),
            json!({ "b": 2, "o": { "y": 3, "z": 5 } })
        );
    }

    #[test]
    fn choices_and_forms_are_read_and_others_are_left() {
        let named = json!({ "type": "function", "function": { "name": "f" } });
        for (given, expected) in [
            (json!("auto"), Some(Choice::Auto)),
            (json!("required"), Some(Choice::Required)),
            (named, Some(Choice::Named("f".to_owned()))),
            (json!({ "type": "own" }), None),
        ] {
            let mut body = object(json!({ "tool_choice": given }));
            assert_eq!(take_choice(&mut body), expected);
            assert_eq!(body.is_empty(), expected.is_some());
        }
        let schema = json!({ "type": "json_schema", "json_schema": { "schema": { "a": 1 } } });
        let mut body = object(json!({ "response_format": schema }));
        assert_eq!(take_form(&mut body), Some(Form::Schema(json!({ "a": 1 }))));
        let mut own = object(json!({ "response_format": { "type": "own" } }));
        assert_eq!((take_form(&mut own), own.len()), (None, 1));
    }
}
