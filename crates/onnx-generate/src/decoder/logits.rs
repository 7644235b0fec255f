//! Reads logits in place.

use volley_onnx_runtime::ort::value::{TensorValueTypeMarker, Value};
use volley_types::PredictError;

use super::append_last;

/// Passes the last `count` numbers of `logits` to `read`, without a copy if they have 32 bits.
pub(super) fn last<T, M: TensorValueTypeMarker + ?Sized>(
    logits: &Value<M>,
    count: usize,
    read: impl FnOnce(&[f32]) -> T,
) -> Result<T, PredictError> {
    if let Ok((_, values)) = logits.try_extract_tensor::<f32>()
        && let Some(start) = values.len().checked_sub(count)
    {
        return Ok(read(&values[start..]));
    }
    let mut values = Vec::with_capacity(count);
    append_last(logits, count, &mut values)?;
    Ok(read(&values))
}
