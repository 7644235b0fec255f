//! Parses the text format of protocol buffers without a schema. A Triton configuration has many
//! fields that are irrelevant here, and a parser with a schema would fail at the first unknown one.

/// Maximum length of a text, in bytes.
const MAX_BYTES: usize = 1 << 20;
/// Maximum nesting depth of messages.
const MAX_DEPTH: usize = 32;

/// The fields of a message in order; a repeated field occurs several times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Message(pub Vec<(String, Value)>);

/// The value of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    /// A number, an enum name, `true` or `false`, as written.
    Word(String),
    /// The content of a quoted string.
    Text(String),
    /// A message.
    Message(Message),
}

impl Message {
    /// The values of a field.
    pub(crate) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Value> {
        let named = self.0.iter().filter(move |(field, _)| field == name);
        named.map(|(_, value)| value)
    }

    /// The last value of a field, which overrides earlier ones.
    pub(crate) fn last(&self, name: &str) -> Option<&Value> {
        let mut fields = self.0.iter().rev();
        fields
            .find(|(field, _)| field == name)
            .map(|(_, value)| value)
    }
}

/// Parses a complete text.
///
/// # Errors
/// A description with the line number.
pub(crate) fn parse(text: &str) -> Result<Message, String> {
    if MAX_BYTES < text.len() {
        return Err("it is longer than 1 MiB".to_owned());
    }
    let mut reader = Reader { text, at: 0 };
    let message = reader.message(None, 0);
    message.map_err(|what| {
        let before = text.get(..reader.at).unwrap_or(text);
        let line = before.matches('\n').count() + 1;
        format!("line {line}: {what}")
    })
}

