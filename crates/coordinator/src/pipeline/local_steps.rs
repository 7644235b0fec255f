//! Steps that the coordinator computes. Pure: columns in, columns or rows out.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Float64Type};
use arrow_array::{Array, ArrayRef, Float32Array, StringArray};
use arrow_select::interleave::interleave;
use volley_types::chat::text_at;
use volley_types::{ErrorCode, ParamValue, PredictError};

use super::table::{DomainRows, Table};

/// Elements of one list.
pub(super) const MAX_FAN_OUT: usize = 1_024;
/// Rows of one step in one wave.
pub(super) const MAX_ROWS: usize = 16_384;

/// The row index of each element, and the elements.
pub(super) type Elements = (Vec<u32>, ArrayRef);

fn too_many(what: &str, limit: usize) -> PredictError {
    PredictError::new(
        ErrorCode::TooLarge,
        format!("makes {what}, and the limit is {limit}"),
    )
}

fn place(row: usize) -> u32 {
    // The limits on rows are far below `u32::MAX`.
    u32::try_from(row).unwrap_or(u32::MAX)
}

/// A parameter's list, once for each of `rows` rows.
pub(super) fn explode_parameter(
    name: &str,
    value: Option<&ParamValue>,
    rows: usize,
) -> Result<Elements, PredictError> {
    let wrong = || {
        PredictError::invalid(format!(
            "needs the parameter '{name}': a list of texts, or of objects with a 'text'"
        ))
    };
    let Some(ParamValue::Json(json)) = value else {
        return Err(wrong());
    };
    let list: Vec<serde_json::Value> = serde_json::from_str(json).map_err(|_| wrong())?;
    if MAX_FAN_OUT < list.len() {
        return Err(too_many("a list of too many elements", MAX_FAN_OUT));
    }
    if MAX_ROWS < list.len() * rows {
        return Err(too_many("too many rows", MAX_ROWS));
    }
    let texts = list.iter().map(|element| {
        let text = element.as_str().or_else(|| element.get("text")?.as_str());
        text.ok_or_else(wrong)
    });
    let texts: Vec<_> = texts.collect::<Result<_, _>>()?;
    let places = (0..rows).flat_map(|row| std::iter::repeat_n(place(row), texts.len()));
    let all: Vec<&str> = std::iter::repeat_n(&texts, rows)
        .flatten()
        .copied()
        .collect();
    Ok((places.collect(), Arc::new(StringArray::from(all))))
}

/// A column's lists.
pub(super) fn explode_column(column: &ArrayRef) -> Result<Elements, PredictError> {
    let lists = column.as_list_opt::<i32>().ok_or_else(|| {
        PredictError::internal("a step returned a value of the wrong kind", "no lists")
    })?;
    let mut places = Vec::new();
    let mut indices = Vec::new();
    for row in (0..lists.len()).filter(|row| lists.is_valid(*row)) {
        let (from, to) = (lists.value_offsets()[row], lists.value_offsets()[row + 1]);
        let (from, to) = (from.unsigned_abs(), to.unsigned_abs());
        if MAX_FAN_OUT < (to - from) as usize {
            return Err(too_many("a list of too many elements", MAX_FAN_OUT));
        }
        indices.extend(from..to);
        places.extend((from..to).map(|_| place(row)));
        if MAX_ROWS < places.len() {
            return Err(too_many("too many rows", MAX_ROWS));
        }
    }
    Ok((places, super::table::pick(lists.values(), indices)?))
}

/// The numbers of a column; NaN where there is none.
fn numbers(column: &ArrayRef) -> Result<Vec<f64>, PredictError> {
    if let Some(values) = column.as_primitive_opt::<Float32Type>() {
        return Ok(values
            .iter()
            .map(|value| value.map_or(f64::NAN, f64::from))
            .collect());
    }
    let values = column.as_primitive_opt::<Float64Type>();
    let values = values.ok_or_else(|| {
        PredictError::internal("a step returned a value of the wrong kind", "no scores")
    })?;
    Ok(values
        .iter()
        .map(|value| value.unwrap_or(f64::NAN))
        .collect())
}

