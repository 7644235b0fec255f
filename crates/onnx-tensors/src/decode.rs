//! Converts columns to ONNX tensors. Contiguous rows become views of the columns' buffers.

use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type,
    Int64Type, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef, FixedSizeListArray, ListArray};
use arrow_buffer::OffsetBuffer;
use arrow_schema::DataType;
use half::slice::HalfBitsSliceExt;
use volley_onnx_runtime::ort::session::SessionInputValue;
use volley_onnx_runtime::ort::value::{PrimitiveTensorElementType, Tensor, TensorRef};
use volley_types::{PredictError, octets};

use crate::columns::{Port, RowLayout};
use volley_onnx_runtime::failure::internal;
use volley_onnx_runtime::strings;

/// A column, validated once for all runs of its batch.
pub(super) struct InputColumn<'p> {
    port: &'p Port,
    values: ArrayRef,
    places: RowOffsets,
    shapes: Option<Vec<Vec<usize>>>,
}

/// The range of values of each row.
enum RowOffsets {
    /// The first row's start, and a constant number of values per row.
    Even(usize, usize),
    /// Offsets between rows.
    Offsets(OffsetBuffer<i32>),
}

impl RowOffsets {
    fn of(&self, row: usize) -> (usize, usize) {
        match self {
            Self::Even(start, size) => (start + row * size, start + (row + 1) * size),
            Self::Offsets(offsets) => (offsets[row] as usize, offsets[row + 1] as usize),
        }
    }
}

impl<'p> InputColumn<'p> {
    /// Validates `column`, which has the port's type.
    ///
    /// # Errors
    /// `InvalidInput` with the column and the row that is null or has a wrong shape.
    pub(super) fn read(port: &'p Port, column: &ArrayRef) -> Result<Self, PredictError> {
        if let Some(row) = (0..column.len()).find(|row| column.is_null(*row)) {
            return Err(PredictError::invalid(format!(
                "input column '{}', row {row} is null; the model accepts no nulls",
                port.name
            )));
        }
        let (values, places, shapes) = match port.layout {
            RowLayout::Scalar => (column.clone(), RowOffsets::Even(0, 1), None),
            RowLayout::Fixed(size) => {
                let list = column.as_fixed_size_list();
                let places = RowOffsets::Even(start(list), size);
                (list.values().clone(), places, None)
            }
            RowLayout::Variable(rank) => {
                let (data, dims) = parts(port, column, rank)?;
                let shape = |row: usize| {
                    let dims = &dims[row * rank..(row + 1) * rank];
                    row_shape(port, dims, data.value_length(row)).map_err(|what| {
                        let name = &port.name;
                        PredictError::invalid(format!("input column '{name}', row {row}: {what}"))
                    })
                };
                let shapes = (0..column.len()).map(shape).collect::<Result<_, _>>()?;
                let places = RowOffsets::Offsets(data.offsets().clone());
                (data.values().clone(), places, Some(shapes))
            }
        };
        Ok(Self {
            port,
            values,
            places,
            shapes,
        })
    }

    /// The shape of each row, if shapes are variable.
    pub(super) fn shapes(&self) -> Option<&[Vec<usize>]> {
        self.shapes.as_deref()
    }

    /// The values of `rows`, which all have the same shape.
    ///
    /// # Errors
    /// `InvalidInput` with the column when a value is null.
    pub(super) fn leaves(&self, rows: &[usize], batched: bool) -> Result<Leaves, PredictError> {
        let mut parts: Vec<ArrayRef> = Vec::new();
        let mut run: Option<(usize, usize)> = None;
        for row in rows {
            let (start, end) = self.places.of(*row);
            run = match run {
                Some((from, to)) if to == start => Some((from, end)),
                Some((from, to)) => {
                    parts.push(self.values.slice(from, to - from));
                    Some((start, end))
                }
                None => Some((start, end)),
            };
        }
        if let Some((from, to)) = run {
            parts.push(self.values.slice(from, to - from));
        }
        if parts.iter().any(|part| part.null_count() != 0) {
            return Err(PredictError::invalid(format!(
                "input column '{}' has nulls inside a tensor; the model accepts no nulls",
                self.port.name
            )));
        }
        let mut shape: Vec<i64> = Vec::new();
        if batched {
            shape.push(rows.len() as i64);
        }
        match (&self.shapes, rows.first()) {
            (Some(shapes), Some(row)) => shape.extend(shapes[*row].iter().map(|dim| *dim as i64)),
            _ => shape.extend(&self.port.graph_shape),
        }
        Ok(Leaves { shape, parts })
    }
}

/// The values of some rows, and the shape of their tensor.
pub(super) struct Leaves {
    shape: Vec<i64>,
    // The minimum number of slices of the column's values; views of its buffers.
    parts: Vec<ArrayRef>,
}

