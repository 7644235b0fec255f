//! Declared inputs and outputs, and the check that they fit the graph.

use std::collections::BTreeSet;
use std::path::Path;

use volley_onnx_runtime::ort::value::{Outlet, TensorElementType, ValueType};

use super::fields::{messages, plain, string, word};
use super::text::{Message, Value};

/// Maximum size of a labels file, in bytes. Labels are sent to every coordinator.
const MAX_LABEL_BYTES: u64 = 64 << 10;

/// A declared input or output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tensor {
    pub name: String,
    pub kind: TensorElementType,
    pub dims: Vec<i64>,
    /// The shape in the graph of a tensor that is declared with `dims`.
    pub inner: Option<Vec<i64>>,
    /// File name of the labels of its values.
    pub labels: Option<String>,
}

impl Tensor {
    /// Reads all tensors of a field. Appends the names of subfields without effect to `idle`.
    pub(crate) fn all(
        message: &Message,
        field: &str,
        idle: &mut Vec<String>,
    ) -> Result<Vec<Self>, String> {
        let read = |tensor: &Message| {
            let name = string(tensor, "name")?.ok_or_else(|| format!("an {field} has no name"))?;
            if tensor.last("allow_ragged_batch").is_some_and(is_true) {
                return Err(format!("'allow_ragged_batch' of '{name}' is not supported"));
            }
            let told = ["is_shape_tensor", "optional", "is_non_linear_format_io"];
            let told = told
                .iter()
                .filter(|told| tensor.last(told).is_some_and(is_true));
            idle.extend(told.map(|told| format!("{field}.{told}")));
            let kind = word(tensor, "data_type")?.unwrap_or_default();
            let tensor = Self {
                dims: numbers(tensor, "dims")?,
                inner: match messages(tensor, "reshape")?.pop() {
                    Some(reshape) => Some(numbers(reshape, "shape")?),
                    None => None,
                },
                labels: string(tensor, "label_filename")?.filter(|file| !file.is_empty()),
                kind: element(&kind)
                    .ok_or_else(|| format!("'{name}' has the unknown data type '{kind}'"))?,
                name,
            };
            if let Some(dim) = tensor.dims.iter().find(|dim| **dim < -1) {
                let name = &tensor.name;
                return Err(format!(
                    "'dims' of '{name}' has the size {dim}; an open dimension is -1"
                ));
            }
            tensor.reshaped()?;
            Ok(tensor)
        };
        let tensors = messages(message, field)?.into_iter().map(read);
        let tensors: Vec<Self> = tensors.collect::<Result<_, String>>()?;
        let mut seen = BTreeSet::new();
        match tensors.iter().find(|tensor| !seen.insert(&tensor.name)) {
            Some(twice) => Err(format!(
                "the {field} '{}' is listed twice; list it once",
                twice.name
            )),
            None => Ok(tensors),
        }
    }

    /// Rejects a `reshape` that changes the number of values or has dynamic dimensions.
    fn reshaped(&self) -> Result<(), String> {
        let Self {
            name, dims, inner, ..
        } = self;
        let Some(inner) = inner else {
            return Ok(());
        };
        let count = |dims: &[i64]| {
            let mut sizes = dims.iter().map(|dim| usize::try_from(*dim).ok());
            sizes.try_fold(1_usize, |count, size| count.checked_mul(size?))
        };
        match (count(dims), count(inner)) {
            (None, _) | (_, None) => Err(format!(
                "'reshape' of '{name}' has a dynamic dimension, which is not supported"
            )),
            (declared, graph) if declared == graph => Ok(()),
            _ => Err(format!(
                "'reshape' of '{name}' is {inner:?}, which does not have as many values as {dims:?}"
            )),
        }
    }

