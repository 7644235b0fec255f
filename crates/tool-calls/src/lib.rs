//! Parses tool calls in the text of answers, in the formats of common chat templates: between marks
//! (`<tool_call>`, `<function=…>`, special tokens), or as answers that consist of calls only. The
//! module `forms` lists the formats.
//!
//! [`ToolCalls`] parses an answer incrementally. [`grammar`] constrains an answer to calls.

mod call;
mod forms;
mod python;
mod required;
pub mod schema;
mod special;
mod stream;

use serde_json::{Value, json};

use self::call::CallEnd;
pub use self::call::Function;
pub use self::required::{CallStyle, grammar};
pub use self::special::{MarkIds, Style, is_mark};
use self::stream::CallProgress;

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

/// Marks around calls in text. An empty closing mark means that calls extend to the end of the
/// answer.
const MARKS: [(&str, &str); 5] = [
    (OPEN, CLOSE),
    (forms::FUNCTION, "</function>"),
    special::MARKS[0],
    special::MARKS[1],
    special::MARKS[2],
];

/// The result of a piece of text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ParsedCalls {
    /// Text that is not part of a call.
    pub text: String,
    /// Calls as a JSON array of deltas in OpenAI's format.
    pub calls: Option<String>,
}

/// Incremental parser of the calls in one answer.
#[derive(Debug, Default)]
pub struct ToolCalls {
    place: ParserState,
    /// Text that was not returned yet.
    held: String,
    /// Number of calls so far.
    found: usize,
    /// The functions that the model may call.
    functions: Vec<Function>,
    /// Progress of the current call.
    reading: CallProgress,
    /// Whether a call was returned since the last opening mark.
    streamed: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ParserState {
    /// The type of the answer is not known yet.
    #[default]
    Start,
    /// Outside of calls.
    Text,
    /// After the opening mark with this index in [`MARKS`].
    Call(usize),
    /// In an answer that may consist of calls only.
    Whole,
}

impl ToolCalls {
    /// Creates a parser for `tools`, a list in OpenAI's format. Tools of other formats are ignored.
    pub fn of(tools: &Value) -> Self {
        let tools = tools.as_array().into_iter().flatten();
        Self {
            functions: tools.filter_map(Function::of).collect(),
            ..Self::default()
        }
    }

    /// Whether the answer has calls.
    pub fn any(&self) -> bool {
        0 < self.found
    }

    /// Whether the answer has complete calls and no incomplete one.
    pub fn any_whole(&self) -> bool {
        let between = matches!(self.place, ParserState::Start | ParserState::Text);
        self.any() && (between || self.reading == CallProgress::Behind)
    }

    /// Processes a special token that [is a mark](is_mark). A misplaced mark is dropped.
    pub fn mark(&mut self, mark: &str) -> ParsedCalls {
        match self.place {
            ParserState::Call(_) => self.push(mark),
            ParserState::Start | ParserState::Text if special::opens(mark) => {
                // Held text that looks like the beginning of a mark is plain text after all.
                self.place = ParserState::Text;
                let mut found = ParsedCalls {
                    text: std::mem::take(&mut self.held),
                    calls: None,
                };
                found.text.truncate(found.text.trim_end().len());
                found.text.push_str(&self.push(mark).text);
                found
            }
            _ => ParsedCalls::default(),
        }
    }

    /// Processes the next piece of an answer. Returns the text and the call deltas that are
    /// complete.
    pub fn push(&mut self, text: &str) -> ParsedCalls {
        self.held.push_str(text);
        let mut found = ParsedCalls::default();
        let mut calls = Vec::new();
        loop {
            match self.place {
                ParserState::Start => match forms::may_be_whole(&self.held) {
                    None => break,
                    Some(true) => self.place = ParserState::Whole,
                    Some(false) => self.place = ParserState::Text,
                },
                ParserState::Whole => {
                    self.stream(None, &mut calls);
                    break;
                }
                ParserState::Text => {
                    let marks = MARKS.iter().enumerate();
                    let found_at = marks.filter_map(|(number, (open, _))| {
                        self.held.find(open).map(|at| (at, number))
                    });
                    if let Some((at, number)) = found_at.min() {
                        found.text.push_str(self.held[..at].trim_end());
                        self.held.drain(..at + MARKS[number].0.len());
                        self.place = ParserState::Call(number);
                    } else {
                        let kept = MARKS.map(|(open, _)| partial(&self.held, open));
                        let kept = kept.into_iter().max().unwrap_or(0);
                        let given = self.held.len() - kept;
                        found.text.extend(self.held.drain(..given));
                        break;
                    }
                }
                ParserState::Call(number) if self.reading != CallProgress::Whole => {
                    match self.stream(Some(number), &mut calls) {
                        true => self.leave(),
                        false if self.reading == CallProgress::Whole => {}
                        false => break,
                    }
                }
                ParserState::Call(number) => {
                    let close = MARKS[number].1;
                    let Some(at) = self.held.find(close).filter(|_| !close.is_empty()) else {
                        break;
                    };
                    let inside: String = self.held.drain(..at).collect();
                    self.held.drain(..close.len());
                    match self.read_marked(number, &inside) {
                        Some(deltas) => calls.extend(deltas),
                        None => found.text.push_str(&no_call(number, &inside, close)),
                    }
                    self.leave();
                }
            }
        }
        found.calls = (!calls.is_empty()).then(|| Value::Array(calls).to_string());
        found
    }

