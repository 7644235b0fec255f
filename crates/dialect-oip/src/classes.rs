//! The classification extension: the highest values of each row with their indices. Pure.

use std::cmp::Ordering;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type,
    Int64Type, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef};
use arrow_schema::{DataType, Field};
use volley_types::signature::is_bfloat16;

/// A value of an output.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Score {
    Whole(i128),
    Real(f64),
}

/// Appends the numbers of an array to `scores`; `None` if it has no numbers.
pub(super) fn append(item: &Field, values: &ArrayRef, scores: &mut Vec<Score>) -> Option<()> {
    match values.data_type() {
        DataType::UInt16 if is_bfloat16(item) => add::<UInt16Type>(values, scores, |bits| {
            Score::Real(f32::from_bits(u32::from(bits) << 16).into())
        }),
        DataType::Float16 => add::<Float16Type>(values, scores, |v| Score::Real(v.to_f64())),
        DataType::Float32 => add::<Float32Type>(values, scores, |v| Score::Real(v.into())),
        DataType::Float64 => add::<Float64Type>(values, scores, Score::Real),
        DataType::Int8 => add::<Int8Type>(values, scores, |v| Score::Whole(v.into())),
        DataType::Int16 => add::<Int16Type>(values, scores, |v| Score::Whole(v.into())),
        DataType::Int32 => add::<Int32Type>(values, scores, |v| Score::Whole(v.into())),
        DataType::Int64 => add::<Int64Type>(values, scores, |v| Score::Whole(v.into())),
        DataType::UInt8 => add::<UInt8Type>(values, scores, |v| Score::Whole(v.into())),
        DataType::UInt16 => add::<UInt16Type>(values, scores, |v| Score::Whole(v.into())),
        DataType::UInt32 => add::<UInt32Type>(values, scores, |v| Score::Whole(v.into())),
        DataType::UInt64 => add::<UInt64Type>(values, scores, |v| Score::Whole(v.into())),
        _ => return None,
    }
    Some(())
}

fn add<T: ArrowPrimitiveType>(
    values: &ArrayRef,
    scores: &mut Vec<Score>,
    score: impl Fn(T::Native) -> Score,
) {
    let values = values.as_primitive::<T>().iter();
    scores.extend(values.map(|value| value.map_or(Score::Real(f64::NAN), &score)));
}

/// The `count` highest numbers of a row in descending order, each as `value:index`, or as
/// `value:index:label` if `labels` has one for that index. Returns fewer if the row has fewer. NaN
/// is sorted last.
pub(super) fn best(row: &[Score], count: usize, labels: &[String]) -> Vec<String> {
    let mut places: Vec<usize> = (0..row.len()).collect();
    // The first of equal values comes first, because the sort is stable.
    places.sort_by(|a, b| descending(row[*a], row[*b]));
    places.truncate(count);
    let told = places.into_iter();
    told.map(|place| {
        let value = text(row[place]);
        match labels.get(place) {
            Some(label) => format!("{value}:{place}:{label}"),
            None => format!("{value}:{place}"),
        }
    })
    .collect()
}

/// All numbers of a row are of one kind, except those that are missing.
fn descending(a: Score, b: Score) -> Ordering {
    match (a, b) {
        (Score::Whole(a), Score::Whole(b)) => b.cmp(&a),
        (Score::Real(a), Score::Real(b)) => {
            let last = a.is_nan().cmp(&b.is_nan());
            last.then_with(|| b.total_cmp(&a))
        }
        (Score::Whole(_), Score::Real(_)) => Ordering::Less,
        (Score::Real(_), Score::Whole(_)) => Ordering::Greater,
    }
}

fn text(score: Score) -> String {
    match score {
        Score::Whole(value) => value.to_string(),
        Score::Real(value) if value.is_nan() => "nan".to_owned(),
        Score::Real(value) => format!("{value:.6}"),
    }
}

#[cfg(test)]
mod tests;
