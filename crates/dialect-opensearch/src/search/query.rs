//! Parses queries and matches documents.

use std::cmp::Ordering;

use serde_json::{Map, Value};
use volley_types::PredictError;

use volley_http_edge::body::Fields;

/// Maximum number of clauses of a query, and of values in them.
const MAX_CLAUSES: usize = 1_024;

const KINDS: &str = "match_all, match_none, term, terms, match, match_phrase, multi_match, prefix, \
                     wildcard, exists, ids, range and bool";

/// A query of a supported type.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Query {
    All,
    None,
    /// The field equals one of these values, or has one of them as a word.
    Terms {
        field: String,
        values: Vec<Value>,
        any_case: bool,
    },
    /// Any of these fields has all of the words, or any of them.
    Match {
        fields: Vec<String>,
        words: Vec<String>,
        all: bool,
    },
    /// The field has these words in sequence.
    Phrase {
        field: String,
        words: Vec<String>,
    },
    /// The field matches a pattern with `*` and `?`.
    Wildcard {
        field: String,
        pattern: String,
        any_case: bool,
    },
    Exists(String),
    Ids(Vec<String>),
    Range {
        field: String,
        bounds: Vec<(RangeBound, Value)>,
    },
    Bool {
        must: Vec<Query>,
        should: Vec<Query>,
        must_not: Vec<Query>,
        least: usize,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RangeBound {
    Above,
    AtLeast,
    Below,
    AtMost,
}

impl Query {
    /// Parses a query.
    ///
    /// # Errors
    /// `InvalidInput` naming the unsupported part.
    pub(super) fn read(query: &Map<String, Value>) -> Result<Self, PredictError> {
        let mut left = MAX_CLAUSES;
        read(query, &mut left)
    }

    /// Whether the document with this id matches.
    pub(super) fn matches(&self, id: &str, document: &Value) -> bool {
        let field = |name: &str| match name {
            "_id" => Some(Value::from(id)),
            name => at(document, name).filter(|it| !it.is_null()).cloned(),
        };
        match self {
            Self::All => true,
            Self::None => false,
            Self::Ids(ids) => ids.iter().any(|given| given == id),
            Self::Exists(name) => field(name).is_some(),
            Self::Terms {
                field: name,
                values,
                any_case,
            } => field(name).is_some_and(|found| {
                values
                    .iter()
                    .any(|value| each(&found, &|it| is(it, value, *any_case)))
            }),
            Self::Match {
                fields,
                words: wanted,
                all,
            } => fields.iter().any(|name| {
                let found = field(name).map(|found| words(&found)).unwrap_or_default();
                let mut has = wanted.iter().map(|word| found.contains(word));
                match all {
                    true => has.all(|it| it),
                    false => has.any(|it| it),
                }
            }),
            Self::Phrase {
                field: name,
                words: wanted,
            } => {
                let found = field(name).map(|found| words(&found)).unwrap_or_default();
                !wanted.is_empty() && found.windows(wanted.len()).any(|window| window == wanted)
            }
            Self::Wildcard {
                field: name,
                pattern,
                any_case,
            } => field(name).is_some_and(|found| {
                each(&found, &|it| match (it.as_str(), any_case) {
                    (Some(text), true) => glob(&pattern.to_lowercase(), &text.to_lowercase()),
                    (Some(text), false) => glob(pattern, text),
                    (None, _) => false,
                })
            }),
            Self::Range {
                field: name,
                bounds,
            } => field(name).is_some_and(|found| {
                each(&found, &|it| {
                    bounds.iter().all(|(bound, end)| bound.holds(it, end))
                })
            }),
            Self::Bool {
                must,
                should,
                must_not,
                least,
            } => {
                let fits = |query: &&Query| query.matches(id, document);
                must.iter().all(|query| fits(&query))
                    && !must_not.iter().any(|query| fits(&query))
                    && *least <= should.iter().filter(fits).count()
            }
        }
    }
}

impl RangeBound {
    fn holds(self, value: &Value, end: &Value) -> bool {
        if value.is_number() != end.is_number() {
            return false;
        }
        let order = compare(value, end);
        match self {
            Self::Above => order == Ordering::Greater,
            Self::AtLeast => order != Ordering::Less,
            Self::Below => order == Ordering::Less,
            Self::AtMost => order != Ordering::Greater,
        }
    }
}

fn read(query: &Map<String, Value>, left: &mut usize) -> Result<Query, PredictError> {
    let mut entries = query.iter();
    let (Some((kind, body)), None) = (entries.next(), entries.next()) else {
        return Err(PredictError::invalid(format!(
            "a query must be an object with one field, its kind: {KINDS}"
        )));
    };
    spend(left, 1)?;
    match kind.as_str() {
        "match_all" => Ok(Query::All),
        "match_none" => Ok(Query::None),
        "bool" => read_bool(inside(kind, body)?, left),
        "exists" => Ok(Query::Exists(
            plain(inside(kind, body)?.required("field")?).to_owned(),
        )),
        "ids" => {
            let values = inside(kind, body)?.get("values");
            let values = list(kind, values.unwrap_or(&Value::Null), left)?;
            let ids = values.iter().map(|it| it.as_str().map(str::to_owned));
            let ids = ids.collect::<Option<_>>();
            ids.map(Query::Ids).ok_or_else(|| malformed(kind))
        }
        "multi_match" => read_multi(inside(kind, body)?, left),
        "term" | "terms" | "match" | "match_phrase" | "prefix" | "wildcard" | "range" => {
            read_field(kind, inside(kind, body)?, left)
        }
        _ => Err(PredictError::invalid(format!(
            "the supported queries are {KINDS}"
        ))),
    }
}

fn spend(left: &mut usize, count: usize) -> Result<(), PredictError> {
    *left = left.checked_sub(count).ok_or_else(|| {
        PredictError::invalid(format!(
            "a query may have at most {MAX_CLAUSES} clauses and values"
        ))
    })?;
    Ok(())
}

fn malformed(kind: &str) -> PredictError {
    PredictError::invalid(format!("the query '{kind}' is malformed"))
}

fn inside<'q>(kind: &str, body: &'q Value) -> Result<&'q Map<String, Value>, PredictError> {
    body.as_object().ok_or_else(|| malformed(kind))
}

