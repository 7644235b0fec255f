//! Calls between special tokens, around plain names: sections of calls (DeepSeek, Kimi), and
//! Mistral's `[TOOL_CALLS]NAME[ARGS]{…}`.
//!
//! In most vocabularies these marks are special tokens without text. The parser receives them
//! separately ([`is_mark`]) if tools are allowed, and never returns them as text.

use serde_json::Value;

use super::call::{CallEnd, Function, ParsedCall, json};

/// The marks of a model family.
struct Section {
    open: &'static str,
    close: &'static str,
    /// Marks around one call.
    call: (&'static str, &'static str),
    /// Between the name and the arguments.
    separator: &'static str,
}

const SECTIONS: [Section; 2] = [
    // DeepSeek V3, R1 and V3.1.
    Section {
        open: "<｜tool▁calls▁begin｜>",
        close: "<｜tool▁calls▁end｜>",
        call: ("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
        separator: "<｜tool▁sep｜>",
    },
    // Kimi K2.
    Section {
        open: "<|tool_calls_section_begin|>",
        close: "<|tool_calls_section_end|>",
        call: ("<|tool_call_begin|>", "<|tool_call_end|>"),
        separator: "<|tool_call_argument_begin|>",
    },
];

/// Fence around arguments.
const BLOCK: (&str, &str) = ("```json", "```");

/// Precedes each call of Mistral models; before tokenizer version 11, a list of calls. Calls extend
/// to the end of the answer.
const CALL: &str = "[TOOL_CALLS]";
const CALL_ID: &str = "[CALL_ID]";
const ARGUMENTS: &str = "[ARGS]";

/// Marks around calls. An empty closing mark means that calls extend to the end of the answer.
pub(super) const MARKS: [(&str, &str); 3] = [
    (SECTIONS[0].open, SECTIONS[0].close),
    (SECTIONS[1].open, SECTIONS[1].close),
    (CALL, ""),
];

/// The format of calls in a template of one of these families.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// A mark, name and arguments for each call.
    Mistral,
    /// A section of calls, each with an id.
    Section {
        /// Index of the family in the table of marks.
        at: usize,
        /// Whether arguments are in a fenced block after the type and the name.
        block: bool,
    },
}

impl Style {
    /// Determines the format from the source of a template; `None` for other templates.
    pub(crate) fn of(template: &str) -> Option<Self> {
        if template.contains(ARGUMENTS) {
            return Some(Self::Mistral);
        }
        let mut sections = SECTIONS.iter();
        let at = sections.position(|it| template.contains(it.separator))?;
        let block = at == 0 && template.contains(BLOCK.0);
        Some(Self::Section { at, block })
    }

    /// The frame of all calls, in Lark notation. Marks are the tokens that `mark` returns, or text.
    pub(super) fn section(self, mark: MarkIds<'_>) -> (String, String) {
        match self {
            Self::Mistral => (String::new(), String::new()),
            Self::Section { at, .. } => {
                let section = &SECTIONS[at];
                (written(section.open, mark), written(section.close, mark))
            }
        }
    }

    /// The frame of the arguments of a call of `name`, as in [`Style::section`].
    pub(super) fn around(self, name: &str, mark: MarkIds<'_>) -> (String, String) {
        let Self::Section { at, block } = self else {
            let before = [written(CALL, mark), literal(name), written(ARGUMENTS, mark)];
            return (before.join(" "), String::new());
        };
        let section = &SECTIONS[at];
        let (kind, name) = match (at, block) {
            // Calls are numbered.
            (1, _) => {
                let kind = literal(&format!("functions.{name}:"));
                (format!("{kind} /[0-9]/"), String::new())
            }
            (_, true) => (literal("function"), format!("{name}\n{}\n", BLOCK.0)),
            (_, false) => (literal(name), String::new()),
        };
        let before = [
            written(section.call.0, mark),
            kind,
            written(section.separator, mark),
            literal(&name),
        ];
        let end = match block {
            true => format!("\n{}", BLOCK.1),
            false => String::new(),
        };
        let after = [literal(&end), written(section.call.1, mark)];
        (before.join(" "), after.join(" "))
    }
}

