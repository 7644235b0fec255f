//! Paths into JSON, as connectors name what is where in a server's answers: `$.choices[0].text`,
//! `$.output[*]['text']`, `content.text`. Names, places from the front or the back, and all of a
//! list or an object; no conditions and no search at any depth.

use serde_json::Value;
use volley_types::PredictError;

/// A path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path(Vec<Step>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Name(String),
    Place(i64),
    All,
}

impl Path {
    /// Reads a path; `what` is its name in errors.
    ///
    /// # Errors
    /// `InvalidInput` where it is none, or of a kind that is not known here.
    pub fn parse(text: &str, what: &str) -> Result<Self, PredictError> {
        let malformed = || {
            PredictError::invalid(format!(
                "'{what}' must be a path of names and indices, as $.choices[0].text or \
                 $.output[*].text"
            ))
        };
        let mut rest = text.trim().strip_prefix('$').unwrap_or(text.trim());
        let mut steps = Vec::new();
        while !rest.is_empty() {
            let (step, after) = step(rest, steps.is_empty()).ok_or_else(malformed)?;
            steps.push(step);
            rest = after;
        }
        Ok(Self(steps))
    }

    /// All that the path leads to, in order.
    pub fn find<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        self.0.iter().fold(vec![value], |found, step| {
            found.into_iter().flat_map(|value| step.of(value)).collect()
        })
    }

    /// The first of what the path leads to that is not null.
    pub fn first<'a>(&self, value: &'a Value) -> Option<&'a Value> {
        let mut found = self.find(value).into_iter();
        found.find(|value| !value.is_null())
    }
}

impl Step {
    fn of<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        match (self, value) {
            (Self::Name(name), value) => value.get(name).into_iter().collect(),
            (Self::Place(place), Value::Array(list)) => {
                let back = list.len().checked_add_signed(*place as isize);
                let place = usize::try_from(*place).ok().or(back);
                place
                    .and_then(|place| list.get(place))
                    .into_iter()
                    .collect()
            }
            (Self::All, Value::Array(list)) => list.iter().collect(),
            (Self::All, Value::Object(fields)) => fields.values().collect(),
            _ => Vec::new(),
        }
    }
}

/// The first step of a path, and the rest of it. The first of all may be a bare name.
fn step(text: &str, first: bool) -> Option<(Step, &str)> {
    if let Some(inside) = text.strip_prefix('[') {
        let quote = inside.chars().next().filter(|c| matches!(c, '\'' | '"'));
        if let Some(quote) = quote {
            let (name, after) = inside[1..].split_once(quote)?;
            let after = after.strip_prefix(']')?;
            return Some((Step::Name(name.to_owned()), after));
        }
        let (place, after) = inside.split_once(']')?;
        let step = match place.trim() {
            "*" => Step::All,
            place => Step::Place(place.parse().ok()?),
        };
        return Some((step, after));
    }
    let name = match text.strip_prefix('.') {
        Some(name) => name,
        None if first => text,
        None => return None,
    };
    let end = name.find(['.', '[']).unwrap_or(name.len());
    let (name, after) = name.split_at(end);
    let is_name = |name: &str| !name.is_empty() && !name.contains(['?', '(', '$', '@', '*', ' ']);
    match name {
        "*" => Some((Step::All, after)),
        name if is_name(name) => Some((Step::Name(name.to_owned()), after)),
        _ => None,
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
        let value = json!({ "a": [{ "b": 1 }, { "b": 2, "c d": { "e": 3 } }], "n": null });
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
        ] {
            assert_eq!(find(path, &value), expected, "{path}");
        }
        assert_eq!(Path::parse("$.n", "p").unwrap().first(&value), None);
    }

    #[test]
    fn what_is_no_path_is_refused_by_name() {
        for bad in [
            "$..a",
            "$.a[?(@.b)]",
            "$.",
            "$[",
            "$[x]",
            "$['a",
            "$a b",
            "$[1:2]",
        ] {
            let error = Path::parse(bad, "response.text").unwrap_err();
            assert!(error.message.contains("'response.text'"), "{bad}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_survived(text in r#"[$.\[\]*'"a0?\-\u{e4}]{0,16}"#) {
            if let Ok(path) = Path::parse(&text, "p") {
                path.find(&json!({ "a": [[1], { "a": 2 }] }));
            }
        }
    }
}
