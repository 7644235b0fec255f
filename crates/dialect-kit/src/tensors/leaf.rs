//! Builders of a column's values from JSON. Pure.

use std::sync::Arc;

use arrow_array::builder::GenericStringBuilder;
use arrow_array::types::{
    ArrowPrimitiveType, Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type,
    Int64Type, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{ArrayRef, BooleanArray, OffsetSizeTrait, PrimitiveArray};
use arrow_buffer::BooleanBufferBuilder;
use arrow_schema::{DataType, Field};
use serde_json::Value;
use volley_types::signature::is_bfloat16;

/// A JSON value that is not an array.
#[derive(Clone, Copy, Debug)]
pub(super) enum Scalar<'a> {
    Bool(bool),
    Signed(i64),
    Unsigned(u64),
    Float(f64),
    Text(&'a str),
    /// Unsupported: null or an object.
    Other,
}

impl<'a> Scalar<'a> {
    pub(super) fn of(value: &'a Value) -> Self {
        match value {
            Value::Bool(value) => Self::Bool(*value),
            Value::String(text) => Self::Text(text),
            Value::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
                (Some(whole), _, _) => Self::Signed(whole),
                (None, Some(whole), _) => Self::Unsigned(whole),
                (None, None, Some(float)) => Self::Float(float),
                (None, None, None) => Self::Other,
            },
            Value::Null | Value::Array(_) | Value::Object(_) => Self::Other,
        }
    }

    fn float(self) -> Option<f64> {
        match self {
            Self::Float(value) => Some(value),
            Self::Signed(value) => Some(value as f64),
            Self::Unsigned(value) => Some(value as f64),
            Self::Bool(_) | Self::Text(_) | Self::Other => None,
        }
    }

    /// The value as a whole number, also for the notation `3.0`.
    fn whole(self) -> Option<i128> {
        match self {
            Self::Signed(value) => Some(value.into()),
            Self::Unsigned(value) => Some(value.into()),
            // Larger floats are not exact.
            Self::Float(value) => (value.fract() == 0.0 && value.abs() <= 9_007_199_254_740_992.0)
                .then_some(value as i128),
            Self::Bool(_) | Self::Text(_) | Self::Other => None,
        }
    }
}

/// Builder of one column's values in order.
pub(super) trait Leaf {
    /// Appends one.
    ///
    /// # Errors
    /// What it must be.
    fn push(&mut self, value: Scalar<'_>) -> Result<(), String>;
    /// Makes room for so many more, of so many bytes where they are texts.
    fn reserve(&mut self, values: usize, bytes: usize);
    fn len(&self) -> usize;
    /// What each must be.
    fn wanted(&self) -> String;
    fn finish(self: Box<Self>) -> ArrayRef;
}

/// A builder for values of the type of `item`; `None` if JSON has no such values.
pub(super) fn leaf(item: &Field) -> Option<Box<dyn Leaf>> {
    Some(match item.data_type() {
        DataType::UInt16 if is_bfloat16(item) => floats::<UInt16Type>(|value| {
            let near = half::bf16::from_f64(value);
            near.is_finite().then(|| near.to_bits())
        }),
        DataType::Float16 => floats::<Float16Type>(|value| {
            Some(half::f16::from_f64(value)).filter(|near| near.is_finite())
        }),
        DataType::Float32 => {
            floats::<Float32Type>(|value| Some(value as f32).filter(|near| near.is_finite()))
        }
        DataType::Float64 => floats::<Float64Type>(Some),
        DataType::Int8 => wholes::<Int8Type>(),
        DataType::Int16 => wholes::<Int16Type>(),
        DataType::Int32 => wholes::<Int32Type>(),
        DataType::Int64 => wholes::<Int64Type>(),
        DataType::UInt8 => wholes::<UInt8Type>(),
        DataType::UInt16 => wholes::<UInt16Type>(),
        DataType::UInt32 => wholes::<UInt32Type>(),
        DataType::UInt64 => wholes::<UInt64Type>(),
        DataType::Boolean => Box::new(Truths(BooleanBufferBuilder::new(0))),
        DataType::Utf8 => texts::<i32>(),
        DataType::LargeUtf8 => texts::<i64>(),
        _ => return None,
    })
}

fn floats<T: ArrowPrimitiveType>(cast: fn(f64) -> Option<T::Native>) -> Box<dyn Leaf> {
    let values = Vec::new();
    Box::new(Floats::<T> { values, cast })
}

fn wholes<T: ArrowPrimitiveType>() -> Box<dyn Leaf>
where
    T::Native: TryFrom<i128>,
{
    Box::new(Wholes::<T>(Vec::new()))
}

fn texts<O: OffsetSizeTrait>() -> Box<dyn Leaf> {
    Box::new(Texts::<O>(GenericStringBuilder::new()))
}

struct Floats<T: ArrowPrimitiveType> {
    values: Vec<T::Native>,
    cast: fn(f64) -> Option<T::Native>,
}

impl<T: ArrowPrimitiveType> Leaf for Floats<T> {
    fn push(&mut self, value: Scalar<'_>) -> Result<(), String> {
        let number = value.float().ok_or_else(|| self.wanted())?;
        let beyond = || format!("{number:?} is out of range for {}", T::DATA_TYPE);
        self.values.push((self.cast)(number).ok_or_else(beyond)?);
        Ok(())
    }

