//! Tensors of numbers of another type than the model's, where all their values fit. Pure.

use arrow_array::ArrayRef;
use arrow_schema::{DataType, Field};
use volley_types::PredictError;
use volley_types::signature::{cast_column, is_bfloat16};

/// How the values of a tensor of the type `given` are read for the model's `item`; `None` where
/// none of them can be cast to it.
pub(super) fn source(given: &str, item: &Field) -> Option<Field> {
    let wanted = item.data_type();
    if is_bfloat16(item) || !(wanted.is_integer() || wanted.is_floating()) {
        return None;
    }
    let data_type = match given {
        "INT8" => DataType::Int8,
        "INT16" => DataType::Int16,
        "INT32" => DataType::Int32,
        "INT64" => DataType::Int64,
        "UINT8" => DataType::UInt8,
        "UINT16" => DataType::UInt16,
        "UINT32" => DataType::UInt32,
        "UINT64" => DataType::UInt64,
        "FP16" => DataType::Float16,
        "FP32" => DataType::Float32,
        "FP64" => DataType::Float64,
        _ => return None,
    };
    Some(Field::new("value", data_type, false))
}

/// The values of the input `name` as the model's `item`, as Arrow Flight casts them.
///
/// # Errors
/// `InvalidInput` with the value that cannot be cast without loss.
pub(super) fn cast(name: &str, values: &ArrayRef, item: &Field) -> Result<ArrayRef, PredictError> {
    let declared = item.clone().with_name("value");
    cast_column(values, &declared).map_err(|error| {
        // The row in the message is that of the value.
        let what = error.message.split_once(": ").map(|(_, what)| what);
        let what = what.unwrap_or(&error.message);
        PredictError::invalid(format!("input '{name}': {what}"))
    })
}
