//! Converts maps from class to number, one for each row, to a column of lists with one number for
//! each class.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use arrow_array::{ArrayRef, FixedSizeListArray, Float32Array};
use volley_onnx_runtime::ort::value::{DynSequenceValueType, DynValue, Map, MapValueType, Value};
use volley_types::PredictError;

use crate::columns::Port;
use volley_onnx_runtime::failure::internal;
use volley_onnx_runtime::graph::Classes;

/// Memory of one entry of a map in bytes: a node of the library's map with its key and allocation.
/// Keys of more than 15 bytes take their length in addition.
const ENTRY_BYTES: u64 = 96;

/// Memory of the maps of one row in bytes. They lie outside of the runs' arena.
pub(crate) fn row_bytes(outputs: &[Port]) -> u64 {
    let classes = outputs.iter().filter_map(|port| port.classes.as_ref());
    let of = |classes: &Classes| match classes {
        Classes::Numbers(classes) => ENTRY_BYTES.saturating_mul(classes.len() as u64),
        Classes::Texts(classes) => {
            let bytes = classes.iter().map(|class| ENTRY_BYTES + class.len() as u64);
            bytes.sum()
        }
    };
    classes.map(of).sum()
}

/// Creates the column of the output of `port` for `rows` rows.
///
/// # Errors
/// `Internal` when the number of maps is not `rows`, or a map has other classes.
pub(super) fn column(
    port: &Port,
    classes: &Classes,
    value: DynValue,
    rows: usize,
) -> Result<ArrayRef, PredictError> {
    let maps: Value<DynSequenceValueType> = value.downcast().map_err(unreadable)?;
    let numbers = match classes {
        Classes::Numbers(classes) => {
            let maps = maps.try_extract_sequence::<MapValueType<i64, f32>>();
            let maps = maps.map_err(unreadable)?;
            let read = |map: &Map<i64, f32>| map.try_extract_key_values::<i64, f32>();
            numbers(classes, maps.iter().map(read), rows)?
        }
        Classes::Texts(classes) => {
            let maps = maps.try_extract_sequence::<MapValueType<String, f32>>();
            let maps = maps.map_err(unreadable)?;
            let read = |map: &Map<String, f32>| map.try_extract_key_values::<String, f32>();
            numbers(classes, maps.iter().map(read), rows)?
        }
    };
    let size = i32::try_from(classes.len())
        .map_err(|error| internal("an output is too large", error.to_string()))?;
    let numbers = Arc::new(Float32Array::from(numbers));
    let list = FixedSizeListArray::try_new_with_length(port.item(), size, numbers, None, rows);
    let list = list
        .map_err(|error| internal("an output cannot be put into its column", error.to_string()))?;
    Ok(Arc::new(list))
}

/// The numbers of all rows, in the order of `classes`.
fn numbers<K: Eq + Hash>(
    classes: &[K],
    maps: impl ExactSizeIterator<Item = volley_onnx_runtime::ort::Result<Vec<(K, f32)>>>,
    rows: usize,
) -> Result<Vec<f32>, PredictError> {
    let broken = || {
        internal(
            "the model returned maps with other rows or classes than declared",
            "",
        )
    };
    if maps.len() != rows {
        return Err(broken());
    }
    let places: HashMap<&K, usize> = classes.iter().zip(0..).collect();
    let mut numbers = vec![f32::NAN; rows * classes.len()];
    for (row, map) in numbers.chunks_exact_mut(classes.len()).zip(maps) {
        let map = map.map_err(unreadable)?;
        if map.len() != classes.len() {
            return Err(broken());
        }
        for (class, number) in map {
            let place = places.get(&class).ok_or_else(broken)?;
            row[*place] = number;
        }
    }
    Ok(numbers)
}

fn unreadable(error: volley_onnx_runtime::ort::Error) -> PredictError {
    internal("an output could not be read", error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_take_memory_for_each_class() {
        let port = |classes| Port::of_classes("p", classes);
        let numbers = port(Classes::Numbers(vec![0, 1, 2]));
        let texts = port(Classes::Texts(vec!["versicolor".to_owned()]));
        assert_eq!(row_bytes(&[numbers, texts]), 4 * ENTRY_BYTES + 10);
        assert_eq!(row_bytes(&[]), 0);
    }

    #[test]
    fn maps_in_any_order_fill_the_classes_order() {
        let maps = [vec![("a", 1.0), ("b", 2.0)], vec![("b", 4.0), ("a", 3.0)]];
        let maps = maps.map(Ok::<_, volley_onnx_runtime::ort::Error>);
        let read = numbers(&["b", "a"], maps.into_iter(), 2).unwrap();
        assert_eq!(read, [2.0, 1.0, 4.0, 3.0]);
    }

    #[test]
    fn maps_of_other_classes_or_rows_are_no_column() {
        let one = || {
            [Ok::<_, volley_onnx_runtime::ort::Error>(vec![
                (1, 1.0),
                (2, 0.0),
            ])]
            .into_iter()
        };
        assert!(numbers(&[1, 2], one(), 1).is_ok());
        assert!(numbers(&[1, 2], one(), 2).is_err());
        assert!(numbers(&[1, 3], one(), 1).is_err());
        assert!(numbers(&[1, 2, 3], one(), 1).is_err());
    }
}
