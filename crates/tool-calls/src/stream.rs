//! Calls as they are written: the name as soon as it is there, and then the arguments, a piece at a
//! time. Only calls whose arguments are an object of JSON are read so; all others are read whole.

use super::call::{CallEnd, Function};
use super::special;
use super::special::CallHead;
use super::{MARKS, OPEN};

/// How far a call has been read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum CallProgress {
    /// Nothing of it is given out.
    #[default]
    Head,
    /// Its name is given out, and its arguments as they come.
    Arguments(Object),
    /// Its arguments are whole.
    Behind,
    /// It is read as a whole.
    Whole,
}

/// What a call's beginning came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CallStart {
    /// A call of that name, whose arguments begin there.
    Call(String, usize),
    /// That is open.
    Open,
    /// It is not read so.
    Never,
}

/// The beginning of a call behind the opening mark of that number, or of an answer without marks.
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

/// What follows the arguments of a call.
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

/// Why nothing was read.
enum Stop {
    More,
    No,
}

/// Reads the beginning of JSON that is perhaps not whole.
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

/// `{"name": NAME, "arguments": {`, perhaps in a list, perhaps with more texts before.
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

/// `NAME>{`.
fn function_head(text: &str) -> Result<(String, usize), Stop> {
    let (name, rest) = text.split_once('>').ok_or(Stop::More)?;
    let mut cursor = Cursor { text: rest, at: 0 };
    if cursor.next()? != '{' {
        return Err(Stop::No);
    }
    let name = name.trim_matches(['"', '\'', ' ']).to_owned();
    Ok((name, text.len() - rest.len() + cursor.at))
}

/// An object of JSON as it comes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Object {
    depth: usize,
    inside: bool,
    escaped: bool,
}

impl Object {
    /// Takes the next piece: how many bytes of it belong to the object, and whether it is whole.
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
