//! Maps a model's inputs and outputs to Arrow columns. Pure.
//!
//! If the first dimension of every input and output is dynamic, and the dimension names do not
//! contradict it, that dimension is the batch, and one row is one item. Otherwise one row is one
//! complete run. The rest of the shape is one of:
//! - empty: a plain column
//! - fixed: `FixedSizeList` with the `arrow.fixed_shape_tensor` extension
//! - dynamic: a struct of `data` and `shape` with the `arrow.variable_shape_tensor` extension

use std::collections::HashMap;
use std::sync::Arc;

use arrow_schema::{DataType, Field, Fields};
use volley_onnx_runtime::ort::value::TensorElementType;
use volley_types::PredictError;
use volley_types::signature::BFLOAT16;

use volley_onnx_runtime::graph::Classes;

/// One input or output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Port {
    /// Its name in the model.
    pub(crate) name: String,
    /// Its element type.
    pub(crate) element: DataType,
    /// Whether the element is a bfloat16; the Arrow column then holds its 16 bits.
    pub(crate) bfloat16: bool,
    /// The shape of one row; negative dimensions are dynamic.
    pub(crate) row_shape: Vec<i64>,
    /// The shape of such a row in the graph; it differs from `row_shape` after a reshape.
    pub(crate) graph_shape: Vec<i64>,
    /// The layout of a row in its column.
    pub(crate) layout: RowLayout,
    /// The classes of an output that holds a map from class to number for each row. The column has
    /// the numbers in the order of the classes.
    pub(crate) classes: Option<Classes>,
}

/// The layout of a row in its column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowLayout {
    /// One value.
    Scalar,
    /// A fixed number of values, always of the same shape.
    Fixed(usize),
    /// Values with a shape, which has this number of dimensions.
    Variable(usize),
}

/// Whether the first dimension is the batch. It must be dynamic in every port. If the model names
/// its dimensions, all `inputs` must share the name of the first one, and no output may have
/// another input dimension's name for its first one. Each port is its shape and the names of its
/// dimensions, which are empty if unnamed.
pub(crate) fn is_batched(
    inputs: &[(Vec<i64>, Vec<String>)],
    outputs: &[(Vec<i64>, Vec<String>)],
) -> bool {
    let dynamic = |(shape, _): &(Vec<i64>, Vec<String>)| shape.first().is_some_and(|dim| *dim < 0);
    let first = |(_, names): &(Vec<i64>, Vec<String>)| {
        names.first().filter(|name| !name.is_empty()).cloned()
    };
    let mut names: Vec<_> = inputs.iter().filter_map(first).collect();
    names.dedup();
    let later = |name: &String| {
        let of = inputs.iter().flat_map(|(_, names)| names.iter().skip(1));
        !names.contains(name) && of.clone().any(|other| other == name)
    };
    !inputs.is_empty()
        && inputs.iter().chain(outputs).all(dynamic)
        && names.len() <= 1
        && !outputs.iter().filter_map(first).any(|name| later(&name))
}

impl Port {
    /// Creates the port called `name`, of `element` type and declared `shape`.
    ///
    /// # Errors
    /// `InvalidInput` when its type has no Arrow counterpart, or a row has too many elements.
    pub(crate) fn new(
        name: &str,
        element: TensorElementType,
        shape: &[i64],
        batched: bool,
    ) -> Result<Self, PredictError> {
        let bfloat16 = element == TensorElementType::Bfloat16;
        let element = arrow_type(element).ok_or_else(|| {
            PredictError::invalid(format!(
                "input or output '{name}' has type {element}, which has no Arrow counterpart; \
                 cast it inside the model"
            ))
        })?;
        let row_shape = if batched {
            shape[1..].to_vec()
        } else {
            shape.to_vec()
        };
        let fixed: Option<Vec<usize>> = row_shape
            .iter()
            .map(|dim| usize::try_from(*dim).ok())
            .collect();
        let layout = match fixed {
            Some(dims) if dims.is_empty() => RowLayout::Scalar,
            Some(dims) => RowLayout::Fixed(elements(&dims).ok_or_else(|| {
                PredictError::invalid(format!(
                    "input or output '{name}' has more elements per row than a column can contain"
                ))
            })?),
            None => RowLayout::Variable(row_shape.len()),
        };
        Ok(Self {
            name: name.to_owned(),
            element,
            bfloat16,
            graph_shape: row_shape.clone(),
            row_shape,
            layout,
            classes: None,
        })
    }