/// A mark as a token or text, in Lark notation.
fn written(text: &str, mark: MarkIds<'_>) -> String {
    match mark(text) {
        Some(id) => format!("<[{id}]>"),
        None => literal(text),
    }
}

/// A text literal in Lark notation.
pub(crate) fn literal(text: &str) -> String {
    Value::from(text).to_string()
}

/// Returns the id of a mark that is a special token; `None` for other names.
pub type MarkIds<'m> = &'m dyn Fn(&str) -> Option<u32>;

/// Whether a special token with this name is a mark.
pub fn is_mark(token: &str) -> bool {
    all().any(|mark| mark == token)
}

/// Whether a text is an opening mark.
pub(super) fn opens(text: &str) -> bool {
    MARKS.iter().any(|(open, _)| text == *open)
}

fn all() -> impl Iterator<Item = &'static str> {
    let sections = SECTIONS.iter().flat_map(|it| {
        let Section {
            open,
            close,
            call,
            separator,
        } = it;
        [*open, *close, call.0, call.1, *separator]
    });
    sections.chain([CALL, CALL_ID, ARGUMENTS])
}

/// Whether an answer begins with an opening mark; `None` if more input is needed.
pub(crate) fn begins(text: &str) -> Option<bool> {
    let mut opens = MARKS.iter().map(|(open, _)| *open);
    if opens.clone().any(|open| text.starts_with(open)) {
        return Some(true);
    }
    match opens.any(|open| open.starts_with(text)) {
        true => None,
        false => Some(false),
    }
}

/// Removes the marks from text that was not a call.
pub(super) fn without_marks(text: &str) -> String {
    all().fold(text.to_owned(), |text, mark| text.replace(mark, ""))
}

/// The parsed beginning of a call.
pub(super) enum CallHead {
    /// A call of this name, whose arguments start at this byte offset.
    Call(String, usize),
    /// A call in JSON.
    Json,
    Open,
    Never,
}

/// Parses the beginning of a call after the opening mark `open`.
pub(crate) fn head(open: &str, text: &str) -> CallHead {
    let begins = text.trim_start();
    if begins.is_empty() {
        return CallHead::Open;
    }
    if open == CALL && begins.starts_with(['[', '{']) && !begins.starts_with(CALL_ID) {
        return CallHead::Json;
    }
    let Some((head, _)) = text.split_once('{') else {
        return CallHead::Open;
    };
    let name = if open == CALL {
        let marked = head.split_once(ARGUMENTS).map(|(head, _)| head);
        marked.unwrap_or(head).split(CALL_ID).next().map(str::trim)
    } else {
        let section = SECTIONS.iter().find(|section| section.open == open);
        section.and_then(|section| {
            let head = head.trim_start().strip_prefix(section.call.0)?;
            let (name, block) = head.split_once(section.separator)?;
            match block.split_once(BLOCK.0) {
                Some((name, _)) => Some(plain(name)),
                None => Some(plain(name)),
            }
        })
    };
    match name {
        Some(name) if !name.is_empty() => CallHead::Call(name.to_owned(), head.len()),
        _ => CallHead::Never,
    }
}

/// Determines what follows the arguments of a call after the opening mark `open`.
pub(super) fn after(open: &str, text: &str) -> Option<CallEnd> {
    if open == CALL {
        let rest = text.trim_start_matches(|c: char| c.is_whitespace() || matches!(c, '}' | ']'));
        let at = text.len() - rest.len();
        return Some(match rest.strip_prefix(CALL) {
            Some(_) => CallEnd::Next(at + CALL.len()),
            None if rest.starts_with(',') => CallEnd::Next(at + 1),
            None => CallEnd::Open,
        });
    }
    let section = SECTIONS.iter().find(|section| section.open == open)?;
    let rest = text.trim_start();
    let rest = rest.strip_prefix(BLOCK.1).unwrap_or(rest).trim_start();
    let rest = rest.strip_prefix(section.call.1)?.trim_start();
    rest.starts_with(section.call.0)
        .then(|| CallEnd::Next(text.len() - rest.len()))
}

