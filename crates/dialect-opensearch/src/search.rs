//! `_search`: the commonly used part of OpenSearch's query language, for models, connectors, groups
//! and tasks. There is no index: a search scans all objects, which are few and in memory.

mod query;

use std::cmp::Ordering;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use volley_types::PredictError;

use self::query::Query;
use volley_http_edge::body::Fields;

/// Maximum number of hits of a search, which is also the default.
const MAX_HITS: u64 = 1_000;
/// Maximum number of fields of a sort, and of patterns in `_source`.
const MAX_FIELDS: usize = 16;
/// Accepted fields of a body that have no effect here.
const READ_OVER: [&str; 5] = [
    "track_total_hits",
    "track_scores",
    "timeout",
    "version",
    "seq_no_primary_term",
];

/// Query parameters of a search.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SearchQuery {
    size: Option<u64>,
    from: Option<u64>,
}

/// A parsed search.
#[derive(Debug)]
pub(crate) struct Search {
    query: Query,
    sort: Vec<(String, bool)>,
    from: usize,
    size: usize,
    includes: Vec<String>,
    excludes: Vec<String>,
    with_source: bool,
}

impl Search {
    /// Parses a body. The query string supplies missing values.
    ///
    /// # Errors
    /// `InvalidInput` naming the unsupported field.
    pub(crate) fn read(
        body: &Map<String, Value>,
        asked: &SearchQuery,
    ) -> Result<Self, PredictError> {
        let own = ["query", "sort", "from", "size", "_source"];
        body.only("a search", &[&own[..], &READ_OVER[..]].concat())?;
        let query = match body.object("query")? {
            Some(query) => Query::read(query)?,
            None => Query::All,
        };
        let size = body.count("size")?.or(asked.size).unwrap_or(MAX_HITS);
        let from = body.count("from")?.or(asked.from).unwrap_or(0);
        let mut search = Self {
            query,
            sort: sort(body.get("sort"))?,
            from: usize::try_from(from).unwrap_or(usize::MAX),
            size: usize::try_from(size.min(MAX_HITS)).unwrap_or(usize::MAX),
            includes: Vec::new(),
            excludes: Vec::new(),
            with_source: true,
        };
        search.read_source(body.get("_source"))?;
        Ok(search)
    }

    fn read_source(&mut self, given: Option<&Value>) -> Result<(), PredictError> {
        match given {
            None | Some(Value::Null) => {}
            Some(Value::Bool(wanted)) => self.with_source = *wanted,
            Some(Value::Object(both)) => {
                both.only("'_source'", &["includes", "excludes"])?;
                self.includes = patterns(both.get("includes"))?;
                self.excludes = patterns(both.get("excludes"))?;
            }
            given => self.includes = patterns(given)?,
        }
        Ok(())
    }

    /// Runs the search. `show` formats the object with an id, and is called for as few objects as
    /// possible.
    pub(crate) fn run(
        &self,
        index: &str,
        ids: impl Iterator<Item = String>,
        show: impl Fn(&str) -> Option<Value>,
    ) -> Value {
        let (total, page) = if matches!(self.query, Query::All) && self.sort.is_empty() {
            let ids: Vec<_> = ids.collect();
            let page = ids.iter().skip(self.from).take(self.size);
            let page = page.filter_map(|id| Some((id.clone(), show(id)?)));
            (ids.len(), page.collect::<Vec<_>>())
        } else {
            let found = ids.filter_map(|id| {
                let document = show(&id)?;
                self.query.matches(&id, &document).then_some((id, document))
            });
            let mut found: Vec<_> = found.collect();
            found.sort_by(|one, other| self.order(one, other));
            let page = found.iter().skip(self.from).take(self.size).cloned();
            (found.len(), page.collect())
        };
        let hits: Vec<_> = page
            .into_iter()
            .map(|(id, document)| self.hit(index, &id, document))
            .collect();
        let score = match (self.sort.is_empty(), total) {
            (true, 1..) => json!(1.0),
            _ => Value::Null,
        };
        json!({
            "took": 0,
            "timed_out": false,
            "_shards": { "total": 1, "successful": 1, "skipped": 0, "failed": 0 },
            "hits": {
                "total": { "value": total, "relation": "eq" },
                "max_score": score,
                "hits": hits,
            },
        })
    }