    /// Checks that the graph's input or output fits. `batched` means that the graph has a batch
    /// dimension before the declared shape, `shapeless` that the graph may not declare a shape.
    pub(crate) fn check(
        &self,
        outlet: &Outlet,
        batched: bool,
        shapeless: bool,
    ) -> Result<(), String> {
        match outlet.dtype() {
            ValueType::Tensor { ty, shape, .. } if shapeless && shape.is_empty() => {
                let rows = batched.then_some(-1);
                let dims = self.inner.as_ref().unwrap_or(&self.dims);
                let shape: Vec<i64> = rows.into_iter().chain(dims.iter().copied()).collect();
                self.fits(*ty, &shape, batched)
            }
            ValueType::Tensor { ty, shape, .. } => self.fits(*ty, shape, batched),
            _ => Ok(()),
        }
    }

    pub(crate) fn fits(
        &self,
        kind: TensorElementType,
        shape: &[i64],
        batched: bool,
    ) -> Result<(), String> {
        let Self { name, dims, .. } = self;
        let dims = self.inner.as_ref().unwrap_or(dims);
        if self.kind != kind {
            let told = format!(
                "'{name}' is declared as {}, but is {kind} in the graph",
                self.kind
            );
            return Err(told);
        }
        let shape = match (batched, shape.split_first()) {
            (false, _) => shape,
            (true, Some((first, rest))) if *first < 0 => rest,
            (true, _) => {
                return Err(format!(
                    "'max_batch_size' is set, but the first dimension of '{name}' is not a batch \
                     in the graph; set it to 0"
                ));
            }
        };
        // A scalar for each row is declared with the shape `[1]`.
        let scalars = shape.is_empty() && dims[..] == [1];
        let fits = |(dim, own): (&i64, &i64)| *dim < 0 || *own < 0 || dim == own;
        if scalars || (dims.len() == shape.len() && dims.iter().zip(shape).all(fits)) {
            return Ok(());
        }
        Err(format!(
            "'{name}' is declared as {dims:?}, but is {shape:?} in the graph"
        ))
    }

    /// Reads the labels from the file beside the configuration.
    pub(super) fn read_labels(&self, directory: &Path) -> Result<Option<Vec<String>>, String> {
        let Some(file) = &self.labels else {
            return Ok(None);
        };
        let name = &self.name;
        if file.contains(['/', '\\']) || file == ".." {
            return Err(format!(
                "'label_filename' of '{name}' is not the name of a file"
            ));
        }
        let path = directory.join(file);
        let size = std::fs::metadata(&path)
            .map_err(|_| format!("the file in 'label_filename' of '{name}' does not exist"))?;
        if !size.is_file() || MAX_LABEL_BYTES < size.len() {
            return Err(format!(
                "the labels of '{name}' are not a file, or are larger than 64 KiB"
            ));
        }
        let text = std::fs::read_to_string(&path)
            .map_err(|_| format!("the labels of '{name}' cannot be read, or are not UTF-8"))?;
        Ok(Some(text.lines().map(str::to_owned).collect()))
    }
}

fn is_true(value: &Value) -> bool {
    *value == Value::Word("true".to_owned())
}

fn numbers(message: &Message, field: &str) -> Result<Vec<i64>, String> {
    let numbers = message.all(field).map(|value| plain(value, field));
    numbers.collect()
}

pub(crate) fn element(name: &str) -> Option<TensorElementType> {
    Some(match name {
        "TYPE_BOOL" => TensorElementType::Bool,
        "TYPE_UINT8" => TensorElementType::Uint8,
        "TYPE_UINT16" => TensorElementType::Uint16,
        "TYPE_UINT32" => TensorElementType::Uint32,
        "TYPE_UINT64" => TensorElementType::Uint64,
        "TYPE_INT8" => TensorElementType::Int8,
        "TYPE_INT16" => TensorElementType::Int16,
        "TYPE_INT32" => TensorElementType::Int32,
        "TYPE_INT64" => TensorElementType::Int64,
        "TYPE_FP16" => TensorElementType::Float16,
        "TYPE_FP32" => TensorElementType::Float32,
        "TYPE_FP64" => TensorElementType::Float64,
        "TYPE_BF16" => TensorElementType::Bfloat16,
        "TYPE_STRING" => TensorElementType::String,
        _ => return None,
    })
}