    /// Creates the port of an output that holds, for each row, a map from one of `classes` to a
    /// number.
    pub(crate) fn of_classes(name: &str, classes: Classes) -> Self {
        let row_shape = vec![i64::try_from(classes.len()).unwrap_or(i64::MAX)];
        Self {
            name: name.to_owned(),
            element: DataType::Float32,
            bfloat16: false,
            graph_shape: row_shape.clone(),
            row_shape,
            layout: RowLayout::Fixed(classes.len()),
            classes: Some(classes),
        }
    }

    /// Reshapes the rows: callers see the shape `seen`, and the graph the shape `inner`.
    ///
    /// # Errors
    /// `InvalidInput` when the graph's rows do not have the shape `inner`, or `seen` has a
    /// different number of values.
    pub(crate) fn reshaped(self, seen: &[i64], inner: &[i64]) -> Result<Self, PredictError> {
        let fits = |(own, inner): (&i64, &i64)| *own < 0 || own == inner;
        let same =
            self.graph_shape.len() == inner.len() && self.graph_shape.iter().zip(inner).all(fits);
        let dims = |shape: &[i64]| {
            let dims = shape.iter().map(|dim| usize::try_from(*dim).ok());
            dims.collect::<Option<Vec<usize>>>()
        };
        let size = dims(seen).and_then(|dims| elements(&dims));
        match (size, dims(inner).and_then(|dims| elements(&dims))) {
            (Some(size), Some(graph)) if same && size == graph => Ok(Self {
                row_shape: seen.to_vec(),
                graph_shape: inner.to_vec(),
                layout: RowLayout::Fixed(size),
                ..self
            }),
            _ => Err(PredictError::invalid(format!(
                "input or output '{}' cannot be reshaped: a row has the shape {} in the graph",
                self.name,
                self.shape_text()
            ))),
        }
    }

    /// The Arrow field of the column.
    pub(crate) fn field(&self) -> Field {
        match self.layout {
            RowLayout::Scalar => self.value_field(&self.name),
            RowLayout::Fixed(size) => {
                let size = i32::try_from(size).unwrap_or(i32::MAX);
                let list = DataType::FixedSizeList(self.item(), size);
                let shape = serde_json::json!({ "shape": self.row_shape }).to_string();
                Field::new(&self.name, list, false)
                    .with_metadata(extension("arrow.fixed_shape_tensor", shape))
            }
            RowLayout::Variable(rank) => {
                let uniform: Vec<_> = self
                    .row_shape
                    .iter()
                    .map(|dim| (0 <= *dim).then_some(*dim))
                    .collect();
                let shape = serde_json::json!({ "uniform_shape": uniform }).to_string();
                Field::new(
                    &self.name,
                    DataType::Struct(self.tensor_fields(rank)),
                    false,
                )
                .with_metadata(extension("arrow.variable_shape_tensor", shape))
            }
        }
    }

    /// The field of a list's items.
    pub(crate) fn item(&self) -> Arc<Field> {
        Arc::new(self.value_field("item"))
    }

    /// The field of a plain column, or of the items of a list.
    fn value_field(&self, name: &str) -> Field {
        let field = Field::new(name, self.element.clone(), false);
        if self.bfloat16 {
            field.with_metadata(extension(BFLOAT16, String::new()))
        } else {
            field
        }
    }

    /// The fields `data` and `shape` of a tensor of variable shape.
    pub(crate) fn tensor_fields(&self, rank: usize) -> Fields {
        let rank = i32::try_from(rank).unwrap_or(i32::MAX);
        Fields::from(vec![
            Field::new("data", DataType::List(self.item()), false),
            Field::new("shape", DataType::FixedSizeList(dim(), rank), false),
        ])
    }

    /// Triton's name for its element type.
    pub(crate) fn config_type(&self) -> String {
        let name = match self.element {
            _ if self.bfloat16 => "BF16".to_owned(),
            DataType::Boolean => "BOOL".to_owned(),
            DataType::Float16 => "FP16".to_owned(),
            DataType::Float32 => "FP32".to_owned(),
            DataType::Float64 => "FP64".to_owned(),
            DataType::Utf8 => "STRING".to_owned(),
            ref whole => whole.to_string().to_uppercase(),
        };
        format!("TYPE_{name}")
    }

    /// Whether rows may vary in more than floating-point values.
    pub(crate) fn is_varied(&self) -> bool {
        matches!(self.layout, RowLayout::Variable(_))
            || (self.element.is_integer() && !self.bfloat16)
            || self.element == DataType::Utf8
    }

