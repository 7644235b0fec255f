//! Tensors of strings, whose elements are any bytes.
//!
//! The library's safe ways take and give UTF-8 without zero bytes. ONNX Runtime's own strings have
//! neither limit, so what is more than that goes to it and comes from it in bytes here, through
//! `unsafe` calls.

#![allow(
    unsafe_code,
    reason = "elements that are no text; see the module's text"
)]

use std::borrow::Cow;
use std::ptr::NonNull;

use ort::AsPointer;
use ort::value::{DynValue, Tensor, Utf8Data, ValueType};

/// An element, in the form that the library takes.
#[derive(Clone)]
struct Element(Vec<u8>);

impl Utf8Data for Element {
    fn as_utf8_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// A tensor of `shape` with these elements.
///
/// # Errors
/// ONNX Runtime's own, such as for a shape of another size.
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

/// Puts `bytes` into the element at `index`, which the tensor has.
fn put(tensor: &mut Tensor<String>, index: usize, bytes: &[u8]) -> Result<(), ort::Error> {
    let mut buffer = std::ptr::null_mut();
    // SAFETY: the tensor is one of strings and has an element at `index`; the call makes that
    // element `bytes.len()` bytes long and tells where they are.
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
        // SAFETY: the buffer has room for as many bytes, belongs to the tensor that is borrowed
        // mutably, and does not overlap with `bytes`.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.as_ptr().cast(), bytes.len())
        };
    }
    Ok(())
}

/// The elements of a tensor of strings, one behind the other.
pub struct Contents {
    /// The tensor's shape.
    pub shape: Vec<i64>,
    bytes: Vec<u8>,
    /// Where each begins.
    starts: Vec<usize>,
}

impl Contents {
    /// Those of `value`.
    ///
    /// # Errors
    /// ONNX Runtime's own, such as for a value that is no tensor of strings.
    pub fn read(value: &DynValue) -> Result<Self, ort::Error> {
        let shape: Vec<i64> = match value.dtype() {
            ValueType::Tensor { shape, .. } => shape.iter().copied().collect(),
            _ => Vec::new(),
        };
        let sizes = shape.iter().map(|dim| usize::try_from(*dim).unwrap_or(0));
        let count: usize = sizes.product();
        let mut length = 0;
        // SAFETY: the value is alive; ONNX Runtime refuses one that is no tensor of strings.
        let status =
            unsafe { (ort::api().GetStringTensorDataLength)(value.ptr(), &raw mut length) };
        // SAFETY: the status comes from the call above and is checked exactly once.
        unsafe { ort::Error::result_from_status(status) }?;
        let (mut bytes, mut starts) = (vec![0_u8; length], vec![0_usize; count]);
        // SAFETY: `bytes` has room for all of the contents, and `starts` for a number for each
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

    /// How many bytes there are in all.
    pub fn bytes_len(&self) -> usize {
        self.bytes.len()
    }

    /// Each element.
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
