//! Tensors as JSON: nested arrays in, OpenSearch's `{name, data_type, shape, data}` out.
//!
//! A column is one input or output, a row is one item. A column contains one of: a scalar per row
//! (a primitive, text or boolean column), a tensor of a fixed shape per row (`FixedSizeList`, its
//! shape in the `arrow.fixed_shape_tensor` extension), or a tensor of any shape per row (a struct
//! of `data` and `shape`, `arrow.variable_shape_tensor`).

pub mod columns;
mod decode;
mod encode;
mod leaf;
mod rows;

use arrow_schema::Field;
use serde_json::Value;

pub use decode::flat_values;
pub use encode::append;
pub use encode::to_json;
pub use rows::from_json;
pub use rows::{RequestRows, from_text, texts};

/// The extension's `shape`, for a `FixedSizeList` of `size`.
pub fn fixed_shape(field: &Field, size: i32) -> Vec<usize> {
    let metadata = field.metadata().get("ARROW:extension:metadata");
    let shape = metadata
        .and_then(|text| serde_json::from_str::<Value>(text).ok())
        .and_then(|value| {
            let shape = value.get("shape")?.as_array()?;
            shape
                .iter()
                .map(|dim| usize::try_from(dim.as_u64()?).ok())
                .collect::<Option<Vec<_>>>()
        });
    let size = usize::try_from(size).unwrap_or(0);
    shape
        .filter(|shape| shape.iter().product::<usize>() == size)
        .unwrap_or_else(|| vec![size])
}

#[cfg(test)]
mod tests;