    fn reserve(&mut self, values: usize, _: usize) {
        self.values.reserve_exact(values);
    }

    fn len(&self) -> usize {
        self.values.len()
    }

    fn wanted(&self) -> String {
        "must be a number".to_owned()
    }

    fn finish(self: Box<Self>) -> ArrayRef {
        Arc::new(PrimitiveArray::<T>::new(self.values.into(), None))
    }
}

struct Wholes<T: ArrowPrimitiveType>(Vec<T::Native>);

impl<T: ArrowPrimitiveType> Leaf for Wholes<T>
where
    T::Native: TryFrom<i128>,
{
    fn push(&mut self, value: Scalar<'_>) -> Result<(), String> {
        let whole = value.whole();
        let fits = whole.and_then(|whole| T::Native::try_from(whole).ok());
        self.0.push(fits.ok_or_else(|| self.wanted())?);
        Ok(())
    }

    fn reserve(&mut self, values: usize, _: usize) {
        self.0.reserve_exact(values);
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn wanted(&self) -> String {
        format!("must be a whole number of type {}", T::DATA_TYPE)
    }

    fn finish(self: Box<Self>) -> ArrayRef {
        Arc::new(PrimitiveArray::<T>::new(self.0.into(), None))
    }
}

struct Truths(BooleanBufferBuilder);

impl Leaf for Truths {
    fn push(&mut self, value: Scalar<'_>) -> Result<(), String> {
        match value {
            Scalar::Bool(value) => self.0.append(value),
            _ => return Err(self.wanted()),
        }
        Ok(())
    }

    fn reserve(&mut self, values: usize, _: usize) {
        self.0.reserve(values);
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn wanted(&self) -> String {
        "must be true or false".to_owned()
    }

    fn finish(mut self: Box<Self>) -> ArrayRef {
        Arc::new(BooleanArray::new(self.0.finish(), None))
    }
}

struct Texts<O: OffsetSizeTrait>(GenericStringBuilder<O>);

impl<O: OffsetSizeTrait> Leaf for Texts<O> {
    fn push(&mut self, value: Scalar<'_>) -> Result<(), String> {
        let Scalar::Text(text) = value else {
            return Err(self.wanted());
        };
        let bytes = self.0.values_slice().len() + text.len();
        if O::from_usize(bytes).is_none() {
            return Err("has more text than a column can contain; send fewer rows".to_owned());
        }
        self.0.append_value(text);
        Ok(())
    }

    fn reserve(&mut self, values: usize, bytes: usize) {
        if arrow_array::builder::ArrayBuilder::is_empty(&self.0) {
            self.0 = GenericStringBuilder::with_capacity(values, bytes);
        }
    }

    fn len(&self) -> usize {
        arrow_array::builder::ArrayBuilder::len(&self.0)
    }

    fn wanted(&self) -> String {
        "must be a string".to_owned()
    }

    fn finish(mut self: Box<Self>) -> ArrayRef {
        Arc::new(self.0.finish())
    }
}
