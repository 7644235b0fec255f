//! Grammars in GBNF, the notation of llama.cpp and vLLM: `root ::= "a" | [b-d]+`.
//!
//! A grammar without recursion becomes a regular expression. A recursive grammar becomes one in
//! Lark notation with a terminal for each character, so that the result does not depend on how a
//! lexer splits text.

use std::collections::HashMap;

/// Maximum nesting of parentheses and rules.
const MAX_DEPTH: usize = 64;
/// Maximum length of the regular expression of a grammar, in bytes.
const MAX_EXPRESSION: usize = 64 << 10;

/// A converted grammar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Grammar {
    /// A regular expression for the complete text.
    Regular(String),
    /// A grammar in Lark notation.
    Nested(String),
}

/// Whether a grammar is in GBNF instead of Lark notation.
pub(super) fn is_gbnf(text: &str) -> bool {
    text.contains("::=")
}

/// Parses and converts a grammar.
///
/// # Errors
/// A description of the fault for the grammar's author.
pub(crate) fn read(text: &str) -> Result<Grammar, String> {
    let rules = Parser::new(text).rules()?;
    let root = rules.get("root").ok_or("it has no rule 'root'")?;
    let mut expression = String::new();
    if regular(root, &rules, 0, &mut expression) && expression.len() <= MAX_EXPRESSION {
        return Ok(Grammar::Regular(expression));
    }
    lark(&rules).map(Grammar::Nested)
}

/// Escapes a text for a regular expression.
pub(super) fn literal(text: &str) -> String {
    text.chars().map(character).collect()
}

fn character(c: char) -> String {
    if c.is_ascii_alphanumeric() {
        c.to_string()
    } else {
        format!("\\u{{{:x}}}", u32::from(c))
    }
}

/// An element of a grammar.
#[derive(Clone, Debug, PartialEq)]
enum Part {
    Text(String),
    /// A character class, as a regular expression.
    Class(String),
    Rule(String),
    Sequence(Vec<Part>),
    Choice(Vec<Part>),
    /// Minimum and maximum number of repetitions.
    Repeated(Box<Part>, usize, Option<usize>),
}

type Rules = HashMap<String, Part>;

/// Writes `part` as a regular expression. Returns false if it is recursive or too long.
fn regular(part: &Part, rules: &Rules, depth: usize, out: &mut String) -> bool {
    if MAX_DEPTH < depth || MAX_EXPRESSION < out.len() {
        return false;
    }
    let inner = |part: &Part, out: &mut String| regular(part, rules, depth + 1, out);
    match part {
        Part::Text(text) => out.push_str(&literal(text)),
        Part::Class(class) => out.push_str(class),
        Part::Rule(name) => return rules.get(name).is_some_and(|part| inner(part, out)),
        Part::Sequence(parts) => return parts.iter().all(|part| inner(part, out)),
        Part::Choice(parts) => {
            out.push_str("(?:");
            for (index, part) in parts.iter().enumerate() {
                if index != 0 {
                    out.push('|');
                }
                if !inner(part, out) {
                    return false;
                }
            }
            out.push(')');
        }
        Part::Repeated(part, least, most) => {
            out.push_str("(?:");
            if !inner(part, out) {
                return false;
            }
            out.push(')');
            out.push_str(&times(*least, *most));
        }
    }
    true
}

fn times(least: usize, most: Option<usize>) -> String {
    match (least, most) {
        (0, None) => "*".to_owned(),
        (1, None) => "+".to_owned(),
        (0, Some(1)) => "?".to_owned(),
        (least, None) => format!("{{{least},}}"),
        (least, Some(most)) => format!("{{{least},{most}}}"),
    }
}

fn lark(rules: &Rules) -> Result<String, String> {
    let mut names: Vec<&str> = rules.keys().map(String::as_str).collect();
    names.sort_unstable();
    let ids: HashMap<&str, String> = names
        .iter()
        .enumerate()
        .map(|(index, name)| (*name, format!("rule_{index}")))
        .collect();
    let mut out = format!("start: {}\n", ids["root"]);
    for name in names {
        let body = in_lark(&rules[name], &ids)?;
        out.push_str(&format!("{}: {body}\n", ids[name]));
    }
    Ok(out)
}

