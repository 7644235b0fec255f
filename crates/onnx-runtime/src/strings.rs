//! String tensors, whose elements are arbitrary bytes.
//!
//! The binding's safe functions only accept and return UTF-8 without zero bytes. ONNX Runtime's own
//! strings have neither limit, so this module transfers other elements as bytes, through `unsafe`
//! calls.

#![allow(
    unsafe_code,
    reason = "elements that are no text; see the module's text"
)]

use std::borrow::Cow;
use std::ptr::NonNull;

use ort::AsPointer;
use ort::value::{DynValue, Tensor, Utf8Data, ValueType};

/// An element in the form that the binding accepts.
#[derive(Clone)]
struct Element(Vec<u8>);

impl Utf8Data for Element {
    fn as_utf8_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Creates a string tensor of `shape` with these elements, in row-major order.
///
/// # Errors
/// ONNX Runtime's own, for example when the shape does not fit the number of elements.
pub fn tensor(shape: Vec<i64>, elements: &[Cow<'_, [u8]>]) -> Result<Tensor<String>, ort::Error> {
    let has_zero = |element: &[u8]| element.contains(&0);
    let given = elements.iter().map(|element| match element.as_ref() {
        element if has_zero(element) => Element(Vec::new()),
        element => Element(element.to_vec()),
    });
    let given: Vec<Element> = given.collect();
    let mut tensor = Tensor::from_string_array((shape, given.as_slice()))?;
    for (index, element) in elements.iter().enumerate() {
        if has_zero(element) {
            put(&mut tensor, index, element)?;
        }
    }
    Ok(tensor)
}

/// Sets the element at `index`, which must exist, to `bytes`.
fn put(tensor: &mut Tensor<String>, index: usize, bytes: &[u8]) -> Result<(), ort::Error> {
    let mut buffer = std::ptr::null_mut();
    // SAFETY: the tensor is a string tensor with an element at `index`. The call resizes that
    // element to `bytes.len()` bytes and returns their address.
    let status = unsafe {
        (ort::api().GetResizedStringTensorElementBuffer)(
            tensor.ptr_mut(),
            index,
            bytes.len(),
            &raw mut buffer,
        )
    };
    // SAFETY: the status comes from the call above and is checked exactly once.
    unsafe { ort::Error::result_from_status(status) }?;
    if let Some(buffer) = NonNull::new(buffer) {
        // SAFETY: the buffer has `bytes.len()` bytes, belongs to the tensor, which is mutably
        // borrowed, and does not overlap with `bytes`.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.as_ptr().cast(), bytes.len())
        };
    }
    Ok(())
}

/// The elements of a string tensor in one buffer, in row-major order.
pub struct Contents {
    /// The tensor's shape.
    pub shape: Vec<i64>,
    bytes: Vec<u8>,
    /// Start of each element in `bytes`.
    starts: Vec<usize>,
}

impl Contents {
    /// Copies the elements of `value`.
    ///
    /// # Errors
    /// ONNX Runtime's own, for example when the value is not a string tensor.
    pub fn read(value: &DynValue) -> Result<Self, ort::Error> {
        let shape: Vec<i64> = match value.dtype() {
            ValueType::Tensor { shape, .. } => shape.iter().copied().collect(),
            _ => Vec::new(),
        };
        let sizes = shape.iter().map(|dim| usize::try_from(*dim).unwrap_or(0));
        let count: usize = sizes.product();
        let mut length = 0;
        // SAFETY: the value is alive; ONNX Runtime rejects values that are not string tensors.
        let status =
            unsafe { (ort::api().GetStringTensorDataLength)(value.ptr(), &raw mut length) };
        // SAFETY: the status comes from the call above and is checked exactly once.
        unsafe { ort::Error::result_from_status(status) }?;
        let (mut bytes, mut starts) = (vec![0_u8; length], vec![0_usize; count]);
        // SAFETY: `bytes` has the length of all elements together, and `starts` has one entry per
        // element; ONNX Runtime checks both sizes.
        let status = unsafe {
            (ort::api().GetStringTensorContent)(
                value.ptr(),
                bytes.as_mut_ptr().cast(),
                length,
                starts.as_mut_ptr(),
                count,
            )
        };
        // SAFETY: the status comes from the call above and is checked exactly once.
        unsafe { ort::Error::result_from_status(status) }?;
        Ok(Self {
            shape,
            bytes,
            starts,
        })
    }

    /// Total bytes of all elements.
    pub fn bytes_len(&self) -> usize {
        self.bytes.len()
    }

    /// Iterates over the elements.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let ends = self.starts.iter().skip(1).copied();
        let ends = ends.chain(std::iter::once(self.bytes.len()));
        let spans = self.starts.iter().zip(ends);
        spans.map(|(start, end)| self.bytes.get(*start..end).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Runtime;

    #[test]
    fn any_bytes_go_in_and_come_out() {
        let library = Runtime::locate(None).expect("run scripts/get-ort.sh before the tests");
        Runtime::init(&library).unwrap();
        let elements: [&[u8]; 5] = [b"hi", b"", b"\xff\xfe", b"a\0b\0", "é".as_bytes()];
        let given = elements.map(Cow::Borrowed);
        let made = tensor(vec![5, 1], &given).unwrap().into_dyn();
        let read = Contents::read(&made).unwrap();
        assert_eq!(read.shape, [5, 1]);
        assert_eq!(read.iter().collect::<Vec<_>>(), elements);
        let none = tensor(vec![0], &[]).unwrap().into_dyn();
        assert_eq!(Contents::read(&none).unwrap().iter().count(), 0);
        let numbers = Tensor::from_array((vec![1_i64], vec![1.0_f32])).unwrap();
        assert!(Contents::read(&numbers.into_dyn()).is_err());
    }
}
