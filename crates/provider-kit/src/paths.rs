//! JSONPath (RFC 9535), with which connectors locate values in a server's answers:
//! `$.choices[0].text`, `$.output[*]['text']`.
//!
//! Extensions: `$` may be missing, and a name after a dot may contain any characters without a
//! meaning in paths: `usage.prompt-tokens`.

use std::sync::LazyLock;

use regex::{Captures, Regex};
use serde_json::Value;
use serde_json_path::JsonPath;
use volley_types::PredictError;

/// Maximum number of filters and parentheses in one path. The parser backtracks into them, so that
/// its time is exponential in their depth.
const MAX_NESTED: usize = 8;

/// A parsed JSONPath.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path(JsonPath);

impl Path {
    /// Parses a path; `what` is its name in errors.
    ///
    /// # Errors
    /// `InvalidInput` for an invalid path, or one with too many filters and parentheses.
    pub fn parse(text: &str, what: &str) -> Result<Self, PredictError> {
        let text = text.trim();
        let rest = text.strip_prefix('$').unwrap_or(text);
        let begins = rest.trim_start().is_empty() || rest.trim_start().starts_with(['.', '[']);
        let path = format!("${}{rest}", if begins { "" } else { "." });
        let path = (path.matches(['?', '(']).count() <= MAX_NESTED)
            .then(|| JsonPath::parse(&path).or_else(|_| JsonPath::parse(&bracketed(&path))));
        match path {
            Some(Ok(path)) => Ok(Self(path)),
            Some(Err(_)) | None => Err(PredictError::invalid(format!(
                "'{what}' must be a JSONPath (RFC 9535), as $.choices[0].text or \
                 $.output[*].text, with at most {MAX_NESTED} conditions and parentheses"
            ))),
        }
    }

    /// All values that match the path, in order.
    pub fn find<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        self.0.query(value).all()
    }

    /// The first match that is not null.
    pub fn first<'a>(&self, value: &'a Value) -> Option<&'a Value> {
        let mut found = self.find(value).into_iter();
        found.find(|value| !value.is_null())
    }
}

/// Rewrites names to bracket notation, in which the RFC allows any characters.
fn bracketed(path: &str) -> String {
    /// A quoted name, other brackets, or a name after a dot.
    static STEP: LazyLock<Result<Regex, regex::Error>> =
        LazyLock::new(|| Regex::new(r#"\['([^']*)'\]|\["([^"]*)"\]|\[[^\]]*\]|\.([^.\[?($@* ]+)"#));
    let step = |step: &Captures<'_>| match step.iter().skip(1).flatten().next() {
        Some(name) => format!("[{}]", Value::from(name.as_str())),
        None => step[0].to_owned(),
    };
    match &*STEP {
        Ok(steps) => steps.replace_all(path, step).into_owned(),
        Err(_) => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn find(path: &str, value: &Value) -> Vec<Value> {
        let path = Path::parse(path, "p").unwrap();
        path.find(value).into_iter().cloned().collect()
    }

    #[test]
    fn paths_lead_by_names_and_places() {
        let value = json!({
            "a": [{ "b": 1 }, { "b": 2, "c d": { "e": 3 } }],
            "n": null, "f-g": { "0": 4, "it's": 5 }, "h.i": 6, "j\\k": 7, "ns:l": 8,
        });
        for (path, expected) in [
            ("$", vec![value.clone()]),
            ("$.a[0].b", vec![json!(1)]),
            ("a[-1].b", vec![json!(2)]),
            ("$['a'][*].b", vec![json!(1), json!(2)]),
            ("$.a.*.b", vec![json!(1), json!(2)]),
            ("$.a[1]['c d'].e", vec![json!(3)]),
            ("$.a[7].b", vec![]),
            ("$.a[-7]", vec![]),
            ("$.a.b", vec![]),
            ("$.n", vec![Value::Null]),
            (" a[0].b ", vec![json!(1)]),
            ("$a[ 0 ].b", vec![json!(1)]),
            ("['a'][-2][\"b\"]", vec![json!(1)]),
            ("f-g.0", vec![json!(4)]),
            ("$.f-g.it's", vec![json!(5)]),
            ("$['h.i']", vec![json!(6)]),
            ("$['j\\k']", vec![json!(7)]),
            ("$.ns:l", vec![json!(8)]),
            ("$.a[1]['c d'].f-g", vec![]),
            // Features of RFC 9535 besides names and indexes.
            ("$..e", vec![json!(3)]),
            ("a[?@.b > 1]['c d'].e", vec![json!(3)]),
            ("$.a[?(@['c d'])].b", vec![json!(2)]),
            ("$.a[0:1].b", vec![json!(1)]),
            ("$.a[?match(@.b, 'x')]", vec![]),
        ] {
            assert_eq!(find(path, &value), expected, "{path}");
        }
        assert_eq!(Path::parse("$.n", "p").unwrap().first(&value), None);
    }

    #[test]
    fn what_is_no_path_is_refused_by_name() {
        let deep = |depth: usize| format!("${}{}", "[?@".repeat(depth), "]".repeat(depth));
        Path::parse(&deep(MAX_NESTED), "p").unwrap();
        let deep = deep(MAX_NESTED + 1);
        for bad in [
            "$.",
            "$[",
            "$[x]",
            "$['a",
            "$a b",
            "$[?@.a ==]",
            "$.a..",
            &deep,
        ] {
            let error = Path::parse(bad, "response.text").unwrap_err();
            assert!(error.message.contains("'response.text'"), "{bad}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_survived(text in r#"[$.\[\]*'"a0?@()!=:,\-\u{e4}]{0,24}"#) {
            if let Ok(path) = Path::parse(&text, "p") {
                path.find(&json!({ "a": [[1], { "a": 2 }] }));
            }
        }
    }
}