fn in_lark(part: &Part, ids: &HashMap<&str, String>) -> Result<String, String> {
    let all = |parts: &[Part], by: &str| {
        let parts = parts.iter().map(|part| in_lark(part, ids));
        let parts: Vec<_> = parts.collect::<Result<_, _>>()?;
        Ok::<_, String>(parts.join(by))
    };
    Ok(match part {
        Part::Text(text) if text.is_empty() => "\"\"".to_owned(),
        Part::Text(text) => {
            let letters = text.chars().map(|c| format!("/{}/", character(c)));
            format!("({})", letters.collect::<Vec<_>>().join(" "))
        }
        Part::Class(class) => format!("/{class}/"),
        Part::Rule(name) => ids
            .get(name.as_str())
            .cloned()
            .ok_or_else(|| format!("the rule '{name}' is not defined"))?,
        Part::Sequence(parts) if parts.is_empty() => "\"\"".to_owned(),
        Part::Sequence(parts) => format!("({})", all(parts, " ")?),
        Part::Choice(parts) => format!("({})", all(parts, " | ")?),
        Part::Repeated(part, least, most) => {
            format!("({}){}", in_lark(part, ids)?, times(*least, *most))
        }
    })
}

struct Parser<'a> {
    left: std::iter::Peekable<std::str::Chars<'a>>,
    used: Vec<String>,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str) -> Self {
        Self {
            left: text.chars().peekable(),
            used: Vec::new(),
        }
    }

    fn rules(mut self) -> Result<Rules, String> {
        let mut rules = Rules::new();
        self.blank(true);
        while self.left.peek().is_some() {
            let name = self.name()?;
            self.blank(false);
            if !"::=".chars().all(|c| self.left.next() == Some(c)) {
                return Err(format!("'::=' is missing behind the rule '{name}'"));
            }
            self.blank(true);
            let part = self.choice(0, false)?;
            rules.insert(name, part);
            self.blank(true);
        }
        match self.used.iter().find(|name| !rules.contains_key(*name)) {
            Some(name) => Err(format!("the rule '{name}' is not defined")),
            None => Ok(rules),
        }
    }

    /// Skips white space and comments, and line ends if `lines` is true.
    fn blank(&mut self, lines: bool) {
        while let Some(c) = self.left.peek().copied() {
            match c {
                ' ' | '\t' => {}
                '\n' | '\r' if lines => {}
                '#' => {
                    while self.left.next_if(|c| !matches!(c, '\n' | '\r')).is_some() {}
                    continue;
                }
                _ => return,
            }
            self.left.next();
        }
    }

    fn name(&mut self) -> Result<String, String> {
        let mut name = String::new();
        while let Some(c) = self
            .left
            .next_if(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'))
        {
            name.push(c);
        }
        match (name.is_empty(), self.left.peek()) {
            (false, _) => Ok(name),
            (true, Some(c)) => Err(format!("'{}' does not start a rule", c.escape_default())),
            (true, None) => Err("it ends where a rule should start".to_owned()),
        }
    }

    fn choice(&mut self, depth: usize, inside: bool) -> Result<Part, String> {
        if MAX_DEPTH < depth {
            return Err("its parentheses are nested too deeply".to_owned());
        }
        let mut parts = vec![self.sequence(depth, inside)?];
        while self.left.next_if_eq(&'|').is_some() {
            self.blank(true);
            parts.push(self.sequence(depth, inside)?);
        }
        Ok(match parts.len() {
            1 => parts.remove(0),
            _ => Part::Choice(parts),
        })
    }

    fn sequence(&mut self, depth: usize, inside: bool) -> Result<Part, String> {
        let mut parts = Vec::new();
        while let Some(c) = self.left.peek().copied() {
            let part = match c {
                '"' => self.text()?,
                '[' => self.class()?,
                '.' => {
                    self.left.next();
                    Part::Class("(?s:.)".to_owned())
                }
                '(' => {
                    self.left.next();
                    self.blank(true);
                    let part = self.choice(depth + 1, true)?;
                    if self.left.next() != Some(')') {
                        return Err("a ')' is missing".to_owned());
                    }
                    part
                }
                c if c.is_ascii_alphanumeric() => {
                    let name = self.name()?;
                    self.used.push(name.clone());
                    Part::Rule(name)
                }
                '|' | ')' | '\n' | '\r' => break,
                c => return Err(format!("'{}' has no meaning", c.escape_default())),
            };
            let part = self.repeated(part)?;
            parts.push(part);
            self.blank(inside);
        }
        Ok(match parts.len() {
            1 => parts.remove(0),
            _ => Part::Sequence(parts),
        })
    }

    fn repeated(&mut self, part: Part) -> Result<Part, String> {
        let (least, most) = match self.left.peek() {
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('?') => (0, Some(1)),
            Some('{') => return self.counted(part),
            _ => return Ok(part),
        };
        self.left.next();
        self.repeated(Part::Repeated(Box::new(part), least, most))
    }

    fn counted(&mut self, part: Part) -> Result<Part, String> {
        let mut inside = String::new();
        self.left.next();
        while let Some(c) = self.left.next_if(|c| *c != '}') {
            inside.push(c);
        }
        let wrong = || format!("'{{{inside}}}' is not a repetition");
        self.left.next().ok_or_else(wrong)?;
        let number = |text: &str| text.trim().parse::<usize>().map_err(|_| wrong());
        let (least, most) = match inside.split_once(',') {
            None => (number(&inside)?, Some(number(&inside)?)),
            Some((least, most)) => {
                let least = if least.trim().is_empty() {
                    0
                } else {
                    number(least)?
                };
                let most = (!most.trim().is_empty()).then(|| number(most));
                (least, most.transpose()?)
            }
        };
        if most.is_some_and(|most| most < least) || 1_000 < most.unwrap_or(least) {
            return Err(wrong());
        }
        self.repeated(Part::Repeated(Box::new(part), least, most))
    }

    fn text(&mut self) -> Result<Part, String> {
        let mut text = String::new();
        self.left.next();
        loop {
            match self.left.next() {
                Some('"') => return Ok(Part::Text(text)),
                Some('\\') => text.push(self.escaped()?),
                Some(c) => text.push(c),
                None => return Err("a '\"' is missing".to_owned()),
            }
        }
    }

    fn class(&mut self) -> Result<Part, String> {
        self.left.next();
        let mut class = String::from("[");
        if self.left.next_if_eq(&'^').is_some() {
            class.push('^');
        }
        let mut any = false;
        loop {
            let from = match self.left.next() {
                Some(']') if any => break,
                Some('\\') => self.escaped()?,
                Some(']') | None => {
                    return Err("a character class is empty or not closed".to_owned());
                }
                Some(c) => c,
            };
            any = true;
            class.push_str(&character(from));
            if self.left.next_if_eq(&'-').is_none() {
                continue;
            }
            match self.left.peek() {
                Some(']') => class.push_str(&character('-')),
                _ => {
                    let to = match self.left.next() {
                        Some('\\') => self.escaped()?,
                        Some(c) => c,
                        None => return Err("a ']' is missing".to_owned()),
                    };
                    if to < from {
                        return Err(format!("'{from}-{to}' goes backwards"));
                    }
                    class.push('-');
                    class.push_str(&character(to));
                }
            }
        }
        class.push(']');
        Ok(Part::Class(class))
    }

    fn escaped(&mut self) -> Result<char, String> {
        let digits = match self.left.next() {
            Some('n') => return Ok('\n'),
            Some('r') => return Ok('\r'),
            Some('t') => return Ok('\t'),
            Some(c @ ('"' | '\\' | '[' | ']' | '-' | '^' | '/')) => return Ok(c),
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            _ => return Err("unknown escape sequence after '\\'".to_owned()),
        };
        let code: String = self.left.by_ref().take(digits).collect();
        let known = || char::from_u32(u32::from_str_radix(&code, 16).ok()?);
        known().ok_or_else(|| format!("'{}' is not a character", code.escape_default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn regular(text: &str) -> String {
        match read(text).unwrap() {
            Grammar::Regular(expression) => expression,
            Grammar::Nested(lark) => panic!("{lark}"),
        }
    }

    #[test]
    fn a_grammar_without_recursion_is_a_regular_expression() {
        assert_eq!(regular("root ::= \"yes\" | \"no\""), "(?:yes|no)");
        let text = "# an answer\nroot ::= name (\",\" ws name){1,2} end?\n\
                    name ::= [a-z]+ # letters\nws ::= \" \"*\nend ::= \"\\n\" |\n  [^\\x00-\\x1F-]";
        let expected =
            r"(?:[a-z])+(?:\u{2c}(?:\u{20})*(?:[a-z])+){1,2}(?:(?:\u{a}|[^\u{0}-\u{1f}\u{2d}]))?";
        assert_eq!(regular(text), expected);
    }

    #[test]
    fn a_rule_that_leads_back_to_itself_needs_a_grammar() {
        let Grammar::Nested(lark) = read("root ::= \"(\" root? \")\"").unwrap() else {
            panic!("it nests");
        };
        assert_eq!(
            lark,
            "start: rule_0\nrule_0: ((/\\u{28}/) (rule_0)? (/\\u{29}/))\n"
        );
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, reason) in [
            ("a ::= \"b\"", "root"),
            ("root ::= missing", "missing"),
            ("root ::= \"a", "'\"'"),
            ("root ::= [a", "not closed"),
            ("root ::= (\"a\"", "')'"),
            ("root ::= \"a\"{2,1}", "{2,1}"),
            ("root ::= [z-a]", "z-a"),
            ("root ::= \"\\q\"", "'\\'"),
            ("root ::= %", "%"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
        let deep = format!("root ::= {}\"a\"{}", "(".repeat(99), ")".repeat(99));
        assert!(read(&deep).is_err());
    }
}