fn list<'q>(kind: &str, body: &'q Value, left: &mut usize) -> Result<&'q [Value], PredictError> {
    let list = body.as_array().ok_or_else(|| malformed(kind))?;
    spend(left, list.len())?;
    Ok(list)
}

/// Parses a query of one field: `{"field": value}`, or `{"field": {"value": …, options}}`.
fn read_field(
    kind: &str,
    body: &Map<String, Value>,
    left: &mut usize,
) -> Result<Query, PredictError> {
    let mut fields = body
        .iter()
        .filter(|(name, _)| *name != "boost" && *name != "_name");
    let (Some((name, given)), None) = (fields.next(), fields.next()) else {
        return Err(malformed(kind));
    };
    let field = plain(name).to_owned();
    if kind == "range" {
        return read_range(field, inside(kind, given)?);
    }
    if kind == "terms" {
        let values = list(kind, given, left)?.to_vec();
        return Ok(Query::Terms {
            field,
            values,
            any_case: false,
        });
    }
    let empty = Map::new();
    let options = given.as_object().unwrap_or(&empty);
    let value = asked_value(kind, given, options)?;
    let any_case = options.get("case_insensitive") == Some(&Value::Bool(true));
    let text = || value.as_str().ok_or_else(|| malformed(kind));
    Ok(match kind {
        "term" => Query::Terms {
            field,
            values: vec![value.clone()],
            any_case,
        },
        "match" => Query::Match {
            fields: vec![field],
            words: words(value),
            all: is_and(options)?,
        },
        "match_phrase" => Query::Phrase {
            field,
            words: words(value),
        },
        "prefix" => Query::Wildcard {
            field,
            pattern: escape(text()?) + "*",
            any_case,
        },
        _ => Query::Wildcard {
            field,
            pattern: text()?.to_owned(),
            any_case,
        },
    })
}

/// The requested value of a field, given directly or among options: text, a number or a boolean.
fn asked_value<'q>(
    kind: &str,
    given: &'q Value,
    options: &'q Map<String, Value>,
) -> Result<&'q Value, PredictError> {
    let key = if kind.starts_with("match") {
        "query"
    } else {
        "value"
    };
    let also = || options.get("wildcard").filter(|_| kind == "wildcard");
    let value = match given {
        Value::Object(_) => options.get(key).or_else(also),
        plain => Some(plain),
    };
    value
        .filter(|value| matches!(value, Value::String(_) | Value::Number(_) | Value::Bool(_)))
        .ok_or_else(|| malformed(kind))
}

fn is_and(options: &Map<String, Value>) -> Result<bool, PredictError> {
    let operator = options.text("operator")?.unwrap_or("or");
    match operator.to_ascii_lowercase().as_str() {
        "and" => Ok(true),
        "or" => Ok(false),
        _ => Err(PredictError::invalid(
            "field 'operator' must be 'and' or 'or'",
        )),
    }
}

fn read_multi(body: &Map<String, Value>, left: &mut usize) -> Result<Query, PredictError> {
    let kind = "multi_match";
    body.only("'multi_match'", &["query", "fields", "operator", "type"])?;
    let fields = list(kind, body.get("fields").unwrap_or(&Value::Null), left)?;
    let fields = fields.iter().map(|name| {
        let name = name.as_str()?.split('^').next()?;
        Some(plain(name).to_owned())
    });
    Ok(Query::Match {
        fields: fields
            .collect::<Option<_>>()
            .ok_or_else(|| malformed(kind))?,
        words: words(body.get("query").unwrap_or(&Value::Null)),
        all: is_and(body)?,
    })
}

fn read_range(field: String, given: &Map<String, Value>) -> Result<Query, PredictError> {
    let mut bounds = Vec::new();
    for (name, end) in given {
        let bound = match name.as_str() {
            "gt" => RangeBound::Above,
            "gte" => RangeBound::AtLeast,
            "lt" => RangeBound::Below,
            "lte" => RangeBound::AtMost,
            _ => {
                return Err(PredictError::invalid(
                    "a range has the bounds 'gt', 'gte', 'lt' and 'lte'",
                ));
            }
        };
        match end {
            Value::Null => {}
            Value::Number(_) | Value::String(_) => bounds.push((bound, end.clone())),
            _ => return Err(malformed("range")),
        }
    }
    Ok(Query::Range { field, bounds })
}

