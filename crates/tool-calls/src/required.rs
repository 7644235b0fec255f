//! Calls that an answer must make: what may be called, and the grammar of one call as the model's
//! template teaches it.

use serde_json::{Value, json};

use super::call::Function;
use super::special;
use super::special::{MarkIds, literal};
use super::{CLOSE, OPEN};
use crate::schema::prepared;

/// How a template teaches to write a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallStyle {
    /// JSON between the marks.
    Marked,
    /// Nothing but JSON.
    Bare,
    /// Between special tokens.
    Special(special::Style),
}

impl CallStyle {
    /// That of a template with this source.
    pub fn of(template: &str) -> Self {
        match special::Style::of(template) {
            Some(style) => Self::Special(style),
            None if template.contains(OPEN) => Self::Marked,
            None => Self::Bare,
        }
    }
}

impl Function {
    /// The function that a tool in OpenAI's form is; `None` when it is none.
    pub fn of(tool: &Value) -> Option<Self> {
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

/// What stands around calls, in Lark's notation.
struct Frame {
    open: String,
    /// Between two calls.
    between: String,
    close: String,
}

/// The grammar, in Lark's notation, of one to `most` calls of `functions`; `mark` gives the id of a
/// special token that is a mark.
pub fn grammar(functions: &[Function], most: usize, style: CallStyle, mark: MarkIds<'_>) -> String {
    let names: Vec<_> = (0..functions.len())
        .map(|at| format!("call_{at}"))
        .collect();
    let more = most.saturating_sub(1);
    let frame = style.frame(mark);
    let Frame {
        open,
        between,
        close,
    } = frame;
    let mut grammar = match (style, more) {
        (CallStyle::Bare, 0) => "start: call\n".to_owned(),
        // A list of them, where there are several.
        (CallStyle::Bare, _) => {
            format!("start: call | {open} call ({between} call){{1,{more}}} {close}\n")
        }
        (_, 0) => format!("start: {open} call {close}\n"),
        _ => format!("start: {open} call ({between} call){{0,{more}}} {close}\n"),
    };
    grammar.push_str(&format!("call: {}\n", names.join(" | ")));
    for (at, function) in functions.iter().enumerate() {
        let (before, after) = style.around(&function.name, mark);
        let schema = prepared(&function.parameters);
        // Each schema is a document of its own, so that what it refers to is found.
        grammar.push_str(&format!(
            "call_{at}: {before} arguments_{at} {after}\narguments_{at}: %json {schema}\n"
        ));
    }
    grammar
}

impl CallStyle {
    fn frame(self, mark: MarkIds<'_>) -> Frame {
        match self {
            Self::Bare => Frame {
                open: literal("["),
                between: literal(", "),
                close: literal("]"),
            },
            Self::Marked => Frame {
                open: String::new(),
                between: literal("\n"),
                close: String::new(),
            },
            Self::Special(style) => {
                let (open, close) = style.section(mark);
                Frame {
                    open,
                    between: String::new(),
                    close,
                }
            }
        }
    }

    /// What stands around the arguments of a call of `name`.
    fn around(self, name: &str, mark: MarkIds<'_>) -> (String, String) {
        let head = format!("{{\"name\": {}, \"arguments\": ", Value::from(name));
        match self {
            Self::Bare => (literal(&head), literal("}")),
            Self::Marked => (
                literal(&format!("{OPEN}\n{head}")),
                literal(&format!("}}\n{CLOSE}")),
            ),
            Self::Special(style) => style.around(name, mark),
        }
    }
}
