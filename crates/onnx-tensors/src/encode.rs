//! Converts ONNX tensors to columns.

use std::sync::Arc;

use arrow_array::types::{
    ArrowPrimitiveType, Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type,
    Int64Type, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{
    ArrayRef, BooleanArray, FixedSizeListArray, Int32Array, ListArray, PrimitiveArray, StringArray,
    StructArray,
};
use arrow_buffer::{ArrowNativeType, OffsetBuffer, ScalarBuffer, ToByteSlice};
use arrow_schema::{ArrowError, DataType};
use bytes::Bytes;
use half::slice::HalfFloatSliceExt;
use volley_onnx_runtime::ort::value::{DynValue, PrimitiveTensorElementType};
use volley_types::{ErrorCode, ErrorOrigin, PredictError, octets};

use super::maps;
use crate::columns::{Port, RowLayout, dim, elements};
use volley_onnx_runtime::failure::internal;
use volley_onnx_runtime::strings::Contents;

/// Outputs of at least this many bytes become columns without a copy. For smaller outputs a copy is
/// cheaper.
const LARGE_BYTES: usize = 4_096;

/// Creates the column of an output for `rows` rows.
///
/// # Errors
/// `Internal` when the output does not fit its declaration; `TooLarge` when a column cannot hold
/// it.
pub(super) fn column(
    port: &Port,
    value: DynValue,
    rows: usize,
    batched: bool,
) -> Result<ArrayRef, PredictError> {
    if let Some(classes) = &port.classes {
        return maps::column(port, classes, value, rows);
    }
    let (shape, values) = values(port, value)?;
    let row_shape: Vec<usize> = if batched {
        if shape.first() != Some(&rows) {
            let message = format!(
                "the model returned output '{}' with another number of rows than its input; its \
                 first dimension is dynamic, but is not the batch: set a fixed size in the model",
                port.name
            );
            return Err(internal(&message, format!("{shape:?} for {rows} rows")));
        }
        shape[1..].to_vec()
    } else {
        shape
    };
    if !port.gives(&row_shape) {
        let message = "the model returned an output of another shape than it declares";
        return Err(internal(message, format!("{}: {row_shape:?}", port.name)));
    }
    let broken =
        |error: ArrowError| internal("an output cannot be put into its column", error.to_string());
    match port.layout {
        RowLayout::Scalar => Ok(values),
        RowLayout::Fixed(size) => {
            let size = i32::try_from(size)
                .map_err(|error| internal("an output is too large", error.to_string()))?;
            let list =
                FixedSizeListArray::try_new_with_length(port.item(), size, values, None, rows);
            Ok(Arc::new(list.map_err(broken)?))
        }
        RowLayout::Variable(rank) => {
            let size = row_shape.iter().product();
            if elements(&[rows, size]).is_none() {
                return Err(too_large(port));
            }
            let lengths = std::iter::repeat_n(size, rows);
            let offsets = OffsetBuffer::from_lengths(lengths);
            let data = ListArray::try_new(port.item(), offsets, values, None).map_err(broken)?;
            let one_row = row_shape
                .iter()
                .map(|dim| i32::try_from(*dim).unwrap_or(i32::MAX));
            let dims: Int32Array = std::iter::repeat_n(one_row, rows)
                .flatten()
                .collect::<Vec<_>>()
                .into();
            let width = i32::try_from(rank).unwrap_or(i32::MAX);
            let dims = Arc::new(dims);
            let shapes = FixedSizeListArray::try_new_with_length(dim(), width, dims, None, rows);
            let columns: Vec<ArrayRef> = vec![Arc::new(data), Arc::new(shapes.map_err(broken)?)];
            let tensors = StructArray::try_new(port.tensor_fields(rank), columns, None);
            Ok(Arc::new(tensors.map_err(broken)?))
        }
    }
}

/// The shape and all values of an output.
fn values(port: &Port, value: DynValue) -> Result<(Vec<usize>, ArrayRef), PredictError> {
    match port.element {
        DataType::UInt16 if port.bfloat16 => {
            let (shape, bits) = taken(value, bits)?;
            Ok((
                shape,
                Arc::new(PrimitiveArray::<UInt16Type>::new(bits, None)),
            ))
        }
        DataType::Float16 => primitive::<Float16Type>(value),
        DataType::Float32 => primitive::<Float32Type>(value),
        DataType::Float64 => primitive::<Float64Type>(value),
        DataType::Int8 => primitive::<Int8Type>(value),
        DataType::Int16 => primitive::<Int16Type>(value),
        DataType::Int32 => primitive::<Int32Type>(value),
        DataType::Int64 => primitive::<Int64Type>(value),
        DataType::UInt8 => primitive::<UInt8Type>(value),
        DataType::UInt16 => primitive::<UInt16Type>(value),
        DataType::UInt32 => primitive::<UInt32Type>(value),
        DataType::UInt64 => primitive::<UInt64Type>(value),
        DataType::Boolean => {
            let (shape, values) = value.try_extract_tensor::<bool>().map_err(unreadable)?;
            Ok((sizes(shape), Arc::new(BooleanArray::from(values.to_vec()))))
        }
        DataType::Utf8 => {
            let contents = Contents::read(&value).map_err(unreadable)?;
            // Bytes that are not UTF-8 take up to twice their size.
            if i32::try_from(contents.bytes_len().saturating_mul(2)).is_err() {
                return Err(too_large(port));
            }
            let texts = StringArray::from_iter_values(contents.iter().map(octets::to_text));
            Ok((sizes(&contents.shape), Arc::new(texts)))
        }
        _ => Err(internal(
            "an output's type is not served",
            port.element.to_string(),
        )),
    }
}

fn primitive<T>(value: DynValue) -> Result<(Vec<usize>, ArrayRef), PredictError>
where
    T: ArrowPrimitiveType,
    T::Native: PrimitiveTensorElementType,
{
    let (shape, values) = taken(value, numbers::<T::Native>)?;
    Ok((shape, Arc::new(PrimitiveArray::<T>::new(values, None))))
}

/// Reads the shape and the numbers of an output in place.
type TensorReader<N> =
    for<'v> fn(&'v DynValue) -> volley_onnx_runtime::ort::Result<(Vec<usize>, &'v [N])>;

fn numbers<N: PrimitiveTensorElementType>(
    value: &DynValue,
) -> volley_onnx_runtime::ort::Result<(Vec<usize>, &[N])> {
    let (shape, values) = value.try_extract_tensor::<N>()?;
    Ok((sizes(shape), values))
}

fn bits(value: &DynValue) -> volley_onnx_runtime::ort::Result<(Vec<usize>, &[u16])> {
    let (shape, values) = value.try_extract_tensor::<half::bf16>()?;
    Ok((sizes(shape), values.reinterpret_cast()))
}

/// An output as a column's buffer. Large outputs are not copied.
fn taken<N: ArrowNativeType>(
    value: DynValue,
    read: TensorReader<N>,
) -> Result<(Vec<usize>, ScalarBuffer<N>), PredictError> {
    let (shape, values) = read(&value).map_err(unreadable)?;
    let count = values.len();
    let values = if size_of_val(values) < LARGE_BYTES {
        values.to_vec().into()
    } else {
        let bytes = Bytes::from_owner(Memory { value, read });
        ScalarBuffer::new(bytes.into(), 0, count)
    };
    Ok((shape, values))
}

/// The memory of an output, owned by a column.
struct Memory<N: 'static> {
    value: DynValue,
    read: TensorReader<N>,
}

impl<N: ArrowNativeType> AsRef<[u8]> for Memory<N> {
    fn as_ref(&self) -> &[u8] {
        // `taken` has already read the value with the same reader, so this does not fail.
        (self.read)(&self.value).map_or(&[], |(_, values)| values.to_byte_slice())
    }
}

fn sizes(shape: &[i64]) -> Vec<usize> {
    shape
        .iter()
        .map(|dim| usize::try_from(*dim).unwrap_or(0))
        .collect()
}

fn too_large(port: &Port) -> PredictError {
    let message = format!(
        "output '{}' is too large for one batch; send fewer rows",
        port.name
    );
    PredictError::new(ErrorCode::TooLarge, message).with_origin(ErrorOrigin::Model)
}

fn unreadable(error: volley_onnx_runtime::ort::Error) -> PredictError {
    internal("an output could not be read", error.to_string())
}
