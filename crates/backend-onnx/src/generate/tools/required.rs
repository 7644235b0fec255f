//! Calls that an answer must make: what may be called, and the grammar of one call as the model's
//! template teaches it.

use serde_json::{Value, json};

use super::special::{self, MarkIds, literal};
use super::{CLOSE, OPEN};
use crate::generate::constraint::with_little_space;

/// How a template teaches to write a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallStyle {
    /// JSON between the marks.
    Marked,
    /// Nothing but JSON.
    Bare,
    /// Between special tokens.
    Special(special::Style),
}

impl CallStyle {
    /// That of a template with this source.
    pub(crate) fn of(template: &str) -> Self {
        match special::Style::of(template) {
            Some(style) => Self::Special(style),
            None if template.contains(OPEN) => Self::Marked,
            None => Self::Bare,
        }
    }
}

/// A function that may be called.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Function {
    pub(crate) name: String,
    /// The schema of its arguments.
    pub(crate) parameters: Value,
}

impl Function {
    /// The function that a tool in OpenAI's form is; `None` when it is none.
    pub(crate) fn of(tool: &Value) -> Option<Self> {
        let function = tool.get("function")?;
        let parameters = match function.get("parameters") {
            // As OpenAI has it: a function without parameters.
            None | Some(Value::Null) => {
                json!({ "type": "object", "properties": {}, "additionalProperties": false })
            }
            Some(schema @ Value::Object(_)) => schema.clone(),
            Some(_) => return None,
        };
        Some(Self {
            name: function.get("name")?.as_str()?.to_owned(),
            parameters,
        })
    }
}

/// The grammar, in Lark's notation, of one call of one of `functions`; `mark` gives the id of a
/// special token that is a mark.
pub(crate) fn grammar(functions: &[Function], style: CallStyle, mark: MarkIds<'_>) -> String {
    let names: Vec<_> = (0..functions.len())
        .map(|at| format!("call_{at}"))
        .collect();
    let mut grammar = format!("start: {}\n", names.join(" | "));
    for (at, function) in functions.iter().enumerate() {
        let name = Value::from(function.name.as_str());
        let head = format!("{{\"name\": {name}, \"arguments\": ");
        let (before, after) = match style {
            CallStyle::Bare => (literal(&head), literal("}")),
            CallStyle::Marked => (
                literal(&format!("{OPEN}\n{head}")),
                literal(&format!("}}\n{CLOSE}")),
            ),
            CallStyle::Special(style) => style.around(&function.name, mark),
        };
        let schema = with_little_space(&function.parameters);
        // Each schema is a document of its own, so that what it refers to is found.
        grammar.push_str(&format!(
            "call_{at}: {before} arguments_{at} {after}\narguments_{at}: %json {schema}\n"
        ));
    }
    grammar
}