/// Indices of the `k` rows with the highest scores for each row of the request, best first. NaN
/// scores come last.
pub(super) fn top_k(
    rows: &DomainRows,
    scores: &ArrayRef,
    k: usize,
) -> Result<Vec<u32>, PredictError> {
    let (roots, scores) = (rows.roots(), numbers(scores)?);
    let rank = |row: usize| match scores[row].is_nan() {
        true => f64::NEG_INFINITY,
        false => scores[row],
    };
    let mut order: Vec<usize> = (0..rows.len).collect();
    // Stable: rows of the same score keep their order.
    order.sort_by(|a, b| {
        let by_root = roots[*a].cmp(&roots[*b]);
        by_root.then_with(|| rank(*b).total_cmp(&rank(*a)))
    });
    let groups = order.chunk_by(|a, b| roots[*a] == roots[*b]);
    let kept = groups.flat_map(|group| group.iter().take(k));
    Ok(kept.map(|row| place(*row)).collect())
}

/// The cosines of two columns of vectors.
pub(super) fn cosines(left: &ArrayRef, right: &ArrayRef) -> Result<ArrayRef, PredictError> {
    let cosines = (0..left.len()).map(|row| {
        let (left, right) = (vector(left, row)?, vector(right, row)?);
        let (left, right) = (floats(&left)?, floats(&right)?);
        if left.len() != right.len() {
            let message = format!(
                "compares vectors of {} and {} numbers",
                left.len(),
                right.len()
            );
            return Err(PredictError::invalid(message));
        }
        let product = |a: &[f32], b: &[f32]| -> f32 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
        let norms = (product(left, left) * product(right, right)).sqrt();
        Ok(match norms == 0.0 {
            true => 0.0,
            false => product(left, right) / norms,
        })
    });
    let cosines: Vec<f32> = cosines.collect::<Result<_, PredictError>>()?;
    Ok(Arc::new(Float32Array::from(cosines)))
}

fn vector(column: &ArrayRef, row: usize) -> Result<ArrayRef, PredictError> {
    let list = column.as_list_opt::<i32>().map(|lists| lists.value(row));
    let fixed = || column.as_fixed_size_list_opt().map(|it| it.value(row));
    list.or_else(fixed).ok_or_else(no_vectors)
}

fn floats(vector: &ArrayRef) -> Result<&[f32], PredictError> {
    let vector = vector.as_primitive_opt::<Float32Type>();
    vector.map(|it| &it.values()[..]).ok_or_else(no_vectors)
}

fn no_vectors() -> PredictError {
    PredictError::internal(
        "a step returned a value of the wrong kind",
        "no vectors of f32",
    )
}

/// The rows of `above` that no branch has.
pub(super) fn rest(above: &DomainRows, branches: &[&Table]) -> Vec<u32> {
    let mut taken = vec![false; above.len];
    for (_, places) in branches.iter().filter_map(|branch| branch.rows.above()) {
        for place in places {
            taken[*place as usize] = true;
        }
    }
    let free = (0..above.len).filter(|row| !taken[*row]);
    free.map(place).collect()
}

/// For each row of `above`, the first of `branches` that has it, and its index there.
///
/// # Errors
/// `InvalidInput` if no branch has a row.
pub(super) fn owners(
    above: &DomainRows,
    branches: &[&DomainRows],
) -> Result<Vec<(usize, usize)>, PredictError> {
    let mut owners = vec![None; above.len];
    for (index, branch) in branches.iter().enumerate() {
        let (_, places) = branch.above().unwrap_or((&EMPTY, &[]));
        for (row, place) in places.iter().enumerate() {
            owners[*place as usize].get_or_insert((index, row));
        }
    }
    let owners = owners.into_iter().collect::<Option<_>>();
    owners.ok_or_else(|| {
        PredictError::invalid(
            "merges branches that leave out a row; add a branch with 'otherwise' for the \
             remaining rows",
        )
    })
}

static EMPTY: std::sync::LazyLock<Arc<DomainRows>> =
    std::sync::LazyLock::new(|| DomainRows::root(0));

/// One column of branches, in the order of the rows above.
pub(super) fn merge(
    columns: &[&ArrayRef],
    owners: &[(usize, usize)],
) -> Result<ArrayRef, PredictError> {
    let columns: Vec<&dyn Array> = columns.iter().map(|column| column.as_ref()).collect();
    interleave(&columns, owners)
        .map_err(|error| PredictError::internal("branches could not be merged", error))
}

/// The texts of a column; empty for nulls.
pub(super) fn texts(column: &ArrayRef) -> Vec<String> {
    let rows = 0..column.len();
    rows.map(|row| text_at(column, row).unwrap_or_default())
        .collect()
}

#[cfg(test)]
mod tests;