fn read_bool(body: &Map<String, Value>, left: &mut usize) -> Result<Query, PredictError> {
    let known = [
        "must",
        "filter",
        "should",
        "must_not",
        "minimum_should_match",
        "boost",
    ];
    body.only("'bool'", &known)?;
    let mut clauses = |name: &str| match body.get(name) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Object(query)) => Ok(vec![read(query, left)?]),
        Some(Value::Array(queries)) => {
            let queries = queries
                .iter()
                .map(|query| read(inside("bool", query)?, left));
            queries.collect()
        }
        Some(_) => Err(malformed("bool")),
    };
    let mut must = clauses("must")?;
    must.extend(clauses("filter")?);
    let (should, must_not) = (clauses("should")?, clauses("must_not")?);
    let least = match body.get("minimum_should_match") {
        None | Some(Value::Null) => usize::from(must.is_empty() && !should.is_empty()),
        Some(Value::String(text)) => text.parse().map_err(|_| malformed("bool"))?,
        Some(least) => {
            let least = least.as_u64().ok_or_else(|| malformed("bool"))?;
            usize::try_from(least).unwrap_or(usize::MAX)
        }
    };
    Ok(Query::Bool {
        must,
        should,
        must_not,
        least,
    })
}

/// The name of a field without its suffix for the type of index.
pub(super) fn plain(name: &str) -> &str {
    name.strip_suffix(".keyword").unwrap_or(name)
}

/// The value at a path of names, separated by dots.
pub(super) fn at<'d>(document: &'d Value, path: &str) -> Option<&'d Value> {
    document.get(path).or_else(|| {
        let mut names = path.split('.');
        names.try_fold(document, |value, name| value.get(name))
    })
}

/// Whether `test` is true for a value, or for an element of a list.
fn each(value: &Value, test: &dyn Fn(&Value) -> bool) -> bool {
    match value {
        Value::Array(values) => values.iter().any(test),
        value => test(value),
    }
}

fn is(found: &Value, wanted: &Value, any_case: bool) -> bool {
    match (found, wanted) {
        (Value::String(found_text), Value::String(text)) => {
            found_text == text
                || any_case && found_text.to_lowercase() == text.to_lowercase()
                || words(found).contains(text)
        }
        (Value::String(text), other) | (other, Value::String(text)) => {
            let shown = other.to_string();
            *text == shown
        }
        (found, wanted) => compare(found, wanted) == Ordering::Equal,
    }
}

/// The words of a text in lower case. A number or a boolean counts as one word.
fn words(value: &Value) -> Vec<String> {
    match value {
        Value::String(text) => {
            let split = |letter: char| !letter.is_alphanumeric() && letter != '_' && letter != '.';
            let words = text.split(split).map(|word| word.trim_matches('.'));
            words
                .filter(|word| !word.is_empty())
                .map(str::to_lowercase)
                .collect()
        }
        Value::Array(values) => values.iter().flat_map(words).collect(),
        Value::Null | Value::Object(_) => Vec::new(),
        other => vec![other.to_string()],
    }
}

/// Compares numbers by value, and other values as text.
pub(super) fn compare(one: &Value, other: &Value) -> Ordering {
    match (one, other) {
        (Value::Number(a), Value::Number(b)) => match (a.as_i64(), b.as_i64()) {
            (Some(a), Some(b)) => a.cmp(&b),
            _ => {
                let (a, b) = (a.as_f64().unwrap_or(0.0), b.as_f64().unwrap_or(0.0));
                a.total_cmp(&b)
            }
        },
        (Value::String(a), Value::String(b)) => a.cmp(b),
        (a, b) => a.to_string().cmp(&b.to_string()),
    }
}

fn escape(text: &str) -> String {
    text.chars().fold(String::new(), |mut escaped, letter| {
        if matches!(letter, '*' | '?' | '\\') {
            escaped.push('\\');
        }
        escaped.push(letter);
        escaped
    })
}

/// Whether `text` matches a pattern of `*`, `?` and `\`. The time is at most proportional to the
/// product of the lengths.
pub(super) fn glob(pattern: &str, text: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    let text: Vec<char> = text.chars().collect();
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        let (literal, width) = match pattern.get(p) {
            Some('\\') => (pattern.get(p + 1).copied(), 2),
            Some('*') => {
                star = Some((p + 1, t));
                p += 1;
                continue;
            }
            Some('?') => (Some(text[t]), 1),
            other => (other.copied(), 1),
        };
        if literal == Some(text[t]) {
            (p, t) = (p + width, t + 1);
        } else if let Some((after, from)) = star {
            star = Some((after, from + 1));
            (p, t) = (after, from + 1);
        } else {
            return false;
        }
    }
    pattern[p.min(pattern.len())..]
        .iter()
        .all(|letter| *letter == '*')
}
