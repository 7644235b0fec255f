//! Parser for calls in Python syntax: `[weather(city="Bern", days=[1, 2]), time()]`.

use serde_json::{Map, Number, Value};

/// Maximum nesting of values.
const MAX_DEPTH: usize = 32;

/// Parses a list of calls to names and arguments; `None` for other text.
pub(crate) fn calls(text: &str) -> Option<Vec<(String, Map<String, Value>)>> {
    let mut reader = Reader { rest: text.trim() };
    reader.expect('[')?;
    let mut calls = Vec::new();
    loop {
        let name = reader.name()?;
        reader.expect('(')?;
        let mut arguments = Map::new();
        while !reader.takes(')') {
            let key = reader.name()?;
            reader.expect('=')?;
            arguments.insert(key, reader.value(0)?);
            if !reader.takes(',') {
                reader.expect(')')?;
                break;
            }
        }
        calls.push((name, arguments));
        if !reader.takes(',') {
            break;
        }
    }
    reader.expect(']')?;
    reader.rest.trim_start().is_empty().then_some(calls)
}

struct Reader<'t> {
    rest: &'t str,
}

impl<'t> Reader<'t> {
    /// Consumes `wanted` after white space if it comes next.
    fn takes(&mut self, wanted: char) -> bool {
        match self.rest.trim_start().strip_prefix(wanted) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, wanted: char) -> Option<()> {
        self.takes(wanted).then_some(())
    }

    fn name(&mut self) -> Option<String> {
        let word = self.word(|c| c.is_alphanumeric() || matches!(c, '_' | '.' | '-'));
        let begins = word.chars().next()?;
        (begins.is_alphabetic() || begins == '_').then(|| word.to_owned())
    }

    fn word(&mut self, belongs: impl Fn(char) -> bool) -> &'t str {
        let text = self.rest.trim_start();
        let end = text.find(|c| !belongs(c)).unwrap_or(text.len());
        let (word, rest) = text.split_at(end);
        self.rest = rest;
        word
    }

    fn value(&mut self, depth: usize) -> Option<Value> {
        if MAX_DEPTH < depth {
            return None;
        }
        match self.rest.trim_start().chars().next()? {
            '[' => self.list(depth),
            '{' => self.object(depth),
            quote @ ('"' | '\'') => self.text(quote).map(Value::from),
            _ => match self.word(|c| c.is_ascii_alphanumeric() || "+-._".contains(c)) {
                "True" | "true" => Some(Value::Bool(true)),
                "False" | "false" => Some(Value::Bool(false)),
                "None" | "null" => Some(Value::Null),
                number => self::number(number),
            },
        }
    }

    fn list(&mut self, depth: usize) -> Option<Value> {
        self.expect('[')?;
        let mut values = Vec::new();
        while !self.takes(']') {
            values.push(self.value(depth + 1)?);
            if !self.takes(',') {
                self.expect(']')?;
                break;
            }
        }
        Some(Value::Array(values))
    }

    fn object(&mut self, depth: usize) -> Option<Value> {
        self.expect('{')?;
        let mut values = Map::new();
        while !self.takes('}') {
            let Value::String(key) = self.value(depth + 1)? else {
                return None;
            };
            self.expect(':')?;
            values.insert(key, self.value(depth + 1)?);
            if !self.takes(',') {
                self.expect('}')?;
                break;
            }
        }
        Some(Value::Object(values))
    }

    fn text(&mut self, quote: char) -> Option<String> {
        let text = self.rest.trim_start().strip_prefix(quote)?;
        let (mut found, mut chars) = (String::new(), text.char_indices());
        loop {
            match chars.next()? {
                (at, c) if c == quote => {
                    self.rest = &text[at + c.len_utf8()..];
                    return Some(found);
                }
                (_, '\\') => found.push(match chars.next()?.1 {
                    'n' => '\n',
                    't' => '\t',
                    'r' => '\r',
                    other => other,
                }),
                (_, c) => found.push(c),
            }
        }
    }
}

fn number(text: &str) -> Option<Value> {
    if let Ok(whole) = text.parse::<i64>() {
        return Some(Value::from(whole));
    }
    Number::from_f64(text.parse().ok()?).map(Value::Number)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn lists_of_calls_are_read_and_all_else_is_not() {
        let text =
            r#" [weather(city="San \"F\"", days=[1, 2.5], at={'x': None}, dry=True), time()] "#;
        let found = calls(text).unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!(
            Value::Object(found[0].1.clone()),
            json!({"city": "San \"F\"", "days": [1, 2.5], "at": {"x": null}, "dry": true})
        );
        assert_eq!(found[1], ("time".to_owned(), Map::new()));
        for none in [
            "",
            "[]",
            "[1, 2]",
            "f(a=1)",
            "[f(1)]",
            "[f(a=1)",
            "[f(a=b)]",
            "[f(a=1)] yes",
        ] {
            assert_eq!(calls(none), None, "{none}");
        }
        let deep = format!("[f(a={})]", "[".repeat(100_000));
        assert_eq!(calls(&deep), None);
    }

    proptest! {
        #[test]
        fn nothing_is_too_odd_to_be_read(text in "[\\[\\](){}a-c='\",:\\\\0-9. \n]{0,60}") {
            let _ = calls(&text);
        }
    }
}
