//! Required calls: the callable functions, and the grammar of calls in the format of the model's
//! template.

use serde_json::{Value, json};

use super::call::Function;
use super::special;
use super::special::{MarkIds, literal};
use super::{CLOSE, OPEN};
use crate::schema::prepared;

/// The format of calls in a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallStyle {
    /// JSON between marks.
    Marked,
    /// JSON without marks.
    Bare,
    /// Names and JSON between special tokens.
    Special(special::Style),
}

impl CallStyle {
    /// Determines the format from the source of a template.
    pub fn of(template: &str) -> Self {
        match special::Style::of(template) {
            Some(style) => Self::Special(style),
            None if template.contains(OPEN) => Self::Marked,
            None => Self::Bare,
        }
    }
}

impl Function {
    /// Converts a tool in OpenAI's format; `None` for other tools.
    pub fn of(tool: &Value) -> Option<Self> {
        let function = tool.get("function")?;
        let parameters = match function.get("parameters") {
            // OpenAI's default: a function without parameters.
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

/// The frame of calls, in Lark notation.
struct Frame {
    open: String,
    /// Separator of calls.
    between: String,
    close: String,
}

/// Returns the grammar, in Lark notation, of one to `most` calls of `functions`. `mark` returns the
/// ids of marks that are special tokens.
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
        // Several calls are a list.
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
        // A schema is embedded as a document of its own, so that its references resolve.
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

    /// The text around the arguments of a call of `name`.
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
