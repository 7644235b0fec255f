//! Parsers for complete calls in the formats of common chat templates.
//!
//! | format | models |
//! |---|---|
//! | JSON: `{"name": …, "arguments": {…}}`, `parameters` for `arguments`, `tool_name` for `name`; one, or a list | Hermes, Qwen, Llama 3, Mistral, Granite, Phi, Command R |
//! | `<function=NAME>{…}</function>` | Llama 3.1, Functionary |
//! | `<function=NAME><parameter=KEY>VALUE</parameter></function>` | Qwen3-Coder |
//! | `NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>` | GLM-4.5 |
//! | `[NAME(KEY=VALUE, …)]` | Llama 3.2 and 4, Python syntax |
//! | `[TOOL_CALLS]NAME[ARGS]{…}` | Mistral |
//! | names and JSON between special tokens | DeepSeek, Kimi |

use serde_json::{Map, Value};

use super::call::{Function, ParsedCall, json};
use super::{python, special};

pub(super) const FUNCTION: &str = "<function=";
const FUNCTION_END: &str = "</function>";
const PARAMETER: &str = "<parameter=";
const PARAMETER_END: &str = "</parameter>";
const KEY: (&str, &str) = ("<arg_key>", "</arg_key>");
const VALUE: (&str, &str) = ("<arg_value>", "</arg_value>");
const ACTION: &str = "Action:";

/// Parses a text that consists of calls in one of the formats; `None` for other text. In formats
/// without types, the functions' schemas determine the types of values.
pub(crate) fn read(text: &str, functions: &[Function]) -> Option<Vec<ParsedCall>> {
    let text = text.trim();
    let calls = special::read(text, functions)
        .or_else(|| json(unfenced(text)))
        .or_else(|| elements(text, functions))
        .or_else(|| keys(text, functions))
        .or_else(|| pythonic(text, functions))?;
    (!calls.is_empty()).then_some(calls)
}

/// The content of the block after `Action:` (Command R), or the text itself.
fn unfenced(text: &str) -> &str {
    let block = || {
        let block = text.strip_prefix(ACTION)?.trim_start();
        let block = block.strip_prefix("```json")?.trim_end();
        Some(block.strip_suffix("```").unwrap_or(block))
    };
    block().unwrap_or(text)
}

/// Whether an answer with this beginning may consist of calls only; `None` if more input is needed.
pub(super) fn may_be_whole(text: &str) -> Option<bool> {
    let text = text.trim_start();
    if special::begins(text)? {
        return Some(false);
    }
    match text.chars().next()? {
        '{' | '[' => Some(true),
        _ if text.len() < ACTION.len() && ACTION.starts_with(text) => None,
        _ => Some(text.starts_with(ACTION)),
    }
}

/// Parses a sequence of `<function=NAME>…</function>`.
fn elements(text: &str, functions: &[Function]) -> Option<Vec<ParsedCall>> {
    let mut calls = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (name, after) = rest.strip_prefix(FUNCTION)?.split_once('>')?;
        // The last element may be truncated.
        let (body, after) = after.split_once(FUNCTION_END).unwrap_or((after, ""));
        let name = name.trim_matches(['"', '\'', ' ']);
        let body = body.trim();
        let arguments = if body.is_empty() {
            Value::Object(Map::new())
        } else if body.starts_with('{') {
            serde_json::from_str(body).ok()?
        } else {
            parameters(body, schema(functions, name))?
        };
        calls.push(ParsedCall {
            name: name.to_owned(),
            arguments,
        });
        rest = after.trim_start();
    }
    Some(calls)
}

/// Parses a sequence of `<parameter=KEY>VALUE</parameter>`.
fn parameters(text: &str, schema: Option<&Value>) -> Option<Value> {
    let mut found = Map::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (key, after) = rest.strip_prefix(PARAMETER)?.split_once('>')?;
        let (value, after) = after.split_once(PARAMETER_END)?;
        // Templates put line breaks around values.
        let value = value.strip_prefix('\n').unwrap_or(value);
        let value = value.strip_suffix('\n').unwrap_or(value);
        found.insert(key.trim().to_owned(), typed(value, key.trim(), schema));
        rest = after.trim_start();
    }
    Some(Value::Object(found))
}

/// Parses a name that is followed by keys and values.
fn keys(text: &str, functions: &[Function]) -> Option<Vec<ParsedCall>> {
    let (name, rest) = text.split_at(text.find(KEY.0).unwrap_or(text.len()));
    let name = name.trim();
    let schema = schema(functions, name)?;
    let (mut found, mut rest) = (Map::new(), rest);
    while !rest.is_empty() {
        let (key, after) = rest.strip_prefix(KEY.0)?.split_once(KEY.1)?;
        let after = after.trim_start().strip_prefix(VALUE.0)?;
        let (value, after) = after.split_once(VALUE.1)?;
        found.insert(
            key.trim().to_owned(),
            typed(value, key.trim(), Some(schema)),
        );
        rest = after.trim_start();
    }
    Some(vec![ParsedCall {
        name: name.to_owned(),
        arguments: Value::Object(found),
    }])
}

/// Parses a Python list of calls to known functions.
fn pythonic(text: &str, functions: &[Function]) -> Option<Vec<ParsedCall>> {
    let calls = python::calls(text)?;
    let known = |name: &String| functions.iter().any(|function| function.name == *name);
    let calls = calls.into_iter().map(|(name, arguments)| ParsedCall {
        name,
        arguments: Value::Object(arguments),
    });
    let calls: Vec<_> = calls.collect();
    calls.iter().all(|call| known(&call.name)).then_some(calls)
}

fn schema<'f>(functions: &'f [Function], name: &str) -> Option<&'f Value> {
    let function = functions.iter().find(|function| function.name == name);
    function.map(|function| &function.parameters)
}

/// Converts an unquoted value: text if the schema requires it or the value is not JSON.
fn typed(value: &str, key: &str, schema: Option<&Value>) -> Value {
    let property = schema.and_then(|schema| schema.get("properties")?.get(key)?.get("type"));
    if property.and_then(Value::as_str) == Some("string") {
        return Value::from(value);
    }
    serde_json::from_str(value.trim()).unwrap_or_else(|_| Value::from(value))
}