impl Leaves {
    /// Creates the tensor. Numbers of contiguous rows are not copied.
    pub(super) fn tensor(&self, port: &Port) -> Result<SessionInputValue<'_>, PredictError> {
        match port.element {
            DataType::UInt16 if port.bfloat16 => self.bfloat16(),
            DataType::Float16 => self.primitive::<Float16Type>(),
            DataType::Float32 => self.primitive::<Float32Type>(),
            DataType::Float64 => self.primitive::<Float64Type>(),
            DataType::Int8 => self.primitive::<Int8Type>(),
            DataType::Int16 => self.primitive::<Int16Type>(),
            DataType::Int32 => self.primitive::<Int32Type>(),
            DataType::Int64 => self.primitive::<Int64Type>(),
            DataType::UInt8 => self.primitive::<UInt8Type>(),
            DataType::UInt16 => self.primitive::<UInt16Type>(),
            DataType::UInt32 => self.primitive::<UInt32Type>(),
            DataType::UInt64 => self.primitive::<UInt64Type>(),
            DataType::Boolean => {
                let parts = self.parts.iter();
                let values: Vec<bool> = parts
                    .flat_map(|part| part.as_boolean().values().iter())
                    .collect();
                let tensor = Tensor::from_array((self.shape.clone(), values));
                Ok(tensor.map_err(refused)?.into())
            }
            DataType::Utf8 => self.strings(),
            _ => Err(internal(
                "an input's type is not served",
                port.element.to_string(),
            )),
        }
    }

    fn primitive<T>(&self) -> Result<SessionInputValue<'_>, PredictError>
    where
        T: ArrowPrimitiveType,
        T::Native: PrimitiveTensorElementType + std::fmt::Debug + Clone + 'static,
    {
        if let [part] = self.parts.as_slice()
            && !part.is_empty()
        {
            let values: &[T::Native] = part.as_primitive::<T>().values();
            let tensor = TensorRef::from_array_view((self.shape.clone(), values));
            return Ok(tensor.map_err(refused)?.into());
        }
        let mut values: Vec<T::Native> = Vec::new();
        for part in &self.parts {
            values.extend_from_slice(part.as_primitive::<T>().values());
        }
        let tensor = Tensor::from_array((self.shape.clone(), values));
        Ok(tensor.map_err(refused)?.into())
    }

    fn bfloat16(&self) -> Result<SessionInputValue<'_>, PredictError> {
        if let [part] = self.parts.as_slice()
            && !part.is_empty()
        {
            let bits: &[u16] = part.as_primitive::<UInt16Type>().values();
            let values: &[half::bf16] = bits.reinterpret_cast();
            let tensor = TensorRef::from_array_view((self.shape.clone(), values));
            return Ok(tensor.map_err(refused)?.into());
        }
        let parts = self.parts.iter();
        let bits = parts.flat_map(|part| part.as_primitive::<UInt16Type>().values().iter());
        let values: Vec<half::bf16> = bits.map(|bits| half::bf16::from_bits(*bits)).collect();
        let tensor = Tensor::from_array((self.shape.clone(), values));
        Ok(tensor.map_err(refused)?.into())
    }

    fn strings(&self) -> Result<SessionInputValue<'_>, PredictError> {
        let mut texts: Vec<&str> = Vec::new();
        for part in &self.parts {
            match part.as_string_opt::<i32>() {
                Some(small) => texts.extend(small.iter().flatten()),
                None => texts.extend(part.as_string::<i64>().iter().flatten()),
            }
        }
        let elements: Vec<_> = texts.iter().map(|text| octets::to_bytes(text)).collect();
        let tensor = strings::tensor(self.shape.clone(), &elements);
        Ok(tensor.map_err(refused)?.into())
    }
}

fn refused(error: volley_onnx_runtime::ort::Error) -> PredictError {
    internal("an input tensor could not be made", error.to_string())
}

/// The `data` of a tensor column, and all its dimensions, `rank` for each row.
fn parts<'a>(
    port: &Port,
    column: &'a ArrayRef,
    rank: usize,
) -> Result<(&'a ListArray, Vec<i32>), PredictError> {
    let wrong = |what| PredictError::invalid(format!("input column '{}' {what}", port.name));
    let tensors = column.as_struct();
    let (data, shapes) = tensors
        .column_by_name("data")
        .and_then(|data| data.as_list_opt::<i32>())
        .zip(
            tensors
                .column_by_name("shape")
                .and_then(|shape| shape.as_fixed_size_list_opt()),
        )
        .ok_or_else(|| wrong("is not a tensor: it has no 'data' and 'shape'"))?;
    if data.null_count() != 0 || shapes.null_count() != 0 {
        return Err(wrong(
            "has a null 'data' or 'shape'; the model accepts no nulls",
        ));
    }
    let dims = shapes.values().slice(start(shapes), shapes.len() * rank);
    let dims = dims
        .as_primitive_opt::<Int32Type>()
        .filter(|dims| dims.null_count() == 0)
        .ok_or_else(|| wrong("has a null dimension"))?;
    Ok((data, dims.values().to_vec()))
}

/// Offset of the first row's values.
fn start(list: &FixedSizeListArray) -> usize {
    if list.is_empty() {
        0
    } else {
        list.value_offset(0) as usize
    }
}

/// The shape of a row with `found` values. The error describes the mismatch.
fn row_shape(port: &Port, dims: &[i32], found: i32) -> Result<Vec<usize>, String> {
    let shape: Option<Vec<usize>> = dims.iter().map(|dim| usize::try_from(*dim).ok()).collect();
    let shape = shape.ok_or_else(|| format!("shape {dims:?} has a negative dimension"))?;
    if !port.takes(&shape) {
        return Err(format!(
            "has shape {shape:?}, but the model expects {}",
            port.shape_text()
        ));
    }
    let elements = shape
        .iter()
        .try_fold(1_usize, |product, dim| product.checked_mul(*dim));
    if elements != usize::try_from(found).ok() {
        return Err(format!(
            "has {found} values, which does not match the shape {shape:?}"
        ));
    }
    Ok(shape)
}