/// The unread part of a text.
struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl Reader<'_> {
    /// The next character outside of spaces and comments, without consuming it.
    fn peek(&mut self) -> Option<char> {
        loop {
            let rest = &self.text[self.at..];
            let next = rest.chars().next()?;
            if next == '#' {
                self.at += rest.find('\n').unwrap_or(rest.len());
            } else if next.is_whitespace() {
                self.at += next.len_utf8();
            } else {
                return Some(next);
            }
        }
    }

    /// Consumes the next character if it is `wanted`.
    fn take(&mut self, wanted: char) -> bool {
        let found = self.peek() == Some(wanted);
        if found {
            self.at += wanted.len_utf8();
        }
        found
    }

    /// Reads fields up to `end`, or to the end of the text.
    fn message(&mut self, end: Option<char>, depth: usize) -> Result<Message, String> {
        if MAX_DEPTH < depth {
            return Err("messages are nested too deeply".to_owned());
        }
        let mut fields = Vec::new();
        loop {
            match (self.peek(), end) {
                (None, None) => return Ok(Message(fields)),
                (None, Some(end)) => return Err(format!("'{end}' is missing")),
                (Some(next), Some(end)) if next == end => {
                    self.at += end.len_utf8();
                    return Ok(Message(fields));
                }
                (Some(_), _) => self.field(&mut fields, depth)?,
            }
        }
    }

    fn field(&mut self, fields: &mut Vec<(String, Value)>, depth: usize) -> Result<(), String> {
        let name = self.word()?;
        let colon = self.take(':');
        if self.take('[') {
            let mut first = true;
            while !self.take(']') {
                if !first && !self.take(',') {
                    return Err(format!("the list of '{name}' lacks a comma, or its end"));
                }
                first = false;
                fields.push((name.clone(), self.value(true, depth)?));
            }
        } else {
            let value = self.value(colon, depth)?;
            fields.push((name, value));
        }
        if !self.take(',') {
            self.take(';');
        }
        Ok(())
    }

    fn value(&mut self, may_be_plain: bool, depth: usize) -> Result<Value, String> {
        match self.peek() {
            Some('{') => {
                self.at += 1;
                self.message(Some('}'), depth + 1).map(Value::Message)
            }
            Some('<') => {
                self.at += 1;
                self.message(Some('>'), depth + 1).map(Value::Message)
            }
            _ if !may_be_plain => Err("a colon or a message must follow a name".to_owned()),
            Some('"' | '\'') => {
                let mut bytes = Vec::new();
                // Adjacent strings are concatenated.
                while let Some(quote @ ('"' | '\'')) = self.peek() {
                    self.at += 1;
                    self.quoted(quote, &mut bytes)?;
                }
                let text = String::from_utf8(bytes);
                text.map(Value::Text)
                    .map_err(|_| "a string is not UTF-8".to_owned())
            }
            _ => self.word().map(Value::Word),
        }
    }

    /// Reads a name or a number.
    fn word(&mut self) -> Result<String, String> {
        let next = self.peek();
        let rest = &self.text[self.at..];
        let ends = |c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '+' | '-'));
        let length = rest.find(ends).unwrap_or(rest.len());
        if length == 0 {
            return Err(match next {
                Some(next) => format!("unexpected {next:?}"),
                None => "unexpected end of text".to_owned(),
            });
        }
        self.at += length;
        Ok(rest[..length].to_owned())
    }

    /// Reads a string up to the closing quotation mark.
    fn quoted(&mut self, quote: char, to: &mut Vec<u8>) -> Result<(), String> {
        loop {
            let rest = &self.text[self.at..];
            let mut chars = rest.chars();
            let next = chars.next().filter(|next| *next != '\n');
            let next = next.ok_or("a string has no end")?;
            self.at += next.len_utf8();
            if next == quote {
                return Ok(());
            }
            if next != '\\' {
                to.extend_from_slice(next.encode_utf8(&mut [0; 4]).as_bytes());
                continue;
            }
            to.push(self.escaped()?);
        }
    }

    /// Reads an escape sequence after the backslash.
    fn escaped(&mut self) -> Result<u8, String> {
        let rest = &self.text.as_bytes()[self.at..];
        let unknown = || "unknown escape sequence in a string".to_owned();
        let digits = |radix: u32, most: usize, from: usize| {
            let digits = rest[from..].iter().take(most);
            let digits = digits.map_while(|byte| char::from(*byte).to_digit(radix));
            let digits: Vec<u32> = digits.collect();
            let value = digits.iter().fold(0, |value, digit| value * radix + digit);
            (digits.len(), value)
        };
        let (length, byte) = match rest.first().ok_or_else(unknown)? {
            b'n' => (1, b'\n'),
            b't' => (1, b'\t'),
            b'r' => (1, b'\r'),
            b'a' => (1, 7),
            b'b' => (1, 8),
            b'f' => (1, 12),
            b'v' => (1, 11),
            same @ (b'\\' | b'\'' | b'"' | b'?') => (1, *same),
            b'x' => {
                let (count, value) = digits(16, 2, 1);
                if count == 0 {
                    return Err(unknown());
                }
                (1 + count, u8::try_from(value).map_err(|_| unknown())?)
            }
            b'0'..=b'7' => {
                let (count, value) = digits(8, 3, 0);
                (count, u8::try_from(value).map_err(|_| unknown())?)
            }
            _ => return Err(unknown()),
        };
        self.at += length;
        Ok(byte)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn word(text: &str) -> Value {
        Value::Word(text.to_owned())
    }

    #[test]
    fn all_ways_to_write_a_field_are_read() {
        let text = "a: 1 # one\nb { c: 'x' \"y\\x41\\101\\n\" };d <e: -2.5>, f: [1, TWO]\n\
                    f: 3 g [{ h: true }, {}] i: []";
        let message = |fields: Vec<(&str, Value)>| {
            let fields = fields.into_iter();
            Message(
                fields
                    .map(|(name, value)| (name.to_owned(), value))
                    .collect(),
            )
        };
        let inner = |fields| Value::Message(message(fields));
        let expected = message(vec![
            ("a", word("1")),
            ("b", inner(vec![("c", Value::Text("xyAA\n".to_owned()))])),
            ("d", inner(vec![("e", word("-2.5"))])),
            ("f", word("1")),
            ("f", word("TWO")),
            ("f", word("3")),
            ("g", inner(vec![("h", word("true"))])),
            ("g", inner(vec![])),
        ]);
        assert_eq!(parse(text), Ok(expected));
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        for (text, told) in [
            ("a: 1\nb {", "line 2: '}' is missing"),
            ("a 1", "a colon or a message"),
            ("a: 'x", "no end"),
            ("a: '\\q'", "escape"),
            ("a: '\\xff'", "UTF-8"),
            ("\n\na: [1 2]", "line 3"),
            ("}", "unexpected '}'"),
            (&"a{".repeat(100), "too deep"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(told), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_message_or_an_error(text in "[a-z0-9:{}<>\\[\\],;#'\"\\\\ \n\\-é]{0,80}") {
            let _ = parse(&text);
        }

        #[test]
        fn what_is_written_is_read_again(
            fields in proptest::collection::vec(("[a-z_]{1,8}", "\\PC{0,12}", "-?[0-9]{1,9}"), 0..8),
        ) {
            let mut text = String::new();
            let mut expected = Vec::new();
            for (name, string, number) in fields {
                let quoted = string.replace('\\', "\\\\").replace('"', "\\\"");
                text.push_str(&format!("{name}: \"{quoted}\" {name} {{ n: {number} }}\n"));
                let inner = Message(vec![("n".to_owned(), Value::Word(number))]);
                expected.push((name.clone(), Value::Text(string)));
                expected.push((name, Value::Message(inner)));
            }
            prop_assert_eq!(parse(&text), Ok(Message(expected)));
        }
    }
}