    fn hit(&self, index: &str, id: &str, document: Value) -> Value {
        let mut hit = json!({ "_index": index, "_id": id });
        if self.sort.is_empty() {
            hit["_score"] = json!(1.0);
        } else {
            hit["_score"] = Value::Null;
            let keys = self.sort.iter().map(|(field, _)| key(id, &document, field));
            hit["sort"] = keys.collect();
        }
        if self.with_source {
            hit["_source"] = self.source(document);
        }
        hit
    }

    fn source(&self, document: Value) -> Value {
        let Value::Object(mut fields) = document else {
            return document;
        };
        let named = |patterns: &[String], name: &str| {
            patterns.iter().any(|pattern| query::glob(pattern, name))
        };
        fields.retain(|name, _| {
            let included = self.includes.is_empty() || named(&self.includes, name);
            included && !named(&self.excludes, name)
        });
        Value::Object(fields)
    }

    fn order(&self, one: &(String, Value), other: &(String, Value)) -> Ordering {
        for (field, ascending) in &self.sort {
            let (a, b) = (key(&one.0, &one.1, field), key(&other.0, &other.1, field));
            let order = match (a.is_null(), b.is_null()) {
                // Documents without the field come last in both directions.
                (false, false) if *ascending => query::compare(&a, &b),
                (false, false) => query::compare(&b, &a),
                (a, b) => a.cmp(&b),
            };
            if order != Ordering::Equal {
                return order;
            }
        }
        one.0.cmp(&other.0)
    }
}

fn key(id: &str, document: &Value, field: &str) -> Value {
    match field {
        "_id" => Value::from(id),
        field => query::at(document, field).cloned().unwrap_or_default(),
    }
}

/// Parses a sort: `"name"`, `{"name": "desc"}`, `{"name": {"order": "desc"}}`, or a list of these.
/// The flag is true for an ascending order.
fn sort(given: Option<&Value>) -> Result<Vec<(String, bool)>, PredictError> {
    let one = |given: &Value| match given {
        Value::String(name) => Ok((query::plain(name).to_owned(), name != "_score")),
        Value::Object(field) if field.len() == 1 => {
            let (name, how) = field.iter().next().ok_or_else(no_sort)?;
            let order = match how {
                Value::String(order) => Some(order.as_str()),
                Value::Object(how) => {
                    let known = ["order", "missing", "unmapped_type", "mode"];
                    how.only("a sort", &known)?;
                    Some(how.text("order")?.unwrap_or("asc"))
                }
                _ => None,
            };
            match order.map(str::to_ascii_lowercase).as_deref() {
                Some("asc") => Ok((query::plain(name).to_owned(), true)),
                Some("desc") => Ok((query::plain(name).to_owned(), false)),
                _ => Err(no_sort()),
            }
        }
        _ => Err(no_sort()),
    };
    let mut fields = match given {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(given)) if given.len() <= MAX_FIELDS => {
            given.iter().map(one).collect::<Result<_, _>>()?
        }
        Some(Value::Array(_)) => return Err(no_sort()),
        Some(given) => vec![one(given)?],
    };
    // All hits have the same score, and the default order is that of ids.
    fields.retain(|(name, _)| name != "_score" && name != "_doc");
    Ok(fields)
}

fn no_sort() -> PredictError {
    PredictError::invalid(format!(
        "field 'sort' must be a field's name, an object with one field and its order ('asc' or \
         'desc'), or a list of at most {MAX_FIELDS} of these"
    ))
}

fn patterns(given: Option<&Value>) -> Result<Vec<String>, PredictError> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let texts = match given {
        None | Some(Value::Null) => Some(Vec::new()),
        Some(Value::String(text)) => Some(vec![text.clone()]),
        Some(Value::Array(texts)) if texts.len() <= MAX_FIELDS => texts.iter().map(text).collect(),
        Some(_) => None,
    };
    texts.ok_or_else(|| {
        PredictError::invalid(format!(
            "field '_source' must be true, false, a name, a list of at most {MAX_FIELDS}, or an \
             object with 'includes' and 'excludes'"
        ))
    })
}

#[cfg(test)]
mod tests;
