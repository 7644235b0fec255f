//! Warm-up runs before the first request, as `config.pbtxt` declares them (Triton's
//! `model_warmup`). The inputs are zeros, in the declared number and shapes.

use std::sync::Arc;
use std::time::Duration;

use arrow_array::{
    ArrayRef, BooleanArray, FixedSizeListArray, Int32Array, ListArray, PrimitiveArray, RecordBatch,
    StringArray, StructArray,
};
use arrow_buffer::{Buffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::{ArrowError, DataType};
use volley_types::PredictError;

use super::Ports;
use super::run::Runner;
use crate::columns::{Port, RowLayout, dim, elements};
use volley_model_directory::triton::Sample;
use volley_onnx_runtime::failure::internal;
use volley_onnx_runtime::run_timeout::RunTimeout;
use volley_onnx_runtime::session;
use volley_onnx_runtime::session::SharedRunOptions;

/// Maximum number of values of one input.
const MAX_VALUES: usize = 1 << 26;

/// Runs a sample on each session of a replica.
///
/// # Errors
/// `InvalidInput` when the sample does not fit the graph, or the model cannot run it.
pub(super) fn up(
    runners: &mut [Runner],
    ports: &Ports,
    sample: &Sample,
    limit: Duration,
) -> Result<(), PredictError> {
    let rows = rows(ports, sample)?;
    let mut watch = RunTimeout::new(limit)?;
    for runner in runners {
        for _ in 0..sample.runs {
            let options = SharedRunOptions::new()
                .map_err(|error| internal("a run could not be set up", error.to_string()))?;
            let ran = watch.over(&Arc::new(options), |options| runner.run(&rows, options));
            ran.map_err(session::cannot_run)?;
        }
    }
    Ok(())
}

fn rows(ports: &Ports, sample: &Sample) -> Result<RecordBatch, PredictError> {
    let wrong = |port: &Port, what: &str| {
        PredictError::invalid(format!(
            "config.pbtxt: the warm-up '{}' {what} the input '{}'",
            sample.name, port.name
        ))
    };
    let columns = ports.inputs.iter().map(|port| {
        let found = sample.inputs.iter().find(|(name, _)| *name == port.name);
        let (_, shape) = found.ok_or_else(|| wrong(port, "lacks"))?;
        // A scalar for each row is declared with the shape `[1]`.
        let shape: &[usize] = match port.layout {
            RowLayout::Scalar if shape[..] == [1] => &[],
            _ => shape,
        };
        let size = elements(shape).filter(|_| port.takes(shape));
        let size = size.ok_or_else(|| wrong(port, "has another shape than"))?;
        let count = size.checked_mul(sample.rows);
        if count.is_none_or(|count| MAX_VALUES < count) {
            return Err(wrong(port, "has too many values for"));
        }
        let column = column(port, shape, size, sample.rows);
        let column =
            column.map_err(|error| internal("a warm-up could not be made", error.to_string()))?;
        Ok((port.name.clone(), column, false))
    });
    let columns: Vec<_> = columns.collect::<Result<_, PredictError>>()?;
    RecordBatch::try_from_iter_with_nullable(columns)
        .map_err(|error| internal("a warm-up could not be made", error.to_string()))
}

/// One row of one value.
pub(super) fn of_value(port: &Port, value: ArrayRef) -> Result<ArrayRef, ArrowError> {
    let shape = vec![1; port.row_shape.len()];
    lay(port, &shape, 1, 1, value)
}

/// `rows` rows of `size` zeros each.
pub(super) fn column(
    port: &Port,
    shape: &[usize],
    size: usize,
    rows: usize,
) -> Result<ArrayRef, ArrowError> {
    lay(port, shape, size, rows, zeros(&port.element, size * rows))
}

/// One row of `size` numbers with these bytes; `None` when the number of bytes differs, or the port
/// is not numeric.
pub(super) fn of_bytes(
    port: &Port,
    shape: &[usize],
    size: usize,
    bytes: &[u8],
) -> Option<Result<ArrayRef, ArrowError>> {
    let width = port.element.primitive_width()?;
    if size.checked_mul(width)? != bytes.len() {
        return None;
    }
    let buffer = Buffer::from(bytes);
    macro_rules! numbers {
        ($kind:ty) => {
            Arc::new(PrimitiveArray::<$kind>::new(
                ScalarBuffer::new(buffer, 0, size),
                None,
            ))
        };
    }
    let element = &port.element;
    let values: ArrayRef = arrow_array::downcast_primitive! {
        element => (numbers),
        _ => return None,
    };
    Some(lay(port, shape, size, 1, values))
}

/// `rows` rows of `shape`, of `size` values each.
fn lay(
    port: &Port,
    shape: &[usize],
    size: usize,
    rows: usize,
    values: ArrayRef,
) -> Result<ArrayRef, ArrowError> {
    Ok(match port.layout {
        RowLayout::Scalar => values,
        RowLayout::Fixed(_) => {
            let size = i32::try_from(size).unwrap_or(i32::MAX);
            let lists =
                FixedSizeListArray::try_new_with_length(port.item(), size, values, None, rows);
            Arc::new(lists?)
        }
        RowLayout::Variable(rank) => {
            let offsets = OffsetBuffer::from_lengths(std::iter::repeat_n(size, rows));
            let data = ListArray::try_new(port.item(), offsets, values, None)?;
            let dims = shape.iter().map(|dim| i32::try_from(*dim).unwrap_or(0));
            let dims: Vec<i32> = std::iter::repeat_n(dims, rows).flatten().collect();
            let width = i32::try_from(rank).unwrap_or(i32::MAX);
            let dims = Arc::new(Int32Array::from(dims));
            let shapes = FixedSizeListArray::try_new_with_length(dim(), width, dims, None, rows)?;
            let columns: Vec<ArrayRef> = vec![Arc::new(data), Arc::new(shapes)];
            Arc::new(StructArray::try_new(
                port.tensor_fields(rank),
                columns,
                None,
            )?)
        }
    })
}

fn zeros(element: &DataType, count: usize) -> ArrayRef {
    macro_rules! numbers {
        ($kind:ty) => {
            Arc::new(PrimitiveArray::<$kind>::from_value(
                Default::default(),
                count,
            ))
        };
    }
    arrow_array::downcast_primitive! {
        element => (numbers),
        DataType::Boolean => Arc::new(BooleanArray::from(vec![false; count])),
        _ => Arc::new(StringArray::from(vec![""; count])),
    }
}