/// Parses a text that consists of calls and begins with a mark; `None` for other text.
pub(crate) fn read(text: &str, functions: &[Function]) -> Option<Vec<ParsedCall>> {
    if let Some(rest) = text.strip_prefix(CALL) {
        return json(rest.trim()).or_else(|| one_by_one(rest, functions));
    }
    let section = SECTIONS.iter().find(|it| text.starts_with(it.open))?;
    section.read(text)
}

/// Parses `NAME[ARGS]{…}`, with an optional `[CALL_ID]ID` after the name, and the mark between
/// calls.
fn one_by_one(text: &str, functions: &[Function]) -> Option<Vec<ParsedCall>> {
    let (mut calls, mut rest) = (Vec::new(), text);
    loop {
        let begins = rest.find('{')?;
        let (head, after) = rest.split_at(begins);
        let name = match head.split_once(ARGUMENTS) {
            Some((head, blank)) if blank.trim().is_empty() => {
                head.split(CALL_ID).next().unwrap_or(head).trim()
            }
            Some(_) => return None,
            // Without the mark, the name must be that of a known function.
            None => functions
                .iter()
                .map(|function| function.name.as_str())
                .find(|name| *name == head.trim())?,
        };
        let (arguments, after) = object(after)?;
        calls.push(call(name, arguments)?);
        let after = after.trim_start();
        if after.is_empty() {
            return Some(calls);
        }
        rest = after.strip_prefix(CALL)?;
    }
}

impl Section {
    fn read(&self, text: &str) -> Option<Vec<ParsedCall>> {
        let mut rest = text.strip_prefix(self.open)?.trim_start();
        let mut calls = Vec::new();
        while let Some(after) = rest.strip_prefix(self.call.0) {
            let (head, after) = after.split_once(self.separator)?;
            // DeepSeek V3 and R1 write the type before the name, and the arguments in a block.
            let (name, after) = match after.trim_start().starts_with('{') {
                true => (head, after),
                false => after.split_once(BLOCK.0)?,
            };
            let (arguments, after) = object(after)?;
            calls.push(call(plain(name), arguments)?);
            let after = after.trim_start();
            let after = after.strip_prefix(BLOCK.1).unwrap_or(after).trim_start();
            // The last call may be truncated.
            let after = match after.is_empty() {
                true => after,
                false => after.strip_prefix(self.call.1)?,
            };
            rest = after.trim_start();
        }
        rest = rest.strip_prefix(self.close).unwrap_or(rest);
        rest.trim().is_empty().then_some(calls)
    }
}

/// Returns the function name in `functions.NAME:0`, or the name itself.
fn plain(name: &str) -> &str {
    let name = name.trim();
    let inside = || {
        let (inside, number) = name.strip_prefix("functions.")?.rsplit_once(':')?;
        let counts = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        counts.then_some(inside)
    };
    inside().unwrap_or(name)
}

fn call(name: &str, arguments: Value) -> Option<ParsedCall> {
    let odd = |c: char| c.is_whitespace() || matches!(c, '{' | '}' | '[' | ']' | '<' | '>');
    (!name.is_empty() && !name.contains(odd)).then(|| ParsedCall {
        name: name.to_owned(),
        arguments,
    })
}

