//! Tests for zero copies: inputs enter ONNX Runtime without a copy, and large outputs leave it
//! without one.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{ArrowPrimitiveType, Float16Type, Float32Type, Int64Type, UInt16Type};
use arrow_array::{Array, ArrayRef, FixedSizeListArray, PrimitiveArray};
use arrow_schema::Field;
use volley_onnx_runtime::ort::value::{PrimitiveTensorElementType, Tensor, TensorElementType};

use super::decode::InputColumn;
use super::encode;
use crate::columns::Port;
use volley_onnx_runtime::Runtime;

/// Elements of one row.
const WIDTH: usize = 64;

fn library() {
    let library = Runtime::locate(None).expect("run scripts/get-ort.sh before the tests");
    Runtime::init(&library).unwrap();
}

fn port(element: TensorElementType) -> Port {
    Port::new("x", element, &[-1, WIDTH as i64], true).unwrap()
}

fn rows<T: ArrowPrimitiveType>(rows: usize) -> (ArrayRef, *const T::Native) {
    let values = PrimitiveArray::<T>::from_value(T::default_value(), rows * WIDTH);
    let start = values.values().as_ptr();
    let item = Arc::new(Field::new("item", T::DATA_TYPE, false));
    let list = FixedSizeListArray::try_new(item, WIDTH as i32, Arc::new(values), None);
    (Arc::new(list.unwrap()), start)
}

/// The offset in bytes of the tensor's first number from the column's first number; `None` when it
/// is outside the column.
fn offset_of_input<T>(element: TensorElementType, taken: std::ops::Range<usize>) -> Option<usize>
where
    T: ArrowPrimitiveType,
    T::Native: PrimitiveTensorElementType,
{
    let port = port(element);
    let (column, start) = rows::<T>(100);
    let column = column.slice(10, 80);
    let input = InputColumn::read(&port, &column).unwrap();
    let rows: Vec<usize> = taken.collect();
    let leaves = input.leaves(&rows, true).unwrap();
    let tensor = leaves.tensor(&port).unwrap();
    let (shape, values) = tensor.try_extract_tensor::<T::Native>().unwrap();
    assert_eq!(shape[..], [rows.len() as i64, WIDTH as i64]);
    let distance = (values.as_ptr() as usize).checked_sub(start as usize)?;
    (distance < 100 * WIDTH * size_of::<T::Native>()).then_some(distance)
}

#[test]
fn rows_that_lie_together_go_in_where_they_are() {
    library();
    let row = |row: usize, bytes: usize| Some(row * WIDTH * bytes);
    let floats = offset_of_input::<Float32Type>(TensorElementType::Float32, 0..80);
    assert_eq!(floats, row(10, 4));
    let halves = offset_of_input::<Float16Type>(TensorElementType::Float16, 3..40);
    assert_eq!(halves, row(13, 2));
    let wide = offset_of_input::<Int64Type>(TensorElementType::Int64, 79..80);
    assert_eq!(wide, row(89, 8));
}

#[test]
fn large_outputs_become_columns_where_they_are_and_small_ones_are_copied() {
    library();
    for (count, copied) in [(1_usize, true), (200, false)] {
        let numbers: Vec<f32> = (0..count * WIDTH).map(|number| number as f32).collect();
        let tensor = Tensor::from_array(([count, WIDTH], numbers.clone())).unwrap();
        let start = tensor.extract_tensor().1.as_ptr();
        let port = port(TensorElementType::Float32);
        let column = encode::column(&port, tensor.into_dyn(), count, true).unwrap();
        let values = column.as_fixed_size_list().values();
        let values = values.as_primitive::<Float32Type>().values();
        assert_eq!(values[..], numbers);
        assert_eq!(values.as_ptr() != start, copied, "{count} rows");
    }
    let halves = vec![half::bf16::from_f32(1.5); 200 * WIDTH];
    let tensor = Tensor::from_array(([200, WIDTH], halves)).unwrap();
    let start = tensor.extract_tensor().1.as_ptr();
    let port = port(TensorElementType::Bfloat16);
    let column = encode::column(&port, tensor.into_dyn(), 200, true).unwrap();
    let bits = column.as_fixed_size_list().values();
    let bits = bits.as_primitive::<UInt16Type>().values();
    assert_eq!((bits[0], bits.as_ptr().cast()), (0x3fc0, start));
}