    /// Returns to text after a closing mark.
    fn leave(&mut self) {
        self.place = ParserState::Text;
        (self.reading, self.streamed) = (CallProgress::Head, false);
        let blank = self.held.len() - self.held.trim_start().len();
        self.held.drain(..blank);
    }

    /// Returns available deltas of a call after the opening mark with this index, or of an answer
    /// without marks. True if the closing mark was passed.
    fn stream(&mut self, mark: Option<usize>, calls: &mut Vec<Value>) -> bool {
        loop {
            match &mut self.reading {
                CallProgress::Whole => return false,
                CallProgress::Head => match stream::head(mark, &self.held, &self.functions) {
                    stream::CallStart::Call(name, at) => {
                        self.held.drain(..at);
                        calls.push(self.begin(&name, ""));
                        self.streamed = true;
                        self.reading = CallProgress::Arguments(stream::Object::default());
                    }
                    stream::CallStart::Never => self.reading = CallProgress::Whole,
                    stream::CallStart::Open => {
                        let close = mark.map_or("", |mark| MARKS[mark].1);
                        let whole = !close.is_empty() && self.held.contains(close);
                        if !whole {
                            return false;
                        }
                        self.reading = CallProgress::Whole;
                    }
                },
                CallProgress::Arguments(object) => {
                    let (length, whole) = object.take(&self.held);
                    if 0 < length {
                        let piece: String = self.held.drain(..length).collect();
                        let index = self.found - 1;
                        calls.push(json!({ "index": index, "function": { "arguments": piece } }));
                    }
                    if !whole {
                        return false;
                    }
                    self.reading = CallProgress::Behind;
                }
                CallProgress::Behind => match stream::after(mark, &self.held) {
                    CallEnd::Next(at) => {
                        self.held.drain(..at);
                        self.reading = CallProgress::Head;
                    }
                    CallEnd::Text(at) => {
                        self.held.drain(..at);
                        return true;
                    }
                    CallEnd::Open => return false,
                },
            }
        }
    }

    /// Creates the first delta of the next call.
    fn begin(&mut self, name: &str, arguments: &str) -> Value {
        let index = self.found;
        self.found += 1;
        json!({
            "index": index,
            "id": format!("call_{:016x}", fastrand::u64(..)),
            "type": "function",
            "function": { "name": name, "arguments": arguments },
        })
    }

    /// Ends the answer and returns the rest.
    pub fn finish(&mut self) -> ParsedCalls {
        let rest = std::mem::take(&mut self.held);
        if self.streamed {
            // Remaining closing characters, or the beginning of a call that was not finished, are
            // not text.
            let text = match (self.place, &self.reading) {
                (ParserState::Whole, CallProgress::Behind) => {
                    let closes = |c: char| c.is_whitespace() || matches!(c, '}' | ']' | '`');
                    rest.trim_start_matches(closes).to_owned()
                }
                _ => String::new(),
            };
            return ParsedCalls { text, calls: None };
        }
        let read = match self.place {
            ParserState::Whole => self.read(&rest),
            ParserState::Call(number) => self.read_marked(number, &rest),
            ParserState::Start | ParserState::Text => None,
        };
        let text = match (&read, self.place) {
            (Some(_), _) => String::new(),
            (None, ParserState::Call(number)) => no_call(number, &rest, ""),
            (None, _) => rest,
        };
        let calls = read.map(|calls| Value::Array(calls).to_string());
        ParsedCalls { text, calls }
    }

    /// Parses the calls between marks.
    fn read_marked(&mut self, number: usize, inside: &str) -> Option<Vec<Value>> {
        match MARKS[number] {
            (OPEN, _) => self.read(inside),
            // The name follows the mark directly.
            (open, _) => self.read(&format!("{open}{inside}")),
        }
    }

    /// Parses a text that consists of calls; `None` for other text.
    fn read(&mut self, text: &str) -> Option<Vec<Value>> {
        let calls = forms::read(text, &self.functions)?;
        let known = |name: &str| self.functions.iter().any(|function| function.name == name);
        if calls
            .iter()
            .any(|call| call.arguments.is_null() && !known(&call.name))
        {
            return None;
        }
        let deltas = calls.into_iter().map(|call| {
            let arguments = match call.arguments {
                Value::Null => "{}".to_owned(),
                Value::String(text) if text.trim().is_empty() => "{}".to_owned(),
                Value::String(text) => text,
                value => value.to_string(),
            };
            self.begin(&call.name, &arguments)
        });
        Some(deltas.collect())
    }
}

/// The text of a marked section without calls. Marks are part of the text unless they are special
/// tokens.
fn no_call(number: usize, inside: &str, close: &str) -> String {
    let open = MARKS[number].0;
    match special::opens(open) {
        true => special::without_marks(inside),
        false => [open, inside, close].concat(),
    }
}

/// Length of the longest suffix of `text` that may be the beginning of `mark`, in bytes.
fn partial(text: &str, mark: &str) -> usize {
    (1..mark.len())
        .rev()
        .filter(|length| mark.is_char_boundary(*length))
        .find(|length| text.ends_with(&mark[..*length]))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests;
