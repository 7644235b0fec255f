//! The nested lists of a tensor in JSON. Pure.

use serde_json::Value;

/// The elements of `data`, which is flat or nested as `shape`. Dimensions of size 1 may be left out
/// or added.
///
/// # Errors
/// A description of the contradiction.
pub(super) fn elements<'v>(data: &'v Value, shape: &[usize]) -> Result<Vec<&'v Value>, String> {
    let mut flat = Vec::new();
    flatten(data, &mut flat);
    let size = shape
        .iter()
        .try_fold(1_usize, |size, dim| size.checked_mul(*dim));
    if size != Some(flat.len()) {
        let found = flat.len();
        return Err(format!(
            "has {found} values, which does not match its shape {shape:?}"
        ));
    }
    let sizes: Vec<usize> = shape.iter().copied().filter(|size| *size != 1).collect();
    if fits(data, &sizes) {
        Ok(flat)
    } else {
        Err(format!(
            "has nested lists whose lengths do not match its shape {shape:?}"
        ))
    }
}

fn flatten<'v>(data: &'v Value, flat: &mut Vec<&'v Value>) {
    match data {
        Value::Array(values) => values.iter().for_each(|value| flatten(value, flat)),
        value => flat.push(value),
    }
}

/// Whether the lists in `data` have these sizes, none of which is 1. A list without lists may hold
/// all elements of the remaining dimensions.
fn fits(data: &Value, sizes: &[usize]) -> bool {
    let Value::Array(values) = data else {
        return sizes.is_empty();
    };
    if !values.iter().any(Value::is_array) {
        return values.len() == sizes.iter().product::<usize>();
    }
    match (values.as_slice(), sizes.split_first()) {
        ([only], _) => fits(only, sizes),
        (values, Some((size, rest))) => {
            values.len() == *size
                && values
                    .iter()
                    .all(|value| value.is_array() && fits(value, rest))
        }
        (_, None) => false,
    }
}

#[cfg(test)]
mod tests;
