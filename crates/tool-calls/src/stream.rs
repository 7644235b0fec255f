//! Incremental parser of calls: returns the name as soon as it is complete, and then the arguments
//! in pieces. Only JSON objects as arguments are parsed incrementally; other calls are parsed when
//! they are complete.

use super::call::{CallEnd, Function};
use super::special;
use super::special::CallHead;
use super::{MARKS, OPEN};

/// The progress of a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum CallProgress {
    /// Nothing was returned.
    #[default]
    Head,
    /// The name was returned, and arguments are returned as they arrive.
    Arguments(Object),
    /// The arguments are complete.
    Behind,
    /// The call is parsed when it is complete.
    Whole,
}

/// The result of parsing the beginning of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CallStart {
    /// A call of this name, whose arguments start at this byte offset.
    Call(String, usize),
    /// More input is needed.
    Open,
    /// The call cannot be parsed incrementally.
    Never,
}

/// Parses the beginning of a call after the opening mark with this index, or of an answer without
/// marks.
pub(crate) fn head(mark: Option<usize>, text: &str, functions: &[Function]) -> CallStart {
    let opening = mark.map(|mark| MARKS[mark].0);
    let found = match opening {
        None | Some(OPEN) => json_head(text),
        Some(super::forms::FUNCTION) => function_head(text),
        Some(open) => match special::head(open, text) {
            CallHead::Call(name, at) => Ok((name, at)),
            CallHead::Json => json_head(text),
            CallHead::Open => Err(Stop::More),
            CallHead::Never => Err(Stop::No),
        },
    };
    let known =
        |name: &str| functions.is_empty() || functions.iter().any(|function| function.name == name);
    match found {
        Ok((name, at)) if known(&name) => CallStart::Call(name, at),
        Err(Stop::More) => CallStart::Open,
        _ => CallStart::Never,
    }
}

/// Determines what follows the arguments of a call.
pub(super) fn after(mark: Option<usize>, text: &str) -> CallEnd {
    let (open, close) = mark.map_or(("", ""), |mark| MARKS[mark]);
    let rest = text.trim_start_matches(|c: char| c.is_whitespace() || matches!(c, '}' | ']'));
    let at = text.len() - rest.len();
    if open.is_empty() || open == OPEN {
        if rest.starts_with([',', ';']) {
            return CallEnd::Next(at + 1);
        }
    } else if let Some(after) = special::after(open, text) {
        return after;
    }
    match text.find(close) {
        Some(at) if !close.is_empty() => CallEnd::Text(at + close.len()),
        _ => CallEnd::Open,
    }
}

/// The reason why parsing stopped: more input is needed, or the input does not match.
enum Stop {
    More,
    No,
}

/// Parser for the beginning of possibly incomplete JSON.
struct Cursor<'a> {
    text: &'a str,
    at: usize,
}

impl Cursor<'_> {
    fn next(&mut self) -> Result<char, Stop> {
        let rest = self.text[self.at..].trim_start();
        self.at = self.text.len() - rest.len();
        rest.chars().next().ok_or(Stop::More)
    }

    fn expect(&mut self, c: char) -> Result<(), Stop> {
        if self.next()? != c {
            return Err(Stop::No);
        }
        self.at += c.len_utf8();
        Ok(())
    }

    fn string(&mut self) -> Result<String, Stop> {
        if self.next()? != '"' {
            return Err(Stop::No);
        }
        let rest = &self.text[self.at..];
        let mut escaped = false;
        for (at, c) in rest.char_indices().skip(1) {
            match c {
                '"' if !escaped => {
                    self.at += at + 1;
                    return serde_json::from_str(&rest[..=at]).map_err(|_| Stop::No);
                }
                '\\' => escaped = !escaped,
                _ => escaped = false,
            }
        }
        Err(Stop::More)
    }
}

/// Parses `{"name": NAME, "arguments": {`, optionally in a list, and with other text fields before.
fn json_head(text: &str) -> Result<(String, usize), Stop> {
    let mut cursor = Cursor { text, at: 0 };
    if cursor.next()? == '[' {
        cursor.expect('[')?;
    }
    cursor.expect('{')?;
    let mut name = None;
    loop {
        let key = cursor.string()?;
        cursor.expect(':')?;
        match key.as_str() {
            "arguments" | "parameters" => {
                let begins = cursor.next()? == '{';
                let name = name.filter(|_| begins).ok_or(Stop::No)?;
                return Ok((name, cursor.at));
            }
            "name" | "tool_name" => name = Some(cursor.string()?),
            _ => {
                cursor.string()?;
            }
        }
        cursor.expect(',')?;
    }
}

/// Parses `NAME>{`.
fn function_head(text: &str) -> Result<(String, usize), Stop> {
    let (name, rest) = text.split_once('>').ok_or(Stop::More)?;
    let mut cursor = Cursor { text: rest, at: 0 };
    if cursor.next()? != '{' {
        return Err(Stop::No);
    }
    let name = name.trim_matches(['"', '\'', ' ']).to_owned();
    Ok((name, text.len() - rest.len() + cursor.at))
}

/// Finds the end of a JSON object incrementally.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Object {
    depth: usize,
    inside: bool,
    escaped: bool,
}

impl Object {
    /// Processes a piece. Returns how many of its bytes belong to the object, and whether that is
    /// complete.
    pub(crate) fn take(&mut self, text: &str) -> (usize, bool) {
        for (at, byte) in text.bytes().enumerate() {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.inside => self.escaped = true,
                b'"' => self.inside = !self.inside,
                b'{' | b'[' if !self.inside => self.depth += 1,
                b'}' | b']' if !self.inside => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return (at + 1, true);
                    }
                }
                _ => {}
            }
        }
        (text.len(), false)
    }
}