    /// The shape of one row, for messages: `[?, 3]`.
    pub(crate) fn shape_text(&self) -> String {
        let dims = self.row_shape.iter().map(|dim| match dim {
            ..0 => "?".to_owned(),
            dim => dim.to_string(),
        });
        format!("[{}]", dims.collect::<Vec<_>>().join(", "))
    }

    /// Whether the model accepts a row of `shape`.
    pub(crate) fn takes(&self, shape: &[usize]) -> bool {
        is_of(shape, &self.row_shape)
    }

    /// Whether the graph may return a row of `shape`.
    pub(crate) fn gives(&self, shape: &[usize]) -> bool {
        is_of(shape, &self.graph_shape)
    }
}

/// Whether `shape` matches `declared`.
fn is_of(shape: &[usize], declared: &[i64]) -> bool {
    let same = |(found, declared): (&usize, &i64)| {
        *declared < 0 || usize::try_from(*declared) == Ok(*found)
    };
    shape.len() == declared.len() && shape.iter().zip(declared).all(same)
}

/// The field of one dimension of a shape.
pub(crate) fn dim() -> Arc<Field> {
    Arc::new(Field::new("item", DataType::Int32, false))
}

/// Number of elements of a tensor of `dims`; `None` if a column cannot hold them.
pub(crate) fn elements(dims: &[usize]) -> Option<usize> {
    let product = dims
        .iter()
        .try_fold(1_usize, |product, dim| product.checked_mul(*dim))?;
    i32::try_from(product).is_ok().then_some(product)
}

fn extension(name: &str, metadata: String) -> HashMap<String, String> {
    HashMap::from([
        ("ARROW:extension:name".to_owned(), name.to_owned()),
        ("ARROW:extension:metadata".to_owned(), metadata),
    ])
}

fn arrow_type(element: TensorElementType) -> Option<DataType> {
    Some(match element {
        TensorElementType::Bfloat16 => DataType::UInt16,
        TensorElementType::Float16 => DataType::Float16,
        TensorElementType::Float32 => DataType::Float32,
        TensorElementType::Float64 => DataType::Float64,
        TensorElementType::Int8 => DataType::Int8,
        TensorElementType::Int16 => DataType::Int16,
        TensorElementType::Int32 => DataType::Int32,
        TensorElementType::Int64 => DataType::Int64,
        TensorElementType::Uint8 => DataType::UInt8,
        TensorElementType::Uint16 => DataType::UInt16,
        TensorElementType::Uint32 => DataType::UInt32,
        TensorElementType::Uint64 => DataType::UInt64,
        TensorElementType::Bool => DataType::Boolean,
        TensorElementType::String => DataType::Utf8,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_batch_dimension_goes_and_the_rest_decides_the_layout() {
        let port = |shape: &[i64], names: &[&str]| {
            let names = names.iter().map(|name| (*name).to_owned());
            (shape.to_vec(), names.collect())
        };
        let plain = |shape: &[i64]| port(shape, &["", ""]);
        assert!(is_batched(&[plain(&[-1, 3])], &[plain(&[-1])]));
        assert!(!is_batched(&[plain(&[-1, 3])], &[plain(&[1, 3])]));
        assert!(
            !is_batched(&[], &[plain(&[-1])]),
            "there is nothing to count rows by"
        );
        let named = |first| port(&[-1, -1], &[first, "n"]);
        assert!(is_batched(
            &[named("rows"), named("rows")],
            &[named("made")]
        ));
        assert!(!is_batched(&[named("m"), named("k")], &[named("m")]));
        assert!(!is_batched(&[named("m")], &[named("n")]), "a transposition");
        let layout = |shape: &[i64], batched| {
            Port::new("x", TensorElementType::Float32, shape, batched)
                .unwrap()
                .layout
        };
        assert_eq!(layout(&[-1], true), RowLayout::Scalar);
        assert_eq!(layout(&[-1, 8, 8], true), RowLayout::Fixed(64));
        assert_eq!(layout(&[-1, -1], true), RowLayout::Variable(1));
        assert_eq!(layout(&[2, 3], false), RowLayout::Fixed(6));
        assert_eq!(layout(&[-1, 3], false), RowLayout::Variable(2));
        assert!(Port::new("x", TensorElementType::Float8E4M3FN, &[-1], true).is_err());
        let half = Port::new("x", TensorElementType::Bfloat16, &[-1], true).unwrap();
        assert!(volley_types::signature::is_bfloat16(&half.field()));
    }
}