/// Parses the JSON object at the beginning of `text`, and returns the rest.
fn object(text: &str) -> Option<(Value, &str)> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let value = values.next()?.ok().filter(Value::is_object)?;
    Some((value, text.get(values.byte_offset()..)?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Map, json};

    use super::*;

    /// These calls in the format of each family.
    fn written(calls: &[(String, Value)]) -> Vec<String> {
        let each = |one: &dyn Fn(usize, &str, &Value) -> String| -> String {
            let numbered = calls.iter().enumerate();
            numbered
                .map(|(at, (name, value))| one(at, name, value))
                .collect()
        };
        let v3 = each(&|_, name, value| {
            format!(
                "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{value}\n```\
                 <｜tool▁call▁end｜>\n"
            )
        });
        let v31 = each(&|_, name, value| {
            format!("<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{value}<｜tool▁call▁end｜>")
        });
        let kimi = each(&|at, name, value| {
            format!(
                "<|tool_call_begin|>functions.{name}:{at}<|tool_call_argument_begin|>{value}\
                 <|tool_call_end|>"
            )
        });
        let list: Vec<_> = calls
            .iter()
            .map(|(name, value)| json!({ "name": name, "arguments": value }))
            .collect();
        vec![
            format!("<｜tool▁calls▁begin｜>{v3}<｜tool▁calls▁end｜>"),
            format!("<｜tool▁calls▁begin｜>{v31}<｜tool▁calls▁end｜>"),
            // Truncated after the arguments of the last call.
            format!(
                "<｜tool▁calls▁begin｜>{}",
                v31.strip_suffix("<｜tool▁call▁end｜>").unwrap_or(&v31)
            ),
            format!("<|tool_calls_section_begin|>{kimi}<|tool_calls_section_end|>"),
            each(&|_, name, value| format!("[TOOL_CALLS]{name}[ARGS]{value}")),
            each(&|at, name, value| {
                format!("[TOOL_CALLS]{name}[CALL_ID]a1b2c3d4{at}[ARGS] {value}")
            }),
            format!("[TOOL_CALLS] {}", Value::from(list)),
        ]
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "\\PC{0,12}".prop_map(Value::from),
            // Marks and fences may also occur in arguments.
            proptest::sample::select(vec![
                "[TOOL_CALLS]",
                "[ARGS]{",
                "```",
                "<｜tool▁sep｜>",
                "}"
            ])
            .prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 12, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::btree_map("[a-z]{1,6}", inner, 0..4)
                    .prop_map(|map| Value::from(map.into_iter().collect::<Map<_, _>>())),
            ]
        })
    }

    fn arguments() -> impl Strategy<Value = Value> {
        proptest::collection::btree_map("[a-z]{1,6}", value(), 0..4)
            .prop_map(|map| Value::from(map.into_iter().collect::<Map<_, _>>()))
    }

    proptest! {
        #[test]
        fn whatever_is_called_is_read_as_each_family_writes_it(
            calls in proptest::collection::vec(("[a-z][a-z0-9_.-]{0,12}", arguments()), 1..4),
        ) {
            for text in written(&calls) {
                let found = read(&text, &[]);
                let found = found.map(|calls| {
                    let pair = |call: ParsedCall| (call.name, call.arguments);
                    calls.into_iter().map(pair).collect::<Vec<_>>()
                });
                prop_assert_eq!(found.as_ref(), Some(&calls), "{}", text);
            }
        }

        #[test]
        fn nothing_is_too_odd_to_be_read_and_no_mark_is_left_over(
            parts in proptest::collection::vec(0_usize..20, 0..12),
            between in "[a{}:\" ]{0,3}",
        ) {
            let marks: Vec<_> = all().collect();
            let part = |at: usize| marks.get(at).copied().unwrap_or("{\"a\":1}");
            let text: Vec<_> = parts.into_iter().map(part).collect();
            let text = text.join(&between);
            let _ = read(&text, &[]);
            let left = without_marks(&text);
            prop_assert!(all().all(|mark| !left.contains(mark)), "{}", left);
        }
    }
}
