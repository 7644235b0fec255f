//! The classification extension: the highest values of each row with their indices. Pure.

use std::cmp::{Ordering, Reverse};

use serde_json::Value;

/// The `count` highest numbers of a row in descending order, each as `value:index`, or as
/// `value:index:label` if `labels` has one for that index. Returns fewer if the row has fewer. NaN
/// is sorted last.
pub(super) fn best(row: &[Value], count: usize, labels: &[String]) -> Vec<String> {
    let count = count.min(row.len());
    let mut places: Vec<usize> = (0..row.len()).collect();
    // The first of equal values comes first, because the sorts are stable.
    match row.iter().map(whole).collect::<Option<Vec<i128>>>() {
        Some(wholes) => places.sort_by_key(|place| Reverse(wholes[*place])),
        None => places.sort_by(|a, b| descending(&row[*a], &row[*b])),
    }
    places.truncate(count);
    let told = places.into_iter();
    told.map(|place| {
        let value = text(&row[place]);
        match labels.get(place) {
            Some(label) => format!("{value}:{place}:{label}"),
            None => format!("{value}:{place}"),
        }
    })
    .collect()
}

fn whole(value: &Value) -> Option<i128> {
    let signed = value.as_i64().map(i128::from);
    signed.or_else(|| value.as_u64().map(i128::from))
}

fn descending(a: &Value, b: &Value) -> Ordering {
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => b.total_cmp(&a),
        (a, b) => a.is_none().cmp(&b.is_none()),
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::Number(number) if number.is_f64() => {
            format!("{:.6}", number.as_f64().unwrap_or(f64::NAN))
        }
        Value::Number(number) => number.to_string(),
        _ => "nan".to_owned(),
    }
}

#[cfg(test)]
mod tests;
